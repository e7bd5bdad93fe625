"""Passes the launching shell's environment to the guardian, and the plan to the agent.

A tmux server keeps the variables of the shell that started it, and `tmux new-session -e` exposes
them in `ps`. The launching shell's environment therefore travels in a 0600 file, which the guardian
reads and deletes. Its first line is the job's ID, with which the shell of a tmux pane starts the
guardian. The agent's plan is plain data on its standard input.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddptop_runner.base import bounded, start
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.model.spec import JobSpec, Rendezvous

_LIMITS = ("RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_STACK")
OF_A_RANK = frozenset(
    {
        "DDPTOP_ATTEMPT",
        "DDPTOP_CHECKPOINT_FILE",
        "DDPTOP_JOB_ID",
        "DDPTOP_LOG",
        "DDPTOP_MEMORY_SNAPSHOT",
        "DDPTOP_PROBE_OWNER",
        "DDPTOP_PROBE_SOCK",
        "DDPTOP_REPLICA_CHECK",
        "DDPTOP_STACKS_DIR",
    }
)
"""Variables of a job's processes. A job launched from within another gets its own, and its guardian
must not look like a rank."""

OF_TORCH = frozenset(
    """
    LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE
    ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCH_NCCL_ASYNC_ERROR_HANDLING
    """.split()  # noqa: SIM905 - one name per line would be longer and no clearer
)
"""Variables that torch's agent adds for ranks, besides TORCHELASTIC_*."""
_SIGN_OF_TORCH = "TORCHELASTIC_RUN_ID"
"""Present in ranks of torch's agent and the processes that they start."""


SHELL_NOISE = frozenset(
    """
    _ OLDPWD PWD SHLVL TERM TERM_PROGRAM TERM_PROGRAM_VERSION TMUX TMUX_PANE STY WINDOW WINDOWID
    COLUMNS LINES LS_COLORS LESSOPEN LESSCLOSE SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK
    DISPLAY XDG_SESSION_ID XDG_SESSION_TYPE XDG_SESSION_CLASS COLORTERM PS1 HISTFILE MAIL SHELL
    DBUS_SESSION_BUS_ADDRESS
    """.split()  # noqa: SIM905 - one name per line would be longer and no clearer
)
"""Variables that differ between shells and do not affect jobs, so are never named as missing."""


_OF_THIS_MACHINE = frozenset(
    """
    HOME USER LOGNAME HOSTNAME HOST TMPDIR CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER
    NVIDIA_VISIBLE_DEVICES INVOCATION_ID JOURNAL_STREAM KRB5CCNAME MANAGERPID SYSTEMD_EXEC_PID
    GLOO_SOCKET_IFNAME MASTER_ADDR MASTER_PORT
    """.split()  # noqa: SIM905 - one name per line would be longer and no clearer
)
_FAMILIES = ("DDPTOP_", "SLURM_", "SSH_", "XDG_", "TMUX", "SUDO_", "GPG_", "PMI_", "OMPI_")


class Handover(msgspec.Struct, frozen=True):
    """The environment in which the guardian starts the job."""

    env: dict[str, str]
    """The launching shell's variables."""
    job_env: dict[str, str]
    """Variables that ddptop and --env add: devices, job ID, overrides."""
    umask: int
    soft_limits: dict[str, int]
    """The shell's soft resource limits, by name."""
    attempt: int
    """The number of the first attempt: 0, or higher if an ended job is started again."""
    adopts: bool = False
    """Whether the job is alive without a guardian, so that only a supervisor is started."""
    agent_pid: int | None = None
    """The live agent of an adopted job."""


def capture(job_env: dict[str, str], attempt: int) -> Handover:
    """This process's environment, umask, and limits, with the job's additions."""
    limits = soft_limits_of(os.getpid())
    return Handover(of_shell(os.environ), job_env, start.shell_umask(), limits, attempt)


