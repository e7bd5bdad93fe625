"""What the screens that watch have in common."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from textual import on
from textual.dom import NoScreen
from textual.reactive import var
from textual.screen import Screen
from textual.widget import Widget

from ddptop.draw.header import cost
from ddptop.logs.messages import LogRead
from ddptop.sources.query import Answer, Look, Query
from ddptop.tui import chart_keys
from ddptop.tui.messages import QueryChanged, SectionsWanted
from ddptop.tui.widgets.chart_widget import ChartWidget
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.findings import findings
from ddptop.view.text import Line, line
from ddptop_runner.job.registry import AnyJob

HORIZONTAL = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]
VERTICAL = [(0, "-short"), (32, "-tall")]


AnswerT = TypeVar("AnswerT", bound=Answer)

_viewers = itertools.count(1)


class MonitorScreen(Screen[None], Generic[AnswerT]):
    """A screen that asks the collector, and shows its answers."""

    HORIZONTAL_BREAKPOINTS = HORIZONTAL
    VERTICAL_BREAKPOINTS = VERTICAL

    answer: var[AnswerT | None] = var(None, init=False, always_update=True)
    """The latest answer to this screen's query."""

    def __init__(self, *, readonly: bool = False) -> None:
        """`readonly` hides every key that does something to a job."""
        super().__init__()
        self.viewer = next(_viewers)
        """Tells the answers to this screen from those to others."""
        self.readonly = readonly
        """Whether this viewer refuses to do anything to a job."""
        self.keys_before: Widget | None = None
        """What had the keys before a chart took them."""
        self.is_first = False
        """Whether ddptop was opened on this screen; leaving it then quits ddptop."""

    @property
    def subject(self) -> tuple[object, ...]:
        """What it shows now: two screens of one kind and subject show the same."""
        return ()

    def on_compose(self) -> None:
        """Have the classes of the size before the widgets: else all are styled a second time."""
        width, height = self.app.size
        for size, rows in ((width, HORIZONTAL), (height, VERTICAL)):
            self.add_class(max(row for row in rows if row[0] <= size)[1])

    def on_log_read(self, message: LogRead) -> None:
        """Lines of a log, which most screens do not show."""

    def place(self, look: Look) -> Line:
        """The host and time shown in the title."""
        local = look.taken_at.astimezone()
        return line((look.machine.host, ""), (f"  {local:%H:%M:%S}", "dim"))

    def cost(self, look: Look) -> tuple[str, str]:
        """For the keys' row: what watching costs, at length and briefly."""
        devices = look.devices
        return cost(look.cpu_percent, devices.sampler_cpu_percent, devices.queries_per_s)

    def show_findings(self, view: AnyJob | None, look: Look) -> None:
        """Show all findings for a job."""
        if view is None:
            self.notify("no job selected", severity="warning")
            return
        job = view.job

        def made(later: Look) -> tuple[str, list[tuple[str, str]]]:
            return findings(later.job(job), later.taken_at)

        self.post_message(SectionsWanted(f"findings for {job}", *made(look), made))

    def charts(self) -> Sequence[ChartWidget]:
        """The charts that CHART_ACTIONS are for, the most important first."""
        return ()

    @on(ChartWidget.Viewed)
    def _chart_viewed(self, message: ChartWidget.Viewed) -> None:
        message.stop()
        chart_keys.viewed(self, message)

    def action_chart(self, name: str, amount: int = 0) -> None:
        """A key of the charts."""
        chart_keys.press(self, name, amount)

    def needs(self) -> Query:
        """What this screen asks."""
        raise NotImplementedError

    def show(self, answer: AnswerT) -> None:
        """Bring the widgets up to date."""
        raise NotImplementedError

    def explain(self) -> list[tuple[str, str]]:
        """What is under the cursor: headings and texts, for the help."""
        focused = self.focused
        return focused.explain() if isinstance(focused, LinesView) else []

    def typed(self, character: str) -> None:
        """A character that is no key of this screen, and for no field."""

    def action_back(self) -> None:
        """Remove the chart's cursor, or go back to the previous screen."""
        if not chart_keys.escape(self):
            self.dismiss()

    def action_leave(self) -> None:
        """Go back to the previous screen, or quit if ddptop was opened on this one."""
        if self.is_first:
            self.app.exit()
        else:
            self.action_back()

    def on_screen_resume(self) -> None:
        """Seen again, or for the first time: what is needed has changed."""
        self.post_message(QueryChanged())

    def watch_answer(self, answer: AnswerT | None) -> None:
        """Show each answer once."""
        if answer is None or not self.is_mounted:
            return
        # while a screen opens or closes, parts of it may not be there: the next look finds them
        with contextlib.suppress(NoScreen), self.app.batch_update():
            self.show(answer)
