"""The queue of this machine as rows: who runs, who waits, why, and until when. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.job.progress import progress_of
from ddptop.job.record import Job, own_view
from ddptop.job.status import queue_alert
from ddptop_runner.base.units import NOT_AVAILABLE, duration, name_gpus
from ddptop_runner.host import procs
from ddptop_runner.launch.gpus.shared import Entry, UserQueue, turns
from ddptop_runner.launch.gpus.usage import key
from ddptop_runner.launch.gpus.waiting import moment_in_words, queue_of_user
from ddptop_runner.model.snapshot import SCHEMA, WaitReason
from ddptop_runner.model.words import Base, JobState


class QueueRow(Base, frozen=True, kw_only=True):
    """One job in the queue of this machine."""

    job: str
    user: str
    """Who launched it."""
    state: JobState | None
    """None for another user's job that has its GPUs."""
    gpus: list[int] | None
    """Machine indices of the GPUs that it has; null if unknown."""
    gpus_wanted: int
    """Number of GPUs that it has or waits for."""
    waits_for: WaitReason | None = None
    """Why it waits; null unless it is yours and waits."""
    why: str | None = None
    """The same on one line."""
    since: dt.datetime
    """When it was queued, or started."""
    start_at: dt.datetime | None = None
    """Estimated start of a job that waits, from the remaining times of those that run; null if
    unknown."""
    end_at: dt.datetime | None = None
    """Estimated end of a job that runs; null if unknown."""


class QueueReport(Base, frozen=True, kw_only=True):
    """What `queue --json` prints."""

    schema: int = SCHEMA
    jobs: list[QueueRow]
    """Those that run, then those that wait, next one first."""
    note: str | None
    """Why other users' jobs are not considered; null if they are."""


def queue_rows(
    jobs: Sequence[Job], others: Sequence[UserQueue], now: dt.datetime
) -> list[QueueRow]:
    """The rows of all jobs that run or wait, in order.

    Args:
        jobs: this user's jobs.
        others: what other users have published.
        now: the current time.
    """
    here = [job for job in jobs if job.can_restart and not job.on_other_host]
    own = queue_of_user([own_view(job) for job in here], now)
    order = turns([own, *others])
    live = [job for job in here if job.is_live]
    running = [job for job in live if not job.spec.is_queued]
    waiting = {job.job_id: job for job in live if job.spec.is_queued}
    rows = [_running(job) for job in sorted(running, key=lambda job: job.created_at)]
    rows += [_of_other(queue.uid, entry) for queue in others for entry in queue.has]
    estimate = _Estimate(running, list(waiting.values()), others, now)
    for uid, entry in order:
        job = waiting.pop(entry.job_id, None) if uid == own.uid else None
        start_at = estimate.start(entry.devices, entry.count, job)
        rows.append(_of_other(uid, entry) if job is None else _waiting(job, start_at))
    later = sorted(waiting.values(), key=lambda job: job.spec.place)
    return [*rows, *(_waiting(job, estimate.start_of(job)) for job in later)]


def _running(job: Job) -> QueueRow:
    devices = job.spec.devices or []
    return QueueRow(
        job=job.name,
        user=job.user,
        state=job.state,
        gpus=[device.index for device in devices],
        gpus_wanted=len(devices),
        since=job.spec.started_at,
        end_at=_end_of(job),
    )


def _waiting(job: Job, start_at: dt.datetime | None) -> QueueRow:
    queue, alert = job.spec.queue, queue_alert(job)
    return QueueRow(
        job=job.name,
        user=job.user,
        state=job.state,
        gpus=[],
        gpus_wanted=0 if queue is None else queue.count,
        waits_for=None if alert is None else alert.waits_for,
        why=None if alert is None else alert.message,
        since=job.created_at if queue is None else queue.since,
        start_at=start_at,
    )


def _of_other(uid: int, entry: Entry) -> QueueRow:
    return QueueRow(
        job=entry.job,
        user=procs.user_name(uid),
        state="queued" if entry.count else None,
        gpus=[] if entry.count else None,
        gpus_wanted=entry.count or len(entry.devices),
        since=entry.since,
    )


def _end_of(job: Job) -> dt.datetime | None:
    progress = progress_of(job)
    if progress is None or progress.eta_s is None:
        return None
    return job.read_at + dt.timedelta(seconds=progress.eta_s)


