"""A job's attempts, the last one first."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.draw.story import attempt_row
from ddptop.tui.widgets.table import Table
from ddptop.view.attempts import Attempt
from ddptop.view.figures.columns import Column
from ddptop_runner.model.words import JobState

COLUMNS = (
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
"""What the words in the table mean."""


class AttemptsTable(Table):
    """One row an attempt; until a person moves it, the cursor stands on the one to ask about."""

    def __init__(self) -> None:
        super().__init__("attempts", COLUMNS, id="attempts")
        self._attempts: Sequence[Attempt] = ()
        self._placed = False

    @property
    def chosen(self) -> Attempt | None:
        """The attempt under the cursor."""
        return next((one for one in self._attempts if str(one.number) == self.cursor_key), None)

    def show(self, attempts: Sequence[Attempt], state: JobState, now: dt.datetime) -> None:
        """Take the attempts, the last one first."""
        was_last = bool(self._attempts) and self.cursor_key == str(self._attempts[0].number)
        is_new = bool(attempts) and len(attempts) != len(self._attempts)
        self._attempts = attempts
        self.empty = "no attempts yet"
        self.set_rows([(str(one.number), attempt_row(one, state, now)) for one in attempts])
        if attempts and (not self._placed or (is_new and was_last)):
            self._placed = True
            self.move_to(str(_to_ask_about(attempts).number))

    def explain(self) -> list[tuple[str, str]]:
        """What the attempt under the cursor is, and the columns."""
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


def _to_ask_about(attempts: Sequence[Attempt]) -> Attempt:
    """The last attempt, or where that one lives or ended well, the last that failed."""
    failed = (one for one in attempts if one.ending in ("failed", "lost"))
    return attempts[0] if attempts[0].ending == "stopped" else next(failed, attempts[0])
