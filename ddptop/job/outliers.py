"""Describes what is odd about a rank, and how uneven a job is. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from ddptop.job.figures.ranks import COMPARED, Apart
from ddptop.job.ranks import CALM, lasting_phase
from ddptop.job.status import rank_state
from ddptop.style import Line, Span, join, line
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import (
    RankDeviation,
    busy_s,
    is_even_load,
    slow_ranks,
)
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample


def state_of(rank: RankSample, now: dt.datetime, live: bool) -> Span:
    """The rank's state as a symbol and words, and a style."""
    phase = lasting_phase(rank, now) if live else None
    return rank_state(rank.state, rank.exit_code, rank.signal, phase)


def oddity(rank: RankSample, apart: RankDeviation) -> Span | None:
    """`▲ slow +47%` or `✕ loss NaN`; None if no alert names the rank."""
    if rank.loss_state in ("nan", "inf"):
        return f"✕ loss {'NaN' if rank.loss_state == 'nan' else 'inf'}", "bad"
    if not apart.is_slow:
        return None
    by = "" if apart.slower is None else f" {units.deviation(apart.slower)}"
    return f"▲ slow{by}", "warn"


def verdict(
    rank: RankSample,
    apart: RankDeviation,
    now: dt.datetime,
    live: bool,
) -> Span:
    """The rank's state, or what is odd about it while it runs."""
    state = state_of(rank, now, live)
    if rank.state in CALM and live and (odd := oddity(rank, apart)) is not None:
        return odd
    return state


def severity(rank: RankSample, apart: RankDeviation, live: bool) -> int:
    """0 for a healthy rank, 1 for an outlier, 2 for a problem."""
    if rank.state in ("failed", "hung", "zombie") or rank.loss_state in ("nan", "inf"):
        return 2
    if rank.state not in CALM:
        return 1
    return int(live and oddity(rank, apart) is not None)


def farthest(apart: RankDeviation) -> float:
    """The largest relative distance from the median in any figure: 0.5 is 50%."""
    known = [apart.of(figure) for figure in COMPARED]
    return max((abs(ratio) for ratio in known if ratio is not None), default=0.0)


def worst_first(
    ranks: Sequence[RankSample],
    apart: Mapping[int, RankDeviation],
    live: bool,
) -> list[RankSample]:
    """Problems before outliers, then by distance from the median."""
    nothing = RankDeviation()

    def need(rank: RankSample) -> tuple[int, float]:
        own = apart.get(rank.rank, nothing)
        return -severity(rank, own, live), -farthest(own)

    return sorted(ranks, key=need)


EVEN = 0.1
"""A ratio below this is meaningful even for small figures."""


def uneven(snapshot: NodeSnapshot) -> list[tuple[Apart, Span]]:
    """Known imbalances of a job, worst first: the figure, and `+34%` or `even` with its style."""
    # the step time is the same for all ranks if they wait for each other
    is_slow = bool(slow_ranks(snapshot.alerts)) and all(
        busy_s(rank) is None for rank in snapshot.ranks
    )
    even_load = is_even_load(snapshot.ranks, snapshot.gpus)
    rated: list[tuple[tuple[bool, bool, float], Apart, Span]] = []
    for figure, one in COMPARED.items():
        ratio: float | None = getattr(snapshot.imbalance, figure, None)
        if ratio is None:
            continue
        warns = is_slow and figure == "step_time"
        # a ratio is meaningless where it is 2% of CPU against 1%
        even = even_load and figure == "utilization" and ratio >= EVEN
        shown = "even" if even else units.deviation(ratio), "warn" if warns else "dim"
        rated.append(((not warns, even, -ratio), one, shown))
    rated.sort(key=lambda row: row[0])
    return [(one, shown) for _, one, shown in rated]


def imbalance_note(snapshot: NodeSnapshot) -> Line:
    """`imbalance  memory +34%  util +2%`, worst first; empty if nothing is known."""
    parts = [((f"{one.name} {text}", style),) for one, (text, style) in uneven(snapshot)]
    return line(("imbalance  ", "dim"), *join(parts, "  ")) if parts else ()


def worst_figure(snapshot: NodeSnapshot) -> Span:
    """The worst imbalance and its figure: `mem +27%`."""
    for one, (text, style) in uneven(snapshot):
        return f"{one.brief} {text}", style
    return units.NOT_AVAILABLE, "dim"
