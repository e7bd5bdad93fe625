"""The user's jobs in Slurm's queue that ddptop does not run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.tui.widgets.lines import LinesView
from ddptop.view.slurm_words import brief
from ddptop.view.text import Line, fit, line
from ddptop_runner.launch.slurm import SlurmJob
from ddptop_runner.store.log_clean import sanitize

MOST_ROWS = 4


class SlurmQueue(LinesView):
    """One row for each, and how many more there are."""

    def __init__(self) -> None:
        super().__init__(id="slurm")
        self._jobs: Sequence[SlurmJob] = ()
        self._now = dt.datetime.min

    def show(self, jobs: Sequence[SlurmJob], now: dt.datetime) -> None:
        """Take the queue."""
        self._jobs, self._now = jobs, now
        rows = min(len(jobs), MOST_ROWS)
        if self.styles.height is None or self.styles.height.value != rows:
            self.styles.height = rows
        self.set_class(bool(jobs), "-some")
        self.redraw()

    @property
    def rows(self) -> int:
        """How many it takes."""
        return min(len(self._jobs), MOST_ROWS)

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        shown = self._jobs if len(self._jobs) <= height else self._jobs[: height - 1]
        lines = [line((" Slurm ", "dim"), sanitize(brief(one, self._now))) for one in shown]
        if left := len(self._jobs) - len(shown):
            lines.append(line((f" Slurm {left} more: ddptop ls", "dim")))
        return [fit(one, width) for one in lines]