class _Estimate:
    """When each GPU will be free, as far as that is known; asked for one job after the other."""

    def __init__(
        self,
        running: Sequence[Job],
        waiting: Sequence[Job],
        others: Sequence[UserQueue],
        now: dt.datetime,
    ) -> None:
        self._now = now
        self._ends = {job.job_id: _end_of(job) for job in (*running, *waiting)}
        self._free_at: dict[str, dt.datetime | None] = {}
        for job in waiting:
            queue = job.spec.queue
            busy = [] if (alert := queue_alert(job)) is None else alert.gpus
            for device in [] if queue is None else queue.candidates:
                self._free_at.setdefault(key(device), None if device.index in busy else now)
        self._ends_of_sweep: dict[str | None, list[dt.datetime | None]] = {}
        for job in running:
            self._ends_of_sweep.setdefault(job.group, []).append(_end_of(job))
            for device in job.spec.devices or ():
                self._free_at[key(device)] = _end_of(job)
        for held in (device for queue in others for entry in queue.has for device in entry.devices):
            self._free_at[held] = None

    def start_of(self, job: Job) -> dt.datetime | None:
        """The start of a job whose own conditions do not hold yet."""
        queue = job.spec.queue
        if queue is None:
            return None
        return self.start(list(map(key, queue.candidates)), queue.count, job)

    def start(self, devices: Sequence[str], count: int, job: Job | None) -> dt.datetime | None:
        """When a job gets its GPUs; for how long it keeps them is unknown."""
        known = [(at, one) for one in devices if (at := self._free_at.get(one)) is not None]
        chosen = sorted(known)[:count]
        needs: list[dt.datetime | None] = [at for at, _ in chosen]
        needs += [None] * (count - len(chosen))
        if job is not None and (queue := job.spec.queue) is not None:
            needs += [queue.not_before or self._now]
            needs += [self._ends[one.job_id] for one in queue.after if one.job_id in self._ends]
            if job.spec.parallel is not None:
                needs.append(self._turn_in_sweep(job.spec.group, job.spec.parallel))
        is_known = None not in needs
        for _, one in chosen if is_known else known:
            self._free_at[one] = None
        return max(filter(None, needs), default=self._now) if is_known else None

    def _turn_in_sweep(self, group: str | None, parallel: int) -> dt.datetime | None:
        """When one of the jobs of a sweep that may run at once ends; each end is used once."""
        ends = self._ends_of_sweep.setdefault(group, [])
        if len(ends) < parallel:
            ends.append(None)
            return self._now
        first = min((at for at in ends if at is not None), default=None)
        if first is not None:
            ends[ends.index(first)] = None
        return first


# --- words -------------------------------------------------------------------------------------

NO_GPUS = "none"
HEADERS = ("JOB", "USER", "STATE", "GPUS", "SINCE", "STARTS", "WHY")


def cells(row: QueueRow, now: dt.datetime) -> list[str]:
    """The cells of a row, below `HEADERS`."""
    waits = row.state == "queued"
    if row.gpus:
        gpus = name_gpus(row.gpus).partition(" ")[2]
    elif row.gpus_wanted:
        gpus = f"{row.gpus_wanted} wanted" if waits else f"has {row.gpus_wanted}"
    else:
        gpus = NO_GPUS
    starts = NOT_AVAILABLE if waits else ""
    if row.start_at is not None:
        left_s = (row.start_at - now).total_seconds()
        starts = "soon" if left_s < 1 else f"in ~{duration(left_s)}"
    why = row.why or ""
    if row.end_at is not None:
        why = f"ends in ~{duration((row.end_at - now).total_seconds())}"
    state = row.state or "running"
    return [row.job, row.user, state, gpus, moment_in_words(row.since), starts, why]


def row_in_words(row: QueueRow, now: dt.datetime) -> str:
    """`alice, queued since 17:54, GPUs: 4 wanted, starts: in ~10m`, and below it why."""
    _, user, state, gpus, since, starts, why = cells(row, now)
    parts = [user, f"{state} since {since}", f"GPUs: {gpus}", starts and f"starts: {starts}"]
    return f"{', '.join(filter(None, parts))}\n{why}".rstrip()
