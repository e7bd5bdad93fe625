"""Detects bad losses: one that diverges from the other ranks', and one that stays NaN or infinite.

Ranks see different batches, and some have harder shards or different tasks. A rank is therefore not
judged by the level of its loss but by moving alone: up from its own minimum; suddenly down, away
from others at the same level; or not at all, while ranks that started at the same level have
learned. Each is measured against the usual variation of this job's losses.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.words import ENDED, OnNan

SMOOTHED = 21
"""A rank's loss is the median of this many, since single batches may be far off."""
ENOUGH = 15
"""With fewer losses, a rank's median is not meaningful."""
EARLIEST = 5
"""The median of this many is where a rank started."""
BLOCK = 10
"""The median of each block of this many losses is kept, to compare the latest with."""
KEPT_BLOCKS = 60
LATEST_BLOCKS = 2
"""The latest blocks overlap with the present median."""
LEAST_BLOCKS = 4
"""Minimum number of earlier blocks to compare with."""
COMPARED_BLOCKS = 8

APART = 0.5
"""A loss must have moved by this fraction of its level ..."""
LEAST = 0.05
"""... and by this, or this fraction of the range of the job's losses, if that is less ..."""
NOISES = 2.0
"""... and this many times the 80th percentile of distances from its median ..."""
ALONE = 2.0
"""... and this many times as far as the others, each relative to its own loss."""
JOLTS = 3.0
"""... and this many times the larger changes between blocks ..."""
WAVES = 1.5
"""... and this many times its own earlier variation."""
TOGETHER = 0.5
"""Losses within this fraction of their level count as equal."""
NO_FALL = 0.2
"""A rank whose loss fell by less than this fraction of the others' has not learned."""
BACK_AT = 0.7
"""Fraction of the bound below which a diverged loss is back."""
TINY = 1e-12
MANY = 8
"""With this many ranks or more, the median of all is used as that of the others."""


