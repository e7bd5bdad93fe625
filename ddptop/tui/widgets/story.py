"""Widgets of the story screen: attempts, the cause of one's end, and its events."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.draw.events import FoldedEvents, fold, folded_row
from ddptop.draw.story import attempt_row, why_lines
from ddptop.job.attempts import Attempt
from ddptop.job.filter import Facts, Filter
from ddptop.job.help import explain_event
from ddptop.job.series import Tail
from ddptop.job.status import event_words
from ddptop.style import Column, Line, rule
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.table import Table
from ddptop_runner.model.snapshot import Event
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

ENDINGS = {
    "lives": "in progress: the ranks are running or starting",
    "failed": "a rank raised an exception, was killed, hung, or lost its device; the rank shown "
    "failed first, and the others were stopped as a result",
    "finished": "every rank exited with status 0",
    "stopped": "the attempt was stopped by a user, the batch system, or a signal to the guardian",
    "again": "a user restarted all ranks; nothing had failed",
    "lost": "the attempt's processes exited without leaving an exit status (for example, "
    "because of a reboot or kill -9)",
    "unknown": "another attempt followed, and no event records how this one ended",
}
"""The meaning of the words in the table."""


class AttemptsTable(Table):
    """One row per attempt; the cursor starts on the most interesting one."""

    def __init__(self) -> None:
        super().__init__("attempts", ATTEMPT_COLUMNS, id="attempts")
        self._attempts: Sequence[Attempt] = ()
        self._placed = False

    @property
    def chosen(self) -> Attempt | None:
        """The attempt under the cursor."""
        return next((one for one in self._attempts if str(one.number) == self.cursor_key), None)

    def show(self, attempts: Sequence[Attempt], state: JobState, now: dt.datetime) -> None:
        """Show the attempts, latest first."""
        was_last = bool(self._attempts) and self.cursor_key == str(self._attempts[0].number)
        is_new = bool(attempts) and len(attempts) != len(self._attempts)
        self._attempts = attempts
        self.empty = "no attempts yet"
        self.set_rows([(str(one.number), attempt_row(one, state, now)) for one in attempts])
        if attempts and (not self._placed or (is_new and was_last)):
            self._placed = True
            self.move_to(str(_most_relevant(attempts).number))

    def explain(self) -> list[tuple[str, str]]:
        """Help on the attempt under the cursor and on the columns."""
        if (one := self.chosen) is None:
            return []
        return [
            (f"attempt {one.number}", ENDINGS[one.ending]),
            ("steps", "optimizer steps taken by the slowest rank in this attempt"),
            ("rank", "the rank that failed first; the others failed as a result"),
            (
                "work lost",
                "steps and time since the last detected checkpoint; without one, the whole attempt",
            ),
        ]


def _most_relevant(attempts: Sequence[Attempt]) -> Attempt:
    """The latest attempt that failed, or else the latest one."""
    failed = (one for one in attempts if one.ending in ("failed", "lost"))
    return next(failed, attempts[0])


class WhyPanel(LinesView):
    """The selected attempt in words."""

    DEFAULT_CSS = """
    WhyPanel { background: $background; }
    """

    def __init__(self) -> None:
        super().__init__(id="why")
        self._attempt: Attempt | None = None
        self._state: JobState = "running"
        self._tail: Tail | None = None
        self._now = dt.datetime.min
        self._is_last = True

    def show(
        self,
        attempt: Attempt | None,
        state: JobState,
        tail: Tail | None,
        now: dt.datetime,
        *,
        is_last: bool,
    ) -> None:
        """Show an attempt; `is_last` means that no other followed."""
        self._attempt, self._state, self._tail = attempt, state, tail
        self._now, self._is_last = now, is_last
        self.redraw()

    def lines_of(self, width: int, most: int) -> list[Line]:
        """The lines on the attempt, at most `most`."""
        head = "why" if self._attempt is None else f"attempt {self._attempt.number}"
        lines = [rule(head, width)]
        if self._attempt is not None:
            lines += why_lines(
                *(self._attempt, self._state, self._tail, self._now, width, most - 1),
                is_last=self._is_last,
            )
        return lines

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows."""
        return self.lines_of(width, height)


EVENT_COLUMNS = (
    Column("offset", "after", 8, ">"),
    Column("mark", "│", 1),
    Column("time", "time", 8, drop=4),
    Column("type", "event", 15, drop=3),
    Column("rank", "rank", 5, ">", drop=2),
    Column("message", "what happened", 44, flex=True),
)


class FoldedEventsTable(Table):
    """A row per event, or per group of similar events; times count from the attempt's start."""

    def __init__(self) -> None:
        super().__init__("events", EVENT_COLUMNS, id="folded")
        self._of: tuple[int, Sequence[Event]] = (-1, ())
        self._folded: list[FoldedEvents] = []
        self._filter = Filter()
        self._started: Attempt | None = None

    @property
    def chosen(self) -> FoldedEvents | None:
        """The row under the cursor."""
        return next((one for one in self._folded if one.key == self.cursor_key), None)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt whose events are shown."""
        return self._started

    def show(self, attempt: Attempt | None, filtered: Filter) -> int:
        """Show an attempt's events; returns how many rows match the filter."""
        shown = (-1, ()) if attempt is None else (attempt.number, attempt.events)
        if shown[0] != self._of[0] or filtered != self._filter or len(shown[1]) != len(self._of[1]):
            another = shown[0] != self._of[0]
            self._of, self._filter, self._started = shown, filtered, attempt
            lines = fold(shown[1])
            self._folded = [one for one in lines if filtered.matches(facts_of(one))]
            self.title = "events" if attempt is None else f"events in attempt {attempt.number}"
            self.empty = "no events match" if filtered and lines else "no events yet"
            start = None if attempt is None else attempt.started_at
            if another:
                self.cursor_key = None
            self.set_rows([(one.key, folded_row(one, start)) for one in self._folded])
        return len(self._folded)

    def explain(self) -> list[tuple[str, str]]:
        """Help on the event under the cursor."""
        if (one := self.chosen) is None:
            return []
        meaning = explain_event(one.type)
        return [
            (event_words(one.type), meaning),
            (
                "after",
                "time since this attempt's ranks started; negative before they started",
            ),
        ]


def facts_of(folded: FoldedEvents) -> Facts:
    """The facts of a row that a filter matches."""
    words_ = event_words(folded.type)
    return Facts(
        text=f"{words_} {folded.message} {' '.join(one.message for one in folded.events[:20])}",
        fields={"event": [folded.type, words_], "rank": [str(rank) for rank in folded.ranks]},
    )
