"""The events of one attempt on a time line."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.draw.told import EVENT_MEANINGS, Told, fold, told_row
from ddptop.tui.widgets.table import Table
from ddptop.view.attempts import Attempt
from ddptop.view.figures.columns import Column
from ddptop.view.filter import Facts, Filter
from ddptop.view.keys import with_keys
from ddptop.view.words import event_words
from ddptop_runner.model.snapshot import Event

COLUMNS = (
    Column("offset", "after", 8, ">"),
    Column("mark", "│", 1),
    Column("time", "time", 8, drop=4),
    Column("type", "event", 15, drop=3),
    Column("rank", "rank", 5, ">", drop=2),
    Column("message", "what happened", 44, flex=True),
)


class ToldTable(Table):
    """One row an event, or several that tell the same; times count from the attempt's start."""

    def __init__(self) -> None:
        super().__init__("events", COLUMNS, id="told")
        self._of: tuple[int, Sequence[Event]] = (-1, ())
        self._told: list[Told] = []
        self._filter = Filter()
        self._started: Attempt | None = None

    @property
    def chosen(self) -> Told | None:
        """The line under the cursor."""
        return next((one for one in self._told if one.key == self.cursor_key), None)

    @property
    def attempt(self) -> Attempt | None:
        """Whose events these are."""
        return self._started

    def show(self, attempt: Attempt | None, filtered: Filter) -> int:
        """Take an attempt's events, and how many of its lines the filter leaves."""
        shown = (-1, ()) if attempt is None else (attempt.number, attempt.events)
        if shown[0] != self._of[0] or filtered != self._filter or len(shown[1]) != len(self._of[1]):
            another = shown[0] != self._of[0]
            self._of, self._filter, self._started = shown, filtered, attempt
            lines = fold(shown[1])
            self._told = [one for one in lines if filtered.matches(facts_of(one))]
            self.title = "events" if attempt is None else f"events in attempt {attempt.number}"
            self.empty = "no events match" if filtered and lines else "no events yet"
            start = None if attempt is None else attempt.started_at
            if another:
                self.cursor_key = None
            self.set_rows([(one.key, told_row(one, start)) for one in self._told])
        return len(self._told)

    def explain(self) -> list[tuple[str, str]]:
        """What the event under the cursor is."""
        if (one := self.chosen) is None:
            return []
        meaning = with_keys(EVENT_MEANINGS.get(one.type, "an entry in the job's history"))
        return [
            (event_words(one.type), meaning),
            (
                "after",
                "time since this attempt's ranks started; negative before they started",
            ),
        ]


def facts_of(told: Told) -> Facts:
    """What a filter looks at of a line."""
    words_ = event_words(told.type)
    return Facts(
        text=f"{words_} {told.message} {' '.join(one.message for one in told.events[:20])}",
        fields={"event": [told.type, words_], "rank": [str(rank) for rank in told.ranks]},
    )
