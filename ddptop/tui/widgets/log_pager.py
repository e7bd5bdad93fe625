"""A scrolling log; lines are read as the view comes near them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import events, on
from textual.binding import Binding
from textual.message import Message

from ddptop.job.keys import MOVING
from ddptop.logs.drawing import Shape, label_width, row_line, shape_of, text_cells, thumb
from ddptop.logs.messages import LogGrew, LogMissing, LogRead, LogRow, PageRead, Places, PlacesRead
from ddptop.logs.titles import empty_lines, other_logs
from ddptop.style import Line, cells_of, fit, line
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.lines import LinesView

if TYPE_CHECKING:
    from ddptop.logs.reader import LogReader, LogView
    from ddptop.logs.search import LogPattern

MAX_ROWS = 6000
MAX_CHARS = 12_000_000
"""Maximum size of the lines in memory; the lines farthest from the view are dropped."""
KEPT_ROWS = 400
"""Lines always kept on either side of the view."""
ROW_CHARS = 200
"""Memory of a line besides its text, in characters."""


class LogBuffer:
    """Consecutive lines: all lines of a log in memory, or those of a file around the view."""

    def __init__(self) -> None:
        self.rows: list[LogRow] = []
        """Complete lines, and after them an incomplete one, if any."""
        self.ended = 0
        """The number of complete lines."""
        self.is_paged = False
        """Whether the log may have lines that are not in memory."""
        self.has_labels = False
        """Whether lines are labeled with their rank."""
        self.low = self.high = self.first = self.end = 0
        self._chars = 0

    @property
    def before(self) -> int:
        """Bytes of the log before these lines."""
        return self.low - self.first if self.is_paged else 0

    @property
    def behind(self) -> int:
        """Bytes of the log after these lines."""
        if not self.is_paged:
            return 0
        known = self.rows[-1].to if len(self.rows) > self.ended else self.high
        return self.end - max(known, self.high)

    def clear(self) -> None:
        """Remove all lines."""
        self.set_all((), None)

    @property
    def texts(self) -> list[str]:
        """The texts of the complete lines."""
        return [row.text for row in self.rows[: self.ended]]

    def set_all(self, rows: Sequence[LogRow], partial: LogRow | None) -> None:
        """Set all lines of the log."""
        self.ended, self._chars = len(rows), 0
        self.rows = [*rows, partial] if partial is not None else list(rows)
        self.is_paged = False
        self.has_labels = any(row.label for row in rows[:1000]) or any(r.label for r in rows[-9:])

    def set_page(self, rows: Sequence[LogRow], partial: LogRow | None, low: int, high: int) -> None:
        """Set the lines of a part of the log, from byte `low` to `high`."""
        self.ended = len(rows)
        self.rows = [*rows, partial] if partial is not None else list(rows)
        self._chars = sum(map(_size, self.rows))
        self.is_paged, self.has_labels = True, False
        self.low, self.high = low, high

    def put_before(self, rows: Sequence[LogRow], low: int, seen: int) -> int:
        """Prepend lines; may drop lines far after line `seen`. Returns how many were added."""
        self.rows[:0] = rows
        self.ended += len(rows)
        self.low = low
        self._chars += sum(map(_size, rows))
        keep = seen + len(rows) + KEPT_ROWS
        while self._is_full and len(self.rows) > keep:
            self._chars -= _size(self.rows.pop())
            self.ended = min(self.ended, len(self.rows))
            self.high = self.rows[-1].to
        return len(rows)

    def put_behind(
        self, rows: Sequence[LogRow], partial: LogRow | None, high: int, seen: int
    ) -> int:
        """Append lines; may drop lines far before line `seen`. Returns how many were dropped."""
        for row in self.rows[self.ended :]:
            self._chars -= _size(row)
        del self.rows[self.ended :]
        self.rows += rows
        self.ended = len(self.rows)
        if partial is not None:
            self.rows.append(partial)
        self.high = high
        self._chars += sum(map(_size, rows)) + (0 if partial is None else _size(partial))
        gone = 0
        spare = seen - KEPT_ROWS if len(self.rows) < 2 * MAX_ROWS else len(self.rows)
        while self._is_full and gone < spare:
            self._chars -= _size(self.rows[gone])
            gone += 1
            if len(self.rows) - gone <= MAX_ROWS and self._chars <= MAX_CHARS:
                break
        if gone:
            del self.rows[:gone]
            self.ended -= gone
            self.low = self.rows[0].at
        return gone

    @property
    def _is_full(self) -> bool:
        return len(self.rows) > MAX_ROWS or self._chars > MAX_CHARS

    def index_of(self, row: LogRow | None, otherwise: int) -> int:
        """The index of a line, or `otherwise` if it is gone."""
        if row is not None:
            if otherwise < len(self.rows) and self.rows[otherwise].at == row.at:
                return otherwise
            for index, one in enumerate(self.rows):
                if one.at == row.at:
                    return index
        return max(0, min(otherwise, len(self.rows) - 1))

    def shares(self, first: int, last: int) -> tuple[float, float]:
        """Shares of the whole log: before line `first`, and from line `first` to `last`."""
        if self.is_paged:
            whole = max(1, self.end - self.first)
            start, stop = self.rows[first].at, self.rows[last].to
            return (start - self.first) / whole, (stop - start) / whole
        whole = max(1, len(self.rows))
        return first / whole, (last + 1 - first) / whole


def _size(row: LogRow) -> int:
    return len(row.text) + ROW_CHARS


MARGIN = 100
"""Lines to read beyond the view in either direction."""
WHEEL_LINES = 3
SHIFT_CELLS = 16
FAR_BEHIND_BYTES = 8 << 20
"""If more was printed meanwhile, only the end is read."""


class LogPager(LinesView, can_focus=True):
    """A view of the lines in `buffer`; the cursor is on a line, or follows the end."""

    DEFAULT_CSS = "LogPager { height: 1fr; }"

    BINDINGS = [
        *bindings(MOVING),
        Binding("left", "shift(-1)", "Left", show=False, id="move.left"),
        Binding("right", "shift(1)", "Right", show=False, id="move.right"),
    ]

    class Moved(Message):
        """The visible lines changed, or whether the view follows the end."""

    @dataclass
    class AttemptStarted(Message):
        """The view now follows the log of the next attempt."""

        attempt: int

    @dataclass
    class Chosen(Message):
        """Enter on a line."""

        row: LogRow

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.buffer = LogBuffer()
        """The lines in memory."""
        self.following = True
        """Whether the view follows the end."""
        self.held = False
        """Whether the user turned following off, even at the end."""
        self.wrap = False
        self.shift = 0
        """The first visible cell of each line if lines are not wrapped."""
        self.pattern: LogPattern | None = None
        """The search pattern, whose matches are marked."""
        self.empty: list[Line] = []
        """The text shown if there are no lines."""
        self.reader: LogReader | None = None
        """The reader of the log; None until the job is known."""
        self.view: LogView | None = None
        """The log shown, and how."""
        self.places = Places()
        """The available logs."""
        self.generation = 0
        """Number of the latest log opened."""
        self.shown = -1
        """The generation of the lines shown."""
        self.limit = 0
        """For merged logs: how many last lines of each rank were read."""
        self.steps_attempts = True
        """Whether this screen has keys for other attempts."""
        self.is_live = True
        self.output: str | None = None
        """For a foreign job: where its output goes."""
        self._top = 0
        self._skip = 0
        """Rows of the first line that are above the view."""
        self._cursor = 0
        self._label_cells = 0
        self._asked: set[int] = set()
        self._places: list[tuple[int, int]] = []
        """For each row of the view: index and part of its line."""
        self._shapes = lru_cache(maxsize=4096)(shape_of)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, reader: LogReader) -> None:
        """Set the reader of a job's logs; `open` selects a log."""
        self.reader = reader
        reader.start()

    def close(self) -> None:
        """Close the job's logs."""
        if self.reader is not None:
            self.reader.stop()
            self.reader, self.view, self.places = None, None, Places()
            self.generation += 1
            self.buffer.clear()
            self.refresh_lines()

    def on_unmount(self) -> None:
        """Close the log."""
        if self.reader is not None:
            self.reader.stop()

    def open(self, view: LogView, share: float | None = None) -> None:
        """Show the end of a log, or the part at `share` of its length."""
        assert self.reader is not None
        self.generation += 1
        self.view = view
        self.reader.open(self.generation, view, share)

    def feed(self, read: LogRead) -> None:
        """Add lines of a foreign job's output."""
        if self.reader is not None:
            self.reader.feed(read)

    @on(PageRead)
    def _page_read(self, message: PageRead) -> None:
        if message.generation != self.generation:
            return
        buffer = self.buffer
        is_first, self.shown = self.shown != self.generation, self.generation
        self.limit = message.limit
        if message.placement == "all":
            place = self.place
            buffer.set_all(message.rows, message.partial)
            self.explain_empty()
            if is_first and self.following:
                self.replace(None)
            else:
                self.keep_place(place)
            return
        buffer.first, buffer.end = message.first, message.end
        if message.placement == "replace":
            buffer.set_page(message.rows, message.partial, message.low, message.high)
            self.explain_empty()
            self.replace(message.at)
        elif message.placement == "before" and message.high == buffer.low:
            last = self.seen[1]
            self.moved_by(buffer.put_before(message.rows, message.low, last), -1)
        elif message.placement == "behind" and message.low == buffer.high:
            gone = buffer.put_behind(message.rows, message.partial, message.high, self.seen[0])
            self.moved_by(-gone, 1)
        if not buffer.rows:
            self.explain_empty()

    @on(LogGrew)
    def _log_grew(self, message: LogGrew) -> None:
        if message.generation == self.generation:
            self.buffer.first, self.buffer.end = message.first, message.end
            self.refresh_lines()

    @on(PlacesRead)
    def _places_read(self, message: PlacesRead) -> None:
        before, self.places = self.places, message.places
        view, places = self.view, self.places
        if view is None or self.reader is None:
            return
        if not places.has_launcher and len(places.ranks) == 1 and view.whose is None:
            self.open(replace(view, whose=places.ranks[0]))
        elif not before.attempts:
            if places.attempts and view.attempt == places.attempts[-1] and view.until is None:
                self.view = replace(
                    view, attempt=None
                )  # after the latest attempt, continue with the next
        elif view.attempt is None and places.attempt != before.attempt:
            if self.following:
                self.open(view)
                self.post_message(self.AttemptStarted(places.attempt))
            else:
                self.view = replace(view, attempt=before.attempt)
        self.post_message(self.Moved())

    @on(LogMissing)
    def _log_missing(self, message: LogMissing) -> None:
        if message.generation == self.generation:
            self.shown = self.generation
            self.show_text(
                message.words, message.remedy or other_logs(attempts=self.steps_attempts)
            )

    def show_text(self, words: str, remedy: str = "") -> None:
        """Show words instead of lines."""
        self.buffer.clear()
        self.empty = [line("  ", (words, "strong")), line("  ", (remedy, "dim"))]
        self.replace(None)

    def explain_empty(self) -> None:
        """Explain why no line is shown, and what the user can do."""
        buffer = self.buffer
        looked = None
        if buffer.is_paged and buffer.before > 0:
            looked = 1 - buffer.before / max(1, buffer.end - buffer.first)
        self.empty = empty_lines(
            "" if self.view is None else self.view.least,
            looked=looked,
            size_bytes=buffer.end - buffer.first,
            is_live=self.is_live,
            output=self.output,
            others=other_logs(attempts=self.steps_attempts),
        )
        if not buffer.rows:
            self.redraw()

    def _jump(self, share: float | None) -> None:
        if self.reader is not None:
            self.reader.jump(self.generation, share)

    # --- lines in --------------------------------------------------------------------------------

    @property
    def lines(self) -> list[str]:
        """The texts of the complete lines."""
        return self.buffer.texts

    @property
    def current(self) -> LogRow | None:
        """The line under the cursor; the last line while following the end."""
        rows = self.buffer.rows
        if not rows:
            return None
        return rows[-1] if self.following else rows[min(self._cursor, len(rows) - 1)]

    @property
    def seen(self) -> tuple[int, int]:
        """Indices of the first and last visible lines."""
        return (self._places[0][0], self._places[-1][0]) if self._places else (0, 0)

    def replace(self, at: int | None, *, middle: bool = True) -> None:
        """After the buffer is replaced, show the line at a byte, or the end."""
        self._asked.clear()
        self._label_cells = 0
        rows = self.buffer.rows
        self.following = at is None and not self.held
        self._skip = 0
        self._cursor = self._top = max(0, len(rows) - 1)
        if at is not None:
            self.move_to(at, middle=middle)
        elif self.held:
            self._top, self._skip = self._last_top()
        self.refresh_lines()

    def keep_place(self, before: tuple[LogRow | None, LogRow | None]) -> None:
        """After lines were added around the view, keep the same lines in view."""
        top, cursor = before
        self._asked.clear()
        if not self.following:
            self._top = self.buffer.index_of(top, self._top)
            self._cursor = self.buffer.index_of(cursor, self._cursor)
        self.refresh_lines()

    @property
    def place(self) -> tuple[LogRow | None, LogRow | None]:
        """The first visible line and the one under the cursor, for `keep_place`."""
        rows = self.buffer.rows
        top = rows[self._top] if self._top < len(rows) else None
        return top, self.current

    def moved_by(self, lines: int, step: int) -> None:
        """Adjust indices after lines were added or dropped at the start (-1) or the end."""
        self._asked.discard(step)
        self._top = max(0, self._top + lines)
        self._cursor = max(0, self._cursor + lines)
        self.refresh_lines()

    def move_to(self, at: int, *, middle: bool = True) -> None:
        """Move the cursor to the first line from a byte on."""
        rows = self.buffer.rows
        exact = (i for i, row in enumerate(rows) if row.at == at)
        later = (i for i, row in enumerate(rows) if row.at > at)
        self._cursor = max(0, next(exact, next(later, len(rows) - 1)))
        self.following = False
        height = max(1, self.size.height)
        if self._top <= self._cursor < self._top + len({i for i, _ in self._places}) and not middle:
            return
        self._top, self._skip = max(0, self._cursor - height // 2), 0
        if self.wrap:
            self._top, self._skip = self._up_from(self._cursor, 0, height // 2)

    def set_wrap(self, wrap: bool) -> None:
        """Wrap long lines, or clip them."""
        self.wrap, self.shift, self._skip = wrap, 0, 0
        self.refresh_lines()

    def refresh_lines(self) -> None:
        """Redraw, request nearby lines, and post what changed."""
        self.redraw()
        self._ask()
        self.post_message(self.Moved())

    # --- layout ----------------------------------------------------------------------------------

    def _shape(self, index: int) -> Shape:
        cells = text_cells(self.size.width - 1, self._label_cells)
        return self._shapes(self.buffer.rows[index], cells, wrap=self.wrap)

    def _up_from(self, index: int, part: int, count: int) -> tuple[int, int]:
        """The place `count` rows above another, or the first one."""
        while count > 0:
            if part >= count:
                return index, part - count
            count -= part + 1
            index -= 1
            if index < 0:
                return 0, 0
            part = len(self._shape(index).parts) - 1 if self.wrap else 0
        return index, part

    def _last_top(self) -> tuple[int, int]:
        """The first row of the view if it shows the end."""
        last = len(self.buffer.rows) - 1
        if last < 0:
            return 0, 0
        part = len(self._shape(last).parts) - 1
        return self._up_from(last, part, max(1, self.size.height) - 1)

    def build(self, width: int, height: int) -> list[Line]:
        """Build the visible lines and the scroll bar."""
        rows = self.buffer.rows
        if not rows:
            self._places = []
            return [fit(one, width) for one in [(), *self.empty][:height]]
        if self.buffer.has_labels:
            near = rows[max(0, self._top - height) : self._top + 2 * height]
            self._label_cells = max(self._label_cells, label_width(near))
        lowest = self._last_top()
        if self.following or (self._top, self._skip) > lowest:
            self._top, self._skip = lowest
        self._skip = min(self._skip, len(self._shape(self._top).parts) - 1)
        lines: list[Line] = []
        places: list[tuple[int, int]] = []
        index, part = self._top, self._skip
        while len(lines) < height and index < len(rows):
            shape = self._shape(index)
            drawn = row_line(
                rows[index],
                shape,
                part,
                width - 1,
                self._label_cells,
                shift=None if self.wrap else self.shift,
                pattern=self.pattern,
                is_open=index >= self.buffer.ended,
            )
            lines.append(fit(drawn, width - 1))
            places.append((index, part))
            part += 1
            if part >= len(shape.parts):
                index, part = index + 1, 0
        self._places = places
        lines += [line(" " * (width - 1))] * (height - len(lines))
        start, end = thumb(height, *self.buffer.shares(places[0][0], places[-1][0]))
        bar = [("┃", "dim") if start <= y < end else ("│", "faint") for y in range(height)]
        return [(*one, cell) for one, cell in zip(lines, bar, strict=True)]

    def cursor_line(self) -> int | None:
        """The row of the cursor; None while following the end."""
        if self.following or not self._places:
            return None
        return next((y for y, (index, _) in enumerate(self._places) if index == self._cursor), None)

    def on_resize(self, event: events.Resize) -> None:
        """Rebuild for the new size, which may need more lines."""
        super().on_resize(event)
        self._ask()

    def _ask(self) -> None:
        """Request the lines around the view."""
        buffer = self.buffer
        if not buffer.is_paged or not self.size.height or self.reader is None:
            return
        last = self._places[-1][0] if self._places else -1
        first = self._places[0][0] if self._places else 0
        if buffer.behind > FAR_BEHIND_BYTES and self.following and last >= 0:
            if 0 not in self._asked:
                self._asked.add(0)
                self._jump(None)
            return
        if buffer.behind > 0 and len(buffer.rows) - last < MARGIN and 1 not in self._asked:
            self._asked.add(1)
            self.reader.more(self.generation, buffer.high, 1)
        if buffer.before > 0 and first < MARGIN and -1 not in self._asked:
            self._asked.add(-1)
            self.reader.more(self.generation, buffer.low, -1)

    # --- moving ----------------------------------------------------------------------------------

    def scroll_lines(self, count: int) -> None:
        """Scroll by rows; the cursor stays in the view."""
        rows = self.buffer.rows
        if not rows:
            return
        if count < 0:
            if self.following:
                self._cursor = len(rows) - 1
            self.following = False
            self._top, self._skip = self._up_from(self._top, self._skip, -count)
        else:
            lowest = self._last_top()
            while count > 0 and (self._top, self._skip) < lowest:
                self._skip += 1
                if self._skip >= len(self._shape(self._top).parts):
                    self._top, self._skip = self._top + 1, 0
                count -= 1
            if (self._top, self._skip) >= lowest:
                self._reach_end()
        self.redraw()
        if self._places:
            self._cursor = max(self._places[0][0], min(self._places[-1][0], self._cursor))
        self.refresh_lines()

    def _reach_end(self) -> None:
        if self.buffer.behind <= 0 and not self.held:
            self.following = True

    def action_move(self, lines: int) -> None:
        """Move the cursor; by a very large number, to the log's first or last line."""
        if abs(lines) >= 1_000_000:
            self.go_first() if lines < 0 else self.go_last()
            return
        rows = self.buffer.rows
        if not rows or (self.following and lines > 0):
            return
        if self.following:
            self._cursor, self.following = len(rows) - 1, False
        self._cursor = max(0, min(len(rows) - 1, self._cursor + lines))
        if self._cursor < self._top or (self._cursor == self._top and self._skip):
            self._top, self._skip = self._cursor, 0
        elif self._cursor >= self._top + max(1, self.size.height):
            self._top, self._skip = self._cursor - self.size.height + 1, 0
        self.redraw()
        while self._places and self._places[-1][0] < self._cursor:  # wrapped lines need more rows
            self._top, self._skip = self._top + 1, 0
            self.redraw()
        if lines > 0 and self._cursor == len(rows) - 1:
            self._reach_end()
        self.refresh_lines()

    def action_page(self, pages: int) -> None:
        """Move by a page."""
        self.scroll_lines(pages * max(1, self.size.height - 1))

    def action_half(self, halves: int) -> None:
        """Move by half a page."""
        self.scroll_lines(halves * max(1, self.size.height // 2))

    def go_first(self) -> None:
        """Go to the log's first line."""
        self.following = False
        self._top = self._skip = self._cursor = 0
        if self.buffer.before > 0:
            self._jump(0.0)
        self.refresh_lines()

    def go_last(self) -> None:
        """Go to the log's end and follow it."""
        self.following, self.held = True, False
        if self.buffer.behind > 0 and self.buffer.is_paged:
            self._jump(None)
        self.refresh_lines()

    def toggle_follow(self) -> None:
        """Follow the end, or stop following."""
        if self.following:
            self._cursor = max(0, len(self.buffer.rows) - 1)
            self.following, self.held = False, True
            self.refresh_lines()
        else:
            self.go_last()

    def action_shift(self, step: int) -> None:
        """Scroll long lines to the left or right."""
        if self.wrap:
            return
        longest = max((cells_of(self._shape(index).text) for index, _ in self._places), default=0)
        cells = text_cells(self.size.width - 1, self._label_cells)
        most = max(0, longest - cells + 1) if longest > cells else 0
        self.shift = max(
            0, min(self.shift + step * SHIFT_CELLS, max(most, self.shift * (step < 0)))
        )
        self.refresh_lines()

    def action_choose(self) -> None:
        """Post `Chosen` for the current line."""
        if (row := self.current) is not None:
            self.post_message(self.Chosen(row))

    # --- mouse -----------------------------------------------------------------------------------

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll the view."""
        event.stop()
        self.scroll_lines(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll the view."""
        event.stop()
        self.scroll_lines(-WHEEL_LINES)

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the line that was clicked, or to a place on the scroll bar."""
        if event.x >= self.size.width - 1:
            share = event.y / max(1, self.size.height - 1)
            if share >= 1.0:
                self.go_last()
            elif self.buffer.is_paged:
                self.following = False
                self._jump(share)
            else:
                self.following = False
                self._top = self._cursor = int(share * len(self.buffer.rows))
                self.refresh_lines()
        elif event.y < len(self._places):
            self.following = False
            self._cursor = self._places[event.y][0]
            self.refresh_lines()
