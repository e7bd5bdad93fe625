"""Scrolling logs, whose lines are read as the view comes near them, and the panel with one."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from ddptop.job.help import Guilty
from ddptop.job.keys import ACROSS, MOVING, key
from ddptop.job.ranks import launcher_name
from ddptop.job.record import Job
from ddptop.logs.drawing import (
    LEVEL_WORDS,
    Shape,
    empty_lines,
    label_width,
    other_logs,
    row_line,
    shape_of,
    text_cells,
    thumb,
)
from ddptop.logs.messages import LogMissing, LogRead, LogRow, Page, PageRead, Places, PlacesRead
from ddptop.style import Line, Span, cells_of, fit, line, rule
from ddptop.tui.keymap import bindings
from ddptop.tui.widgets.lines import LinesView, Panel
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER

if TYPE_CHECKING:
    from ddptop.logs.reader import LogReader, LogView
    from ddptop.logs.search import LogPattern


MARGIN = 100
"""Lines to read beyond the view in either direction."""
WHEEL_LINES = 3
SHIFT_CELLS = 16
FAR_BEHIND_BYTES = 1 << 20
"""If more was printed since the last poll, only the end is read."""


class LogPager(LinesView, can_focus=True):
    """A view of a page of lines; the cursor is on a line, or follows the end."""

    DEFAULT_CSS = "LogPager { height: 1fr; }"

    BINDINGS = bindings((*MOVING, *ACROSS))

    class Moved(Message):
        """The visible lines changed, or whether the view follows the end."""

    class AttemptStarted(Message):
        """The view now follows the log of the next attempt."""

        def __init__(self, attempt: int) -> None:
            super().__init__()
            self.attempt = attempt

    class Chosen(Message):
        """Enter on a line."""

        def __init__(self, row: LogRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.page = Page()
        self.rows: list[LogRow] = []
        """The lines of the page, including an unfinished one."""
        self.following = True
        """Whether the view follows the end."""
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
        self.steps_attempts = True
        """Whether this screen has keys for other attempts."""
        self.is_live = True
        self.output: str | None = None
        """For a foreign job: where its output goes."""
        self._top = (0, 0)
        """The first row of the view: index and part of its line."""
        self._cursor = 0
        self._label_cells = 0
        self._is_asked = False
        """Whether more lines are being read."""
        self._places: list[tuple[int, int]] = []
        """The rows of the view."""
        self._all: list[tuple[int, int]] = []
        """The rows of all lines."""
        self._all_of: tuple[list[LogRow], object] = ([], None)
        self._shapes = lru_cache(maxsize=4096)(shape_of)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, reader: LogReader) -> None:
        """Set the reader of a job's logs; `open` selects a log."""
        self.reader = reader
        reader.start()

    def describe(self, job: Job | None) -> None:
        """Take over what is known of the job: whether it is live, and where its output goes."""
        self.is_live = job is None or job.is_live
        self.output = None if job is None or not job.is_foreign else job.output or "n/a"
        if self.reader is not None:
            self.reader.is_live = job is not None and job.is_live

    def close(self) -> None:
        """Close the job's logs."""
        if self.reader is not None:
            self.reader.stop()
            self.reader, self.view, self.places = None, None, Places()
            self.generation += 1
            self._set_page(Page())
            self.refresh_lines()

    def on_unmount(self) -> None:
        """Close the log."""
        if self.reader is not None:
            self.reader.stop()

    def open(self, view: LogView, position: int | None = None) -> None:
        """Show the end of a log, or the part around an offset."""
        assert self.reader is not None
        self.generation += 1
        self.view = view
        self.reader.open(self.generation, view, position)

    def feed(self, read: LogRead) -> None:
        """Add lines of a foreign job's output."""
        if self.reader is not None:
            self.reader.feed(read)

    @on(PageRead)
    def _page_read(self, message: PageRead) -> None:
        if message.generation != self.generation:
            return
        if self.shown != self.generation:
            self.shown, self._label_cells = self.generation, 0
        index, part = self._top
        top = self.rows[index] if index < len(self.rows) else None
        cursor = self.current
        self._set_page(message.page)
        if not self.following:
            self._top = self._index_of(top, index), part
            self._cursor = self._index_of(cursor, self._cursor)
        if message.at is not None:
            self._places = []
            self._move_to(message.at)
        self.refresh_lines()

    def _set_page(self, page: Page) -> None:
        self.page, self._is_asked = page, False
        self.rows = list(page.rows)
        least = "" if self.view is None else self.view.least
        if page.partial is not None and page.partial.passes(least):
            self.rows.append(page.partial)
        if not self.rows:
            self.explain_empty()

    def _index_of(self, row: LogRow | None, otherwise: int) -> int:
        """The index of a line, or about `otherwise` if it is gone."""
        if row is not None and not (
            otherwise < len(self.rows) and self.rows[otherwise].at == row.at
        ):
            same = (index for index, one in enumerate(self.rows) if one.at == row.at)
            otherwise = next(same, otherwise)
        return max(0, min(otherwise, len(self.rows) - 1))

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
            remedy = message.remedy or other_logs(attempts=self.steps_attempts)
            self.show_text(message.words, remedy)

    def show_text(self, words: str, remedy: str = "") -> None:
        """Show words instead of lines."""
        self._set_page(Page())
        self.empty = empty_lines(words, remedy)
        self.following = True
        self.refresh_lines()

    def explain_empty(self) -> None:
        """Explain why no line is shown, and what the user can do."""
        page, least = self.page, "" if self.view is None else self.view.least
        words, remedy = "no output", other_logs(attempts=self.steps_attempts)
        if least:
            words = f"no {LEVEL_WORDS[least].replace(' and', ' or')} in this log"
            if page.before_bytes:
                share = 1 - page.before_bytes / (page.end - page.first)
                size = units.size(page.end - page.first)
                words = f"searching for {LEVEL_WORDS[least]}: {share:.0%} of {size}"
            remedy = f"press {key('log.level')} to show all lines"
        elif self.output is not None:
            words = f"no output read yet; the output goes to {self.output}"
            remedy = "ddptop launch saves a log for every rank"
        elif self.is_live:
            words, remedy = "no output yet", "new lines appear here automatically"
        self.empty = empty_lines(words, remedy)

    # --- lines in --------------------------------------------------------------------------------

    @property
    def lines(self) -> list[str]:
        """The texts of the complete lines."""
        return [row.text for row in self.page.rows]

    @property
    def current(self) -> LogRow | None:
        """The line under the cursor; the last line while following the end."""
        if not self.rows:
            return None
        return self.rows[-1] if self.following else self.rows[min(self._cursor, len(self.rows) - 1)]

    def go_to(self, row: LogRow) -> None:
        """Move the cursor to a line of the log."""
        if any(one.at == row.at for one in self.rows):
            self._move_to(row.at)
            self.refresh_lines()
        else:
            self._jump(row.at)

    def _move_to(self, at: int) -> None:
        """Move the cursor to a line, or the next one if it is not shown."""
        exact = (index for index, row in enumerate(self.rows) if row.at == at)
        later = (index for index, row in enumerate(self.rows) if row.at > at)
        self._cursor = max(0, next(exact, next(later, len(self.rows) - 1)))
        self.following = False
        if self._cursor not in {index for index, _ in self._places}:
            first = bisect_left(self._rows(), (self._cursor, 0))
            self._top = self._row(first - max(1, self.size.height) // 2)

    def set_wrap(self, wrap: bool) -> None:
        """Wrap long lines, or clip them."""
        self.wrap, self.shift = wrap, 0
        self.refresh_lines()

    def refresh_lines(self) -> None:
        """Redraw, request nearby lines, and post what changed."""
        self.redraw()
        self._ask()
        self.post_message(self.Moved())

    # --- layout ----------------------------------------------------------------------------------

    def _shape(self, index: int) -> Shape:
        cells = text_cells(self.size.width - 1, self._label_cells)
        return self._shapes(self.rows[index], cells, wrap=self.wrap)

    def _rows(self) -> list[tuple[int, int]]:
        """The rows of all lines: index and part of each one's line."""
        layout = self.wrap and (self.size.width, self._label_cells)
        if self._all_of[0] is not self.rows or self._all_of[1] != layout:
            self._all_of = self.rows, layout
            self._all = [
                (index, part)
                for index in range(len(self.rows))
                for part in range(len(self._shape(index).parts) if self.wrap else 1)
            ]
        return self._all

    def _row(self, place: int) -> tuple[int, int]:
        """A row by its place among all, or the first or last one at the top of the view."""
        rows = self._rows()
        lowest = max(0, len(rows) - max(1, self.size.height))
        return rows[max(0, min(place, lowest))] if rows else (0, 0)

    def build(self, width: int, height: int) -> list[Line]:
        """Build the visible lines and the scroll bar."""
        rows = self.rows
        if not rows:
            self._places = []
            return [fit(one, width) for one in [(), *self.empty][:height]]
        near = rows[max(0, self._top[0] - height) : self._top[0] + 2 * height]
        self._label_cells = max(self._label_cells, label_width(near))
        shown = self._rows()
        self._top = self._row(len(shown) if self.following else bisect_left(shown, self._top))
        top = bisect_left(shown, self._top)
        self._places = places = shown[top : top + height]
        lines: list[Line] = []
        for index, part in places:
            drawn = row_line(
                rows[index],
                self._shape(index),
                part,
                width - 1,
                self._label_cells,
                shift=None if self.wrap else self.shift,
                pattern=self.pattern,
                is_open=index >= len(self.page.rows),
            )
            lines.append(fit(drawn, width - 1))
        lines += [line(" " * (width - 1))] * (height - len(lines))
        start, end = thumb(height, *self._shares(places[0][0], places[-1][0]))
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

    def _shares(self, first: int, last: int) -> tuple[float, float]:
        """Shares of the whole log: before line `first`, and from line `first` to `last`."""
        page = self.page
        if page.end:
            whole = max(1, page.end - page.first)
            start, stop = self.rows[first].at, self.rows[last].to
            return (start - page.first) / whole, (stop - start) / whole
        whole = len(self.rows)
        return first / whole, (last + 1 - first) / whole

    def _ask(self) -> None:
        """Request the lines around the view."""
        if self.reader is None or self._is_asked or not self.size.height:
            return
        page = self.page
        first, last = (self._places[0][0], self._places[-1][0]) if self._places else (0, 0)
        if self.following and page.after_bytes > FAR_BEHIND_BYTES:
            self._jump(None)
        elif page.after_bytes > 0 and len(self.rows) - last < MARGIN:
            self._is_asked = True
            self.reader.more(self.generation, 1)
        elif page.before_bytes > 0 and first < MARGIN:
            self._is_asked = True
            self.reader.more(self.generation, -1)

    def _jump(self, position: int | None) -> None:
        if self.reader is not None:
            self._is_asked = True
            self.reader.jump(self.generation, position)

    # --- moving ----------------------------------------------------------------------------------

    def scroll_lines(self, count: int) -> None:
        """Scroll by rows; the cursor stays in the view."""
        if not self.rows:
            return
        if self.following:
            self._cursor = len(self.rows) - 1
        self.following = self.following and count > 0
        place = bisect_left(self._rows(), self._top) + count
        self._top = self._row(place)
        if count > 0 and self._top == self._row(len(self._all)):
            self._reach_end()
        self.redraw()
        if self._places:
            self._cursor = max(self._places[0][0], min(self._places[-1][0], self._cursor))
        self.refresh_lines()

    def _reach_end(self) -> None:
        if self.page.after_bytes <= 0:
            self.following = True

    def action_move(self, lines: int) -> None:
        """Move the cursor; by a very large number, to the log's first or last line."""
        if abs(lines) >= 1_000_000:
            self.go_first() if lines < 0 else self.go_last()
            return
        rows = self.rows
        if not rows or (self.following and lines > 0):
            return
        if self.following:
            self._cursor, self.following = len(rows) - 1, False
        self._cursor = max(0, min(len(rows) - 1, self._cursor + lines))
        shown = self._rows()
        first, end = (bisect_left(shown, (self._cursor + by, 0)) for by in (0, 1))
        top = bisect_left(shown, self._top)
        self._top = self._row(min(first, max(top, end - max(1, self.size.height))))
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
        self._top, self._cursor = (0, 0), 0
        if self.page.before_bytes > 0:
            self._jump(self.page.first)
        self.refresh_lines()

    def go_last(self) -> None:
        """Go to the log's end and follow it."""
        self.following = True
        if self.page.after_bytes > 0:
            self._jump(None)
        self.refresh_lines()

    def toggle_follow(self) -> None:
        """Follow the end, or stop following."""
        if self.following:
            self._cursor = max(0, len(self.rows) - 1)
            self.following = False
            self.refresh_lines()
        else:
            self.go_last()

    def action_across(self, step: int) -> None:
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
            share, page = event.y / max(1, self.size.height - 1), self.page
            self.following = False
            if share >= 1.0:
                self.go_last()
            elif page.end:
                self._jump(page.first + int(share * (page.end - page.first)))
            else:
                self._cursor = int(share * len(self.rows))
                self._top = self._cursor, 0
                self.refresh_lines()
        elif event.y < len(self._places):
            self.following = False
            self._cursor = self._places[event.y][0]
            self.refresh_lines()


class LogPane(Vertical):
    """A rank's log, starting with its last lines; new ones are read with each answer."""

    DEFAULT_CSS = "LogPane > .title { height: 1; }"

    def __init__(self) -> None:
        super().__init__(id="log")
        self.lines = LogPager()
        """The scrolling lines."""
        self.lines.steps_attempts = False
        self._title = Panel(classes="title")
        self._job: tuple[object, ...] = ()
        self._view: Job | None = None
        self._rank: int | None = None
        self._guilty: Guilty | None = None
        self._asked: tuple[int | None, int | None, int | None] | None = None
        """The rank, attempt, and size to read."""
        self._wanted: LogView | None = None

    def compose(self) -> ComposeResult:
        """Title and lines."""
        yield self._title
        yield self.lines

    def show(
        self,
        view: Job,
        rank: int | None,
        guilty: Guilty | None = None,
        *,
        until: int | None = None,
        attempt: int | None = None,
    ) -> None:
        """Show the log of a rank, or of the launcher (None), or what is new in it.

        Args:
            view: the job.
            rank: the rank.
            guilty: the rank to blame, and why; shown in the title of its log.
            until: show the log as it was at this size in bytes.
            attempt: the attempt; None for the latest, and those that follow.
        """
        self._view, self._rank, self._guilty = view, rank, guilty
        pager, foreign = self.lines, view.is_foreign
        pager.describe(view)
        if guilty is not None and guilty.rank == rank:
            attempt = guilty.attempt if attempt is None else attempt
        is_launcher = rank is None and launcher_name(view) is not None
        whose = LAUNCHER if is_launcher else rank
        job = (view.name, None if view.is_foreign else view.spec.job_id)
        if job != self._job:
            self._job, self._wanted = job, None
            pager.close()
        self._asked = None
        if whose is not None or foreign:
            self._asked = whose, attempt, until
            if foreign:
                self._read()  # `feed` follows
            else:
                self.call_after_refresh(self._read)  # the first frame has no lines
        self._update_title()

    def _read(self) -> None:
        """Read the log, or what is new in it."""
        view, pager = self._view, self.lines
        if self._asked is None or view is None:
            return
        from ddptop.logs.reader import LogReader, LogView

        if pager.reader is None:
            folder = None if view.is_foreign else view.folder
            pager.read(LogReader(folder, pager.post_message, polls=False))
        whose, attempt, until = self._asked
        wanted = LogView(whose, attempt, until=until)
        assert pager.reader is not None
        pager.describe(view)
        if wanted == self._wanted:
            pager.reader.poll()
        else:
            self._wanted = wanted
            pager.following = True
            pager.open(wanted)
            self._update_title()

    def show_text(self, view: Job, rank: int | None, words: str) -> None:
        """Show why this rank has no log."""
        self._view, self._rank, self._guilty = view, rank, None
        self._asked = self._wanted = None
        self.lines.show_text(words)
        self._update_title()

    @on(LogPager.Moved)
    @on(PlacesRead)
    def _update_title(self) -> None:
        pager, view = self.lines, self._view
        if view is None:
            return
        rank, places = self._rank, pager.places
        kind = "log" if pager.output is None else "output"
        whose = "" if rank is None else f": rank {rank}"
        launcher = None if pager.output is not None else launcher_name(view)
        is_shared = places.has_launcher
        if launcher is not None and (rank is None or is_shared):
            whose = f": {launcher}" if rank is None else f": {launcher}, all ranks"
        guilty = self._guilty
        if guilty is not None and guilty.rank == rank and not is_shared:
            whose += f" ({guilty.why})"
        state = view.snapshot
        attempt = places.attempt if places.attempts else None if state is None else state.attempt
        if pager.view is not None and pager.view.attempt is not None:
            attempt = pager.view.attempt
        text = pager.output or ("" if attempt is None else f"attempt {attempt}")
        if view.is_live and not pager.following:
            text += f", not following ({key('move.last')}: end)"
        note: tuple[Span, ...] = line((text, "dim")) if text else ()
        self._title.paint(lambda cells, _: [rule(f"{kind}{whose}", cells, note)])
