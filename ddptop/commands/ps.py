"""`ddptop ps`: training on this machine that ddptop did not start."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ddptop.output import count, info, put, put_json, table
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.units import span
from ddptop_runner.devices.report import sample_once
from ddptop_runner.foreign.census import HostCensus
from ddptop_runner.foreign.types import Census, ForeignView, Unreadable
from ddptop_runner.host.tree import RankUsage, UsageMeter
from ddptop_runner.job.registry import all_jobs, led_elsewhere
from ddptop_runner.jobs.contract import ForeignList, RankRow, foreign_list
from ddptop_runner.model.snapshot import GpuSample

NONE_FOUND = (
    "no foreign jobs found (checked for torchrun, accelerate, DeepSpeed,"
    " Horovod, mpirun, srun, mp.spawn,"
    " and Python using a GPU, torch, TensorFlow, or JAX)"
)
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
    views = read_views(census, report.gpus)
    found = foreign_list(census, views)
    if as_json:
        put_json(found)
        return 0
    if found.jobs:
        time.sleep(max(0.0, began_s + _CPU_INTERVAL_S - time.monotonic()))
        usage = read_usage(meter, census)
        put(as_text(found, views, usage, show_ranks))
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


def read_views(census: Census, gpus: Sequence[GpuSample]) -> dict[str, ForeignView]:
    """Return each job, with what the end of its output shows."""
    if not census.jobs:
        return {}
    from ddptop_runner.foreign.watch import read_outputs  # not needed if nothing is found

    return read_outputs(census, gpus, utc_now())


def read_usage(meter: UsageMeter[str], census: Census) -> dict[str, RankUsage]:
    """Return CPU and memory use by job."""
    return meter.look({job.name: job.pids for job in census.jobs}, time.monotonic())


def as_text(
    found: ForeignList,
    views: Mapping[str, ForeignView],
    usage: Mapping[str, RankUsage],
    show_ranks: bool,
) -> str:
    """Return aligned columns, with each job's ranks and notes below."""
    from ddptop.job.figures.jobs import Subject, job_table  # 20 ms, not needed for JSON
    from ddptop.job.record import foreign_job
    from ddptop.job.status import attention

    now, subjects = utc_now(), []
    for row in found.jobs:
        job = foreign_job(views[row.job])
        subjects.append(Subject(attention(job, now), now, usage=usage.get(row.job)))
    lines = table(*job_table(subjects, "ps"))
    below = []
    for row in found.jobs:
        ranks = [_rank_line(rank) for rank in row.ranks if show_ranks]
        if ranks or row.notes:
            below.append("\n".join([f"{row.job}:", *(f"  {text}" for text in ranks + row.notes)]))
    return "\n\n".join([lines, *below])


def _rank_line(rank: RankRow) -> str:
    return f"rank {rank.rank} pid {rank.pid} GPU {count(rank.gpu)}"


def unreadable_text(rows: Sequence[Unreadable], gpus: Sequence[GpuSample]) -> str:
    """Return one line per process that may be training, and why that is unknown."""
    lines = ["processes that may be training but cannot be inspected:"]
    for row in rows:
        held = span(gpu.index for gpu in gpus if gpu.uuid in row.gpus)
        on = f" GPU {held}" if row.gpus else ""
        what = f" {row.command}" if row.command else ""
        who = f" ({row.user})" if row.user else ""
        lines.append(f"  pid {row.pid}{who}{on}{what}: {row.reason}")
    return "\n".join(lines)
