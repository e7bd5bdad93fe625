"""The story screen: what happened in each attempt of a job."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from ddptop.draw.events import folded_sections
from ddptop.draw.story import headline
from ddptop.job.attempts import Attempt
from ddptop.job.filter import Vocabulary, parse
from ddptop.job.keys import SCREENS
from ddptop.job.status import loss_remark
from ddptop.sources.past import StoryAnswer, StoryQuery
from ddptop.tui import operations
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import JobBound
from ddptop.tui.widgets.bars import FilterBar, KeyBar, TitleBar
from ddptop.tui.widgets.story import AttemptsTable, FoldedEventsTable, WhyPanel
from ddptop.tui.widgets.table import Table
from ddptop_runner.base.units import plural

VOCABULARY = Vocabulary(fields=("event", "rank"))
MOST_SHARE = 0.3
"""Maximum share of the height for the attempts."""
WHY_SHARE = 0.55
"""Share of the rest for the selected attempt's cause if it is above the events."""


class StoryScreen(JobBound[StoryAnswer]):
    """A list of attempts, and the cause and events of the selected one."""

    DEFAULT_CSS = """
    StoryScreen {
        #attempts { height: auto; }
        #attempt { height: 1fr; }
        #why { width: 100%; }
        #folded { width: 100%; height: 1fr; min-height: 3; }
    }
    StoryScreen.-wide {
        #attempt { layout: horizontal; }
        #why { width: 4fr; }
        #folded { width: 5fr; height: 100%; margin: 0 0 0 1; }
    }
    """

    KEYS = "a job's story"
    BINDINGS = bindings(SCREENS[KEYS])

    def __init__(self, job: str, *, readonly: bool = False) -> None:
        super().__init__(readonly=readonly)
        self.job = job
        """The job's name."""
        self._title = TitleBar(job, readonly=readonly)
        self._attempts = AttemptsTable()
        self._why = WhyPanel()
        self._folded = FoldedEventsTable()
        self._filter = FilterBar("words, event:alert, rank:3, !word")
        self._keys = KeyBar(SCREENS[self.KEYS])
        self._heights: tuple[int, int | None] = (0, None)

    @property
    def subject(self) -> tuple[object, ...]:
        """The job."""
        return (self.job,)

    def compose(self) -> ComposeResult:
        """Attempts, cause, and events."""
        yield from (self._title, self._attempts)
        with Vertical(id="attempt"):
            yield from (self._why, self._folded)
        yield from (self._filter, self._keys)

    def on_mount(self) -> None:
        """Focus the attempts."""
        self._attempts.focus()

    def needs(self) -> StoryQuery:
        """The whole story, and the last log lines of the selected attempt."""
        chosen = self._attempts.chosen
        return StoryQuery(job=self.job, attempt=None if chosen is None else chosen.number)

    def show(self, answer: StoryAnswer) -> None:
        """Update the screen."""
        right, view, story = self.place(answer.look), answer.view, answer.story
        if view is None or story is None:
            self._title.show(f"{self.job} no longer exists", right)
            self._keys.show(None, readonly=self.readonly)
            return
        about = f"story: {headline(story.attempts, view.state, loss_remark(view))}"
        self._title.show(self.job, right, story.trouble or about)
        self._attempts.show(story.attempts, view.state, answer.look.taken_at)
        self._keys.show(view.is_live, readonly=self.readonly)
        self._show_chosen()

    def _show_chosen(self) -> None:
        """Show why the selected attempt ended, and its events."""
        answer = self.answer
        if answer is None or answer.view is None or answer.story is None:
            return
        chosen, story = self._attempts.chosen, answer.story
        self._why.show(
            *(chosen, answer.view.state, story.tail, answer.look.taken_at),
            is_last=chosen is None or chosen is story.attempts[0],
        )
        filtered = parse(self._filter.text, VOCABULARY)
        left = self._folded.show(chosen, filtered)
        self._filter.show_status(
            filtered.trouble or plural(left, "event"), trouble=filtered.trouble is not None
        )
        self._fit()

    def _fit(self) -> None:
        """Give the attempts and the cause the rows they need, up to a share."""
        rest = self.size.height - 2
        top = min(self._attempts.rows_wanted(), max(4, int(rest * MOST_SHARE)))
        side_by_side = self.has_class("-wide")
        why = None
        if not side_by_side:
            most = max(3, int((rest - top) * WHY_SHARE))
            why = len(self._why.lines_of(max(20, self.size.width), most))
        if (top, why) == self._heights:
            return
        self._heights = (top, why)
        self._attempts.styles.height = top
        self._why.styles.height = "100%" if why is None else why

    def on_resize(self) -> None:
        """Fit the rows to the new size."""
        self.call_after_refresh(self._fit)

    # --- actions ---------------------------------------------------------------------------------

    @on(Table.Moved, "#attempts")
    def _attempt_chosen(self) -> None:
        self._show_chosen()
        self.post_message(QueryChanged())

    @on(Table.Chosen, "#attempts")
    def _attempt_entered(self) -> None:
        self.action_evidence()

    @on(Table.Chosen, "#folded")
    def _event_entered(self) -> None:
        folded, attempt = self._folded.chosen, self._folded.attempt
        if folded is not None and attempt is not None:
            title = f"{self.job}, attempt {attempt.number}"
            hint = plural(len(folded.events), "event")
            sections = folded_sections(folded, attempt.started_at)
            self.show_sections(title, hint, sections)

    def action_open(self) -> None:
        """Show the item under the cursor in full."""
        table = self._folded if self._folded.has_focus else self._attempts
        table.action_choose()

    def action_other(self) -> None:
        """Switch the focus between attempts and events."""
        (self._attempts if self._folded.has_focus else self._folded).focus()

    def action_evidence(self) -> None:
        """Show the evidence saved when the selected attempt failed."""
        if (view := self.view) is None or (chosen := self._attempts.chosen) is None:
            return
        if chosen.cause is None:
            self.notify(
                f"attempt {chosen.number} did not fail, so no evidence was saved", markup=False
            )
            return
        operations.show_evidence(self.ddptop, view, chosen.number)

    def action_logs(self) -> None:
        """Show the first failed rank's log of the selected attempt."""
        if (chosen := self._attempts.chosen) is None:
            return
        rank = None if chosen.cause is None else chosen.cause.rank
        self.open("logs", self.job, rank, attempt=chosen.number)

    def action_replay(self) -> None:
        """Replay the job from the event, or from the end of the attempt."""
        if self._attempts.chosen is not None:
            self.open("replay", self.job, self._moment())

    def _moment(self) -> float | None:
        """The time of the item under the cursor, in unix seconds."""
        chosen: Attempt | None = self._attempts.chosen
        if self._folded.has_focus and (folded := self._folded.chosen) is not None:
            return folded.at.timestamp()
        if chosen is None:
            return None
        at = chosen.ended_at or chosen.started_at
        return None if at is None else at.timestamp()

    def action_filter(self) -> None:
        """Filter the events."""
        self._filter.open()

    @on(FilterBar.Changed)
    def _filtered(self) -> None:
        self._show_chosen()

    def action_back(self) -> None:
        """Clear the filter, then go back to the previous screen."""
        if not self._filter.drop():
            super().action_back()
