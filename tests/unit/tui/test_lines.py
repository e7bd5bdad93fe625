"""The base of every widget that updates regularly."""

from __future__ import annotations

from ddptop.style import Line, line
from ddptop.tui.widgets.lines import LinesView
from textual.app import App, ComposeResult


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
