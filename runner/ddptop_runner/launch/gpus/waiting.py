"""Decides why a queued job waits, apart from busy devices, and says it in words.

A job whose own conditions hold has a place in the queue. Among jobs that want the same device, the
first one in the order of `shared.turns` gets it, even if a later one could start at once, so that a
job that needs many devices is not starved. A job that still waits for a time or for another job
holds no place, and blocks nobody.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Sequence

from ddptop_runner.base.clock import utc_now
from ddptop_runner.devices.words import wanted_in_words
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView
from ddptop_runner.launch.gpus import shared
from ddptop_runner.launch.gpus.shared import Entry, UserQueue, turns
from ddptop_runner.launch.gpus.usage import DeviceUse, busy_in_words, is_here, jobs_here, key
from ddptop_runner.model.snapshot import ProcessId, WaitedFor, WaitReason
from ddptop_runner.model.spec import JobSpec, Waiting


def why_waiting(
    spec: JobSpec, jobs: Sequence[JobView], now: dt.datetime, others: Sequence[UserQueue] = ()
) -> WaitReason | None:
    """What a queued job waits for besides free devices; None if it may take them.

    Args:
        spec: the job.
        jobs: every job of this user, with parts of jobs on this machine.
        now: the current time.
        others: what other users have published.
    """
    if spec.queue is None:
        return None
    if (reason := unmet(spec, jobs, now)) is not None:
        return reason
    mine = queue_of_user(jobs, now, spec)
    ahead, wanted = [], set(map(key, spec.queue.candidates))
    for uid, entry in turns([mine, *others]):
        if uid == mine.uid and entry.job_id == spec.job_id:
            break
        if wanted.intersection(entry.devices):
            user = None if uid == mine.uid else procs.user_name(uid)
            ahead.append(WaitedFor(job=entry.job, user=user))
    return WaitReason(kind="turn", jobs=ahead) if ahead else None


def queue_of_user(
    jobs: Sequence[JobView], now: dt.datetime, new: JobSpec | None = None
) -> UserQueue:
    """This user's jobs on this machine: which have devices, and which wait for some, in order.

    Args:
        jobs: all jobs of this user.
        now: the current time.
        new: one that waits for devices, even if it is not among `jobs` yet.
    """
    has, waits, turn_at = [], [], None
    if new is not None and new.queue is not None:
        waits.append((new.place, _entry(new, new.queue)))
    for view in jobs:
        spec, queue = view.spec, view.spec.queue
        if view.spec.host == procs.host_name() and queue is not None and queue.over_at is not None:
            turn_at = max(turn_at or queue.over_at, queue.over_at)
        if not is_here(view) or (new is not None and spec.job_id == new.job_id):
            continue
        seen = view.snapshot
        holders = [] if seen is None else [seen.guardian, seen.supervisor, seen.agent]
        if queue is not None and spec.is_queued:
            if queue.candidates and unmet(spec, jobs, now) is None:
                waits.append((spec.place, _entry(spec, queue, holders[:1])))
        elif spec.devices:
            has.append(_entry(spec, None, holders))
    in_order = [entry for _, entry in sorted(waits, key=lambda one: one[0])]
    return UserQueue(turn_at=turn_at, has=has, waits=in_order, uid=os.geteuid())


def publish_jobs() -> None:
    """Let other users know what this user's jobs have and wait for."""
    now = utc_now()
    shared.publish(queue_of_user(jobs_here(), now))


def _entry(spec: JobSpec, queue: Waiting | None, holders: Sequence[ProcessId | None] = ()) -> Entry:
    """The entry of a job that waits; without `queue`, of one that has its devices."""
    devices = spec.devices or () if queue is None else queue.candidates
    return Entry(
        job=spec.job,
        job_id=spec.job_id,
        devices=list(map(key, devices)),
        count=0 if queue is None else queue.count,
        since=spec.started_at if queue is None else queue.since,
        processes=[one for one in holders if one is not None],
    )