def of_shell(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the variables of a rank in which this process may be running.

    A rank and an address set by the user remain, since they are not from torch's agent.
    """
    in_rank = _SIGN_OF_TORCH in env
    return {
        name: value
        for name, value in env.items()
        if name not in OF_A_RANK and not (in_rank and is_of_torch(name))
    }


def carried(env: Mapping[str, str]) -> dict[str, str]:
    """The launching shell's variables that ranks on other machines receive.

    These are all except those of this machine or login: folders, sockets, devices, and terminals.
    """
    return {
        name: value
        for name, value in of_shell(env).items()
        if name not in _OF_THIS_MACHINE | SHELL_NOISE
        and not name.startswith(_FAMILIES)
        and is_text(name)
        and is_text(value)
    }


def is_text(word: str) -> bool:
    """Whether it is valid UTF-8; other bytes are represented by surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_of_torch(name: str) -> bool:
    """Whether torch's agent sets a variable of that name for its ranks."""
    return name in OF_TORCH or name.startswith("TORCHELASTIC_")


def soft_limits_of(pid: int) -> dict[str, int]:
    """A process's soft limits, as in `Handover`; empty if they cannot be read."""
    try:
        return {name: resource.prlimit(pid, getattr(resource, name))[0] for name in _LIMITS}
    except OSError:
        return {}


def write(path: Path, handover: Handover, job_id: str = "") -> None:
    """Write the file, readable only by this user."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(f"{job_id}\n{json.dumps(msgspec.structs.asdict(handover))}")


def take(path: Path) -> Handover:
    """Read the file and delete it.

    Raises:
        OSError: there is no file.
        ValueError: it is not a handover.
    """
    data = bounded.read_bytes(path).decode("utf-8", "surrogateescape")
    path.unlink()
    try:
        return Handover(**json.loads(data.partition("\n")[2]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a valid handover file: {error}") from error


def apply_limits(soft_limits: dict[str, int]) -> None:
    """Set this process's soft limits to the launching shell's, as far as hard limits allow."""
    for name, soft in soft_limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
            soft = hard
        try:
            resource.setrlimit(kind, (soft, hard))
        except (OSError, ValueError):
            continue  # keep the old limit


_ENGINE = Path(__file__).resolve().parents[1]
AGENT_MAIN = _ENGINE / "agent" / "__main__.py"
PUMP_MAIN = _ENGINE / "agent" / "pump.py"
PROBE_DIR = _ENGINE / "probe" / "inject"
NOTIFIER_MODULE = "ddptop.export.notifier"
"""What the guardian runs to send messages about its job."""


def agent_command(spec: JobSpec) -> list[str]:
    """The argv of the agent. With `-u`, its output reaches the log at once.

    It runs under the job's interpreter. For a command, which may have no torch or not be Python at
    all, it runs under ddptop's, with nothing of the job's own on its path.
    """
    if spec.is_command:
        return [sys.executable, "-I", "-u", str(AGENT_MAIN)]
    return [spec.python, "-u", str(AGENT_MAIN)]


_AS_IN_SPEC = (
    *("kind", "job_id", "nproc", "max_restarts", "zygote", "pty", "replica_check"),
    "memory_snapshot",
)


def agent_plan(
    spec: JobSpec, folder: RunFolder, attempt: int, rendezvous: Rendezvous | None = None
) -> dict[str, Any]:
    """The plan that the agent reads from standard input.

    Args:
        spec: the job.
        folder: its run folder.
        attempt: the number of the worker group's first attempt.
        rendezvous: of that attempt, on several nodes; None for the one the node was started for.
    """
    if rendezvous is None and spec.membership is not None:
        rendezvous = spec.membership.rendezvous
    return {
        **{name: getattr(spec, name) for name in _AS_IN_SPEC},
        "command": spec.command(),
        "attempt": attempt,
        "logs_dir": str(folder.logs_dir),
        "control_socket": str(folder.control_socket),
        "rendezvous": None if rendezvous is None else msgspec.to_builtins(rendezvous),
        "probe_file": str(PROBE_DIR / "sitecustomize.py") if spec.probe else None,
        "probe_dir": str(PROBE_DIR) if spec.probe else None,
        "probe_socket": str(folder.probe_socket),
        "stacks_dir": str(folder.evidence_dir / "stacks"),
        "save_flag": str(folder.save_flag),
    }
