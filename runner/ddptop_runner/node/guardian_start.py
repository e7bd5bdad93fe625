"""Starts a guardian: in a pane of a detached tmux session, or as a daemon without tmux."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence

from ddptop_runner.base import programs
from ddptop_runner.base.clock import poll
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.files import lock
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_command
from ddptop_runner.host import handover
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store.logs import last_lines

GUARDIAN_START_S = 20.0
"""A guardian takes its handover within milliseconds; after this long, it has failed to start."""

PANE_START_S = 2.0
"""Time after which to check for a pane without a guardian."""

FORMER_EXIT_S = 5.0
"""Guardian and supervisor of an ended job exit a moment after its last snapshot."""

WRAPPED_START_S = 3.0
"""systemd-run takes less; after this, the guardian is started without it."""


def guardian_argv(folder: RunFolder) -> list[str]:
    """The guardian's command line."""
    return own_command("guardian", str(folder.path))


def is_held(spec: JobSpec) -> bool:
    """Whether a holder starts the guardian, since processes of a Slurm step end with it."""
    return spec.backing == "held" or (spec.membership is not None and "SLURM_STEP_ID" in os.environ)


@contextlib.contextmanager
def starting(folder: RunFolder, timeout_s: float = 0.0) -> Iterator[bool]:
    """Hold the right to start this job's guardian; False if another process has it for too long.

    Args:
        folder: the job's run folder.
        timeout_s: how long to wait for the right.
    """
    held = lock(folder.start_lock, timeout_s)
    try:
        yield held is not None
    finally:
        if held is not None:
            os.close(held)


def start_guardian(
    folder: RunFolder,
    spec: JobSpec,
    job_env: dict[str, str],
    wrap: Sequence[str],
    attempt: int,
    *,
    waits: bool = True,
) -> str | None:
    """Start the guardian of a job that is not alive, with this process's variables.

    Args:
        folder: the job's run folder, with its spec written.
        spec: the job.
        job_env: variables that the job gets in addition to this process's.
        wrap: a command that moves the guardian out of the login session; often empty.
        attempt: the number of the first attempt.
        waits: False hands the job over to the holder that the caller becomes, and returns.

    Returns:
        See `bring_up`.

    Raises:
        DdptopError: the guardian does not come up at all.
    """
    with starting(folder, GUARDIAN_START_S):
        _let_former_go(folder)
        given = handover.capture(job_env, attempt)
        if not waits:
            hand_over(folder, spec, given)
            return None
        return bring_up(folder, spec, given, wrap)


def hand_over(folder: RunFolder, spec: JobSpec, given: handover.Handover) -> None:
    """Leave the start of the guardian to the holder."""
    folder.handover_file.unlink(missing_ok=True)
    handover.write(folder.handover_file, given, spec.job_id)


def _let_former_go(folder: RunFolder) -> None:
    """Wait for the ended job's guardian and supervisor to exit, because their locks are needed."""
    for path in (folder.guardian_lock, folder.supervisor_lock):
        if (held := lock(path, FORMER_EXIT_S)) is not None:
            os.close(held)


def bring_up(
    folder: RunFolder, spec: JobSpec, given: handover.Handover, wrap: Sequence[str]
) -> str | None:
    """Start a guardian in tmux or as a daemon, through `wrap` if that works.

    Call it while holding `starting`. If there is a holder, that starts the guardian.

    Returns:
        A note if it was not started as planned.

    Raises:
        DdptopError: the guardian does not come up at all.
    """
    hand_over(folder, spec, given)
    if is_held(spec):
        if not _taken_over(folder, GUARDIAN_START_S):
            folder.handover_file.unlink(missing_ok=True)
            raise DdptopError(
                f"no holder took over {spec.job}", "see the output of its Slurm job for the reason"
            )
        return None
    if wrap:
        end_holder = _start_holder(folder, spec, [*wrap, *guardian_argv(folder)])
        if _taken_over(folder, WRAPPED_START_S):
            return None
        end_holder()  # systemd-run may hang; a guardian that came up after all ignores the signal
    _start_holder(folder, spec, guardian_argv(folder))
    if (
        spec.backing == "tmux"
        and not _taken_over(folder, min(PANE_START_S, GUARDIAN_START_S))
        and not _tmux_holds(spec.job)
    ):  # a killed server takes the pane along; if there are two guardians, a lock admits one
        _start_holder(folder, spec, guardian_argv(folder))
    if not _taken_over(folder, GUARDIAN_START_S):
        folder.handover_file.unlink(missing_ok=True)
        # a refused job's folder is deleted with its log, so the message has to quote it
        last_line = last_lines(folder.supervisor_log, 1) if folder.supervisor_log.exists() else []
        raise DdptopError(
            f"the guardian for {spec.job} did not start ({''.join(last_line) or 'no message'})",
            "run `ddptop doctor`",
        )
    return (
        f"{wrap[0]} could not start the job; the job may end with this login session"
        if wrap
        else None
    )


def _tmux_holds(job: str) -> bool:
    from ddptop_runner.host import tmux_server

    return tmux_server.holds(job)


def _taken_over(folder: RunFolder, timeout_s: float) -> bool:
    """Whether the guardian took the handover, which it does first."""
    return poll(lambda: not folder.handover_file.exists(), timeout_s, 0.005)


def _start_holder(folder: RunFolder, spec: JobSpec, argv: Sequence[str]) -> Callable[[], None]:
    """Start a detached tmux session whose pane runs `argv`, or a process in its own session.

    Returns:
        A function that hangs it up.
    """
    if spec.backing == "tmux":
        from ddptop_runner.host import tmux_server  # imported meanwhile by `tmux.import_early`

        tmux_server.start_session(spec.job, argv, folder.path, folder.handover_file)
        return lambda: tmux_server.end_session(spec.job)
    process = start_guardian_process(folder, spec, argv)
    process.returncode = 0  # it outlives this process, which never reaps it
    return lambda: os.kill(process.pid, signal.SIGHUP)  # unreaped, so the pid is still valid


def start_guardian_process(
    folder: RunFolder, spec: JobSpec, argv: Sequence[str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the guardian, maybe through `argv`, in its own session."""
    env = {**handover.of_shell(os.environ), "DDPTOP_JOB_ID": spec.job_id}
    command = argv or guardian_argv(folder)
    return programs.start(command, folder.supervisor_log, env=env, cwd=folder.path)
