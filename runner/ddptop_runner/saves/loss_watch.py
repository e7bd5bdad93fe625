"""Loss gone bad: what `--on-nan` acts on, and one rank's loss that leaves the others'.

A single NaN or infinity is no reason to end a job: a gradient scaler that overflows skips the step.
Ranks see different batches, so their losses are compared smoothed, against what is usual between
them, and only a distance that lasts is told.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddptop_runner.alerts import Finding
from ddptop_runner.balance.imbalance import (
    ENOUGH_FOR_A_SPREAD,
    LOSS_APART,
    LOSS_APART_LEAST,
    OUT_OF_SPREAD,
)
from ddptop_runner.model import RankSample
from ddptop_runner.model_words import OnNan
from ddptop_runner.spans import name_ranks

BAD_LOOKS, BAD_STEPS = 3, 2
"""A loss has gone bad when no finite one came for so many looks, and so many steps were bad."""

SMOOTHED_LOOKS = 21
"""A rank's loss is taken as the median of so many: single batches may be far off."""
ENOUGH_LOOKS = 15
"""With fewer losses of a rank their median says nothing yet."""
NOISES = 2.5
"""A loss is apart only if it is farther away than so many usual distances from the median."""
APART_FOR_S, APART_FOR_STEPS = 10.0, 20
"""For so long, and over so many steps, a loss must be apart before it is told."""
BACK_AT = 0.7
"""Of the bound: a loss that was told is back with the others from here on."""
EXPLODED, STAYED = 2.0, 1.2
"""Times its own lowest median: with two ranks, the one that has risen so far has left the other, if
that has risen no more than so far."""
SOARED = 10.0
"""Times its own lowest median: what such a loss varies by is part of its going bad, and excuses no
distance. With two ranks it has left the other if it has risen so many times as far."""
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

    def in_words(self) -> str:
        """One sentence."""
        at = "" if self.step is None else f" at step {self.step}"
        good = "" if self.last_good is None else f"; the last good one was {self.last_good:.4g}"
        return f"The loss of rank {self.rank} became {self.what}{at}{good}."


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


class _Trend:
    """One rank's loss, smoothed."""

    def __init__(self) -> None:
        self.middle = 0.0
        """Median of the latest losses."""
        self.noise = 0.0
        """The usual distance of a loss from it."""
        self.step: int | None = None
        self.lowest = math.inf
        self._losses: deque[float] = deque(maxlen=SMOOTHED_LOOKS)

    def look(self, rank: RankSample) -> None:
        """Take a loss in, if it is a new one."""
        if rank.loss_state != "ok" or rank.loss is None or not math.isfinite(rank.loss):
            return
        if rank.loss_step is not None and rank.loss_step == self.step:
            return
        self.step = rank.loss_step
        self._losses.append(rank.loss)
        self.middle = statistics.median(self._losses)
        self.noise = statistics.median(abs(loss - self.middle) for loss in self._losses)
        if self.is_settled:
            self.lowest = min(self.lowest, self.middle)

    @property
    def is_settled(self) -> bool:
        """Whether the median says something."""
        return len(self._losses) >= ENOUGH_LOOKS


@dataclass
class _Apart:
    """Since when a rank's loss is apart."""

    since_s: float
    since_step: int
    told: bool = False


