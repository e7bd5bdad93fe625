"""The job's story: each event goes to the history and, as a line, to the guardian's pane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddptop_runner.clock import utc_now
from ddptop_runner.history import HistoryWriter
from ddptop_runner.model import Event


class Story:
    """Tells events in order.

    Args:
        history: where events are kept.
        show: prints one line where the person may see it.
    """

    def __init__(self, history: HistoryWriter, show: Callable[[str], None]) -> None:
        self._history = history
        self._show = show

    def tell(self, type_: str, message: str, **fields: Any) -> Event:
        """Keep and show an event; `fields` are those of `model.Event`."""
        event = self._history.event(Event(ts=utc_now(), type=type_, message=message, **fields))
        self._show(f"{event.ts.astimezone():%H:%M:%S}  {message}")
        return event
