"""Detects losses that stay NaN or infinite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.words import ENDED, OnNan

BAD_SAMPLES, BAD_STEPS = 3, 2
"""A loss has gone bad after this many samples without a finite one and this many bad steps."""


def in_words(rank: RankSample) -> str:
    """One sentence on a rank whose loss is not finite."""
    what = "NaN" if rank.loss_state == "nan" else "infinite"
    since, good = rank.loss_bad_since, rank.loss_last_good
    at = "" if since is None else f" at {run_step.in_words(rank, since)}"
    last = "" if good is None else f"; the last finite loss was {good:.4g}"
    return f"The loss on rank {rank.rank} became {what}{at}{last}."


class _Streak:
    """One rank's samples since its loss was last finite."""

    def __init__(self) -> None:
        self.samples = 0
        self.steps: set[int | None] = set()
        self.since: int | None = None

    def add(self, rank: RankSample) -> bool:
        """Add a sample; returns whether the loss has gone bad for good."""
        if rank.loss_state in (None, "ok"):
            self.samples = 0 if rank.loss_state == "ok" else self.samples
            return False
        if self.samples == 0 or rank.loss_min is not None or rank.loss_bad_since != self.since:
            self.samples, self.steps, self.since = 0, set(), rank.loss_bad_since
        self.samples += 1
        self.steps.add(rank.loss_step)
        # a line without a step may remain the only one for long
        stepless = self.steps == {None} and rank.loss_source != "log"
        return self.samples >= BAD_SAMPLES and (stepless or len(self.steps) >= BAD_STEPS)


class LossWatch:
    """Checks the ranks' losses once per second.

    Args:
        on_nan: the requested action.
    """

    def __init__(self, on_nan: OnNan) -> None:
        self._on_nan = on_nan
        self._streaks: dict[int, _Streak] = defaultdict(_Streak)

    def begin_attempt(self) -> None:
        """Start over for a new attempt."""
        self._streaks.clear()

    def update(self, ranks: Sequence[RankSample]) -> RankSample | None:
        """The rank with the loss that `--on-nan` must act on, if there is one.

        It is the one that went bad first; in DDP, the others follow a step later.
        """
        living = [rank for rank in ranks if rank.state not in ENDED]
        is_lasting = [self._streaks[rank.rank].add(rank) for rank in living]
        if not any(is_lasting) or self._on_nan == "alert":
            return None
        bad = [rank for rank in living if rank.loss_state in ("nan", "inf")]
        known = [rank for rank in bad if rank.loss_bad_since is not None]
        return min(known or bad, key=lambda rank: (rank.loss_bad_since or 0, rank.rank))
