"""The story screen: what happened in each attempt of a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from ddptop.draw.events import FoldedEvents, fold, folded_row, folded_sections
from ddptop.draw.story import attempt_row, headline, origin, why_lines
from ddptop.job.attempts import Attempt
from ddptop.job.filter import Facts, Filter, Vocabulary, parse
from ddptop.job.help import about, explain_event, texts
from ddptop.job.keys import SCREENS
from ddptop.job.record import Job
from ddptop.job.series import Tail
from ddptop.job.status import event_words, loss_remark
from ddptop.sources.past import StoryAnswer, StoryQuery
from ddptop.style import Column, Line, rule
from ddptop.tui import operations
from ddptop.tui.keymap import bindings
from ddptop.tui.messages import QueryChanged
from ddptop.tui.screens.base import JobBound
from ddptop.tui.widgets.bars import FilterBar
from ddptop.tui.widgets.lines import Panel
from ddptop.tui.widgets.table import Table
from ddptop_runner.base.units import plural
from ddptop_runner.model.words import JobState

ATTEMPT_COLUMNS = (
    Column("number", "#", 3, ">"),
    Column("day", "date", 6, drop=4),
    Column("started", "started", 8, drop=3),
    Column("ran", "duration", 8, ">"),
    Column("steps", "steps", 7, ">", drop=1),
    Column("how", "result", 20, flex=True),
    Column("first", "rank", 4, ">"),
    Column("lost", "work lost", 16, drop=2),
)


class AttemptsTable(Table[Attempt]):
    """One row per attempt; the cursor starts on the most interesting one."""

    def __init__(self) -> None:
        super().__init__("attempts", ATTEMPT_COLUMNS, id="attempts")
        self._placed = False

    def show(self, attempts: Sequence[Attempt], state: JobState, now: dt.datetime) -> None:
        """Show the attempts, latest first."""
        was_last = bool(self.items) and self.cursor_key == str(self.items[0].number)
        is_new = bool(attempts) and len(attempts) != len(self.items)
        self.items = attempts
        self.empty = "no attempts yet"
        self.set_rows([(str(one.number), attempt_row(one, state, now)) for one in attempts])
        if attempts and (not self._placed or (is_new and was_last)):
            self._placed = True
            self.move_to(str(_most_relevant(attempts).number))

    def explain_item(self, item: Attempt) -> list[tuple[str, str]]:
        """Help on an attempt and on the columns."""
        ending = texts().about["endings"][item.ending]
        return [(f"attempt {item.number}", ending), *about("attempt")]


def _most_relevant(attempts: Sequence[Attempt]) -> Attempt:
    """The latest attempt that failed, or else the latest one."""
    failed = (one for one in attempts if one.ending in ("failed", "lost"))
    return next(failed, attempts[0])


def why_panel(
    attempt: Attempt | None, job: Job, tail: Tail | None, now: dt.datetime, *, is_last: bool
) -> Callable[[int, int], list[Line]]:
    """Draws an attempt in words; `is_last` means that no other followed."""
    state, launched = job.state, origin(job.spec)

    def paint(cells: int, rows: int) -> list[Line]:
        if attempt is None:
            return [rule("why", cells)]
        lines = why_lines(
            *(attempt, state, tail, now, cells, rows - 1), is_last=is_last, launched=launched
        )
        return [rule(f"attempt {attempt.number}", cells), *lines]

    return paint


EVENT_COLUMNS = (
    Column("offset", "after", 8, ">"),
    Column("mark", "│", 1),
    Column("time", "time", 8, drop=4),
    Column("type", "event", 15, drop=3),
    Column("rank", "rank", 5, ">", drop=2),
    Column("message", "what happened", 44, flex=True),
)


class FoldedEventsTable(Table[FoldedEvents]):
    """A row per event, or per group of similar events; times count from the attempt's start."""

    wrapped = "message"

    def __init__(self) -> None:
        super().__init__("events", EVENT_COLUMNS, id="folded")
        self._filter = Filter()
        self.attempt: Attempt | None = None
        """The attempt whose events are shown."""

    def show(self, attempt: Attempt | None, filtered: Filter) -> int:
        """Show an attempt's events; returns how many rows match the filter."""
        before, self.attempt = self.attempt, attempt
        events = () if attempt is None else attempt.events
        numbers = [None if one is None else one.number for one in (before, attempt)]
        is_longer = before is not None and len(events) != len(before.events)
        if numbers[0] != numbers[1] or is_longer or filtered != self._filter:
            self._filter = filtered
            lines = fold(events)
            self.items = [one for one in lines if filtered.matches(facts_of(one))]
            self.title = "events" if attempt is None else f"events in attempt {attempt.number}"
            self.empty = "no events match" if filtered and lines else "no events yet"
            start = None if attempt is None else attempt.started_at
            if numbers[0] != numbers[1]:
                self.cursor_key = None
            self.set_rows([(one.key, folded_row(one, start)) for one in self.items])
        return len(self.items)

    def explain_item(self, item: FoldedEvents) -> list[tuple[str, str]]:
        """Help on an event."""
        return [(event_words(item.type), explain_event(item.type)), *about("event")]


def facts_of(folded: FoldedEvents) -> Facts:
    """The facts of a row that a filter matches."""
    words_ = event_words(folded.type)
    return Facts(
        text=f"{words_} {folded.message} {' '.join(one.message for one in folded.events[:20])}",
        fields={"event": [folded.type, words_], "rank": [str(rank) for rank in folded.ranks]},
    )


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
        #why { width: 100%; background: $background; }
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
        super().__init__(job, readonly=readonly)
        self._attempts = AttemptsTable()
        self._why = Panel(id="why")
        self._folded = FoldedEventsTable()
        self._filter = FilterBar("words, event:alert, rank:3, !word")

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
            self._keys.show(None)
            return
        summary = f"story: {headline(story.attempts, view.state, loss_remark(view))}"
        self._title.show(self.job, right, story.trouble or summary)
        self._attempts.show(story.attempts, view.state, answer.look.taken_at)
        self._keys.show(view)
        self._show_chosen()

    def _show_chosen(self) -> None:
        """Show why the selected attempt ended, and its events."""
        answer = self.answer
        if answer is None or answer.view is None or answer.story is None:
            return
        chosen, story = self._attempts.chosen, answer.story
        is_last = chosen is None or chosen is story.attempts[0]
        now = answer.look.taken_at
        self._why.paint(why_panel(chosen, answer.view, story.tail, now, is_last=is_last))
        filtered = parse(self._filter.text, VOCABULARY)
        left = self._folded.show(chosen, filtered)
        self._filter.show_matches(filtered, plural(left, "event"))
        self._fit()

    def _fit(self) -> None:
        """Give the attempts and the cause the rows they need, up to a share."""
        rest = self.size.height - 2
        top = min(self._attempts.rows_wanted(), max(4, int(rest * MOST_SHARE)))
        side_by_side = self.has_class("-wide")
        why = None
        if not side_by_side:
            most = max(3, int((rest - top) * WHY_SHARE))
            why = len(self._why.build(max(20, self.size.width), most))
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

    @on(Table.Chosen, "#attempts")
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
        chosen = self._attempts.chosen
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
