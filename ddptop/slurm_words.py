"""Slurm's queue in words, for `ls` and the overview."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.output import count, local_time, table
from ddptop_runner.base.units import NOT_AVAILABLE, duration
from ddptop_runner.launch.slurm import SlurmJob

HEADERS = ("SLURM", "NAME", "STATE", "NODES", "PARTITION", "STARTS", "TIME LEFT", "REASON")


def others(queue: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Those that are not shown as jobs of ddptop, the pending ones last."""
    return sorted((one for one in queue if one.job is None), key=lambda one: one.state == "PENDING")


def queue_table(queue: Sequence[SlurmJob]) -> str:
    """One row for each."""
    return table(HEADERS, [_cells(one) for one in queue], right=(3, 6))


def _cells(one: SlurmJob) -> list[str]:
    starts = one.started_at or one.start_estimate
    return [
        one.id,
        one.name,
        one.state.lower(),
        count(one.nodes),
        one.partition or NOT_AVAILABLE,
        local_time(starts),
        duration(one.time_left_s),
        one.reason or "-",
    ]


def brief(one: SlurmJob, now: dt.datetime) -> str:
    """One line: `12 bert: pending (Resources), starts in about 2h 05m, 2 nodes, partition gpu`."""
    words = [one.state.lower()]
    if one.reason:
        words[0] += f" ({one.reason})"
    if one.start_estimate is not None:
        words.append(f"starts in about {duration((one.start_estimate - now).total_seconds())}")
    elif one.time_left_s is not None and one.started_at is not None:
        words.append(f"{duration(one.time_left_s)} left")
    if one.nodes:
        words.append(f"{one.nodes} node{'s' if one.nodes > 1 else ''}")
    if one.partition:
        words.append(f"partition {one.partition}")
    return f"{one.id} {one.name}: {', '.join(words)}"
