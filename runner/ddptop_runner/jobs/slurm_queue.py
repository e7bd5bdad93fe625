"""Reads the user's jobs in Slurm's queue; rarely, as one controller serves the whole cluster."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError, NoSuchJobError, UsageError, WaitTimeoutError
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import run_folder, state_home
from ddptop_runner.host import procs
from ddptop_runner.job.registry import JobView, is_there, resolve
from ddptop_runner.launch.slurm import QUEUE_ENV, SlurmJob, queue_argv, queue_of
from ddptop_runner.model.snapshot import Alert
from ddptop_runner.model.words import Base
from ddptop_runner.store.log_clean import one_line

TIMEOUT_S = 2.0
INTERVAL_S = 15.0
"""Minimum time between two squeue calls by all of a user's viewers together."""
POLL_S = 2.0
"""Time between two polls for a job that has not started."""
MOST_JOBS = 1000
NOT_STARTED = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    }
)
"""States in squeue's output of jobs that Slurm has yet to start."""
STARTING_S = 120.0
"""How long after its batch step began a job may still be starting."""
_CONFIGS = ("etc/slurm.conf", "etc/slurm/slurm.conf")
_SYSTEM_CONFIGS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)


class Queue(Base, frozen=True, kw_only=True):
    """What squeue printed."""

    jobs: list[SlurmJob] | None = None
    """None if it did not answer."""
    note: str | None = None
    """Why it did not."""


def squeue_path(env: Mapping[str, str]) -> str | None:
    """The path of squeue; None if this machine is not part of a cluster."""
    folders = env.get("PATH", "").split(os.pathsep)
    programs = [f"{folder}/squeue" for folder in folders if folder]
    found = next((one for one in programs if os.access(one, os.X_OK)), None)
    if found is None or env.get("SLURM_CONF"):
        return found
    near = Path(found).resolve().parents[1]
    configs = [*map(Path, _SYSTEM_CONFIGS), *(near / name for name in _CONFIGS)]
    return found if any(map(os.path.exists, configs)) else None


def read_queue() -> Queue | None:
    """The user's jobs, at most 15 s old; None on a machine without Slurm."""
    squeue = squeue_path(os.environ)
    if squeue is None:
        return None
    kept = state_home() / "slurm-queue.json"
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        age_s = utc_now().timestamp() - kept.lstat().st_mtime
        if 0 <= age_s < INTERVAL_S and kept.lstat().st_uid == os.geteuid():
            return bounded.decode_json(msgspec.json.Decoder(Queue), bounded.read_bytes(kept))
    queue = _ask(squeue)
    with contextlib.suppress(OSError):
        if kept.parent.is_dir() and kept.parent.stat().st_uid == os.geteuid():
            write_atomic(kept, msgspec.json.encode(queue))
    return queue


def forget_queue() -> None:
    """Discard the cached queue, because a job was just submitted."""
    with contextlib.suppress(OSError):
        (state_home() / "slurm-queue.json").unlink(missing_ok=True)


def _ask(squeue: str) -> Queue:
    import subprocess

    from ddptop_runner.base import programs

    argv = queue_argv(procs.user_name(os.geteuid()))
    try:
        done = programs.run([squeue, *argv[1:]], TIMEOUT_S, env={**os.environ, **QUEUE_ENV})
    except subprocess.TimeoutExpired:
        return Queue(note=f"squeue did not respond within {TIMEOUT_S:g} s")
    except OSError as error:
        return Queue(note=f"squeue cannot be run ({error.strerror})")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return Queue(note=f"squeue failed: {one_line(lines[-1])}")
    return Queue(jobs=queue_of(done.stdout)[:MOST_JOBS])


def with_jobs(queue: Queue, names: Mapping[str | None, str]) -> list[SlurmJob] | None:
    """The queue's jobs, with the names of the live ddptop jobs that they run, by number."""
    if queue.jobs is None:
        return None
    return [msgspec.structs.replace(one, job=names.get(one.number)) for one in queue.jobs]


def as_queued(view: JobView, queue: Queue | None = None) -> JobView:
    """A requeued job that Slurm has yet to start again, as `queued`; any other job unchanged.

    Args:
        view: the job.
        queue: the queue, if the caller has read it; otherwise it is read here if needed.
    """
    if not _may_return(view) or view.snapshot is None:
        return view
    queue = queue or read_queue()
    listed = () if queue is None else queue.jobs or ()
    found = next((one for one in listed if one.number == view.spec.slurm_job), None)
    if found is None or not _is_to_start(found):
        return view
    why = f" ({found.reason})" if found.reason else ""
    waits = Alert(
        id="queued",
        severity="info",
        message=f"requeued as Slurm job {found.id}; {found.state.lower()}{why}",
        since=view.snapshot.ts,
    )
    snapshot = msgspec.structs.replace(
        view.snapshot,
        alerts=[waits],
        restart_at=found.start_estimate,
        ranks=[],  # all processes have ended
        gpus=[],
        nodes=[],
        pause=None,
    )
    return msgspec.structs.replace(view, snapshot=snapshot, in_slurm_queue=True)


