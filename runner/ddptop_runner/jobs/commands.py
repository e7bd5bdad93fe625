"""The actions on a job, shared by CLI and TUI."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddptop_runner.base.errors import (
    ControlError,
    DamagedFileError,
    DdptopError,
    NoSuchJobError,
    UsageError,
    WaitTimeoutError,
)
from ddptop_runner.base.files import belongs
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs
from ddptop_runner.job.registry import (
    START_ALLOWANCE_S,
    JobView,
    all_jobs,
    is_locked,
    read_job,
    was_written_lately,
)
from ddptop_runner.jobs import slurm_reach
from ddptop_runner.jobs.slurm_queue import as_queued, is_unknown, require_not_queued
from ddptop_runner.model.snapshot import ProcessId
from ddptop_runner.model.words import HAS_ENDED
from ddptop_runner.node import control

POLL_S = 0.1
GUARDIAN_EXIT_S = 5.0
REACH_S = START_ALLOWANCE_S
"""How long a supervisor that is just starting, or started again, is waited for."""
REPEATABLE = ("stop", "kill", "stacks")
"""What does no harm where the supervisor had done it before it broke off."""
DELETE_TRIES = 20


def stop(view: JobView, grace_s: float = 30.0) -> str | None:
    """Ask every rank to end (SIGTERM), and after `grace_s` end what is left (SIGKILL).

    Returns at once; `wait_until_ended` waits for the last process.

    Returns:
        None where the supervisor does it; otherwise a line that says why it was done here.

    Raises:
        UsageError: when the job has ended already.
        ControlError: when its supervisor does not answer, and may still be at work.
    """
    _require_live(view)
    return _end(view, "stop", grace_s)


def kill(view: JobView) -> str | None:
    """End every process of the job now (SIGKILL).

    Returns:
        As `stop`.

    Raises:
        UsageError: when the job has ended already.
        ControlError: when its supervisor does not answer, and cannot be ended from here.
    """
    _require_live(view)
    return _end(view, "kill", 0.0)


def _end(view: JobView, op: str, grace_s: float) -> str | None:
    """Have the supervisor end the job; where it cannot be had, do it here.

    A supervisor that does not answer in time may still do as it was asked: only `kill` goes past
    it. Guardian and supervisor are ended first, since they would start the ranks again.
    """
    try:
        _request(view, op, grace_s=grace_s)
    except ControlError as error:
        snapshot = read_job(view.folder).snapshot
        if snapshot is None or view.on_other_host:
            raise
        guards = (snapshot.guardian, snapshot.supervisor)
        living = [guard for guard in guards if guard is not None and procs.is_alive(guard)]
        was_reached = not isinstance(error.__cause__, OSError) or (
            isinstance(error.__cause__, TimeoutError) and op != "kill"
        )
        if living and (was_reached or not all(_is_guard(one, view.folder) for one in living)):
            raise
        import asyncio  # 50 ms that `wait` and `rm` need not pay

        from ddptop_runner.host import stopping
        from ddptop_runner.job.processes import agent_processes, rank_processes

        for guard in living:  # the guardian first: it would start another supervisor
            procs.signal_process(guard, signal.SIGKILL)
        job_id, owner = view.spec.job_id, _owner(view.folder)

        def find() -> list[ProcessId]:
            ranks = rank_processes(job_id, owner)
            return [*ranks, *agent_processes(job_id, owner)]

        asyncio.run(stopping.end(find, grace_s))
        return f"the supervisor for {view.job} cannot be reached; the job's processes have exited"
    return None


def _is_guard(process: ProcessId, folder: RunFolder) -> bool:
    """Whether that process is what the snapshot calls it, of the user whose job it is."""
    words = own_words(procs.argv(process.pid))[:2]
    return (
        words in (["guardian", str(folder.path)], ["supervisor", str(folder.path)])
        and procs.uid_of(process.pid) == _owner(folder)
        and procs.is_alive(process)
    )


def _owner(folder: RunFolder) -> int:
    return folder.path.stat().st_uid


def _request(view: JobView, op: str, **arguments: Any) -> dict[str, Any]:
    """Ask the supervisor, once it listens: it takes seconds to start, or to be started again.

    Raises:
        UsageError: when the job ended meanwhile.
        ControlError: when no supervisor answers and none is to be expected.
    """
    deadline_s = time.monotonic() + REACH_S
    while True:
        try:
            if view.on_other_host:
                return slurm_reach.request(view, op, **arguments)
            return control.request(view.folder, op, **arguments)
        except ControlError as error:
            absent = isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError))
            absent = absent or error.message == HAS_ENDED
            broken_off = isinstance(error.__cause__, (ConnectionError, EOFError))
            if not (absent or broken_off) or time.monotonic() >= deadline_s:
                raise
            view = read_job(view.folder)
            _require_live(view)
            if not absent and op not in REPEATABLE:
                raise
            if view.snapshot is not None and not procs.is_alive(view.snapshot.guardian):
                raise
        time.sleep(POLL_S)


def restart_group(view: JobView) -> None:
    """Restart all ranks of a live job: a group restarts as a unit.

    Raises:
        UsageError: when the job has ended.
        ControlError: when its supervisor does not answer.
    """
    _require_live(view)
    _request(view, "restart")


def stacks(view: JobView, rank: int | None = None, timeout_s: float = 15.0) -> dict[str, Any]:
    """Where every rank stands, without stopping it.

    Returns:
        `{"stacks": [{"rank", "pid", "text", "note"}]}`, `text` None with a note where none was had.

    Raises:
        UsageError: when the job has ended.
        ControlError: when its supervisor does not answer.
    """
    _require_live(view)
    return _request(view, "stacks", timeout_s=timeout_s, rank=rank)


def checkpoint(view: JobView) -> dict[str, Any]:
    """Ask the script to save now; see `saves.wanted`, which waits for the checkpoint as well.

    Returns:
        The fields of `saves.request.SaveAsked`.

    Raises:
        UsageError: when the job has ended.
        ControlError: when its supervisor does not answer, or no rank is at work.
    """
    _require_live(view)
    asked: dict[str, Any] = _request(view, "checkpoint")["asked"]
    return asked


def wait_until_ended(
    view: JobView,
    timeout_s: float | None = None,
    at_each_look: Callable[[JobView], object] | None = None,
    began_s: float | None = None,
) -> JobView:
    """The job's last view, once no process of it is left.

    Args:
        view: the job.
        timeout_s: how long to wait; None: for ever.
        at_each_look: called with each view on the way.
        began_s: when the wait began, on the monotonic clock; None: now.

    Raises:
        WaitTimeoutError: when it still lives after `timeout_s`.
        NoSuchJobError: when it was removed meanwhile.
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
        if at_each_look is not None:
            at_each_look(view)
    wait_for_guards(view)
    return view


