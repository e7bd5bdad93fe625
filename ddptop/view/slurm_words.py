"""Slurm's queue in words, for `ls` and the overview."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop_runner.base.units import duration
from ddptop_runner.launch.slurm import SlurmJob


def others(queue: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Those that are not shown as jobs of ddptop, the pending ones last."""
    return sorted((one for one in queue if one.job is None), key=lambda one: one.state == "PENDING")


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
