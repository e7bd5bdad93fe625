"""What the screens of one job have in common: what is done to it, and pages in little room."""

from __future__ import annotations

from textual import on
from textual.reactive import var
from textual.widget import Widget

from ddptop.tui import chart_keys, operations
from ddptop.tui.messages import (
    CompareWanted,
    DevicesWanted,
    EvidenceWanted,
    LaunchWanted,
    LogsWanted,
    OperationWanted,
    ReplayWanted,
    StacksWanted,
    StoryWanted,
)
from ddptop.tui.screens.base import AnswerT, MonitorScreen
from ddptop.tui.widgets.bars import Pages
from ddptop.view.rank_words import device_uuid
from ddptop_runner.job.registry import AnyJob

NO_HISTORY = "{} has no {}: ddptop did not start it"


class JobBound(MonitorScreen[AnswerT]):
    """The app asks, refuses and carries out.

    The stylesheet shows what belongs to the class `-page-NAME`; `main` is all that fits.
    """

    page: var[str] = var("main", init=False)
    """Which page is shown."""

    def __init__(self, pages: Pages | None = None, *, readonly: bool = False) -> None:
        """`pages` is the row with their names; None: there is one page."""
        super().__init__(readonly=readonly)
        self._pages = Pages() if pages is None else pages
        self.add_class("-page-main", update=False)

    job: str
    """The job's name."""
    foreign: bool
    """Whether ddptop did not start it, so it is observed from outside."""

    @property
    def chosen_rank(self) -> int | None:
        """The rank that pages are opened for."""
        raise NotImplementedError

    @property
    def view(self) -> AnyJob | None:
        """The job as it was read last; None before that, and once it is gone."""
        return None if self.answer is None else self.answer.view

    def _seen(self) -> AnyJob | None:
        """The job; notifies the user if it is gone."""
        if self.answer is not None and self.view is None:
            self.notify(f"{self.job} no longer exists", severity="warning", markup=False)
        return self.view

    def _want(self, make: operations.Maker, needs_live: bool) -> None:
        if (view := self._seen()) is not None:
            self.post_message(OperationWanted(view, make, needs_live))

    def action_stop(self) -> None:
        """Stop the job after confirmation."""
        self._want(operations.stop, True)

    def action_kill(self) -> None:
        """Kill the job after confirmation."""
        self._want(operations.kill, True)

    def action_restart(self) -> None:
        """Restart all ranks after confirmation."""
        self._want(operations.restart_group, True)

    def action_save(self) -> None:
        """Ask for a checkpoint: it ends nothing, so nothing is to be confirmed."""
        self._want(operations.save, True)

    def action_again(self) -> None:
        """Open the launch form with what the ended job was launched with."""
        if (view := self._seen()) is not None:
            self.post_message(LaunchWanted(view))

    def action_stacks(self) -> None:
        """Ask where the ranks stand."""
        if (view := self._seen()) is not None:
            self.post_message(StacksWanted(view))

    def action_evidence(self) -> None:
        """Read what was kept at the last failure or hang."""
        if (view := self._seen()) is not None:
            self.post_message(EvidenceWanted(view))

    def action_findings(self) -> None:
        """Everything that is wrong, in full."""
        if (view := self._seen()) is not None and self.answer is not None:
            self.show_findings(view, self.answer.look)

    def action_logs(self) -> None:
        """Show the selected rank's output."""
        self.post_message(LogsWanted(self.job, self.chosen_rank, self.foreign))

    def action_devices(self) -> None:
        """Show all devices, with the selected rank's device selected."""
        snapshot = None if self.view is None else self.view.snapshot
        self.post_message(DevicesWanted(device_uuid(snapshot, self.chosen_rank)))

    def action_story(self) -> None:
        """Show each attempt and its outcome."""
        if self._has_history("story"):
            self.post_message(StoryWanted(self.job))

    def action_replay(self) -> None:
        """The job as it was, at the chart's cursor where there is one."""
        if self._has_history("history"):
            views = [chart.view for chart in self.charts()]
            at = next((view.cursor for view in views if view.axis == "time"), None)
            self.post_message(ReplayWanted(self.job, at))

    def action_compare(self) -> None:
        """Compare its loss with another job's."""
        if self._has_history("history"):
            self.post_message(CompareWanted((self.job,)))

    def _has_history(self, what: str) -> bool:
        if self.foreign:
            self.notify(NO_HISTORY.format(self.job, what), severity="warning", markup=False)
        return not self.foreign

    def action_jobs(self) -> None:
        """To all jobs."""
        self.dismiss()

    def action_launch(self) -> None:
        """Open the form."""
        self.post_message(LaunchWanted())

    # --- pages ---------------------------------------------------------------------------------

    def page_widget(self, page: str) -> Widget | None:
        """What has the keys on a page; None is what has them while everything is shown."""
        return None

    def focus_main(self) -> None:
        """Give the keys to what has them while everything is shown."""

    def show_page(self) -> None:
        """Update what depends on the page."""

    def watch_page(self, page: str) -> None:
        """Show one page, and give it the keys."""
        for name in self._pages.names:
            self.set_class(name == page, f"-page-{name}")
        self._pages.show(page)
        self.show_page()
        if (target := self.page_widget(page)) is not None:
            target.focus()
        else:
            self.focus_main()

    @on(Pages.Picked)
    def _page_picked(self, message: Pages.Picked) -> None:
        self.page = message.page

    def action_page(self, page: str) -> None:
        """Show a page alone, or all again."""
        self.page = "main" if self.page == page else page

    def action_back(self) -> None:
        """Remove the chart's cursor, then show all pages, then go back to the previous screen."""
        if chart_keys.escape(self):
            return
        if self.page != "main":
            self.page = "main"
        else:
            self.dismiss()
