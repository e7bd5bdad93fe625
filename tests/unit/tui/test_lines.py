"""The base of every widget that updates regularly."""

from __future__ import annotations

import datetime as dt

from ddptop.style import Line, line, plain
from ddptop.tui.widgets.job import EventsTable
from ddptop.tui.widgets.lines import LinesView
from textual.app import App, ComposeResult

from ddptop_runner.model.snapshot import Event


class Rows(LinesView):
    """As many rows as there is room for."""

    DEFAULT_CSS = "Rows { height: 1; }"

    def build(self, width: int, height: int) -> list[Line]:
        return [line(f"row {number} of {height}") for number in range(height)]


class RowsApp(App[None]):
    def compose(self) -> ComposeResult:
        yield Rows()


async def test_unannounced_size_is_still_drawn() -> None:
    app = RowsApp()
    async with app.run_test(size=(30, 8)) as pilot:
        await pilot.pause()
        rows = app.query_one(Rows)
        assert len(rows._lines) == 1
        rows.styles.height = 5
        # if anything reads its size between the change and the layout, the layout sees no change,
        # and the widget is not notified
        screen = app.screen
        screen._clear_arrangement_cache()
        screen._compositor._full_map_invalidated = True
        assert screen._compositor.full_map[rows].region.height == 5
        await pilot.pause()
        assert rows.size.height == 5
        assert rows._lines[-1] == line("row 4 of 5")


class EventsApp(App[None]):
    def compose(self) -> ComposeResult:
        yield EventsTable()


async def test_a_long_event_continues_below_where_there_is_room() -> None:
    words = " ".join(f"word{number}" for number in range(30))
    messages = [words, "a short one"]
    events = [
        Event(ts=dt.datetime.now(dt.timezone.utc), seq=seq, type="notice", message=message)
        for seq, message in enumerate(messages)
    ]
    app = EventsApp()
    async with app.run_test(size=(70, 12)) as pilot:
        table = app.query_one(EventsTable)
        table.styles.height = 12
        await pilot.pause()
        table.show(events)
        text = "\n".join(plain(one) for one in table._lines)
        assert "word29" in text and "a short one" in text
        assert table.at(5, 3) == 0, "the second line belongs to the first event"
        table.move_to("1")
        row = table.cursor_line()
        assert row is not None and row > 3 and "a short one" in plain(table._lines[row])
        table.styles.height = 4
        await pilot.pause()
        text = "\n".join(plain(one) for one in table._lines)
        assert "word29" not in text and "…" in text and "a short one" in text
