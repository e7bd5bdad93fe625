"""Implements the actions on a job, for the CLI and the TUI.

For a job whose supervisor is on another node of a cluster, a Slurm step runs this module there.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ddptop_runner.base import programs
from ddptop_runner.base.clock import poll
from ddptop_runner.base.errors import (
    ControlError,
    DamagedFileError,
    DdptopError,
    NoSuchJobError,
    UsageError,
    WaitTimeoutError,
)
from ddptop_runner.base.files import belongs
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.base.start import own_command
from ddptop_runner.host import procs
from ddptop_runner.job.registry import (
    START_ALLOWANCE_S,
    JobView,
    all_jobs,
    is_locked,
    read_job,
    was_written_lately,
)
from ddptop_runner.jobs.slurm_queue import as_queued, is_unknown, require_not_queued
from ddptop_runner.launch.slurm import link_argv, step_environment
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import ProcessId, RankStacks
from ddptop_runner.model.spec import JobSpec, NodeSpec, Placement
from ddptop_runner.node import control
from ddptop_runner.node.ending import end_here, guards_of, is_guard, is_stopped, restore_folder
from ddptop_runner.store.log_clean import one_line

POLL_S = 0.1
GUARDIAN_EXIT_S = 5.0
SUPERVISOR_START_S = START_ALLOWANCE_S
"""How long to wait for a supervisor that is starting or restarting."""
PLACE_APART = dt.timedelta(seconds=1)
REPEATABLE = pt.StopAsked | pt.GetStacks
"""Requests that may be sent again if the connection broke before the answer."""
RESTORED_S = 5.0
"""A supervisor writes its files again within a second."""
DELETE_TRIES = 1000
STEP_S = 30.0
"""How long a step of Slurm may take to start."""
FORGET_S = 15.0
"""How long connecting to another machine may take, and deleting there."""


def stop(view: JobView, grace_s: float = 30.0) -> str | None:
    """Ask every rank to end (SIGTERM), and kill what is left after `grace_s` (SIGKILL); 0: at once.

    Returns at once; `wait_until_ended` waits for the last process.

    The supervisor ends the job; if it cannot be reached, it is done here. A running one that does
    not answer in time may still comply, so only a kill at once bypasses it. Guardian and supervisor
    are killed first, because they would restart the ranks.

    Returns:
        None if the supervisor does it; otherwise a line on why it was done here.

    Raises:
        UsageError: the job has already ended.
        ControlError: its supervisor does not answer, and may still act or cannot be killed here.
    """
    _require_live(view)
    try:
        _request(view, pt.StopAsked(grace_s=grace_s), pt.Done)
    except ControlError as error:
        if view.on_other_host:
            raise
        snapshot, owner = read_job(view.folder).snapshot, view.folder.path.stat().st_uid
        if snapshot is None:  # no supervisor has started
            living = guards_of(view.folder, owner)
        else:
            guards = (snapshot.guardian, snapshot.supervisor)
            living = [guard for guard in guards if guard is not None and procs.is_alive(guard)]
        is_bypassed = grace_s <= 0 or any(map(is_stopped, living))
        may_comply = error.code == "silent" and not is_bypassed
        if living and may_comply:
            hint = f"to end the job without it: ddptop kill {view.job}"
            raise ControlError(error.message, hint, error.code) from error
        was_reached = error.code in (None, "ended")
        if living and (was_reached or not all(is_guard(one, view.folder, owner) for one in living)):
            raise
        end_here(living, view.spec.job_id, owner, grace_s)
        if view.spec.placement is not None and view.spec.placement.by == "ssh":
            return _end_parts(view, grace_s)
        return f"the supervisor for {view.job} cannot be reached; the job's processes have exited"
    return None


def _end_parts(view: JobView, grace_s: float) -> str:
    """Have a new head end the job on all machines, after its head was killed."""
    from ddptop_runner.node import adoption  # most jobs have one machine

    wait_for_guards(view)
    adoption.adopt(read_job(view.folder), os.environ)
    _request(read_job(view.folder), pt.StopAsked(grace_s=grace_s), pt.Done)
    return f"the supervisor for {view.job} could not be reached and was replaced"


def restored(job: str) -> JobView | None:
    """A job whose run folder was deleted while it ran, after its supervisor has restored that.

    None if there is no such job, or its supervisor does not respond.
    """
    folder = run_folder(job.partition("@")[0])
    if not restore_folder(folder):
        return None
    if not poll(folder.spec_file.exists, RESTORED_S, POLL_S):
        _delete(folder)
        return None
    view = read_job(folder)
    return view if job in (view.job, view.spec.job_id) else None


def end_deleted(job: str, grace_s: float) -> bool:
    """End a job whose run folder was deleted while it ran; returns whether there was one.

    Args:
        job: its name or its ID, `name@nonce`, which tells it from a later job of that name.
        grace_s: as for `stop`; 0 kills at once.

    Raises:
        DdptopError: only its head was here, and could not be asked to end the ranks.
    """
    from ddptop_runner.job.processes import agent_processes  # not needed for the first frame

    folder, owner = run_folder(job.partition("@")[0]), os.geteuid()
    guards: dict[str, list[ProcessId]] = {job: []} if "@" in job else {}
    for process in guards_of(folder, owner):
        job_id = procs.environ_value(process.pid, "DDPTOP_JOB_ID") or ""
        guards.setdefault(job_id, []).append(process)
    wanted = {job: guards[job]} if "@" in job else guards
    heads = [job_id for job_id, theirs in wanted.items() if theirs and not agent_processes(job_id)]
    found = [end_here(theirs, job_id, owner, grace_s) for job_id, theirs in wanted.items()]
    if heads:
        raise DdptopError(
            f"{job} may still run on its hosts: its run folder was deleted, and its supervisor did"
            " not respond",
            f"on each of them, run `ddptop kill {job}`",
        )
    return any(found)


def _request(
    view: JobView, message: pt.SupervisorRequest, kind: type[control.R], timeout_s: float = 10.0
) -> control.R:
    """Send a request to the supervisor; waits while it is starting or restarting.

    Raises:
        UsageError: the job ended meanwhile.
        ControlError: no supervisor answers, and none is expected to.
    """
    deadline_s = time.monotonic() + SUPERVISOR_START_S
    while True:
        try:
            if view.on_other_host:
                return request_in_allocation(view, message, kind, timeout_s)
            return control.request(view.folder, message, kind, timeout_s)
        except ControlError as error:
            was_done = error.code == "broken_off" and not isinstance(message, REPEATABLE)
            may_come = error.code in ("absent", "ended", "broken_off")
            if not may_come or time.monotonic() >= deadline_s:
                raise
            view = read_job(view.folder)
            _require_live(view)
            if was_done:
                raise
            if view.snapshot is not None and not procs.is_alive(view.snapshot.guardian):
                raise
        time.sleep(POLL_S)


def restart_group(view: JobView) -> None:
    """Restart all ranks of a live job: a group restarts as a unit.

    Raises:
        UsageError: the job has ended.
        ControlError: its supervisor does not answer.
    """
    _require_live(view)
    _request(view, pt.Restart(), pt.Done)


def live_of(group: Sequence[JobView]) -> list[JobView]:
    """The live jobs of a sweep, those that are queued first: none may start while others stop.

    Raises:
        UsageError: all have ended.
    """
    live = [view for view in group if view.is_live]
    if not live:
        name = group[0].spec.group
        raise UsageError(f"all jobs of {name} have ended", f"see how they went: ddptop ls {name}")
    return sorted(live, key=lambda view: view.state != "queued")


def on_each(group: Sequence[JobView], act: Callable[[JobView], object]) -> None:
    """Act on all of these jobs, even if that fails for some.

    Raises:
        DdptopError: the first failure, once that is done.
    """
    failures = []
    for view in group:
        try:
            act(view)
        except DdptopError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def end_if_live(view: JobView, grace_s: float) -> str | None:
    """As `stop`, but lets a job of a sweep end by itself first."""
    with contextlib.suppress(UsageError):
        return stop(view, grace_s)
    return None


def to_restart(group: Sequence[JobView]) -> list[JobView]:
    """The jobs of a sweep that ended without finishing.

    Raises:
        UsageError: there are none.
    """
    found = [view for view in group if not view.is_live and view.state != "finished"]
    if not found:
        name = group[0].spec.group
        raise UsageError(
            f"no job of {name} failed or was stopped", f"restart single jobs: ddptop ls {name}"
        )
    return found


def stacks(view: JobView, rank: int | None = None, timeout_s: float = 15.0) -> list[RankStacks]:
    """Get the stacks of the ranks, without pausing them.

    Raises:
        UsageError: the job has ended.
        ControlError: its supervisor does not answer.
    """
    _require_live(view)
    return _request(view, pt.GetStacks(rank=rank), pt.Stacks, timeout_s).stacks


def move_in_queue(view: JobView, other: JobView | None, *, last: bool = False) -> None:
    """Move a job that waits: before another of this user's, or before or after all of them.

    Args:
        view: the job.
        other: the one that it is to come before; None for all.
        last: after all of them.

    Raises:
        UsageError: one of them is not waiting.
        ControlError: its supervisor does not answer.
    """
    _require_waiting(view)
    if other is not None:
        _require_waiting(other)
        if other.spec.job_id == view.spec.job_id:
            raise UsageError(f"{view.job} cannot come before itself", "name another job")
    waiting = [one for one in all_jobs() if one.is_live and one.spec.is_queued]
    places = sorted(one.spec.place for one in waiting if one.spec.job_id != view.spec.job_id)
    if not places:
        return
    if last:
        moved = places[-1][0] + PLACE_APART
    else:
        ids = [job_id for _, job_id in places]
        if other is not None and other.spec.job_id not in ids:  # it has started meanwhile
            raise UsageError(f"{other.job} no longer waits", "see ddptop queue")
        at = 0 if other is None else ids.index(other.spec.job_id)
        moved = places[at][0] - PLACE_APART
        if at > 0:
            moved = places[at - 1][0] + (places[at][0] - places[at - 1][0]) / 2
    _request(view, pt.MoveInQueue(place=moved), pt.Done)


def _require_waiting(view: JobView) -> None:
    if not (view.is_live and view.spec.is_queued):
        raise UsageError(f"{view.job} is not waiting ({view.state})", "see ddptop queue")


def checkpoint(view: JobView) -> pt.SaveAsked:
    """Ask the script to save now; see `jobs.checkpoint`, which also waits for the checkpoint.

    Raises:
        UsageError: the job has ended.
        ControlError: its supervisor does not answer, or no rank is running.
    """
    _require_live(view)
    return _request(view, pt.RequestCheckpoint(), pt.SaveAsked)


def wait_until_ended(
    view: JobView,
    timeout_s: float | None = None,
    on_poll: Callable[[JobView], object] | None = None,
    began_s: float | None = None,
) -> JobView:
    """Wait until the job has ended and none of its processes is left; returns its last view.

    Args:
        view: the job.
        timeout_s: how long to wait; None for no limit.
        on_poll: called with each view read while waiting.
        began_s: when the wait began, on the monotonic clock; None for now.

    Raises:
        WaitTimeoutError: it is still live after `timeout_s`.
        NoSuchJobError: it was removed meanwhile.
    """
    began_s = time.monotonic() if began_s is None else began_s
    deadline = None if timeout_s is None else began_s + timeout_s
    view = as_queued(view)
    while view.is_live or is_unknown(view):
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(f"{view.job} is still {view.state} after {timeout_s:g} s")
        time.sleep(POLL_S)
        try:
            view = _read_again(view)
        except DamagedFileError as error:
            if view.folder.spec_file.exists():
                raise
            raise NoSuchJobError(f"{view.job} has ended and been removed") from error
        view = as_queued(view)
        if on_poll is not None:
            on_poll(view)
    wait_for_guards(view)
    return view


def _read_again(view: JobView) -> JobView:
    """Read the same job again, even if another has taken its name meanwhile."""
    with contextlib.suppress(DamagedFileError):
        if (now := read_job(view.folder)).spec.job_id == view.spec.job_id:
            return now
    archived = (one for one in all_jobs() if one.spec.job_id == view.spec.job_id)
    return next(archived, None) or read_job(view.folder)


def wait_for_guards(view: JobView) -> None:
    """Wait for guardian and supervisor, which exit shortly after the last snapshot is written."""
    if view.snapshot is None:
        return
    guards = (view.snapshot.guardian, view.snapshot.supervisor)
    poll(lambda: not any(map(procs.is_alive, guards)), GUARDIAN_EXIT_S, POLL_S / 10)


def remove(view: JobView, *, force: bool = False) -> str | None:
    """Delete an ended job's run folder with its logs and history, on all of its machines.

    Args:
        view: the job.
        force: also delete a job of another host that seems to be gone.

    Returns:
        Where something could not be deleted, and why; None if everything was.

    Raises:
        UsageError: the job is live.
        DdptopError: the folder cannot be deleted.
    """
    with contextlib.suppress(DamagedFileError):
        view = read_job(view.folder)  # it may have been restarted since
    require_ended(view, force=force)
    wait_for_guards(view)
    left = None
    if view.spec.placement is not None:
        left = _remove_parts(view.spec, view.spec.placement)
    _delete(view.folder)
    return left


def _remove_parts(spec: JobSpec, placement: Placement) -> str | None:
    """Delete a job's files on all its machines; returns where some remain, or None."""
    from ddptop_runner.launch.ssh import is_here  # most commands do not need these
    from ddptop_runner.launch.survey import HostError, HostLink, at_once
    from ddptop_runner.node import remote

    problems: dict[str, str] = {}

    def forget(part: tuple[int, NodeSpec]) -> None:
        index, node = part
        job_id = remote.node_job_id(spec.job_id, index)
        try:
            if remote.member_folder(job_id).path.is_dir():  # this machine, or a shared home
                remote.forget(job_id)
            elif is_by_ssh and not is_here(node.host):
                link = HostLink(node.host, FORGET_S)
                try:
                    link.request(pt.Forget(job_id=job_id), FORGET_S)
                finally:
                    link.close()
        except HostError as error:
            problems[node.host] = error.why.problem
        except (DdptopError, OSError) as error:
            problems[node.host] = str(error)

    is_by_ssh = placement.by == "ssh"
    at_once(list(enumerate(placement.nodes)), forget)
    words = [f"{host} ({problems[host]})" for host in sorted(problems)]
    return f"its files remain on {', '.join(words)}" if words else None


