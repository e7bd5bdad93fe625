"""The devices that live ddptop jobs have reserved or wait for.

A job has its devices from the moment that `job.json` names them, long before a rank holds memory.
Whoever takes devices holds `taking()` from the look at the claims to the writing of `job.json`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.paths import runs_dir
from ddptop_runner.host import procs
from ddptop_runner.job import registry
from ddptop_runner.job.registry import JobView
from ddptop_runner.launch.gpus.idle import DeviceUse, key, use_of
from ddptop_runner.model.devices import GpuSample
from ddptop_runner.model.spec import Device, JobSpec

LOCK_NAME = ".gpus.lock"
POLL_S = 0.02
FRESH_S = 30.0
"""A job whose processes cannot be seen from here counts while its snapshot is no older."""


@dataclass(frozen=True)
class Claim:
    """One device of one live job."""

    job: str
    device: Device


def _holders_here() -> list[JobView]:
    """Live jobs that may have devices of this machine."""
    return [view for view in registry.all_jobs() if _is_here(view) and view.is_live]


def _is_here(view: JobView) -> bool:
    if not view.on_other_host:
        return True
    # another container of this machine: its devices are ours, its processes are not to be seen
    here = view.snapshot is not None and view.snapshot.boot_id == procs.boot_id()
    age_s = view.snapshot_age_s
    return here and view.snapshot is not None and age_s is not None and age_s < FRESH_S


def claims(besides: str | None = None) -> list[Claim]:
    """The devices of every live job of this machine, but for the job with the id `besides`."""
    return [
        Claim(view.job, device)
        for view in _holders_here()
        if view.spec.job_id != besides
        for device in view.spec.devices or ()
    ]


def queued_before(spec: JobSpec) -> list[str]:
    """Jobs that wait for one of the same devices and have waited longer, first come first."""
    if spec.queue is None:
        return []
    mine = (spec.queue.since, spec.job_id)
    wanted = set(map(key, spec.queue.candidates))
    ahead = []
    for view in _holders_here():
        queue = view.spec.queue
        if queue is None or not view.spec.is_queued:
            continue
        theirs = (queue.since, view.spec.job_id)
        if theirs < mine and wanted & set(map(key, queue.candidates)):
            ahead.append((theirs, view.job))
    return [job for _, job in sorted(ahead)]


def uses(
    devices: Sequence[Device], present: Sequence[GpuSample], taken: Sequence[Claim]
) -> list[DeviceUse]:
    """What each of these devices is used for.

    Args:
        devices: the devices, in the order of the answer.
        present: the machine's samples, as the driver gives them.
        taken: what `claims` says.
    """
    owners = registry.rank_of_pid()
    found = []
    for device in devices:
        gpu = next((gpu for gpu in present if is_same(gpu, device)), None)
        jobs = [claim.job for claim in taken if is_same(claim.device, device)]
        found.append(use_of(device, None if gpu is None else labelled(gpu, owners), jobs))
    return found


def labelled(gpu: GpuSample, owners: dict[int, tuple[str, int | None]]) -> GpuSample:
    """The sample with job and rank at the processes that `registry.rank_of_pid` knows."""
    if gpu.processes is None:
        return gpu
    processes = [
        process
        if process.job is not None or process.pid not in owners
        else msgspec.structs.replace(
            process, job=owners[process.pid][0], rank=owners[process.pid][1]
        )
        for process in gpu.processes
    ]
    return msgspec.structs.replace(gpu, processes=processes)


def is_same(one: GpuSample | Device, other: Device) -> bool:
    """Whether both are the same device: by UUID where both have one."""
    if one.uuid and other.uuid:
        return one.uuid == other.uuid
    return one.index == other.index and not other.is_mig


@contextlib.contextmanager
def taking(timeout_s: float = 10.0) -> Iterator[bool]:
    """Hold the right to take devices of this state folder.

    Yields:
        Whether it was had in time; 0 tries once. Where the file system gives no lock it is had.
    """
    try:
        fd = bounded.open_lock(runs_dir() / LOCK_NAME)
    except OSError:  # neither a full disk nor a lock of another user's may stop a job for ever
        yield True
        return
    deadline_s = time.monotonic() + timeout_s
    try:
        while not (had := _locked(fd)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        yield had
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