def unmet(spec: JobSpec, jobs: Sequence[JobView], now: dt.datetime) -> WaitReason | None:
    """The first of the job's own conditions that does not hold yet; None if all hold."""
    queue = spec.queue
    if queue is None:
        return None
    known = {view.spec.job_id: view for view in jobs} if queue.after else {}
    left = []
    for before in queue.after:
        view = known.get(before.job_id)
        state = None if view is None else view.state
        one = WaitedFor(job=before.job if view is None else view.job, state=state)
        if view is not None and view.is_live:
            left.append(one)
        elif state != "finished" and not before.any_end:
            return WaitReason(kind="never", jobs=[one])
    if left:
        return WaitReason(kind="after", jobs=left)
    if queue.not_before is not None and now < queue.not_before:
        return WaitReason(kind="time", until=queue.not_before)
    return _behind_group(spec, jobs)


def number_before(spec: JobSpec, jobs: Iterable[JobView]) -> int:
    """How many of these jobs come first in the queue."""
    queued = (view for view in jobs if view.spec.is_queued and is_here(view))
    return sum(view.spec.place < spec.place for view in queued)


def _behind_group(spec: JobSpec, jobs: Sequence[JobView]) -> WaitReason | None:
    """The jobs of its sweep that come first, if they are as many as may run at once."""
    if spec.parallel is None:
        return None
    others = [view for view in jobs if view.spec.group == spec.group and is_here(view)]
    running = [view for view in others if not view.spec.is_queued]
    if len(running) + number_before(spec, others) < spec.parallel:
        return None
    names = [WaitedFor(job=view.job, state=view.state) for view in running]
    return WaitReason(kind="group", jobs=names)


# --- words -------------------------------------------------------------------------------------


def waiting_in_words(
    queue: Waiting,
    reason: WaitReason | None,
    uses: Sequence[DeviceUse] = (),
    note: str | None = None,
) -> str:
    """What a queued job waits for, and who holds it, in words.

    Args:
        queue: what it needs.
        reason: why it waits; None if nothing is known to be in its way.
        uses: how the devices are used; () if unknown.
        note: why the sampler cannot read some devices.
    """
    if reason is not None and reason.kind not in ("turn", "gpus"):
        return reason_in_words(reason)
    parts = [f"waiting for {wanted_in_words(queue)}"] if queue.candidates else ["about to start"]
    if reason is not None and reason.kind == "turn":
        parts.append(reason_in_words(reason))
    if note is not None:
        parts.append(note)
    if busy := busy_in_words(uses):
        parts.append(busy)
    elif uses and reason is None:
        parts.append("free; the job will start if they stay free")
    return "; ".join(parts)


MOST_NAMED = 4
"""Jobs in a sentence."""


def reason_in_words(reason: WaitReason) -> str:
    """`waiting until 22:00`, `behind job a, queued earlier`, or `not started: job a failed`."""
    named = [
        f"{one.user}'s {one.job}" if one.user is not None else one.job
        for one in reason.jobs[:MOST_NAMED]
    ]
    more = len(reason.jobs) - len(named)
    names = ", ".join([*named, f"and {more} more"] if more else named)
    jobs = f"job{'s' if len(reason.jobs) > 1 else ''} {names}"
    if reason.kind == "never":
        state = reason.jobs[0].state
        verb = {None: "was removed", "stopped": "was stopped", "lost": "is lost"}.get(state, state)
        return f"not started: {jobs} {verb}"
    if reason.kind == "time" and reason.until is not None:
        return f"waiting until {moment_in_words(reason.until)}"
    if reason.kind == "after":
        return f"waiting for {jobs} to end"
    if reason.kind == "group":
        return (
            f"waiting for a job of its sweep to end: {names}" if names else "waiting for its sweep"
        )
    if reason.kind == "turn":
        return f"behind {jobs}, queued earlier"
    return "too few GPUs are free"


def moment_in_words(moment: dt.datetime) -> str:
    """Local time, with the date unless it is today's."""
    local, today = moment.astimezone(), utc_now().astimezone().date()
    return f"{local:%H:%M}" if local.date() == today else f"{local:%F %H:%M}"