def remove_damaged(folder: RunFolder) -> None:
    """Delete a run folder whose `job.json` cannot be read, or whatever else has its name.

    Raises:
        UsageError: its guardian or supervisor is alive, or a launch may be creating it.
        DdptopError: the folder cannot be deleted.
    """
    if is_locked(folder):
        raise UsageError(f"{folder.job} is still running", f"see {folder.supervisor_log}")
    try:
        found = folder.path.lstat()
    except FileNotFoundError:  # already removed
        return
    is_no_job = stat.S_ISDIR(found.st_mode) and not os.path.lexists(folder.spec_file)
    if is_no_job and 0 <= time.time() - found.st_mtime < START_ALLOWANCE_S:
        raise UsageError(f"{folder.job} may be starting", "try again in 30 s")
    _delete(folder)


def require_ended(view: JobView, *, force: bool = False) -> None:
    """Refuse a live job.

    Args:
        view: the job.
        force: assume that a job of another host has ended, unless its files show otherwise.

    Raises:
        UsageError: the job is live.
    """
    require_not_queued(view)
    if not view.is_live:
        return
    if not view.on_other_host:
        raise UsageError(f"{view.job} is {view.state}", f"stop it first: ddptop stop {view.job}")
    where = f"{view.job} is {view.state} on host {view.spec.host}"
    if is_locked(view.folder) or was_written_lately(view.folder):
        raise UsageError(where, "stop it there first")
    if not force:
        raise UsageError(where, _if_gone(view, "stop it there first"))


