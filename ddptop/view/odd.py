"""Which rank is an outlier, and in which figure: one verdict per rank, in words. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from ddptop.view import words
from ddptop.view.figures.ranks import NO_HOSTS, NOTHING, Look, odd_name, rank_row
from ddptop.view.rank_words import lasting_phase
from ddptop.view.text import Span
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import WORST_FIRST, RankDeviation
from ddptop_runner.model.snapshot import RankSample

CALM = ("running", "starting", "exited", "stopped", "unknown")
"""States that need no attention."""


def state_of(rank: RankSample, now: dt.datetime, live: bool) -> Span:
    """Its state as a symbol, words and a style."""
    phase = lasting_phase(rank, now) if live else None
    return words.rank_state(rank.state, rank.exit_code, rank.signal, phase)


def oddity(rank: RankSample, apart: RankDeviation) -> Span | None:
    """`▲ slow +47%`: the worst figure in which an alert names the rank; None if none does."""
    if rank.loss_state in ("nan", "inf"):
        return f"✕ loss {'NaN' if rank.loss_state == 'nan' else 'inf'}", "bad"
    if not apart.odd_in:
        return None
    figure, ratio = apart.odd_in[0]
    sign = "▼" if ratio is not None and ratio < 0 else "▲"
    by = "" if ratio is None else f" {units.deviation(ratio)}"
    return f"{sign} {odd_name(figure, rank)}{by}", "warn"


def verdict(
    rank: RankSample,
    apart: RankDeviation,
    now: dt.datetime,
    live: bool,
) -> Span:
    """Its state; for a running outlier, the figure."""
    state = state_of(rank, now, live)
    if rank.state in CALM and live and (odd := oddity(rank, apart)) is not None:
        return odd
    return state


def row_of(
    rank: RankSample,
    now: dt.datetime,
    live: bool,
    apart: RankDeviation = NOTHING,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> dict[str, Span]:
    """One rank of a table, by column; `hosts` has the short names of several hosts."""
    return rank_row(Look(rank, now, live, apart, hosts, verdict(rank, apart, now, live)))


def severity(rank: RankSample, apart: RankDeviation, live: bool) -> int:
    """How urgent it is: 0 not at all, 1 an outlier, 2 a problem."""
    if rank.state in ("failed", "hung", "stuck", "zombie") or rank.loss_state in ("nan", "inf"):
        return 2
    if rank.state not in CALM:
        return 1
    return int(live and oddity(rank, apart) is not None)


def farthest(apart: RankDeviation) -> float:
    """How far from the median it is in any figure: 0.5 is half of it."""
    known = [apart.of(figure) for figure in WORST_FIRST]
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