class LossWatch:
    """Looks at the ranks' losses once a second.

    Args:
        on_nan: what was asked for.
    """

    def __init__(self, on_nan: OnNan) -> None:
        self._on_nan = on_nan
        self._streaks: dict[int, _Streak] = {}
        self._trends: dict[int, _Trend] = {}
        self._apart: dict[int, _Apart] = {}

    def begin_attempt(self) -> None:
        """The group was started anew."""
        self._streaks.clear()
        self._trends.clear()
        self._apart.clear()

    def look(
        self, ranks: Sequence[RankSample], now_s: float
    ) -> tuple[BadLoss | None, list[Finding]]:
        """(what `--on-nan` has to act on, findings for the alerts)."""
        living = [rank for rank in ranks if rank.state not in _ENDED]
        is_lasting = [self._streaks.setdefault(rank.rank, _Streak()).look(rank) for rank in living]
        bad = None
        if any(is_lasting) and self._on_nan != "alert":
            bad = self._first_bad(living)
        for rank in living:
            self._trends.setdefault(rank.rank, _Trend()).look(rank)
        settled = {
            rank.rank: self._trends[rank.rank]
            for rank in living
            if rank.loss_state == "ok" and self._trends[rank.rank].is_settled
        }
        findings = self._diverged(settled, now_s)
        return bad, findings

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
        )

    def _diverged(self, trends: Mapping[int, _Trend], now_s: float) -> list[Finding]:
        told = {rank for rank, apart in self._apart.items() if apart.told}
        now_apart = apart_ranks(trends, told)
        for rank in [rank for rank in self._apart if rank not in now_apart]:
            del self._apart[rank]
        for rank in now_apart:
            step = trends[rank].step or 0
            apart = self._apart.setdefault(rank, _Apart(now_s, step))
            long_enough = now_s - apart.since_s >= APART_FOR_S
            if long_enough and step - apart.since_step >= APART_FOR_STEPS:
                apart.told = True
        shown = sorted(rank for rank, apart in self._apart.items() if apart.told)
        return [_finding(trends, shown)] if shown else []


def apart_ranks(trends: Mapping[int, _Trend], told: set[int]) -> set[int]:
    """Ranks whose smoothed loss is away from the others' median, farther than is usual.

    The bounds are those by which the rank table and the chart single a rank out, and what losses
    vary by from batch to batch.

    Args:
        trends: of the ranks that have a loss.
        told: ranks that were found already: they must come nearer to be with the others again.
    """
    found = set()
    for rank, trend in trends.items():
        others = [other for number, other in trends.items() if number != rank]
        if not others:
            continue
        usual = statistics.median(other.middle for other in others)
        noise = statistics.median(other.noise for other in others)
        if len(others) == 1 and not _soared(trend):  # either of the two may be the odd one
            noise = max(noise, trend.noise)
        spread = 0.0
        if len(trends) >= ENOUGH_FOR_A_SPREAD:
            spread = statistics.median(abs(other.middle - usual) for other in others)
        bound = max(
            LOSS_APART_LEAST, LOSS_APART * abs(usual), OUT_OF_SPREAD * spread, NOISES * noise
        )
        if abs(trend.middle - usual) >= bound * (BACK_AT if rank in told else 1.0):
            found.add(rank)
    return found


def _finding(trends: Mapping[int, _Trend], ranks: Sequence[int]) -> Finding:
    if 2 * len(ranks) >= len(trends):  # nobody can say which of them is the odd one
        if len(trends) == 2 and (left := _exploded(trends)) is not None:
            ranks = [left]
        else:
            each = ", ".join(f"rank {rank} {trend.middle:.4g}" for rank, trend in trends.items())
            if len(trends) > 4:
                middles = [trend.middle for trend in trends.values()]
                each = f"from {min(middles):.4g} to {max(middles):.4g}"
            message = f"the losses of the ranks lie apart: {each}"
            return Finding("loss-diverged", "warning", message, tuple(sorted(trends)))
    others = [trend.middle for rank, trend in trends.items() if rank not in ranks]
    values = ", ".join(f"{trends[rank].middle:.4g}" for rank in ranks)
    message = (
        f"the loss of {name_ranks(ranks)} has left the others': {values}, against "
        f"{statistics.median(others):.4g}"
    )
    return Finding("loss-diverged", "warning", message, tuple(ranks))


def _exploded(trends: Mapping[int, _Trend]) -> int | None:
    """Of two ranks the one whose loss rises while the other's does not; None: neither or both."""
    (low, lower), (high, higher) = sorted(trends.items(), key=lambda item: item[1].middle)
    del low
    if higher.lowest <= 0 or lower.lowest <= 0:
        return None
    rise, other_rise = higher.middle / higher.lowest, lower.middle / lower.lowest
    rose = rise >= EXPLODED and other_rise <= STAYED
    return high if rose or rise >= SOARED * other_rise else None


def _soared(trend: _Trend) -> bool:
    return 0 < SOARED * trend.lowest <= trend.middle


def _or_last(step: int | None) -> float:
    return math.inf if step is None else step
