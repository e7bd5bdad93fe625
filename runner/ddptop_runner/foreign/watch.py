"""Foreign jobs watched over time: each look makes views that every screen can show.

Pure decisions are elsewhere (`states`, `loss_text`, `findings`); this joins them with what the
earlier looks saw. Memory is bounded however long it watches.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.foreign.types import Census
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.history_reader import Series
from ddptop_runner.model import Event, GpuSample


@dataclass(frozen=True)
class NewLines:
    """What an output has had to say since the last question."""

    lines: tuple[str, ...] = ()
    """Clean of control sequences."""
    partial: str = ""
    """The line that has not ended yet, such as a progress bar."""
    anew: bool = False
    """Whether these are the first lines: what was shown before belongs to something else."""


class ForeignBook:
    """The foreign jobs of this host, look by look. Used by one thread."""

    def look(
        self,
        census: Census,
        gpus: Sequence[GpuSample],
        now: dt.datetime,
        *,
        follow: str | None = None,
    ) -> list[ForeignView]:
        """All foreign jobs as views, newest first.

        Args:
            census: the processes as they are now.
            gpus: the devices as sampled last; [] where there are none.
            now: the wall clock.
            follow: the job to follow closely: its output is read at every look, and it stays in
                the list as `lost`, with `ended_at`, once its processes are gone. The others'
                outputs are read within a small budget, and their panes seldom.
        """
        raise NotImplementedError

    def chart(self, job: str, since_s: float, until_s: float, columns: int) -> dict[int, Series]:
        """Losses by rank, at most `columns` points each, as `HistoryReader.rank_series` has them.

        Args:
            job: its name; one that is not known has no series.
            since_s: unix seconds; 0 is the first that was seen.
            until_s: unix seconds, included.
            columns: 2 or more.
        """
        raise NotImplementedError

    def span(self, job: str) -> tuple[float, float] | None:
        """Unix seconds of the first and the last loss seen, or None without any."""
        raise NotImplementedError

    def events(self, job: str) -> list[Event]:
        """What happened while it was watched, latest first."""
        raise NotImplementedError

    def lines(self, job: str, rank: int | None = None) -> NewLines:
        """What is new since the last call for this output; first the last lines it has.

        Args:
            job: its name; only the job that is followed keeps lines.
            rank: whose output; None is the whole job's. A rank without an output of its own has
                the job's.
        """
        raise NotImplementedError

    def output_words(self, job: str) -> str:
        """Where the output goes and, where it cannot be read, why."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of every open file."""
        raise NotImplementedError
