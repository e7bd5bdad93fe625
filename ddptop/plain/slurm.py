"""Slurm's queue as a table, for `ls`."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.plain.output import count, table
from ddptop_runner.base.units import NOT_AVAILABLE, duration, local_time
from ddptop_runner.launch.slurm import SlurmJob

HEADERS = ("SLURM", "NAME", "STATE", "NODES", "PARTITION", "STARTS", "TIME LEFT", "REASON")


def queue_table(queue: Sequence[SlurmJob]) -> str:
    """One row per Slurm job."""
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
