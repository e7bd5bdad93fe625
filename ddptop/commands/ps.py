"""`ddptop ps`: training on this machine that ddptop did not start."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ddptop.output import count, info, put, put_json, table
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.units import span
from ddptop_runner.devices.report import sample_once
from ddptop_runner.foreign.census import HostCensus
from ddptop_runner.foreign.types import Census, ForeignJob, ForeignView
from ddptop_runner.host.tree import RankUsage, UsageMeter
from ddptop_runner.job.registry import all_jobs, led_elsewhere
from ddptop_runner.jobs.contract import (
    ForeignList,
    ForeignRow,
    RankRow,
    UnreadableRow,
    foreign_list,
)
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample

if TYPE_CHECKING:
    from ddptop.job.record import Job

NONE_FOUND = (
    "no foreign jobs found (checked for torchrun, accelerate, DeepSpeed,"
    " Horovod, mpirun, srun, mp.spawn,"
    " and Python using a GPU, torch, TensorFlow, or JAX)"
)
_WIDE = 160
"""Terminals at least this wide show the ranks by default."""
_CPU_INTERVAL_S = 0.1
"""Interval over which CPU use is measured."""


def run(as_json: bool, show_ranks: bool) -> int:
    """Print the jobs and the processes that cannot be inspected; always return 0."""
    taker = HostCensus()
    began_s = time.monotonic()
    meter = UsageMeter[str]()
    if not as_json:
        read_usage(meter, taker.scan())
    report = sample_once()
    census = taker.scan(report.gpus)
    seen = read_output_ends(census)
    found = foreign_list(census, report.gpus, seen)
    if as_json:
        put_json(found)
        return 0
    if found.jobs:
        time.sleep(max(0.0, began_s + _CPU_INTERVAL_S - time.monotonic()))
        usage = read_usage(meter, census)
        wide = sys.stdout.isatty() and shutil.get_terminal_size().columns >= _WIDE
        put(as_text(found, census, usage, report.gpus, show_ranks or wide, seen))
    else:
        info(NONE_FOUND)
    for view in led_elsewhere(all_jobs()):
        from ddptop.job.record import own_job  # for nodes of a job only
        from ddptop.job.status import attention

        status = attention(own_job(view), utc_now()).sentence
        info(f"ddptop: not listed: {view.job}, {status}; see `ddptop ls`")
    if found.unreadable:
        put(("\n" if found.jobs else "") + unreadable_text(found.unreadable, report.gpus))
    return 0


def read_output_ends(census: Census) -> dict[str, NodeSnapshot]:
    """Return what the end of each job's output shows."""
    if not census.jobs:
        return {}
    from ddptop_runner.foreign.watch import read_outputs  # not needed if nothing is found

    return read_outputs(census, utc_now())


def read_usage(meter: UsageMeter[str], census: Census) -> dict[str, RankUsage]:
    """Return CPU and memory use by job."""
    return meter.look({job.name: job.pids for job in census.jobs}, time.monotonic())


def as_text(
    found: ForeignList,
    census: Census,
    usage: Mapping[str, RankUsage],
    gpus: Sequence[GpuSample],
    show_ranks: bool,
    seen: Mapping[str, NodeSnapshot] | None = None,
) -> str:
    """Return aligned columns, with each job's ranks and notes below."""
    from ddptop.job.figures.jobs import Subject, plain_table  # 20 ms, not needed for JSON
    from ddptop.job.progress import progress_of
    from ddptop.job.status import attention

    now, subjects = utc_now(), []
    for row, foreign in zip(found.jobs, census.jobs, strict=True):
        job = job_of(row, foreign, gpus, (seen or {}).get(row.job), now)
        needs, progress = attention(job, now), progress_of(job)
        subjects.append(Subject(needs, now, progress, usage=usage.get(row.job)))
    lines = table(*plain_table(subjects, "ps"))
    below = []
    for row in found.jobs:
        ranks = [_rank_line(rank) for rank in row.ranks if show_ranks]
        if ranks or row.notes:
            below.append("\n".join([f"{row.job}:", *(f"  {text}" for text in ranks + row.notes)]))
    return "\n\n".join([lines, *below])


def job_of(
    row: ForeignRow,
    foreign: ForeignJob,
    gpus: Sequence[GpuSample],
    seen: NodeSnapshot | None,
    now: dt.datetime,
) -> Job:
    """The record of a job of the census, with what the end of its output shows."""
    from ddptop.job.record import foreign_job

    held = {uuid for rank in foreign.ranks for uuid in rank.devices}
    snapshot = seen or NodeSnapshot(
        job=row.job,
        job_id=row.job,
        host=row.host,
        seq=0,
        ts=now,
        state=row.state,
        world_size=row.world_size,
        started_at=row.started_at,
    )
    ranks = [
        RankSample(rank=one.rank, local_rank=one.rank, host=row.host, pid=one.pid, gpu=one.gpu)
        for one in row.ranks
    ]
    devices = [gpu for gpu in gpus if gpu.uuid in held]
    snapshot = replace(snapshot, state=row.state, ranks=ranks, gpus=devices)
    return foreign_job(ForeignView(foreign, snapshot, now))


def _rank_line(rank: RankRow) -> str:
    return f"rank {rank.rank} pid {rank.pid} GPU {count(rank.gpu)}"


def unreadable_text(rows: Sequence[UnreadableRow], gpus: Sequence[GpuSample]) -> str:
    """Return one line per process that may be training, and why that is unknown."""
    lines = ["processes that may be training but cannot be inspected:"]
    for row in rows:
        held = span(gpu.index for gpu in gpus if gpu.uuid in row.gpus)
        on = f" GPU {held}" if row.gpus else ""
        what = f" {row.command}" if row.command else ""
        who = f" ({row.user})" if row.user else ""
        lines.append(f"  pid {row.pid}{who}{on}{what}: {row.reason}")
    return "\n".join(lines)
