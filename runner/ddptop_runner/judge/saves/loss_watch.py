"""Loss gone bad: what `--on-nan` acts on.

A single NaN or infinity is no reason to end a job: a gradient scaler that overflows skips the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.words import OnNan

BAD_LOOKS, BAD_STEPS = 3, 2
"""A loss has gone bad when no finite one came for so many looks, and so many steps were bad."""

_ENDED = ("exited", "failed", "stopped")


@dataclass(frozen=True)
class BadLoss:
    """A loss that is to be acted on."""

    rank: int
    step: int | None
    """At which it was first seen bad."""
    what: str
    """`NaN` or `infinite`."""
    last_good: float | None = None
    """The last finite loss that was seen of the rank."""
    at_step: str = ""
    """`step` in words, as a step of the run where that is known."""

    def in_words(self) -> str:
        """One sentence."""
        at = "" if self.step is None else f" at {self.at_step or f'step {self.step}'}"
        good = "" if self.last_good is None else f"; the last finite loss was {self.last_good:.4g}"
        return f"The loss on rank {self.rank} became {self.what}{at}{good}."


class _Streak:
    """Looks at one rank's loss since it was last finite."""

    def __init__(self) -> None:
        self.looks = 0
        self.steps: set[int | None] = set()
        self.since: int | None = None
        self.last_good: float | None = None

    def look(self, rank: RankSample) -> bool:
        """Whether the loss has gone bad for good."""
        if rank.loss_state is None:
            return False
        if rank.loss_state == "ok":
            self.last_good = rank.loss
        # or one came since the look before
        if (
            rank.loss_state == "ok"
            or rank.loss_min is not None
            or rank.loss_bad_since != self.since
        ):
            self.looks, self.since = 0, rank.loss_bad_since
            self.steps.clear()
        if rank.loss_state == "ok":
            return False
        self.looks += 1
        self.steps.add(rank.loss_step)
        # a line without a step may be the only one for long
        stepless = self.steps == {None} and rank.loss_source != "log"
        return self.looks >= BAD_LOOKS and (stepless or len(self.steps) >= BAD_STEPS)


class LossWatch:
    """Looks at the ranks' losses once a second.

    Args:
        on_nan: what was asked for.
    """

    def __init__(self, on_nan: OnNan) -> None:
        self._on_nan = on_nan
        self._streaks: dict[int, _Streak] = {}

    def begin_attempt(self) -> None:
        """The group was started anew."""
        self._streaks.clear()

    def look(self, ranks: Sequence[RankSample]) -> BadLoss | None:
        """What `--on-nan` has to act on."""
        living = [rank for rank in ranks if rank.state not in _ENDED]
        is_lasting = [self._streaks.setdefault(rank.rank, _Streak()).look(rank) for rank in living]
        return self._first_bad(living) if any(is_lasting) and self._on_nan != "alert" else None

    def _first_bad(self, ranks: Sequence[RankSample]) -> BadLoss:
        """The rank to look at: in DDP the others' losses go bad a step later."""
        bad = [rank for rank in ranks if rank.loss_state in ("nan", "inf")]
        first = min(bad, key=lambda rank: (_or_last(rank.loss_bad_since), rank.rank))
        good = self._streaks[first.rank].last_good
        return BadLoss(
            first.rank,
            first.loss_bad_since,
            "NaN" if first.loss_state == "nan" else "infinite",
            good if first.loss_last_good is None else first.loss_last_good,
            run_step.in_words(first, first.loss_bad_since),
        )


def _or_last(step: int | None) -> float:
    return math.inf if step is None else step
