"""Computes the trend of a job's loss over the last tenth of its run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ddptop.job.series import Points
from ddptop.style import Line, Span, line
from ddptop_runner.base import units
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot

SHARE = 0.1
"""Fraction of the run to examine, at its end."""

LEAST_S = 20.0
"""Minimum time to examine: a shorter one says little about a loss."""

POINTS = 40
"""Number of points in that time to compare."""

LEAST_BY_STEP = 20
"""The same for losses by step, in points."""

LEAST_POINTS = 8
"""With fewer points, there is no trend."""

CHANGE = 0.005
"""Minimum relative change; less than half a percent counts as flat."""

SURE = 2.0
"""Minimum change, as a multiple of its standard error."""

Way = Literal["falling", "flat", "rising"]

_SYMBOLS: dict[Way, str] = {"falling": "↘", "flat": "→", "rising": "↗"}


class LossTrend(msgspec.Struct, frozen=True):
    """How the ranks' median loss changed over some time."""

    way: Way
    span_s: float | None
    """Seconds between the first and last points compared; None if they were compared by step."""
    ratio: float | None = None
    """Relative change between the two halves: -0.03 is 3% less. None if the loss is about 0."""
    steps: int | None = None
    """The same distance in steps, if they were compared by step."""

    @property
    def span(self) -> str:
        """The time or the steps between those points, in words."""
        if self.span_s is None:
            return f"{self.steps:,} steps"
        return units.brief_duration(self.span_s)


def stretch_s(run_s: float) -> float:
    """How many seconds at the end of a run to examine."""
    return max(LEAST_S, SHARE * run_s)


def trend(points: Points, *, by_step: bool = False) -> LossTrend | None:
    """Compare the mean of the later half of the losses with that of the earlier half.

    None with fewer than LEAST_POINTS losses. A change counts if it is more than CHANGE of the loss
    and at least SURE times the standard error of the difference.

    Args:
        points: the losses; by step, of the whole run, of which the last tenth is compared.
        by_step: whether their times are steps.
    """
    values = [(t, loss) for t, loss in zip(points.t, points.mean, strict=True) if loss is not None]
    if by_step and values:
        since = values[-1][0] - SHARE * (values[-1][0] - values[0][0])
        values = values[-max(LEAST_BY_STEP, sum(step >= since for step, _ in values)) :]
    if len(values) < LEAST_POINTS:
        return None
    middle = len(values) // 2
    before, after = ([loss for _, loss in half] for half in (values[:middle], values[middle:]))
    change = _mean(after) - _mean(before)
    level = abs(_mean(before))
    error = (_squared_error(before) + _squared_error(after)) ** 0.5
    span = values[-1][0] - values[0][0]
    apart = (None, round(span)) if by_step else (span, None)
    ratio = change / level if level > 1e-9 else None
    if abs(change) < SURE * error or abs(change) <= CHANGE * level:
        return LossTrend("flat", apart[0], ratio, apart[1])
    return LossTrend("falling" if change < 0 else "rising", apart[0], ratio, apart[1])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _squared_error(values: Sequence[float]) -> float:
    """The squared standard error of their mean: variance divided by count."""
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def trend_words(found: LossTrend | None, snapshot: NodeSnapshot, *, of_several: bool) -> Line:
    """`↘ falling, -3.1% in 7m`, or since which step the loss is NaN; empty if unknown.

    A rising loss is a warning, unless there are several that train against each other.
    """
    if bad := bad_loss(snapshot):
        return line(bad)
    if found is None:
        return ()
    style = {"falling": "ok", "flat": "", "rising": "" if of_several else "warn"}[found.way]
    if found.way == "flat":
        return line((f"{_SYMBOLS['flat']} flat", style), (f" for {found.span}", "dim"))
    of = "" if found.ratio is None else f", {_percent(found.ratio)}"
    span = f"{of} in {found.span}"
    return line((f"{_SYMBOLS[found.way]} {found.way}", style), (span, "dim"))


def bad_loss(snapshot: NodeSnapshot) -> Span | None:
    """`✕ NaN since step 1,203 on rank 0, last finite 2.31`; None while losses are finite."""
    bad = [rank for rank in snapshot.ranks if rank.loss_state in ("nan", "inf")]
    if not bad:
        return None
    name = "NaN" if any(rank.loss_state == "nan" for rank in bad) else "inf"
    known = [rank for rank in bad if rank.loss_bad_since is not None]
    first = min(known, key=lambda rank: rank.loss_bad_since or 0, default=None)
    since = "" if first is None else f" since {run_step.in_words(first, first.loss_bad_since)}"
    numbers = [rank.rank for rank in bad]
    where = (
        "" if len(bad) == len(snapshot.ranks) else f" on {units.name_ranks(numbers, compact=True)}"
    )
    good = next((rank.loss_last_good for rank in bad if rank.loss_last_good is not None), None)
    last = "" if good is None else f", last finite {units.loss(good)}"
    return f"✕ {name}{since}{where}{last}", "bad"


def whose_loss(snapshot: NodeSnapshot | None) -> str:
    """The optimizer whose loss is shown if there are several; else empty."""
    for rank in snapshot.ranks if snapshot is not None else ():
        if len(rank.losses) > 1:
            return next(iter(rank.losses))
    return ""


def _percent(ratio: float) -> str:
    return f"{100 * ratio:+.1f}%" if abs(ratio) < 0.0995 else units.deviation(ratio)


SPARK_S = 300.0
"""The time span of the sparklines on the cards."""


class Recent(msgspec.Struct, frozen=True):
    """A job's recent values."""

    trend: LossTrend | None = None
    """None if too little is known yet."""
    losses: Mapping[int, Points] = msgspec.field(default_factory=dict)
    """Losses by rank, over the last SPARK_S seconds."""
