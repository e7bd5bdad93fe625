"""The log screen: one rank's log, the launcher's, or all ranks merged."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult

from ddptop.job.keys import SCREENS, key
from ddptop.job.ranks import launcher_name
from ddptop.job.record import Job
from ddptop.logs.drawing import LEVEL_WORDS, LogHeading, choices, line_help, title_line
from ddptop.logs.messages import Level, LogRow, Places
from ddptop.logs.reader import MAX_COUNTED, LogReader, LogView, SearchMoved
from ddptop.logs.search import LogPattern, pattern_of
from ddptop.sources.query import Answer, Followed, Query
from ddptop.style import Span, line, part_at
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.widgets.bars import FilterBar
from ddptop.tui.widgets.lines import Panel
from ddptop.tui.widgets.logs import LogPager
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER, RunFolder, runs_dir

DIGITS = tuple("0123456789")

LEVELS: tuple[Level, ...] = tuple(LEVEL_WORDS)


class LogHead(Panel):
    """The title, and the ranks and attempts to choose from; a click chooses."""

    DEFAULT_CSS = "LogHead { height: 2; }"

    _heading = LogHeading()

    def show(self, heading: LogHeading) -> None:
        """Show facts about the log."""
        self._heading = heading
        self.paint(
            lambda cells, _: [
                title_line(heading, cells),
                tuple(span for _, spans in choices(heading, cells) for span in spans),
            ]
        )

    async def on_click(self, event: events.Click) -> None:
        """Choose what is under the mouse."""
        action = part_at(choices(self._heading, self.size.width), event.x)
        if event.y == 1 and action:
            await self.app.run_action(action, default_namespace=self.screen)


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
        super().__init__(job, readonly=readonly)
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
        self._is_counting = False
        """Whether the match is found, and the others are being counted."""
        self._step = 1
        self._job_view: Job | None = None
        self._head = LogHead()

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

    def needs(self) -> Query:
        """Only the job; the screen reads its log itself, unless the job is foreign."""
        rank = None if self.view.whose == LAUNCHER else self.view.whose
        followed = Followed(self.job, rank) if self.foreign else None
        return Query(job=self.job, foreign=self.foreign, followed=followed)

    def show(self, answer: Answer) -> None:
        """Update the title."""
        self._job_view = found = answer.view
        self._title.show(f"logs for {self.job}", self.place(answer.look))
        self._keys.show(found, foreign=self.foreign)
        pager = self.pager
        pager.describe(found)
        if self.foreign and not pager.rows:
            pager.explain_empty()
        self._show_head()

    @on(LogPager.AttemptStarted)
    def _attempt_started(self, message: LogPager.AttemptStarted) -> None:
        self.notify(f"attempt {message.attempt} started", markup=False)

    @on(LogPager.Moved)
    def _show_head(self) -> None:
        job = self._job_view
        launcher = None
        if self.places.has_launcher or (self.foreign and self.view.whose is None):
            launcher = (None if job is None else launcher_name(job)) or "the job"
        heading = LogHeading(
            "output" if self.foreign else "log",
            self.view.whose,
            self._ranks(),
            launcher,
            self.places.attempts,
            self._attempt,
            tuple(self._notes()),
        )
        self._head.show(heading)

    def _notes(self) -> Iterator[Span]:
        """Notes in the title, the most important first."""
        pager, view, attempts = self.pager, self.view, self.places.attempts
        is_live = view.attempt is None and (self._job_view is None or self._job_view.is_live)
        end = key("move.last")
        if view.least:
            yield f"{LEVEL_WORDS[view.least]} only", "busy"
        if pager.following:
            yield ("following", "ok") if is_live else ("end", "dim")
        else:
            yield f"not following ({end}: end)" if is_live else f"{end}: end", "dim"
        if pager.output is not None:
            yield pager.output, "dim"
        if len(attempts) > 1:
            latest = attempts[-1]
            is_latest = self._attempt == latest
            words = "latest" if is_latest else f"latest: {latest}"
            yield f"attempt {self._attempt} ({words})", "dim" if is_latest else "busy"
        if self._is_merged:
            same = "similar" if view.alike else "identical"
            yield f"{same} lines collapsed", "dim"
        if pager.page.end:
            yield units.size(pager.page.end - pager.page.first), "dim"

    @property
    def _attempt(self) -> int:
        return self.places.attempt if self.view.attempt is None else self.view.attempt

    @property
    def _is_merged(self) -> bool:
        return self.view.whose is None and self.pager.page.limit > 0

    def _ranks(self) -> tuple[int, ...]:
        """The ranks whose log can be shown."""
        if self.places.has_launcher:
            return ()
        if not self.foreign:
            return self.places.ranks
        state = None if self._job_view is None else self._job_view.snapshot
        return () if state is None else tuple(sorted(rank.rank for rank in state.ranks))

    # --- actions ---------------------------------------------------------------------------------

    def _open(self, view: LogView, position: int | None = None) -> None:
        self._is_searching = False
        self.pager.open(view, position)
        self._show_head()
        if self.foreign:
            self.post_message(QueryChanged())

    def _position(self) -> int | None:
        """The offset of the line under the cursor; None while following the end."""
        row = self.pager.current
        return None if self.pager.following or row is None or not self.pager.page.end else row.at

    def action_show(self, whose: str) -> None:
        """Show one rank's log, the launcher's, or all."""
        chosen = None if whose == "all" else int(whose)
        if chosen is not None:
            self._last_rank = chosen
        self.pager.following = True
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
            self.warn("this is the full log; its ranks have no logs of their own")
        else:
            chosen = self._last_rank if self._last_rank in ranks else ranks[0]
            self.action_show(str(chosen))

    def action_rank(self, step: int) -> None:
        """Show the next or previous rank; from all ranks, the first or last one."""
        ranks = self._ranks()
        if not ranks:
            self.warn("there is only one log, which all ranks share")
        elif self.view.whose is None:
            self.action_show(str(ranks[0 if step > 0 else -1]))
        else:
            index = step + (ranks.index(self.view.whose) if self.view.whose in ranks else 0)
            if 0 <= index < len(ranks):
                self.action_show(str(ranks[index]))

    def action_show_attempt(self, attempt: int) -> None:
        """Show an attempt's log; with the latest one, continue with those that follow."""
        self.pager.following = True
        latest = bool(self.places.attempts) and attempt == self.places.attempts[-1]
        self._open(replace(self.view, attempt=None if latest else attempt))

    def action_attempt(self, step: int) -> None:
        """Show the previous or next attempt."""
        known = self.places.attempts
        at = known.index(self._attempt) + step if self._attempt in known else -1
        if 0 <= at < len(known):
            self.action_show_attempt(known[at])
        else:
            self.warn(f"no {'later' if step > 0 else 'earlier'} attempt")

    def action_level(self) -> None:
        """Switch between all lines, warnings and errors, and errors only."""
        least = LEVELS[(LEVELS.index(self.view.least) + 1) % len(LEVELS)]
        self._open(replace(self.view, least=least), self._position())

    def action_alike(self) -> None:
        """Collapse identical merged lines only, or similar ones too."""
        if not self._is_merged:
            self.warn(f"only the merged log can be collapsed; press {key('log.merge')} to merge")
        else:
            self._open(replace(self.view, alike=not self.view.alike))

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
        if self.pager.following:
            self._find(None, -1)
        elif (row := self.pager.current) is not None:
            self._find(row, 1)

    def action_find(self, step: int) -> None:
        """Go to the next or previous match."""
        if self.pattern is None:
            self.action_search()
        else:
            self._find(self.pager.current, step)

    def _find(self, row: LogRow | None, step: int) -> None:
        assert self.pattern is not None
        self._search += 1
        self._step, self._is_searching, self._is_counting = step, True, False
        pager = self.pager
        if pager.reader is not None:
            pager.reader.find(pager.generation, self._search, self.pattern, row, step)

    @on(SearchMoved)
    def _search_moved(self, message: SearchMoved) -> None:
        if message.number != self._search or not self._is_searching:
            return
        if message.found is not None:
            self.pager.go_to(message.found)
            self._bar.show_status("counting matches...")
            self._is_counting = True
        elif message.is_over:
            self._is_searching = False
            self._show_result(message)
        elif not self._is_counting:
            size = units.size(self.pager.page.end - self.pager.page.first)
            self._bar.show_status(
                f"searching {size}: {message.share:.0%} ({key('view.back')} cancels)"
            )

    def _show_result(self, message: SearchMoved) -> None:
        """Show which match this is, and of how many."""
        assert self.pattern is not None
        if self.pattern.is_slow:
            self._bar.show_status("regex is too slow; search stopped", trouble=True)
            return
        note = [self.pattern.note] if self.pattern.note else []
        if not message.count:
            self._bar.show_status("   ".join(["no matches", *note]), trouble=True)
            return
        count = f"{message.count:,}{'+' if message.count == MAX_COUNTED else ''}"
        place = f"{count} matches" if message.index is None else f"{message.index:,} of {count}"
        hint = f"{key('log.next')}: next, {key('log.previous')}: previous"
        if message.has_wrapped:
            hint = f"continued from the {'top' if self._step > 0 else 'end'}"
        self._bar.show_status("   ".join([place, hint, *note]))

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
        if (row := self.pager.current) is None:
            return []
        return line_help(row, self.view.whose, None if self.foreign else self._attempt)