class NotStartedError(NoSuchJobError):
    """The job was submitted to Slurm but has no run folder yet."""

    def __init__(self, job: SlurmJob) -> None:
        why = f" ({job.reason})" if job.reason else ""
        super().__init__(
            f"{job.name} has not started: Slurm job {job.id} is {job.state.lower()}{why}",
            f"`ddptop wait {job.name}` waits for it, and `scancel {job.id}` cancels it",
        )


def find(name: str | None) -> JobView:
    """As `registry.resolve`, but a job that Slurm will start again counts as live.

    Raises:
        NotStartedError: Slurm has yet to start the job of that name.
    """
    if name is not None and not _has_folder(name):
        same = _to_start(name, read_queue())
        if same is not None:
            raise NotStartedError(same)
    return resolve(name, as_queued)


def wait_until_started(name: str | None, timeout_s: float | None) -> JobView:
    """As `find`, but waits until Slurm has started the job, which may replace an ended one.

    Raises:
        WaitTimeoutError: it has not started within `timeout_s`.
        DdptopError: it left the queue without creating a run folder.
    """
    if name is None:
        return find(None)
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    waited: SlurmJob | None = None
    while True:
        view = resolve(name, as_queued) if _has_folder(name) else None
        if view is not None and view.is_live:
            return view
        ended = None if view is None else view.spec.slurm_job
        queue = read_queue()
        same = _to_start(name, queue, waited)
        if same is not None and same.number != ended:
            waited = same
        elif waited is None or waited.number == ended:
            return view or resolve(name, as_queued)
        elif queue is None or queue.jobs is not None:
            raise DdptopError(
                f"Slurm job {waited.id} ended without starting {name}",
                f"see the output of its batch step, such as slurm-{waited.id}.out",
            )
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise WaitTimeoutError(NotStartedError(waited).message)
        time.sleep(POLL_S)


def _has_folder(name: str) -> bool:
    return is_there(name) and os.path.lexists(run_folder(name).spec_file)


def _to_start(name: str, queue: Queue | None, waited: SlurmJob | None = None) -> SlurmJob | None:
    """The Slurm job of that name whose ranks may not have started.

    Args:
        name: the whole name.
        queue: the queue; None without Slurm.
        waited: a job that had not started; it is returned as long as the queue lists it.
    """
    number = None if waited is None else waited.number
    listed = () if queue is None else queue.jobs or ()
    same = (one for one in listed if one.name == name)
    return next((one for one in same if one.number == number or _is_to_start(one)), None)


def _is_to_start(job: SlurmJob) -> bool:
    """Whether its ranks may not have started: its batch step has not begun, or only recently."""
    if job.state != "RUNNING" or job.started_at is None:
        return job.state in NOT_STARTED
    return 0 <= (utc_now() - job.started_at).total_seconds() < STARTING_S


def _may_return(view: JobView) -> bool:
    """Whether Slurm may start a job again: it left no end, or is worth a requeue."""
    if view.spec.slurm_job is None:
        return False
    worth_it = view.snapshot is not None and view.snapshot.requeue is True
    return view.state == "lost" or (view.state == "failed" and worth_it)


def is_unknown(view: JobView) -> bool:
    """Whether Slurm might start a job again: it has yet to end the job, or does not answer.

    An allocation that outlives its job, as salloc's does, means nothing after a while.
    """
    queue = read_queue() if _may_return(view) else None
    if queue is None or queue.jobs is None:
        return queue is not None
    found = next((one for one in queue.jobs if one.number == view.spec.slurm_job), None)
    if found is None or found.state != "RUNNING":
        return found is not None
    ended = view.ended_at or view.read_at
    return (utc_now() - ended).total_seconds() < 2 * INTERVAL_S


def require_not_queued(view: JobView) -> None:
    """Refuse a job that Slurm will start again.

    Raises:
        UsageError: Slurm will start it again.
    """
    if as_queued(view).in_slurm_queue:
        raise UsageError(
            f"{view.job} is waiting in Slurm's queue",
            f"cancel it first: scancel {view.spec.slurm_job}",
        )