def _read_again(view: JobView) -> JobView:
    """The job itself, though another one may have taken its name meanwhile."""
    with contextlib.suppress(DamagedFileError):
        if (now := read_job(view.folder)).spec.job_id == view.spec.job_id:
            return now
    archived = (one for one in all_jobs() if one.spec.job_id == view.spec.job_id)
    return next(archived, None) or read_job(view.folder)


def wait_for_guards(view: JobView) -> None:
    """Guardian and supervisor go a moment after the last snapshot was written."""
    if view.snapshot is None:
        return
    deadline = time.monotonic() + GUARDIAN_EXIT_S
    guards = (view.snapshot.guardian, view.snapshot.supervisor)
    while any(map(procs.is_alive, guards)):
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_S / 10)


def remove(view: JobView, *, force: bool = False) -> str | None:
    """Delete an ended job's run folder with its logs and history, on all of its machines.

    Args:
        view: the job.
        force: also that of another host, of which nothing is heard any more.

    Returns:
        Where something could not be deleted, and why; None where nothing is left.

    Raises:
        UsageError: when the job lives.
        DdptopError: when the folder cannot be deleted.
    """
    with contextlib.suppress(DamagedFileError):
        view = read_job(view.folder)  # it may have been started again since
    require_ended(view, force=force)
    wait_for_guards(view)
    left = None
    if view.spec.placement is not None:
        from ddptop_runner.jobs.parts import remove_parts  # what most verbs do without

        left = remove_parts(view.spec, view.spec.placement)
    _delete(view.folder)
    return left


def remove_damaged(folder: RunFolder) -> None:
    """Delete a run folder whose `job.json` cannot be read, or whatever else has its name.

    Raises:
        UsageError: when its guardian or supervisor lives, or a launch is just making it.
        DdptopError: when the folder cannot be deleted.
    """
    if is_locked(folder):
        raise UsageError(f"{folder.job} is still running", f"see {folder.supervisor_log}")
    try:
        found = folder.path.lstat()
    except FileNotFoundError:  # another one has just removed it
        return
    is_no_job = stat.S_ISDIR(found.st_mode) and not os.path.lexists(folder.spec_file)
    if is_no_job and 0 <= time.time() - found.st_mtime < START_ALLOWANCE_S:
        raise UsageError(f"{folder.job} may be starting", "try again in 30 s")
    _delete(folder)


def require_ended(view: JobView, *, force: bool = False) -> None:
    """Refuse a job that lives.

    Args:
        view: the job.
        force: believe that one of another host is gone, unless its files say otherwise.

    Raises:
        UsageError: when it does.
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
    _open_folders(folder.path)
    was_there = folder.path.exists()
    for left in reversed(range(DELETE_TRIES)):
        try:
            shutil.rmtree(folder.path)
            return
        except OSError as error:
            if was_there and error.errno in (errno.ENOENT, errno.ENOTEMPTY):
                shutil.rmtree(folder.path, ignore_errors=True)  # another one deletes or writes
                if not folder.path.exists():
                    return
                if left:
                    continue
            raise DdptopError(
                f"cannot delete {error.filename or folder.path} ({error.strerror})",
                "check its owner and permissions",
            ) from error


def _open_folders(path: Path) -> None:
    """Let what is in folders without permissions be deleted."""
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = Path(folder, name)
            if not inner.is_symlink() and not os.access(inner, os.R_OK | os.W_OK | os.X_OK):
                with contextlib.suppress(OSError):
                    inner.chmod(0o700)


def _require_live(view: JobView) -> None:
    require_not_queued(view)
    if not view.is_live:
        raise UsageError(
            f"{view.job} has ended ({view.state})", f"relaunch it: ddptop restart {view.job}"
        )
    if view.on_other_host and not slurm_reach.can_reach(view):
        hint = "run this command there"
        if not was_written_lately(view.folder):
            hint = _if_gone(view, hint)
        raise UsageError(f"{view.job} is on host {view.spec.host}", hint)