class Course:
    """One rank's loss, smoothed."""

    def __init__(self) -> None:
        self.middle = 0.0
        """Median of the latest losses."""
        self.noise_now = 0.0
        """80th percentile of the latest losses' distances from `middle`."""
        self.noise = 0.0
        """The same before the latest losses, whose variation may be part of going bad."""
        self.jolt = 0.0
        """90th percentile of the changes of the median between blocks."""
        self.before: Sequence[float] = ()
        """Medians of blocks before the latest; empty if there are too few."""
        self.was: float | None = None
        """The median of `before`."""
        self.wave = 0.0
        """The highest rise above its minimum from which it has returned."""
        self.greatest_rise = 0.0
        """The highest recent rise above its minimum."""
        self.count = 0
        """Number of losses so far."""
        self.first: float | None = None
        """Median of the first losses."""
        self.lowest = math.inf
        self.highest = -math.inf
        self._step: int | None = None
        self._value: float | None = None
        self._losses: deque[float] = deque(maxlen=SMOOTHED)
        self._blocks: deque[tuple[float, float, float]] = deque(maxlen=KEPT_BLOCKS)
        """Each as (median, noise, rise)."""

    def look(self, rank: RankSample, *, keep: bool) -> None:
        """Add a loss if it is new; `keep` it to compare later ones with."""
        loss = rank.loss
        if rank.loss_state != "ok" or loss is None or not math.isfinite(loss):
            return
        is_same = (
            rank.loss_step == self._step if rank.loss_step is not None else loss == self._value
        )
        if self.count and is_same:
            return
        self._step, self._value = rank.loss_step, loss
        self.count += 1
        self._losses.append(loss)
        self.middle = statistics.median(self._losses)
        away = sorted(abs(one - self.middle) for one in self._losses)
        self.noise_now = away[len(away) * 4 // 5]
        if self.count == EARLIEST:
            self.first = self.middle
        if not self.is_settled:
            return
        self.lowest = min(self.lowest, self.middle)
        self.highest = max(self.highest, self.middle)
        if keep and self.count % BLOCK == 0:
            self._keep()

    def _keep(self) -> None:
        """Add a block and update what depends on all blocks."""
        self._blocks.append((self.middle, self.noise_now, self.rise))
        before = list(self._blocks)[:-LATEST_BLOCKS]
        middles = [middle for middle, _, _ in before]
        if before:
            self.noise = statistics.median(noise for _, noise, _ in before)
        changes = sorted(abs(late - soon) for soon, late in itertools.pairwise(middles))
        self.jolt = changes[len(changes) * 9 // 10] if changes else 0.0
        if len(middles) >= LEAST_BLOCKS:
            self.before = middles[-COMPARED_BLOCKS:]
            self.was = statistics.median(self.before)
        self.greatest_rise = highest = self.wave = 0.0
        for _, _, rise in self._blocks:
            self.greatest_rise, highest = max(self.greatest_rise, rise), max(highest, rise)
            if rise < highest / 2:
                self.wave, highest = max(self.wave, highest), rise

    @property
    def is_settled(self) -> bool:
        """Whether the median is meaningful."""
        return len(self._losses) >= ENOUGH

    @property
    def rise(self) -> float:
        """The rise above its minimum, relative to the minimum."""
        scale = max(abs(self.lowest), NOISES * (self.noise or self.noise_now), TINY)
        return (self.middle - self.lowest) / scale

    @property
    def drop(self) -> float:
        """The drop below `was`, relative to `was`."""
        was = self.middle if self.was is None else self.was
        return (was - self.middle) / max(abs(was), NOISES * self.noise, TINY)


class Others(msgspec.Struct, frozen=True):
    """The other ranks, with which a rank's loss is compared."""

    middle: float
    first: float
    noise: float
    jolt: float
    rise: float
    """Their highest rise, past or present, each relative to its own scale."""
    drop: float
    was: float
    """Their level before the latest losses."""
    covered: float
    """Their range, from the highest to the lowest."""


def summary(courses: Iterable[Course]) -> Others:
    """The medians over several ranks."""
    known = list(courses)

    def middle(values: Iterable[float]) -> float:
        return statistics.median(values)

    return Others(
        middle=middle(one.middle for one in known),
        first=middle(one.middle if one.first is None else one.first for one in known),
        noise=middle(one.noise_now for one in known),
        jolt=middle(one.jolt for one in known),
        rise=middle(max(one.rise, one.greatest_rise) for one in known),
        drop=middle(one.drop for one in known),
        was=middle(one.middle if one.was is None else one.was for one in known),
        covered=middle(one.highest - one.lowest for one in known),
    )


def _least(one: Course, others: Others) -> float:
    """The minimum that any movement must exceed."""
    covered = max(one.highest - one.lowest, others.covered)
    noise = max(NOISES * max(one.noise, others.noise), JOLTS * max(one.jolt, others.jolt))
    return max(min(LEAST, LEAST * covered), noise)


def rose_alone(one: Course, others: Others, share: float = 1.0) -> bool:
    """Whether it is far above its own minimum and the others are not.

    Args:
        one: the rank's loss.
        others: the other ranks'.
        share: fraction of the bound to use, for a loss to return.
    """
    bound = max(APART * max(abs(one.lowest), abs(others.middle)), _least(one, others))
    far = one.middle - one.lowest >= share * bound
    return (
        far and bool(one.before) and one.rise >= share * max(ALONE * others.rise, WAVES * one.wave)
    )


def fell_alone(one: Course, others: Others) -> bool:
    """Whether it suddenly fell from the level at which the others remain."""
    was, before = one.was, one.before
    if was is None:
        return False
    if abs(was - others.was) > TOGETHER * max(abs(was), abs(others.was)):
        return False
    bound = max(
        APART * max(abs(was), abs(others.was)),
        _least(one, others),
        WAVES * (max(before) - min(before)),
    )
    # ranks that leave a plateau do so within seconds of each other
    apart = others.middle - one.middle >= APART * abs(others.was)
    return apart and was - one.middle >= bound and one.drop >= ALONE * max(0.0, others.drop)


def did_not_learn(one: Course, others: Others) -> bool:
    """Whether the others have fallen far from the level where all started, and it has not."""
    if one.first is None or one.count < SMOOTHED:
        return False
    noise = NOISES * max(one.noise, others.noise)
    if abs(one.first - others.first) > max(TOGETHER * abs(others.first), noise):
        return False
    fall = others.first - others.middle
    if fall < max(APART * abs(others.first), noise, _least(one, others)):
        return False
    return one.first - one.middle <= NO_FALL * fall and one.middle - others.middle >= APART * fall


class LossApart:
    """Checks once per second which ranks' losses have diverged from the others'."""

    def __init__(self) -> None:
        self._courses: dict[int, Course] = defaultdict(Course)
        self._apart: set[int] = set()

    def look(self, ranks: Sequence[RankSample], shown: Collection[int] = ()) -> list[int]:
        """Add the ranks' losses; returns the ranks that have diverged.

        Args:
            ranks: those alive.
            shown: those already reported, which must come closer to count as back.
        """
        for rank in ranks:
            course = self._courses[rank.rank]
            course.look(rank, keep=rank.rank not in self._apart)
        known = {
            rank.rank: self._courses[rank.rank]
            for rank in ranks
            if rank.loss_state == "ok" and self._courses[rank.rank].is_settled
        }
        of_all = summary(known.values()) if len(known) >= MANY else None
        self._apart = set()
        for number, one in known.items() if len(known) > 1 else ():
            others = of_all or summary(c for other, c in known.items() if other != number)
            share = BACK_AT if number in shown else 1.0
            if (
                rose_alone(one, others, share)
                or fell_alone(one, others)
                or did_not_learn(one, others)
            ):
                self._apart.add(number)
        return sorted(self._apart)

    def seen(self, rank: int) -> int:
        """Number of losses of a rank."""
        return self._courses[rank].count if rank in self._courses else 0

    def words(self, ranks: Sequence[int]) -> str:
        """`4.1 (median of the others: 2)`: those ranks' losses, and the others'."""
        values = ", ".join(f"{self._courses[rank].middle:.4g}" for rank in ranks)
        rest = [one.middle for rank, one in self._courses.items() if rank not in ranks]
        return f"{values} (median of the others: {statistics.median(rest):.4g})" if rest else values


BAD_LOOKS, BAD_STEPS = 3, 2
"""A loss has gone bad after this many looks without a finite one and this many bad steps."""


@dataclass(frozen=True)
class BadLoss:
    """A bad loss that requires an action."""

    rank: int
    step: int | None
    """The first step with a bad loss."""
    what: str
    """`NaN` or `infinite`."""
    last_good: float | None = None
    """The rank's last finite loss."""
    at_step: str = ""
    """`step` in words, as a step of the run if that is known."""

    def in_words(self) -> str:
        """One sentence."""
        at = "" if self.step is None else f" at {self.at_step or f'step {self.step}'}"
        good = "" if self.last_good is None else f"; the last finite loss was {self.last_good:.4g}"
        return f"The loss on rank {self.rank} became {self.what}{at}{good}."


class _Streak:
    """One rank's looks since its loss was last finite."""

    def __init__(self) -> None:
        self.looks = 0
        self.steps: set[int | None] = set()
        self.since: int | None = None
        self.last_good: float | None = None

    def look(self, rank: RankSample) -> bool:
        """Add a look; returns whether the loss has gone bad for good."""
        if rank.loss_state is None:
            return False
        if rank.loss_state == "ok":
            self.last_good = rank.loss
        # or one arrived since the previous look
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
        # a line without a step may remain the only one for long
        stepless = self.steps == {None} and rank.loss_source != "log"
        return self.looks >= BAD_LOOKS and (stepless or len(self.steps) >= BAD_STEPS)


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

    def look(self, ranks: Sequence[RankSample]) -> BadLoss | None:
        """The loss that `--on-nan` must act on, if there is one."""
        living = [rank for rank in ranks if rank.state not in ENDED]
        is_lasting = [self._streaks[rank.rank].look(rank) for rank in living]
        return self._first_bad(living) if any(is_lasting) and self._on_nan != "alert" else None

    def _first_bad(self, ranks: Sequence[RankSample]) -> BadLoss:
        """The rank that went bad first; in DDP, the others follow a step later."""
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
