"""Lets a job wait for devices, in its supervisor.

Among jobs that wait for the same device, the one that has waited longest comes first, even if a
later job could start at once, so that a job that needs many devices is not starved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.devices.feed import DeviceFeed
from ddptop_runner.devices.owners import labeled
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.devices.words import wanted_in_words
from ddptop_runner.job import registry
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.launch.gpus import usage
from ddptop_runner.launch.gpus.usage import DeviceUse, busy_in_words, grant
from ddptop_runner.model.events import Queued
from ddptop_runner.model.snapshot import Alert, GpuSample
from ddptop_runner.model.spec import DeviceQueue, JobSpec, write_spec

LOOK_S = 3.0
"""How often a queued job checks its devices."""


def waiting_in_words(
    queue: DeviceQueue, uses: Sequence[DeviceUse], ahead: Sequence[str], note: str | None
) -> str:
    """What a queued job waits for, and who holds it, in words.

    Args:
        queue: what it needs.
        uses: how the devices are used; () if unknown.
        ahead: jobs that have waited longer for one of them.
        note: why the sampler cannot read some devices.
    """
    parts = [f"waiting for {wanted_in_words(queue)}"]
    if ahead:
        parts.append(f"behind job {', '.join(ahead)}, queued earlier")
    if note is not None:
        parts.append(note)
    if busy := busy_in_words(uses):
        parts.append(busy)
    elif uses and not ahead:
        parts.append("free; the job will start if they stay free")
    return "; ".join(parts)


def feed_of(spec: JobSpec) -> DeviceFeed | None:
    """The sampler of a job's own devices; None for a job on CPUs."""
    if not spec.devices:
        return None
    return DeviceFeed([device.uuid for device in spec.devices if device.uuid])


def queue_of(folder: RunFolder, spec: JobSpec, log: EventLog) -> QueueWatch | None:
    """The watch of a queued job; None if it is not queued."""
    if spec.queue is None or not spec.is_queued:
        return None
    return QueueWatch(folder, spec, spec.queue, log)


class QueueWatch:
    """Checks the devices that a queued job waits for, and takes them for it.

    Args:
        folder: the job's run folder.
        spec: the job, with a queue and without devices.
        queue: what it waits for.
        log: receives an event on who holds the devices, once known.
    """

    def __init__(self, folder: RunFolder, spec: JobSpec, queue: DeviceQueue, log: EventLog) -> None:
        self._folder = folder
        self._spec = spec
        self._queue = queue
        self._log: EventLog | None = log
        uuids = [device.uuid for device in queue.candidates if device.uuid]
        known = len(uuids) == len(queue.candidates)
        self._feed = DeviceFeed(uuids if known else None, interval_s=LOOK_S)
        self._looked_at_s: float | None = None
        self._uses: list[DeviceUse] = []
        self._ahead: list[str] = []
        self._gpus: list[GpuSample] = []
        self._stopped = False

    async def start(self) -> None:
        """Start checking."""
        await self._feed.start()

    def skip_event(self) -> None:
        """Emit no event, since an earlier supervisor has."""
        self._log = None

    async def stop(self) -> None:
        """Stop checking."""
        self._stopped = True
        await self._feed.stop()

    @property
    def latest(self) -> DeviceReport | None:
        """The candidate devices, with job and rank of ddptop's own processes.

        None before the first check and after the last.
        """
        report = self._feed.latest
        if report is None or self._stopped:
            return None
        if report.boottime_s != self._looked_at_s:
            return report
        return msgspec.structs.replace(report, gpus=self._gpus)

    @property
    def note(self) -> str | None:
        """Why devices are missing, incomplete, or stale; None if there is no problem."""
        return self._feed.note

    @property
    def words(self) -> str:
        """What the job waits for, and who holds it."""
        return waiting_in_words(self._queue, self._uses, self._ahead, self.note)

    def alert(self) -> Alert:
        """`words` as an alert."""
        return Alert(
            id="queued",
            severity="info",
            gpus=[use.device.index for use in self._uses if use.busy],
            message=self.words,
            since=self._queue.since,
        )

    def look(self) -> JobSpec | None:
        """Check once per tick; returns the job with its devices once `job.json` has them."""
        report = self._feed.latest
        if report is None or report.boottime_s == self._looked_at_s:
            return None
        self._looked_at_s = report.boottime_s
        self._gpus = labeled(report.gpus, registry.rank_of_pid())
        self._uses = self._look_at(report)
        self._ahead = usage.queued_before(self._spec)
        if self._log is not None:
            self._log.emit(Queued(waits_for=self.words))
            self._log = None
        if self._ahead or grant(self._uses, self._queue.count) is None:
            return None
        with usage.taking(timeout_s=0) as had, contextlib.suppress(OSError):
            return self._take(report) if had else None  # disk full: retry at the next look
        return None

    def _look_at(self, report: DeviceReport) -> list[DeviceUse]:
        return usage.uses(self._queue.candidates, report.gpus, besides=self._spec.job_id)

    def _take(self, report: DeviceReport) -> JobSpec | None:
        """Check the claims of other jobs again under the lock, then take the devices."""
        self._uses = self._look_at(report)
        devices = grant(self._uses, self._queue.count)
        if devices is None or usage.queued_before(self._spec):
            return None
        by_uuid = self._queue.by_uuid or any(gpu.lost for gpu in report.gpus)
        queue = msgspec.structs.replace(self._queue, by_uuid=by_uuid)
        spec = msgspec.structs.replace(self._spec, devices=devices, queue=queue)
        write_spec(self._folder, spec)
        return spec
