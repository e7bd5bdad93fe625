"""Searching in the log that is shown."""

from __future__ import annotations

from textual import on

from ddptop.logs.find import LogPattern, pattern_of
from ddptop.logs.messages import SearchMoved
from ddptop.logs.reader import LogReader
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.filter_bar import FilterBar
from ddptop.tui.widgets.log_pager import LogPager
from ddptop.view.keys import key
from ddptop_runner.base import units


class LogSearch(MonitorScreen):
    """A screen with lines of a log in which one can search, in the background."""

    def __init__(self, reader: LogReader, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self.pager = LogPager(id="lines")
        """The lines."""
        self.pattern: LogPattern | None = None
        """What was searched for."""
        self._reader = reader
        self._bar = FilterBar("text or regex; press enter")
        self._generation = 0
        self._search = 0
        self._is_searching = False
        self._step = 1

    def action_search(self) -> None:
        """Open an empty search bar."""
        self._bar.drop()
        self._bar.open()

    @on(FilterBar.Changed)
    def _typing(self, message: FilterBar.Changed) -> None:
        self.pattern = pattern_of(message.text) if message.text else None
        self.pager.pattern = self.pattern
        self._bar.say(self.pattern.note if self.pattern is not None else "")
        self.pager.redraw()

    @on(FilterBar.Closed)
    def _typed(self, message: FilterBar.Closed) -> None:
        if not message.text or self.pattern is None:
            return
        row, pager = self.pager.current, self.pager
        if row is not None and not pager.following and self.pattern.finds(row.text):
            self.call_after_refresh(self._say_found)  # once the keys are back at the lines
        elif pager.following:
            self._find(None, -1)
        else:
            self._find(None if row is None else row.at, 1)

    def action_find(self, step: int) -> None:
        """The next or previous match."""
        row = self.pager.current
        if self.pattern is None:
            self.action_search()
        elif row is not None:
            forwards = row.to if self.pager.buffer.is_paged else row.at
            self._find(forwards if step > 0 else row.at, step)

    def _find(self, position: int | None, step: int) -> None:
        assert self.pattern is not None
        self._search += 1
        self._step, self._is_searching = step, True
        self._reader.find(self._generation, self._search, self.pattern, position, step)

    @on(SearchMoved)
    def _search_moved(self, message: SearchMoved) -> None:
        if message.number != self._search or not self._is_searching:
            return
        self._is_searching = not message.is_over
        if message.found is not None:
            self.pager.move_to(message.found.at, middle=False)
            self.pager.refresh_lines()
            self._say_found()
        elif message.is_over:
            where, other = (
                ("below", f"press {key('log.previous')} to search up")
                if self._step > 0
                else ("above", f"press {key('log.next')} to search down")
            )
            self._bar.say(f"{self._note}no matches {where}; {other}", trouble=True)
        else:
            size = units.size(self.pager.buffer.end - self.pager.buffer.first)
            self._bar.say(f"searching {size}: {message.share:.0%} ({key('view.back')} cancels)")

    def _say_found(self) -> None:
        self._bar.say(f"{self._note}{key('log.next')}: next, {key('log.previous')}: previous")

    @property
    def _note(self) -> str:
        """How what was typed is understood, where that is not plain."""
        return f"{self.pattern.note}   " if self.pattern is not None and self.pattern.note else ""

    def action_back(self) -> None:
        """Cancel the search, then clear it, then go back."""
        if self._is_searching:
            self._is_searching = False
            self._reader.cancel()
            self._bar.say("search canceled", trouble=True)
        elif not self._bar.drop():
            self.dismiss()
