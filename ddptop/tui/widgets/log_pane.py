"""The log panel of the job and rank screens: a title, and a rank's log, followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from ddptop.job.help import Guilty
from ddptop.job.keys import key
from ddptop.job.ranks import launcher_name
from ddptop.job.record import Job
from ddptop.logs.messages import LogRead, PlacesRead
from ddptop.style import Line, Span, line, rule
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.log_pager import LogPager
from ddptop_runner.base.paths import LAUNCHER

if TYPE_CHECKING:
    from ddptop.logs.reader import LogView


class LogTitle(LinesView):
    """The title: whose log it is, why, and of which attempt."""

    DEFAULT_CSS = "LogTitle { height: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.title = "log"
        self.note: Line = ()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rule above the lines."""
        return [rule(self.title, width, self.note)]


class LogPane(Vertical):
    """A rank's log, starting with its last lines; new ones are read with each answer."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self.lines = LogPager()
        """The scrolling lines."""
        self.lines.steps_attempts = False
        self._title = LogTitle()
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
        pager.is_live = view.is_live
        pager.output = view.output or "n/a" if view.is_foreign else None
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
        pager.reader.is_live = view.is_live
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

    def feed(self, message: LogRead) -> None:
        """Add lines of a foreign job's output."""
        self.lines.feed(message)

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
        if (f"{kind}{whose}", note) != (self._title.title, self._title.note):
            self._title.title, self._title.note = f"{kind}{whose}", note
            self._title.redraw()
