"""Describes in one sentence what a rank is doing. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from ddptop.view.odd import CALM
from ddptop.view.rank_words import data_share, lasting_phase, sync_share
from ddptop.view.text import Span
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import RankDeviation, busy_s
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.model.words import Phase

NOTABLE_WAIT = 0.1
"""Minimum fraction of a step spent waiting that is worth showing."""

_DOING: dict[Phase, str] = {
    "compile": "is compiling",
    "evaluation": "is evaluating",
    "checkpoint": "is saving or loading a checkpoint",
    "data": "is waiting for its data loader",
    "end": "is exiting: its script has finished",
    "collective": "is waiting for other ranks in a collective",
}


@dataclass(frozen=True)
class Known:
    """What is known about the job that the rank belongs to."""

    apart: RankDeviation
    ranks: int
    """Number of ranks."""
    now: dt.datetime
    live: bool
    foreign: bool = False
    """Whether ddptop did not start the job."""
    several_hosts: bool = False
    other: RankSample | None = None
    """The other of two ranks."""


def sentence(rank: RankSample, known: Known) -> Span:
    """`rank 3 is evaluating (since 12:03:10); this is normal`; empty for an outlier."""
    name = f"rank {rank.rank}" + (f" on {rank.host}" if known.several_hosts else "")
    if rank.state in ("failed", "exited", "stopped") or not known.live:
        return _ended(rank, known, name)
    if rank.loss_state in ("nan", "inf"):
        return _not_finite(rank, name), "bad"
    if rank.state not in CALM:
        style = "busy" if rank.state == "quiet" else "warn"
        return _still(rank, name, known), "bad" if rank.state == "hung" else style
    if rank.state == "starting" and rank.step is None:
        return f"{name} has not taken a step yet{_place(rank)}", "busy"
    if known.apart.is_slow:
        return "", ""
    phase = lasting_phase(rank, known.now)
    if phase in _DOING:
        since = "" if rank.phase_since is None else f" (since {_clock(rank.phase_since)})"
        return f"{name} {_DOING[phase]}{since}; this is normal", "busy"
    return _well(rank, known, name)


def _well(rank: RankSample, known: Known, name: str) -> Span:
    if rank.step_time_s is None and rank.loss is None:
        why = " (not started by ddptop)" if known.foreign else ""
        return f"{name} is running; its steps and losses are unknown{why}", ""
    if known.ranks < 2:
        return f"{name} is training; there are no other ranks to compare it with", "ok"
    tail = _waits(rank)
    if known.ranks > 2:
        return f"{name} is close to the median of all {known.ranks} ranks{tail}", "ok"
    busy, other = busy_s(rank), None if known.other is None else busy_s(known.other)
    if busy is None or not other or abs(busy / other - 1) < NOTABLE_WAIT:
        return f"{name} is close to the other rank{tail}", "ok"
    more = f"{_percent(busy / other - 1)} {'longer' if busy > other else 'less'}"
    return (
        f"{name} is busy {units.step_time(busy)} of each step, {more} than the other rank{tail}",
        "",
    )


def _waits(rank: RankSample) -> str:
    """How much of its steps it spends waiting, if that is worth showing."""
    parts = [
        f"{_percent(share)} of its time waiting {what}"
        for share, what in ((data_share(rank), "for data"), (sync_share(rank), "for other ranks"))
        if share is not None and share >= NOTABLE_WAIT
    ]
    return f"; it spends {' and '.join(parts)}" if parts else ""


def _still(rank: RankSample, name: str, known: Known) -> str:
    """For a rank that is not taking steps: since when, and where it was last seen."""
    if rank.state == "paused":
        go = "" if rank.pid is None else f"; to resume it, run kill -CONT {rank.pid}"
        go += " there" if go and known.several_hosts else ""
        return f"{name} is stopped by SIGSTOP{go}"
    since = rank.quiet_since or rank.last_progress_at
    when = "" if since is None else f" since {_clock(since)}"
    why = f" ({rank.state})" if rank.state != "blocked" else ": in uninterruptible sleep"
    reason = f": {rank.state_reason}" if rank.state_reason else ""
    return f"{name} has not taken a step{when}{why}{reason}{_place(rank)}"


def _place(rank: RankSample) -> str:
    return "" if rank.stands_at is None else f"; last seen at {rank.stands_at}"


def _not_finite(rank: RankSample, name: str) -> str:
    word = "NaN" if rank.loss_state == "nan" else "infinite"
    first = rank.loss_bad_since
    since = "" if first is None else f" since {run_step.in_words(rank, first)}"
    last = rank.loss_last_good
    good = "" if last is None else f"; the last finite loss was {units.loss(last)}"
    return f"{name}'s loss {'has been' if since else 'is'} {word}{since}{good}"


def _ended(rank: RankSample, known: Known, name: str) -> Span:
    at = "" if rank.step is None else f" at {run_step.in_words(rank)}"
    if rank.state == "stopped":
        return f"{name} was stopped with the others{at}", "dim"
    if rank.signal is not None:
        return f"{name} was killed by {rank.signal}{at}", "bad"
    if rank.state == "exited" or rank.exit_code == 0:
        return f"{name} exited with status 0{at}", "ok"
    if rank.exit_code is not None:
        return f"{name} exited with status {rank.exit_code}{at}", "bad"
    how = "; exit status unknown (not started by ddptop)" if known.foreign else ""
    return f"{name} is gone{at}{how}", "dim"


def _clock(at: dt.datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


def _percent(ratio: float) -> str:
    return f"{abs(round(100 * ratio))}%"
