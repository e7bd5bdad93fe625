"""Reads loss trends and Slurm's queue; the query and answer of the job list."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ddptop.job.queue import QueueRow, queue_rows
from ddptop.job.record import Job
from ddptop.job.series import ChartData, DeviceHistory, LossTrend, Machine
from ddptop.job.status import others
from ddptop.sources.devices import DeviceHistorySource
from ddptop.sources.history import ChartQuery, Histories
from ddptop.sources.job import chart_of
from ddptop.sources.query import Answer, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.slurm_queue import INTERVAL_S, Queue, as_queued, read_queue, with_jobs
from ddptop_runner.launch.gpus import shared
from ddptop_runner.launch.slurm import SlurmJob


class OverviewQuery(Query, frozen=True, kw_only=True):
    """All jobs and devices, and the losses of the job under the cursor."""

    devices: bool = True
    foreign: bool = True
    job: str | None = None
    """The job under the cursor; None if no losses are shown."""
    chart: ChartQuery

    def answer(self, look: Look, sources: Sources) -> OverviewAnswer:
        """Read all jobs."""
        chosen = look.job(self.job)
        return OverviewAnswer(
            query=self,
            look=look,
            device_history=sources[DeviceHistorySource].read(look),
            trends=_trends(look.own, look.now_s, sources[Histories]),
            slurm=sources[SlurmSource].read(look.own),
            queue=_queue(look),
            chosen=None if chosen is None else chosen.name,
            chart=ChartData()
            if chosen is None
            else chart_of(chosen, self.chart, look.now_s, sources)[0],
        )


class OverviewAnswer(Answer, frozen=True, kw_only=True):
    """What the job list shows."""

    device_history: DeviceHistory
    trends: Mapping[str, LossTrend] = msgspec.field(default_factory=dict)
    """Loss trends by job."""
    slurm: tuple[SlurmJob, ...] = ()
    """The user's jobs in Slurm's queue that ddptop did not submit."""
    queue: tuple[QueueRow, ...] = ()
    """Jobs that run or wait, if any waits."""
    chosen: str | None = None
    """The job whose losses are in `chart`; None if it is empty."""
    chart: ChartData = msgspec.field(default_factory=ChartData)


def _queue(look: Look) -> tuple[QueueRow, ...]:
    others = shared.others(look.taken_at)
    waits = any(job.state == "queued" for job in look.own)
    if not waits and not any(queue.waits for queue in others):
        return ()
    return tuple(queue_rows(look.own, others, look.taken_at))


def _trends(views: Sequence[Job], now_s: float, histories: Histories) -> dict[str, LossTrend]:
    """The trends of ddptop's own live jobs by name, without those whose trend is unknown."""
    found = {}
    for view in views:
        if view.is_live:
            with contextlib.suppress(DdptopError):
                found[view.name] = histories.of(view).trend(view, now_s)
    return {job: trend for job, trend in found.items() if trend is not None}


class SlurmSource:
    """The latest output of squeue, which runs in its own thread because Slurm may be slow."""

    def __init__(self) -> None:
        self._queue: Queue | None = None
        self._asked_s = float("-inf")
        self._asking: threading.Thread | None = None

    def read(self, own: Iterable[Job]) -> tuple[SlurmJob, ...]:
        """Slurm jobs that ddptop did not submit; empty on a machine without Slurm."""
        self._ask_if_due()
        names = {job.spec.slurm_job: job.name for job in own if job.is_live}
        return () if self._queue is None else tuple(others(with_jobs(self._queue, names) or []))

    def as_queued(self, own: list[JobView]) -> list[JobView]:
        """The jobs; those that Slurm has requeued but not started are `queued`."""
        if any(view.state == "lost" and view.spec.slurm_job is not None for view in own):
            self._ask_if_due()
        return own if self._queue is None else [as_queued(view, self._queue) for view in own]

    def _ask_if_due(self) -> None:
        is_due = time.monotonic() - self._asked_s >= INTERVAL_S
        if is_due and (self._asking is None or not self._asking.is_alive()):
            self._asked_s = time.monotonic()
            self._asking = threading.Thread(target=self._ask, name="squeue", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        self._queue = read_queue()


CPU_SPAN_S = 0.5
"""Shortest interval over which the kernel's ticks give a usable figure."""


_cpu: tuple[float | None, float | None] = (None, None)
"""When CPU usage was measured last, by a monotonic clock, and the result in percent."""


def read_machine() -> Machine:
    """Read memory, and CPU usage since it was measured last; None on the first call."""
    global _cpu
    import psutil  # the first frame does without

    (measured_s, percent), now_s = _cpu, time.monotonic()
    if measured_s is None or now_s - measured_s >= CPU_SPAN_S:
        busy_percent = psutil.cpu_percent()
        percent = None if measured_s is None else busy_percent
        _cpu = now_s, percent
    memory = psutil.virtual_memory()
    return Machine(
        host=procs.host_name(),
        cpu_percent=percent,
        cores=psutil.cpu_count(),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
    )
