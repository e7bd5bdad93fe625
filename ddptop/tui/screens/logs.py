"""The log screen: one rank's log, the launcher's, or all ranks merged."""

from __future__ import annotations

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult

from ddptop.job.keys import SCREENS, key
from ddptop.job.ranks import launcher_name
from ddptop.job.record import Job
from ddptop.logs.messages import (
    Level,
    LogRead,
    Places,
    SearchMoved,
)
from ddptop.logs.reader import LogReader, LogView
from ddptop.logs.search import LogPattern, pattern_of
from ddptop.logs.titles import HeadFacts, about_line, choices, head_rule
from ddptop.sources.job import LogsQuery
from ddptop.sources.query import Answer, Followed
from ddptop.style import Line, line, width
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.bars import KeyBar, TitleBar
from ddptop.tui.widgets.filter_bar import FilterBar
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.log_pager import LogPager
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER, RunFolder, runs_dir

DIGITS = tuple("0123456789")

LEVELS: tuple[Level, ...] = ("", "warn", "error")


class LogHead(LinesView):
    """The title, and the ranks and attempts to choose from; a click chooses."""

    DEFAULT_CSS = "LogHead { height: 2; }"

    def __init__(self) -> None:
        super().__init__()
        self._facts = HeadFacts()

    def show(self, facts: HeadFacts) -> None:
        """Show facts about the log."""
        if facts != self._facts:
            self._facts = facts
            self.redraw()

    def build(self, cells: int, height: int) -> list[Line]:
        """Both rows."""
        row = tuple(span for one in choices(self._facts, cells) for span in one.spans)
        return [head_rule(self._facts, cells), row]

    async def on_click(self, event: events.Click) -> None:
        """Choose what is under the mouse."""
        x = 0
        for one in choices(self._facts, self.size.width):
            x += width(one.spans)
            if event.x < x:
                if event.y == 1 and one.action:
                    await self.app.run_action(one.action, default_namespace=self.screen)
                return


