"""Base classes of the monitor screens, and of those for one job."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from textual import on
from textual.dom import NoScreen
from textual.reactive import var

from ddptop.charts.axis import View
from ddptop.job.help import findings
from ddptop.job.keys import SCREENS
from ddptop.job.ranks import device_uuid
from ddptop.job.record import Job
from ddptop.job.status import alerts_of
from ddptop.logs.messages import LogRead
from ddptop.sources.history import ChartQuery
from ddptop.sources.query import Answer, Look, Query
from ddptop.style import Line, line
from ddptop.tui import operations
from ddptop.tui.messages import QueryChanged, ScreenWanted
from ddptop.tui.textual_gaps import HeldScreen
from ddptop.tui.widgets.bars import FilterBar, KeyBar, Pages, TitleBar
from ddptop.tui.widgets.charts import ChartWidget
from ddptop.tui.widgets.lines import LinesView
from ddptop_runner.model.snapshot import Alert

if TYPE_CHECKING:
    from ddptop.tui.app import DdptopApp
    from ddptop.tui.screens.dialogs import SectionsScreen

HORIZONTAL = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]
VERTICAL = [(0, "-short"), (32, "-tall")]


HELD_S = 0.2
"""How long a new screen waits for its first answer before it is drawn without one."""

AnswerT = TypeVar("AnswerT", bound=Answer)

_viewers = itertools.count(1)


class MonitorScreen(HeldScreen, Generic[AnswerT]):
    """A screen that queries the collector and shows its answers."""

    KEYS: ClassVar[str]
    """Its title in the key table."""
    HORIZONTAL_BREAKPOINTS = HORIZONTAL
    VERTICAL_BREAKPOINTS = VERTICAL

    answer: var[AnswerT | None] = var(None, init=False, always_update=True)
    """The latest answer to this screen's query."""

    def __init__(self, title: str = "", *, readonly: bool = False) -> None:
        """Begin with a title; `readonly` hides every key that changes a job."""
        super().__init__()
        self._title = TitleBar(title, readonly=readonly)
        self._keys = KeyBar(SCREENS[self.KEYS], readonly=readonly)
        self.charts: Sequence[ChartWidget] = ()
        """The charts that keys.CHART apply to, most important first."""
        self.viewer = next(_viewers)
        """Identifies answers to this screen."""
        self._findings: tuple[str, SectionsScreen | None] = ("", None)
        """The job whose findings are shown in a dialog, and the dialog."""
        self.readonly = readonly
        """Whether this viewer refuses to change jobs."""
        self.is_first = False
        """Whether ddptop was opened on this screen; leaving it then quits ddptop."""

    @property
    def subject(self) -> tuple[object, ...]:
        """What it shows; two screens of one class with equal subjects show the same."""
        return ()

    def on_compose(self) -> None:
        """Set the size classes before mounting widgets, which would otherwise be styled twice."""
        width, height = self.app.size
        sizes = ((width, HORIZONTAL), (height, VERTICAL))
        found = (max(row for row in rows if row[0] <= size)[1] for size, rows in sizes)
        self.add_class(*found, update=False)
        self.set_timer(HELD_S, self.release)

    def on_log_read(self, message: LogRead) -> None:
        """Show a foreign job's output, unless the screen shows that of another rank by now."""
        from ddptop.tui.widgets.logs import LogPager

        followed = self.needs().followed
        if followed is not None and (message.viewer, message.rank) == (self.viewer, followed.rank):
            self.query_one(LogPager).feed(message)

    def place(self, look: Look) -> Line:
        """The host and time shown in the title."""
        local = look.taken_at.astimezone()
        return line((look.machine.host, ""), (f"  {local:%H:%M:%S}", "dim"))

    # --- the job that keys apply to --------------------------------------------------------------

    @property
    def ddptop(self) -> DdptopApp:
        """The app."""
        return cast("DdptopApp", self.app)

    def target(self) -> Job | None:
        """The job that keys apply to; notifies the user if there is none."""
        return None

    def own_target(self, what: str) -> Job | None:
        """The job that keys apply to, if ddptop launched it; else notifies the user.

        Args:
            what: what a foreign job lacks.
        """
        job = self.target()
        if job is not None and job.is_foreign:
            self.warn(f"{job.name} has no {what}: ddptop did not start it")
            return None
        return job

    def warn(self, text: str) -> None:
        """Notify the user that a key does nothing here, and why."""
        self.notify(text, severity="warning", markup=False)

    def open(self, screen: str, *subject: object, **options: object) -> None:
        """Open a screen; see `ScreenWanted`."""
        self.post_message(ScreenWanted(screen, *subject, **options))

    def action_operate(self, name: str) -> None:
        """Stop, kill, restart, save, or remove the job, after confirmation if it is harmful."""
        if (job := self.target()) is not None:
            operations.start(self.ddptop, job, name)

    def action_launch(self) -> None:
        """Open the launch form."""
        self.ddptop.open_launch_form()

    def action_again(self) -> None:
        """Open the launch form with the values of the ended job."""
        if (job := self.target()) is not None:
            self.ddptop.open_launch_form(job)

    def action_stacks(self) -> None:
        """Show the ranks' stacks."""
        if (job := self.target()) is not None:
            operations.show_stacks(self.ddptop, job)

    def action_profile(self) -> None:
        """Profile a few steps of the ranks that matter here."""
        if (job := self.target()) is not None:
            operations.show_profile(self.ddptop, job, self.profiled)

    @property
    def profiled(self) -> tuple[int, ...]:
        """The ranks to profile; empty for the slowest and the median one."""
        return ()

    def action_evidence(self) -> None:
        """Show the evidence of the latest failure or hang."""
        if (job := self.target()) is not None:
            operations.show_evidence(self.ddptop, job, None)

    def action_replay(self) -> None:
        """Open a replay, at the chart's cursor if there is one."""
        if (job := self.own_target("history")) is not None:
            views = [chart.view for chart in self.charts]
            at = next((view.cursor for view in views if view.axis == "time"), None)
            self.open("replay", job.name, at)

    def action_findings(self) -> None:
        """Show all findings in full, and new ones while the dialog is open."""
        if (job := self.target()) is None or self.answer is None:
            return
        hint, sections = findings(job, self.answer.look.taken_at)
        self._findings = job.name, self.show_sections(f"findings for {job.name}", hint, sections)

    def _show_findings(self, answer: AnswerT) -> None:
        name, dialog = self._findings
        if dialog is not None and dialog.is_current:
            job = answer.look.job(name) if answer.view is None else answer.view
            hint, sections = findings(job, answer.look.taken_at)
            dialog.show(sections, hint)

    def show_sections(
        self, title: str, hint: str, sections: list[tuple[str, str]]
    ) -> SectionsScreen:
        """Open a dialog with a title, a line below it, and (heading, text) pairs."""
        from ddptop.tui.screens.dialogs import SectionsScreen

        dialog = SectionsScreen(title, hint, sections)
        self.app.push_screen(dialog)
        return dialog

    # --- charts ----------------------------------------------------------------------------------

    @on(ChartWidget.Viewed)
    def _chart_viewed(self, message: ChartWidget.Viewed) -> None:
        """Give all charts of the screen the same time range and cursor."""
        message.stop()
        for chart in self.charts:
            if chart is not message.chart:
                chart.follow(message.chart.view)
        if message.moved:
            self.post_message(QueryChanged())

    def chart_query(self, columns: int, rank: int | None = None) -> ChartQuery:
        """The query for its charts; the whole run if there are none."""
        view = next((chart.view for chart in self.charts), View())
        return ChartQuery(columns, view.axis, view.span, view.right, rank)

    def action_chart(self, method: str, *amount: int) -> None:
        """Apply a chart key to the focused chart, or else to the first visible one."""
        focused = next((chart for chart in self.charts if chart.has_focus), None)
        chart = focused or next((chart for chart in self.charts if chart.size.height), None)
        if chart is not None:
            getattr(chart, method)(*amount)

    def drop_cursor(self) -> bool:
        """Remove the charts' cursor; returns whether there was one."""
        there = [chart.drop_cursor() for chart in self.charts]
        return any(there)

    def drop_filter(self) -> bool:
        """Clear the filter; returns whether there was one."""
        return any(bar.drop() for bar in self.query(FilterBar))

    def needs(self) -> Query:
        """The screen's query."""
        raise NotImplementedError

    def show(self, answer: AnswerT) -> None:
        """Update the widgets."""
        raise NotImplementedError

    def explain(self) -> list[tuple[str, str]]:
        """Help on the item under the cursor: (heading, text) pairs."""
        focused = self.focused
        return focused.explain() if isinstance(focused, LinesView) else []

    def typed(self, character: str) -> None:
        """Handle a character that is not a key of the screen and not meant for a text field."""

    def action_back(self) -> None:
        """Clear the filter, or remove the chart's cursor, or go back to the previous screen."""
        if not (self.drop_filter() or self.drop_cursor()):
            self.dismiss()

    def action_jobs(self) -> None:
        """Go to the job list, past other screens."""
        from ddptop.tui.screens.overview import OverviewScreen

        for screen in reversed(self.app.screen_stack[1:]):
            if isinstance(screen, OverviewScreen):
                break
            self.app.pop_screen()

    def action_leave(self) -> None:
        """Go back to the previous screen, or quit if ddptop was opened on this one."""
        if self.is_first:
            self.app.exit()
        else:
            self.action_back()

    def on_screen_resume(self) -> None:
        """Send the query again: another screen was on top."""
        self.post_message(QueryChanged())

    def watch_answer(self, answer: AnswerT | None) -> None:
        """Show a new answer."""
        if answer is None or not self.is_mounted:
            return
        # while a screen opens or closes, some widgets may be missing: the next update shows them
        with contextlib.suppress(NoScreen), self.app.batch_update():
            self.show(answer)
            self._show_findings(answer)
            self.release()


