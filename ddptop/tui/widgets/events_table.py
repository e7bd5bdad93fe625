"""What happened in a job, latest first."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.draw.told import event_row
from ddptop.tui.widgets.table import Table
from ddptop.view.figures.columns import Column
from ddptop_runner.model.snapshot import Event

COLUMNS = (
    Column("day", "date", 6, drop=3),
    Column("time", "time", 8),
    Column("type", "event", 15, drop=1),
    Column("rank", "rank", 4, ">", drop=2),
    Column("message", "what happened", 34, flex=True),
)


class EventsTable(Table):
    """One row an event."""

    def __init__(self) -> None:
        super().__init__("events", COLUMNS, empty="no events yet", id="events")
        self._shown: Sequence[Event] = ()

    def show(self, events: Sequence[Event]) -> None:
        """Take the events, latest first."""
        if events == self._shown:
            return
        stayed_at_top = self.cursor_key is None or (
            bool(self._shown) and self.cursor_key == str(self._shown[0].seq)
        )
        self._shown = events
        self.set_rows([(str(event.seq), event_row(event)) for event in events])
        if events and stayed_at_top:
            self.move_to(str(events[0].seq))
