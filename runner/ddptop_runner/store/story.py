"""The job's story: each event goes to the history and, as a line, to the guardian's pane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddptop_runner.base.clock import utc_now
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history import HistoryWriter


class Story:
    """Tells events in order.

    Args:
        history: where events are kept.
        show: prints one line where the person may see it.
    """

    def __init__(self, history: HistoryWriter, show: Callable[[str], None]) -> None:
        self._history = history
        self._show = show
        self._told: set[tuple[object, ...]] = set()

    def recall(self, events: Iterable[Event]) -> None:
        """Know what an earlier supervisor has told already."""
        self._told.update(map(_key, events))

    def tell(self, type_: str, message: str, *, once: bool = False, **fields: Any) -> None:
        """Keep and show an event.

        Args:
            type_: its type.
            message: what happened, in words.
            once: leave it out where the same has been told of this attempt (and this rank), be it
                by a supervisor that died right after.
            fields: others of `model.Event`.
        """
        event = Event(ts=utc_now(), type=type_, message=message, **fields)
        key = _key(event)
        if once and key in self._told:
            return
        self._told.add(key)
        event = self._history.event(event)
        self._show(f"{event.ts.astimezone():%H:%M:%S}  {message}")


def _key(event: Event) -> tuple[object, ...]:
    """What makes two events the same: an attempt fails once, a rank of it exits once."""
    rank = event.rank if event.type.startswith("rank_") else None
    # a launcher may start its ranks anew within an attempt
    pid = event.pid if rank is not None or event.type == "alert" else None
    return (event.type, event.attempt, rank, pid)
