"""The job's log: each event goes to the history and, as a line, to the guardian's pane."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.exit_status import split_status
from ddptop_runner.job.event_text import text
from ddptop_runner.job.old_events import typed
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history import HistoryWriter


class EventLog:
    """Records events in order.

    Args:
        history: where they are kept.
        show: prints one line where the person may see it.
    """

    def __init__(self, history: HistoryWriter, show: Callable[[str], None]) -> None:
        self._history = history
        self._show = show
        self._known: set[tuple[object, ...]] = set()

    def restore(self, rows: Iterable[Event]) -> None:
        """Take over what an earlier supervisor has recorded."""
        self._known.update(map(_key, typed(list(rows))))

    def emit(self, event: ev.JobEvent) -> None:
        """Keep and show an event; one that can happen only once is left out the second time."""
        key = _key(event)
        if event.ONCE and key in self._known:
            return
        self._known.add(key)
        row = self._history.event(as_row(event))
        self._show(f"{row.ts.astimezone():%H:%M:%S}  {row.message}")


def _key(event: ev.JobEvent) -> tuple[object, ...]:
    """What makes two events the same: an attempt fails once, a rank of it exits once."""
    # a launcher may start its ranks anew within an attempt
    who = (getattr(event, "rank", None), getattr(event, "pid", None))
    return (type(event), event.attempt, *who)


def as_row(event: ev.JobEvent) -> Event:
    """As the history keeps it."""
    row = Event(
        ts=utc_now(),
        type=event.type,
        message=text(event),
        attempt=event.attempt,
        data=ev.to_data(event),
    )
    return replace(row, **_columns(event))


def _columns(event: ev.JobEvent) -> dict[str, object]:
    """What the contract has outside of `data`."""
    if isinstance(event, ev.RankStarted):
        return {"rank": event.rank, "pid": event.pid}
    if isinstance(event, ev.RankExited | ev.LauncherExited):
        exit_code, signal = (None, None) if event.status is None else split_status(event.status)
        rank = event.rank if isinstance(event, ev.RankExited) else None
        return {"rank": rank, "pid": event.pid, "exit_code": exit_code, "signal": signal}
    if isinstance(event, ev.CheckpointSaved):
        return {"rank": event.checkpoint.rank}
    cause = getattr(event, "cause", None)
    if cause is None:
        return {}
    return {
        "rank": cause.rank,
        "exit_code": cause.exit_code,
        "signal": cause.signal,
        "evidence": cause.evidence,
    }