class JobBound(MonitorScreen[AnswerT]):
    """A screen for one job. The app confirms, refuses, and runs its operations.

    The stylesheet shows the widgets of the class `-page-NAME`; page `main` shows all that fit.
    """

    PAGES: ClassVar[Mapping[str, str]] = {}
    """The widget to focus on each page other than the main one."""

    page: var[str] = var("main", init=False)
    """The page shown."""

    def __init__(self, job: str, pages: Pages | None = None, *, readonly: bool = False) -> None:
        """`pages` is the row with the page names, by default those of a job."""
        super().__init__(job, readonly=readonly)
        self.job = job
        """The job's name."""
        self._pages = Pages() if pages is None else pages
        self.add_class("-page-main", update=False)

    foreign: bool
    """Whether ddptop did not launch it."""

    @property
    def chosen_rank(self) -> int | None:
        """The rank that other screens open with."""
        raise NotImplementedError

    @property
    def view(self) -> Job | None:
        """The job as last read; None before the first answer, and if the job is gone."""
        return None if self.answer is None else self.answer.view

    def target(self) -> Job | None:
        """The job; notifies the user if it is gone."""
        if self.answer is not None and self.view is None:
            self.warn(f"{self.job} no longer exists")
        return self.view

    def alerts(self, job: Job, trouble: str | None) -> list[Alert]:
        """The job's alerts, and one for what could not be read."""
        if trouble is None:
            return alerts_of(job)
        unread = Alert(id="files", severity="warning", message=trouble, since=job.read_at)
        return [*alerts_of(job), unread]

    def action_logs(self) -> None:
        """Show the selected rank's output."""
        self.open("logs", self.job, self.chosen_rank, foreign=self.foreign)

    def action_devices(self) -> None:
        """Show all devices, with the selected rank's device selected."""
        view = self.view
        self.open("devices", view and device_uuid(view.snapshot, self.chosen_rank))

    def action_story(self) -> None:
        """Show each attempt and its outcome."""
        if self.own_target("story") is not None:
            self.open("story", self.job)

    def action_compare(self) -> None:
        """Compare its loss with another job's."""
        if self.own_target("history") is not None:
            self.open("compare", (self.job,))

    # --- pages -----------------------------------------------------------------------------------

    def focus_main(self) -> None:
        """Focus the widget that has the keys on the main page."""

    def show_page(self) -> None:
        """Update what depends on the page."""

    def watch_page(self, page: str) -> None:
        """Show a page and focus it."""
        for name in self._pages.names:
            self.set_class(name == page, f"-page-{name}")
        self._pages.show(page)
        self.show_page()
        if page in self.PAGES:
            self.query_one(self.PAGES[page]).focus()
        else:
            self.focus_main()

    def action_page(self, page: str) -> None:
        """Show only one page, or all panels again."""
        self.page = "main" if self.page == page else page

    def action_back(self) -> None:
        """Clear the filter or the chart's cursor, then show all pages, then go back."""
        if self.drop_filter() or self.drop_cursor():
            return
        if self.page != "main":
            self.page = "main"
        else:
            self.dismiss()
