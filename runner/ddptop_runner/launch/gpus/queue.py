"""Lets a job wait in its supervisor, and takes its devices once nothing is in its way."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence

import msgspec

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.devices.feed import DeviceFeed
from ddptop_runner.devices.owners import labeled
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.job import registry
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.registry import JobSource
from ddptop_runner.launch.gpus import shared, usage
from ddptop_runner.launch.gpus.idle import IdleWatch
from ddptop_runner.launch.gpus.shared import UserQueue, last_turns, turns
from ddptop_runner.launch.gpus.usage import DeviceUse, grant, is_same, key
from ddptop_runner.launch.gpus.waiting import (
    number_before,
    publish_jobs,
    queue_of_user,
    reason_in_words,
    waiting_in_words,
    why_waiting,
)
from ddptop_runner.model.events import Queued
from ddptop_runner.model.snapshot import Alert, GpuSample, WaitReason
from ddptop_runner.model.spec import Device, JobSpec, Waiting, write_spec

LOOK_S = 3.0
"""How often a queued job checks what it waits for."""
AT_FRONT = 4
"""A job far back waits `LOOK_S` for each so many before it, as each check reads all live jobs."""
PASS_S = 60.0
"""A user who could have started a job for this long has no turn."""
NEVER_S = 10.0
"""A predecessor that has been gone or ended badly for this long will not finish."""


def feed_of(spec: JobSpec) -> DeviceFeed | None:
    """The sampler of a job's own devices; None for a job on CPUs."""
    if not spec.devices:
        return None
    return DeviceFeed([device.uuid for device in spec.devices if device.uuid])


def queue_of(folder: RunFolder, spec: JobSpec, log: EventLog) -> QueueWatch | None:
    """The watch of a queued job; None if it is not queued."""
    if spec.queue is None or not spec.is_queued:
        return None
    return QueueWatch(folder, spec, log)


