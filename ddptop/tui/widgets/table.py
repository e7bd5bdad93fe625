"""Lists with a cursor: the base of all of them, and tables.

The column widths of a table do not depend on its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from textual import events
from textual.message import Message

from ddptop.job.keys import MOVING
from ddptop.style import Column, Line, Row, Span, fit_columns, line, row_line, rule, wrap
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.lines import LinesView

ItemT = TypeVar("ItemT")

HEAD_LINES = 2
"""The rule with the title, and the column names."""


class CursorList(LinesView, Generic[ItemT], can_focus=True):
    """Items with keys, `per_row` in a row. The cursor stays on its item if others come and go."""

    BINDINGS = bindings(MOVING)

    wheel_rows = 1
    """Rows that one step of the mouse wheel moves."""
    cursor_needs_focus = False
    """Whether the cursor is hidden without the focus."""

    class Moved(Message):
        """The cursor moved to another item."""

        def __init__(self, list: CursorList[Any], key: str) -> None:
            super().__init__()
            self.list, self.key = list, key

        @property
        def control(self) -> CursorList[Any]:
            """The list, for @on selectors."""
            return self.list

    class Chosen(Moved):
        """Enter, or a click on the item under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.keys: Sequence[str] = ()
        self.items: Sequence[ItemT] = ()
        """The items; a subclass sets them with their keys."""
        self.cursor_key: str | None = None
        self.per_row = 1
        self._follows_first = False
        """Whether the cursor stays on the first item because nobody has moved it."""

    def set_keys(self, keys: Sequence[str]) -> None:
        """Replace the items; the cursor stays on its item, or on its place if the item is gone."""
        place = self.place
        self.keys = keys
        if not keys:
            self.cursor_key = None
            return
        if self._follows_first:
            place = 0
        elif self.cursor_key in keys:
            return
        if self.cursor_key != (key := keys[min(place, len(keys) - 1)]):
            self._set_cursor(key)

    @property
    def chosen(self) -> ItemT | None:
        """The item under the cursor."""
        return self.items[self.place] if self.cursor_key in self.keys else None

    def explain(self) -> list[tuple[str, str]]:
        """Help on the item under the cursor."""
        return [] if self.chosen is None else self.explain_item(self.chosen)

    def explain_item(self, item: ItemT) -> list[tuple[str, str]]:
        """Help on an item."""
        return []

    @property
    def place(self) -> int:
        """Index of the item under the cursor."""
        return self.keys.index(self.cursor_key) if self.cursor_key in self.keys else 0

    @property
    def rows_shown(self) -> int:
        """Rows of items that are visible at once."""
        return self.size.height

    def move_to(self, key: str) -> None:
        """Move the cursor to an item, if it exists."""
        self._follows_first = False
        if key != self.cursor_key and key in self.keys:
            self._set_cursor(key)
            self.redraw()

    def _set_cursor(self, key: str) -> None:
        self.cursor_key = key
        self.post_message(self.Moved(self, key))

    def step(self, items: int) -> None:
        """Move the cursor by some items."""
        if self.keys:
            self.move_to(self.keys[min(len(self.keys) - 1, max(0, self.place + items))])

    def action_move(self, rows: int) -> None:
        """Move the cursor by some rows; far beyond an end, to the first or last item."""
        if not self.keys:
            return
        row, column = divmod(self.place, self.per_row)
        last = len(self.keys) - 1
        bottom = last // self.per_row
        place = min(max(0, row + rows), bottom) * self.per_row + column
        if abs(rows) > bottom + 1:
            place = 0 if rows < 0 else last
        self.move_to(self.keys[min(place, last)])

    def action_page(self, pages: int) -> None:
        """Move the cursor by one page."""
        self.action_move(pages * max(1, self.rows_shown))

    def action_half(self, pages: int) -> None:
        """Move the cursor by half a page."""
        self.action_move(pages * max(1, self.rows_shown // 2))

    def action_choose(self) -> None:
        """Choose the item under the cursor."""
        if self.cursor_key is not None:
            self.post_message(self.Chosen(self, self.cursor_key))

    def at(self, x: int, y: int) -> int | None:
        """Index of the item drawn at a cell; may be too high."""
        raise NotImplementedError

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the item that was clicked, or choose it if the cursor is there."""
        place = self.at(event.x, event.y)
        if place is None or place >= len(self.keys):
            return
        if place == self.place:
            self.action_choose()
        else:
            self.move_to(self.keys[place])

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(self.wheel_rows)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move the cursor."""
        event.stop()
        self.action_move(-self.wheel_rows)


class Table(CursorList[ItemT]):
    """Rows with a cursor. It scrolls by itself; the title shows which rows are visible."""

    wheel_rows = 3
    wrapped = ""
    """The column whose text continues below its row where there is room."""

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
        self._rows: Sequence[Row] = ()
        self._top = 0
        self._places: list[int] = []
        """By line below the column names, the index of its row."""
        self.title = title
        self.note: Line = ()
        self.empty = empty
        """The text shown if there are no rows."""
        self.sorted_by = ""
        """The column to mark as sorted, if any."""

    def set_rows(self, rows: Sequence[tuple[str, Row]], note: Line = ()) -> None:
        """Replace the rows and their keys."""
        self._rows = [row for _, row in rows]
        self.note = note
        self.set_keys([key for key, _ in rows])
        self.redraw()

    @property
    def rows_shown(self) -> int:
        """Rows that are visible at once."""
        return max(0, self.size.height - HEAD_LINES - bool(self.foot(self.size.width)))

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
        foot, number = self.foot(width), len(self._rows)
        visible = max(0, height - HEAD_LINES - bool(foot))
        self._top = max(0, min(self._top, self.place, number - visible), self.place - visible + 1)
        note = self.note
        if number > visible > 0:
            shown = f"  {self._top + 1}-{self._top + visible} of {number}"
            note = (*note, (shown, "dim"))
        else:
            self._top = 0
        lines, self._places = [rule(self.title, width, note)], []
        if self._rows:
            layout = fit_columns(self._columns, width - 1)
            lines.append(row_line({c.key: self._head(c) for c, _ in layout}, layout, width))
            free = visible - number
            for place in range(self._top, min(number, self._top + visible)):
                parts = self._parts(self._rows[place], layout, 1 + max(0, free))
                free -= len(parts) - 1
                self._places += [place] * len(parts)
                key = self.keys[place]
                lines += [self.line_of(key, part, layout, width) for part in parts]
        else:
            lines += [(), *[line(("  " + text, "dim")) for text in self.empty.splitlines()]]
        if not foot:
            return lines
        lines = lines[: height - 1]
        return [*lines, *[()] * (height - 1 - len(lines)), foot]

    def _parts(self, row: Row, layout: Sequence[tuple[Column, int]], most: int) -> list[Row]:
        """The row, and in at most so many rows in all, the rest of its wrapped text."""
        cells = next((cells for column, cells in layout if column.key == self.wrapped), 0)
        if most < 2 or not cells:
            return [row]
        text, style = row[self.wrapped]
        first, *more = wrap(str(text), cells, most)
        rest = [{self.wrapped: (part, str(style))} for part in more]
        return [{**row, self.wrapped: (first, str(style))}, *rest]

    def _head(self, column: Column) -> Span:
        return column.title, "title" if column.key == self.sorted_by else "dim"

    def cursor_line(self) -> int | None:
        """The first line of the cursor's row, if visible."""
        if not self._rows or (self.cursor_needs_focus and not self.has_focus):
            return None
        return HEAD_LINES + self._places.index(self.place) if self._places else None

    def at(self, x: int, y: int) -> int | None:
        """Index of the row at a cell."""
        row = y - HEAD_LINES
        return self._places[row] if 0 <= row < len(self._places) else None