def _if_gone(view: JobView, else_do: str) -> str:
    return f"{else_do}; if that host is gone, run `ddptop rm --force {view.job}`"


def _delete(folder: RunFolder) -> None:
    with contextlib.suppress(FileNotFoundError):
        if (found := folder.path.lstat()).st_uid != os.geteuid():
            raise UsageError(
                f"not deleting {folder.path}, which {belongs(found)}", "ask that user to delete it"
            )
    if folder.live_dir != folder.path:
        shutil.rmtree(folder.live_dir, ignore_errors=True)
    if folder.path.is_symlink() or folder.path.is_file():
        folder.path.unlink(missing_ok=True)
        return
    for left in reversed(range(DELETE_TRIES)):
        try:
            shutil.rmtree(folder.path)
            return
        except OSError as error:
            if not folder.path.exists():
                return  # another process has deleted it
            if not left or error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise DdptopError(
                    f"cannot delete {error.filename or folder.path} ({error.strerror})",
                    "check its owner and permissions",
                ) from error


def _require_live(view: JobView) -> None:
    require_not_queued(view)
    if not view.is_live:
        raise UsageError(
            f"{view.job} has ended ({view.state})", f"see how it went: ddptop status {view.job}"
        )
    if view.on_other_host and not can_reach(view):
        hint = "run this command there"
        if not was_written_lately(view.folder):
            hint = _if_gone(view, hint)
        raise UsageError(f"{view.job} is on host {view.spec.host}", hint)