class LogsScreen(MonitorScreen[Answer]):
    """A log that can be searched, filtered, and followed."""

    KEYS = "logs"
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(
        self,
        job: str,
        rank: int | None = None,
        *,
        attempt: int | None = None,
        foreign: bool = False,
        readonly: bool = False,
    ) -> None:
        """Show the log of one rank of `job`, or of all ranks.

        It starts with `attempt`, by default the latest.
        """
        super().__init__(readonly=readonly)
        self.job, self.foreign = job, foreign
        self.pager = LogPager(id="lines")
        """The lines."""
        self.pattern: LogPattern | None = None
        """The search pattern."""
        self._first = LogView(whose=rank, attempt=attempt)
        self._last_rank = rank
        self._bar = FilterBar("text or regex; press enter")
        self._search = 0
        self._is_searching = False
        self._step = 1
        self._job_view: Job | None = None
        self._title = TitleBar(job, readonly=readonly)
        self._head = LogHead()
        self._keys = KeyBar(SCREENS[self.KEYS])

    @property
    def view(self) -> LogView:
        """The log shown, and how."""
        return self.pager.view or self._first

    @property
    def places(self) -> Places:
        """The available logs."""
        return self.pager.places

    @property
    def subject(self) -> tuple[object, ...]:
        """The log."""
        return (self.job, self.foreign, self.view.whose, self.view.attempt)

    def compose(self) -> ComposeResult:
        """Title, choices, lines, search bar, and keys."""
        yield from (self._title, self._head, self.pager, self._bar, self._keys)

    def on_mount(self) -> None:
        """Start reading the end of the log."""
        self.pager.empty = [line(("  reading", "dim"))]
        self.pager.focus()
        folder = None if self.foreign else RunFolder(runs_dir() / self.job)
        self.pager.read(LogReader(folder, self.pager.post_message))
        self._open(self._first)

    # --- data ------------------------------------------------------------------------------------

    def needs(self) -> LogsQuery:
        """Only the job; the screen reads its log itself, unless the job is foreign."""
        rank = None if self.view.whose == LAUNCHER else self.view.whose
        followed = Followed(self.job, rank) if self.foreign else None
        return LogsQuery(job=self.job, foreign=self.foreign, followed=followed)

    def show(self, answer: Answer) -> None:
        """Update the title."""
        self._job_view = found = answer.view
        self._title.show(f"logs for {self.job}", self.place(answer.look))
        self._keys.show(
            None if found is None else found.is_live, foreign=self.foreign, readonly=self.readonly
        )
        pager = self.pager
        pager.is_live = found is None or found.is_live
        pager.output = (found.output or "n/a") if found is not None and found.is_foreign else None
        if pager.reader is not None:
            pager.reader.is_live = found is not None and found.is_live
        if self.foreign and not pager.buffer.rows:
            pager.explain_empty()
        self._show_head()

    def on_log_read(self, message: LogRead) -> None:
        """Show lines of a foreign job."""
        rank = None if self.view.whose == LAUNCHER else self.view.whose
        if message.key.viewer == self.viewer and message.key.rank == rank:
            self.pager.feed(message)

    @on(LogPager.AttemptStarted)
    def _attempt_started(self, message: LogPager.AttemptStarted) -> None:
        self.notify(f"attempt {message.attempt} started", markup=False)

    @on(LogPager.Moved)
    def _show_head(self) -> None:
        pager, view = self.pager, self.view
        job = self._job_view
        launcher = None if job is None else launcher_name(job)
        self._head.show(
            HeadFacts(
                whose=view.whose,
                ranks=self._ranks(),
                has_launcher=self.places.has_launcher,
                launcher=launcher or "the launcher",
                is_merged=self._is_merged,
                attempts=self.places.attempts,
                attempt=None if self.foreign or not self.places.attempts else self._attempt,
                least=view.least,
                alike=view.alike,
                each=view.each,
                limit=pager.limit,
                size_bytes=pager.buffer.end - pager.buffer.first if pager.buffer.is_paged else None,
                following=pager.following,
                held=pager.held,
                is_live=(job is None or job.is_live) and self.view.attempt is None,
                output=(job.output or "n/a") if job is not None and job.is_foreign else None,
            )
        )

    @property
    def _attempt(self) -> int:
        return self.places.attempt if self.view.attempt is None else self.view.attempt

    @property
    def _is_merged(self) -> bool:
        return self.view.whose is None and not self.pager.buffer.is_paged and not self.foreign

    def _ranks(self) -> tuple[int, ...]:
        """The ranks whose log can be shown."""
        if self.places.has_launcher:
            return ()
        if not self.foreign:
            return self.places.ranks
        state = None if self._job_view is None else self._job_view.snapshot
        return () if state is None else tuple(sorted(rank.rank for rank in state.ranks))

    # --- actions ---------------------------------------------------------------------------------

    def _open(self, view: LogView, share: float | None = None) -> None:
        self._is_searching = False
        self.pager.open(view, share)
        self._show_head()
        if self.foreign:
            self.post_message(QueryChanged())

    def _share(self) -> float | None:
        """The position of the cursor in the file, from 0 to 1; None while following the end."""
        row, buffer = self.pager.current, self.pager.buffer
        if self.pager.following or row is None or not buffer.is_paged:
            return None
        return (row.at + 0.5 - buffer.first) / max(1, buffer.end - buffer.first)

    def action_show(self, whose: str) -> None:
        """Show one rank's log, the launcher's, or all."""
        chosen = None if whose == "all" else int(whose)
        if chosen is not None:
            self._last_rank = chosen
        self.pager.following, self.pager.held = True, False
        self._open(replace(self.view, whose=chosen))

    def typed(self, character: str) -> None:
        """Select the rank of a digit, as the row of choices shows it."""
        if character in DIGITS and int(character) in self._ranks():
            self.action_show(character)

    def action_merge(self) -> None:
        """Show all ranks, or the rank shown before."""
        ranks = self._ranks()
        if self.view.whose is not None:
            self.action_show("all")
        elif not ranks:
            text = "this is the full log; its ranks have no logs of their own"
            self.notify(text, severity="warning", markup=False)
        else:
            chosen = self._last_rank if self._last_rank in ranks else ranks[0]
            self.action_show(str(chosen))

    def action_rank(self, step: int) -> None:
        """Show the next or previous rank; from all ranks, the first or last one."""
        ranks = self._ranks()
        choices = list(ranks)
        if not ranks:
            text = "there is only one log, which all ranks share"
            self.notify(text, severity="warning", markup=False)
        elif self.view.whose is None:
            self.action_show(str(choices[0 if step > 0 else -1]))
        else:
            at = choices.index(self.view.whose) if self.view.whose in choices else 0
            index = at + step
            if 0 <= index < len(choices):
                self.action_show(str(choices[index]))

    def action_show_attempt(self, attempt: int) -> None:
        """Show an attempt's log; with the latest one, continue with those that follow."""
        self.pager.following, self.pager.held = True, False
        latest = bool(self.places.attempts) and attempt == self.places.attempts[-1]
        self._open(replace(self.view, attempt=None if latest else attempt))

    def action_attempt(self, step: int) -> None:
        """Show the previous or next attempt."""
        known = self.places.attempts
        at = known.index(self._attempt) + step if self._attempt in known else -1
        if 0 <= at < len(known):
            self.action_show_attempt(known[at])
        else:
            text = f"no {'later' if step > 0 else 'earlier'} attempt"
            self.notify(text, severity="warning", markup=False)

    def action_level(self) -> None:
        """Switch between all lines, warnings and errors, and errors only."""
        least = LEVELS[(LEVELS.index(self.view.least) + 1) % len(LEVELS)]
        self._open(replace(self.view, least=least), self._share())

    def action_alike(self) -> None:
        """Collapse identical merged lines, collapse similar ones, or show each."""
        if not self._is_merged:
            self.notify(
                f"only the merged log can be collapsed; press {key('log.merge')} to merge",
                severity="warning",
            )
            return
        view = self.view
        alike = not view.alike and not view.each
        self._open(replace(view, alike=alike, each=view.alike))

    def action_follow(self) -> None:
        """Follow the end, or stop following."""
        self.pager.toggle_follow()

    def action_wrap(self) -> None:
        """Wrap long lines, or clip them."""
        self.pager.set_wrap(not self.pager.wrap)

    @on(LogPager.Chosen)
    def _line_chosen(self, message: LogPager.Chosen) -> None:
        first = message.row.label.split("-")[0].split(",")[0].rstrip("~")
        if self._is_merged and first.isdigit():
            self.action_show(first)

    # --- searching, in the background ------------------------------------------------------------

    def action_search(self) -> None:
        """Open an empty search bar."""
        self._bar.drop()
        self._bar.open()

    @on(FilterBar.Changed)
    def _typing(self, message: FilterBar.Changed) -> None:
        self.pattern = pattern_of(message.text) if message.text else None
        self.pager.pattern = self.pattern
        self._bar.show_status(self.pattern.note if self.pattern is not None else "")
        self.pager.redraw()

    @on(FilterBar.Closed)
    def _typed(self, message: FilterBar.Closed) -> None:
        if not message.text or self.pattern is None:
            return
        row, pager = self.pager.current, self.pager
        if row is not None and not pager.following and self.pattern.finds(row.text):
            self.call_after_refresh(self._show_found)  # once the lines have the focus again
        elif pager.following:
            self._find(None, -1)
        else:
            self._find(None if row is None else row.at, 1)

    def action_find(self, step: int) -> None:
        """Go to the next or previous match."""
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
        pager = self.pager
        if pager.reader is not None:
            pager.reader.find(pager.generation, self._search, self.pattern, position, step)

    @on(SearchMoved)
    def _search_moved(self, message: SearchMoved) -> None:
        if message.number != self._search or not self._is_searching:
            return
        self._is_searching = not message.is_over
        if message.found is not None:
            self.pager.move_to(message.found.at, middle=False)
            self.pager.refresh_lines()
            self._show_found()
        elif message.is_over:
            where, other = (
                ("below", f"press {key('log.previous')} to search up")
                if self._step > 0
                else ("above", f"press {key('log.next')} to search down")
            )
            self._bar.show_status(f"{self._note}no matches {where}; {other}", trouble=True)
        else:
            size = units.size(self.pager.buffer.end - self.pager.buffer.first)
            self._bar.show_status(
                f"searching {size}: {message.share:.0%} ({key('view.back')} cancels)"
            )

    def _show_found(self) -> None:
        self._bar.show_status(
            f"{self._note}{key('log.next')}: next, {key('log.previous')}: previous"
        )

    @property
    def _note(self) -> str:
        """How the search text is interpreted, if that is not obvious."""
        return f"{self.pattern.note}   " if self.pattern is not None and self.pattern.note else ""

    # --- leaving and help ------------------------------------------------------------------------

    def action_back(self) -> None:
        """Cancel the search, then clear it, then go back."""
        if self._is_searching:
            self._is_searching = False
            if self.pager.reader is not None:
                self.pager.reader.cancel()
            self._bar.show_status("search canceled", trouble=True)
        elif not self._bar.drop():
            self.dismiss()

    def action_leave(self) -> None:
        """Go back to the previous screen."""
        self.dismiss()

    def explain(self) -> list[tuple[str, str]]:
        """Help on the line under the cursor."""
        row, buffer = self.pager.current, self.pager.buffer
        if row is None:
            return []
        attempt = None if self.foreign else self._attempt
        bounds = (buffer.first, buffer.end) if buffer.is_paged else None
        return about_line(row, self.view.whose, attempt, bounds)