class QueueWatch:
    """Checks what a queued job waits for, and takes its devices.

    Args:
        folder: the job's run folder.
        spec: the job, which is queued.
        log: receives an event on what it waits for, once known.
    """

    def __init__(self, folder: RunFolder, spec: JobSpec, log: EventLog) -> None:
        self._folder = folder
        self._spec = spec
        self._log: EventLog | None = log
        devices = self._queue.candidates
        uuids = [device.uuid for device in devices if device.uuid]
        has_mig = any(device.is_mig for device in devices)  # these must be named
        self._feed = DeviceFeed(uuids if has_mig else None, interval_s=LOOK_S) if devices else None
        self._looked_at_s: float | None = None
        self._rests_until_s = 0.0
        self._jobs = JobSource()
        self._uses: list[DeviceUse] = []
        self._idle = IdleWatch()
        self._reason: WaitReason | None = None
        self._never_since_s: float | None = None
        self._could_since_s: dict[tuple[int, float], float] = {}
        self._gpus: list[GpuSample] = []
        self._stopped = False

    @property
    def _queue(self) -> Waiting:
        assert self._spec.queue is not None  # only a queued job has a watch
        return self._spec.queue

    async def start(self) -> None:
        """Start checking."""
        if self._feed is not None:
            await self._feed.start()

    def skip_event(self) -> None:
        """Emit no event, since an earlier supervisor has."""
        self._log = None

    async def stop(self) -> None:
        """Stop checking."""
        self._stopped = True
        if self._feed is not None:
            await self._feed.stop()

    @property
    def latest(self) -> DeviceReport | None:
        """The candidate devices, with job and rank of ddptop's own processes.

        None before the first check and after the last.
        """
        report = None if self._feed is None else self._feed.latest
        if report is None or self._stopped:
            return None
        if report.boottime_s != self._looked_at_s:
            return report
        return msgspec.structs.replace(report, gpus=self._gpus)

    @property
    def note(self) -> str | None:
        """Why devices are missing, incomplete, or stale; None if there is no problem."""
        return None if self._feed is None else self._feed.note

    @property
    def never(self) -> str | None:
        """Why the job will never start, in words; None if it may.

        A job that is being renamed or restarted may be out of sight for a moment.
        """
        since_s = self._never_since_s
        if self._reason is None or since_s is None or boottime_s() - since_s < NEVER_S:
            return None
        return reason_in_words(self._reason)

    @property
    def words(self) -> str:
        """What the job waits for, and who holds it."""
        return waiting_in_words(self._queue, self._reason, self._uses, self.note)

    def alert(self) -> Alert:
        """`words` as an alert."""
        return Alert(
            id="queued",
            severity="info",
            gpus=[use.device.index for use in self._uses if use.busy],
            message=self.words,
            since=self._queue.since,
            waits_for=self._reason,
        )

    def move(self, place: dt.datetime) -> None:
        """Change the job's place; only its supervisor writes `job.json` while it waits.

        Raises:
            OSError: the disk is full.
        """
        queue = msgspec.structs.replace(self._queue, place=place)
        self._spec = msgspec.structs.replace(self._spec, queue=queue)
        self._rests_until_s = 0.0
        write_spec(self._folder, self._spec)

    def look(self) -> JobSpec | None:
        """Check once per tick; returns the job with its devices once `job.json` has them."""
        if boottime_s() < self._rests_until_s:
            return None
        report = None if self._feed is None else self._feed.latest
        if self._feed is not None:
            if report is None or report.boottime_s == self._looked_at_s:
                return None
            self._looked_at_s = report.boottime_s
        may_start = self._look_at(report) is not None
        if self._reason is None or self._reason.kind != "never":
            self._never_since_s = None
        elif self._never_since_s is None:
            self._never_since_s = boottime_s()
        if self._log is not None:
            self._log.emit(Queued(waits_for=self.words))
            self._log = None
        if not may_start:
            return None
        with usage.taking(timeout_s=0) as had, contextlib.suppress(OSError):
            return self._take(report) if had else None  # disk full: retry at the next look
        return None

    def _look_at(self, report: DeviceReport | None) -> list[Device] | None:
        """Find out what is in the job's way; returns the devices that it may take."""
        jobs, now, queue = usage.jobs_here(self._jobs), utc_now(), self._queue
        others = shared.others(now)
        own = queue_of_user(jobs, now)
        shared.publish(own)
        ids = [entry.job_id for entry in own.waits]  # of jobs that have a place
        me = self._spec.job_id
        before = ids.index(me) if me in ids else number_before(self._spec, jobs)
        far = before // AT_FRONT
        self._rests_until_s = boottime_s() + LOOK_S * (far if self._feed else max(far, 1))
        if report is not None:
            present = [Device(index=gpu.index, uuid=gpu.uuid) for gpu in report.gpus]
            uses = usage.uses(present, report.gpus, self._spec.job_id, jobs, others)
            others = self._pass_over(own, others, uses)
            gpus = labeled(report.gpus, registry.rank_of_pid(jobs))
            wanted = queue.candidates
            self._gpus = [gpu for gpu in gpus if any(is_same(gpu, one) for one in wanted)]
            found = usage.uses(wanted, report.gpus, self._spec.job_id, jobs, others)
            self._uses = self._idle.look(found, report.boottime_s)
        self._reason = why_waiting(self._spec, jobs, now, others)
        if self._reason is not None:
            return None
        devices = grant(self._uses, queue.count, share_idle=queue.share_idle)
        if devices is None:
            self._reason = WaitReason(kind="gpus")
        return devices

    def _pass_over(
        self, own: UserQueue, others: Sequence[UserQueue], uses: Sequence[DeviceUse]
    ) -> list[UserQueue]:
        """Other users' queues without those of users who do not take their turn.

        A job that wants more devices than are left, because one is lost, has no turn either.
        """
        free = {key(use.device) for use in uses if not use.busy}
        gone = {key(use.device) for use in uses if use.gone}
        others = [
            msgspec.structs.replace(
                queue,
                waits=[one for one in queue.waits if len({*one.devices} - gone) >= one.count],
            )
            for queue in others
        ]
        last = last_turns(others)
        now_s, since_s = boottime_s(), dict[tuple[int, float], float]()
        wanted, passed = set[str](), set[int]()
        for uid, entry in turns([own, *others]):
            could = len(free.intersection(entry.devices)) >= entry.count
            if uid != own.uid and could and wanted.isdisjoint(entry.devices):
                turn = uid, last[uid]
                since_s[turn] = self._could_since_s.get(turn, now_s)
                if now_s - since_s[turn] >= PASS_S:
                    passed.add(uid)
            if uid not in passed:
                wanted.update(entry.devices)
        self._could_since_s = since_s
        return [
            msgspec.structs.replace(queue, waits=[]) if queue.uid in passed else queue
            for queue in others
        ]

    def _take(self, report: DeviceReport | None) -> JobSpec | None:
        """Check everything again under the lock, then take the devices."""
        devices = self._look_at(report)
        if devices is None:
            return None
        lost = report is not None and any(gpu.lost for gpu in report.gpus)
        queue = msgspec.structs.replace(
            self._queue, by_uuid=self._queue.by_uuid or lost, over_at=utc_now()
        )
        spec = msgspec.structs.replace(self._spec, queue=queue)
        if queue.candidates:
            spec = msgspec.structs.replace(spec, devices=devices)
        write_spec(self._folder, spec)
        publish_jobs()
        return spec