# --- a supervisor on another node of a cluster, reached through a step in its allocation ---------


def can_reach(view: JobView) -> bool:
    """Whether the job runs in a Slurm allocation, and this machine can start a step in it."""
    return view.spec.slurm_job is not None and shutil.which("srun") is not None


def request_in_allocation(
    view: JobView, message: pt.SupervisorRequest, kind: type[control.R], timeout_s: float
) -> control.R:
    """As `control.request`, but on the job's head node.

    Raises:
        ControlError: no supervisor replies in time, or it refuses.
    """
    argv = own_command(__spec__.name, str(view.folder.path), str(timeout_s))
    job, placement = view.spec.slurm_job or "", view.spec.placement
    node = view.spec.host if placement is None else placement.nodes[0].host  # with the head
    try:
        done = programs.run(
            link_argv(job, node, argv),
            timeout_s + STEP_S,
            data=pt.line(message),
            env=step_environment(os.environ),
        )
        lines = done.stdout.strip().split("\n")
        reply: pt.Reply = pt.decode(lines[-1].encode(), pt.Reply)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = type(error).__name__
    except msgspec.MsgspecError:
        why = one_line((done.stderr.strip().splitlines() or ["no answer"])[-1])
    else:
        return control.expect(reply, kind)
    raise ControlError(
        f"{view.job} cannot be reached on {node} ({why})",
        f"check `squeue --job={job}`, or end it with `scancel {job}`",
    )


def main(path: str, timeout_s: str) -> int:
    """Forward a request from stdin to the supervisor of a run folder on this machine."""
    message = pt.decode(sys.stdin.buffer.readline(), pt.SupervisorRequest)
    try:
        reply = control.exchange(RunFolder(Path(path)), message, float(timeout_s))
    except ControlError as error:
        reply = pt.refused(error)
    sys.stdout.buffer.write(pt.line(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
