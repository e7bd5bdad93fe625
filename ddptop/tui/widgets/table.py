"""A table whose rows have keys and whose column widths do not depend on their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.message import Message

from ddptop.job.figures.columns import GAP, Column, Row, fit_columns, row_line
from ddptop.job.keys import MOVING
from ddptop.style import Line, Span, line, rule
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.lines import LinesView

HEAD_LINES = 2
"""The rule with the title, and the column names."""


class Table(LinesView, can_focus=True):
    """Rows with a cursor. It scrolls by itself; the title shows which rows are visible."""

    BINDINGS = bindings(MOVING)

    @dataclass
    class Moved(Message):
        """The cursor moved to another row."""

        table: Table
        key: str

        @property
        def control(self) -> Table:
            """The table, for @on selectors."""
            return self.table

    class HeadPicked(Moved):
        """A click on a column name; `key` is the column's key."""

    class Chosen(Moved):
        """Enter, or a click on the row under the cursor."""

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        *,
        empty: str = "",
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._columns = columns
        self._rows: list[tuple[str, Row]] = []
        self._top = 0
        self.title = title
        self.note: Line = ()
        self.empty = empty
        """The text shown if there are no rows."""
        self.cursor_key: str | None = None
        self._follows_first = False
        """Whether the cursor stays on the first row because nobody has moved it."""
        self.sorted_by = ""
        """The column to mark as sorted, if any."""

    @property
    def _index(self) -> int:
        keys = [key for key, _ in self._rows]
        return keys.index(self.cursor_key) if self.cursor_key in keys else 0

    def set_rows(self, rows: Sequence[tuple[str, Row]], note: Line = ()) -> None:
        """Replace the rows; the cursor stays on its key, or on its place if the key is gone."""
        place = self._index
        self._rows = list(rows)
        self.note = note
        keys = [key for key, _ in self._rows]
        if keys and self._follows_first:
            if self.cursor_key != keys[0]:
                self._set_cursor(keys[0])
        elif keys and self.cursor_key not in keys:
            self._set_cursor(keys[min(place, len(keys) - 1)])
        elif not keys:
            self.cursor_key = None
        self.redraw()

    def move_to(self, key: str) -> None:
        """Move the cursor to the row with a key, if it exists."""
        self._follows_first = False
        if key != self.cursor_key and any(key == row for row, _ in self._rows):
            self._set_cursor(key)
            self.redraw()

    def _set_cursor(self, key: str) -> None:
        self.cursor_key = key
        self.post_message(self.Moved(self, key))

    def action_move(self, rows: int) -> None:
        """Move the cursor by some rows."""
        if self._rows:
            index = min(len(self._rows) - 1, max(0, self._index + rows))
            self.move_to(self._rows[index][0])

    def action_page(self, pages: int) -> None:
        """Move the cursor by one page."""
        self.action_move(pages * max(1, self.size.height - HEAD_LINES))

    def action_half(self, pages: int) -> None:
        """Move the cursor by half a page."""
        self.action_move(pages * max(1, (self.size.height - HEAD_LINES) // 2))

    def action_choose(self) -> None:
        """Choose the row under the cursor."""
        if self.cursor_key is not None:
            self.post_message(self.Chosen(self, self.cursor_key))

    def rows_wanted(self) -> int:
        """Rows needed to show everything."""
        return HEAD_LINES + max(1, len(self._rows)) + bool(self.foot(self.size.width))

    def foot(self, width: int) -> Line:
        """A line below the rows that is always visible; hidden if empty."""
        return ()

    def line_of(self, key: str, row: Row, layout: Sequence[tuple[Column, int]], width: int) -> Line:
        """Draw one row in exactly `width` cells."""
        return row_line(row, layout, width)

    def build(self, width: int, height: int) -> list[Line]:
        """Build the title, column names, and the rows around the cursor."""
        foot = self.foot(width)
        visible = max(0, height - HEAD_LINES - bool(foot))
        index = self._index
        if len(self._rows) <= visible:
            self._top = 0
        else:
            lowest = min(self._top, index, len(self._rows) - visible)
            self._top = max(lowest, index - visible + 1, 0)
        note = self.note
        if len(self._rows) > visible > 0:
            last = self._top + visible
            note = (*note, (f"  {self._top + 1}-{last} of {len(self._rows)}", "dim"))
        layout = fit_columns(self._columns, width - 1)
        lines = [rule(self.title, width, note)]
        if not self._rows:
            lines += [(), *[line(("  " + text, "dim")) for text in self.empty.splitlines()]]
            return [*lines[: height - 2], (), foot] if foot else lines
        lines.append(row_line({c.key: self._head(c) for c, _ in layout}, layout, width))
        shown = self._rows[self._top : self._top + visible]
        lines += [self.line_of(key, row, layout, width) for key, row in shown]
        return [*lines, *[()] * (visible - len(shown)), foot] if foot else lines

    def _head(self, column: Column) -> Span:
        return column.title, "title" if column.key == self.sorted_by else "dim"

    def cursor_line(self) -> int | None:
        """The row of the cursor, if visible."""
        return HEAD_LINES + self._index - self._top if self._rows else None

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row that was clicked, or choose it if the cursor is there."""
        if event.y == HEAD_LINES - 1 and self._rows:
            self._pick_head(event.x)
        index = self._top + event.y - HEAD_LINES
        below = event.y >= self.size.height - bool(self.foot(self.size.width))
        if event.y < HEAD_LINES or below or index >= len(self._rows):
            return
        if index == self._index:
            self.action_choose()
        else:
            self.move_to(self._rows[index][0])

    def _pick_head(self, x: int) -> None:
        start = 1
        for column, cells in fit_columns(self._columns, self.size.width - 1):
            if start <= x < start + cells:
                self.post_message(self.HeadPicked(self, column.key))
                return
            start += cells + GAP

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(-3)
