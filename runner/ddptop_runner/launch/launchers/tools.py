"""Finds what a shortcut needs: the launcher's program, the kind of mpirun, a free port."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.launchers.shortcuts import PACKAGES, PROGRAMS, Tools

MPI_ANSWER_S = 10.0
PORTS = range(20000, 30000)
"""Below the ports that the kernel gives to connections."""


def look(launcher: str, python: str, env: Mapping[str, str], *, python_given: bool) -> Tools:
    """What there is of a launcher, in the environment of `python` first, then on PATH.

    Args:
        launcher: one of `shortcuts.LAUNCHERS`.
        python: the job's interpreter.
        env: the job's variables.
        python_given: whether the person chose it; another environment's launcher would then run
            another Python, and is not taken.

    Raises:
        UsageError: when the launcher is not installed there.
    """
    path = env.get("PATH", os.defpath)
    program = None
    if PROGRAMS[launcher]:
        program = _program(launcher, python, None if python_given and launcher != "mpi" else path)
    config = accelerate_config(env) if launcher == "accelerate" else None
    return Tools(
        python=python,
        program=program,
        root=os.geteuid() == 0,
        open_mpi=program is None or launcher != "mpi" or _is_open_mpi(program),
        has_mpirun=_mpirun_on(path) is not None,
        accelerate_config=None if config is None else str(config),
        accelerate_type=None if config is None else _distributed_type(config),
        port=free_port() if launcher in ("deepspeed", "mpi") else 29500,
        unset=tuple(name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)),
    )


def _program(launcher: str, python: str, path: str | None) -> str:
    for name in PROGRAMS[launcher]:
        beside = Path(python).with_name(name)
        if os.access(beside, os.X_OK):
            return str(beside)
    for name in PROGRAMS[launcher]:
        if path is not None and (found := shutil.which(name, path=path)):
            return os.path.abspath(found)  # noqa: PTH100 - links stay as they are
    what = PROGRAMS[launcher][0]
    if launcher == "mpi":
        raise UsageError("mpirun is not on PATH", f"install it with {PACKAGES[launcher]}")
    raise UsageError(
        f"{what} not found next to {python}" + (" or on PATH" if path is not None else ""),
        f"run {PACKAGES[launcher]} there, or pass the --python of an environment that has it",
    )


def executable(program: str, env: Mapping[str, str]) -> str:
    """The file that the first word of a recipe means.

    Raises:
        UsageError: when it is not there.
    """
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise UsageError(f"no program {program} on PATH", "check PATH")
    return os.path.abspath(found)  # noqa: PTH100 - links stay as they are


def _mpirun_on(path: str) -> str | None:
    return next(filter(None, (shutil.which(name, path=path) for name in PROGRAMS["mpi"])), None)


def _is_open_mpi(program: str) -> bool:
    """By its version; one that does not answer is taken for Open MPI, the commonest."""
    try:
        said = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MPI_ANSWER_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return True
    return "HYDRA" not in said and "Intel" not in said


def accelerate_config(env: Mapping[str, str]) -> Path | None:
    """The configuration that `accelerate launch` reads by itself; None where there is none."""
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    home = Path(env.get("HF_HOME") or f"{cache}/huggingface").expanduser()
    for name in ("default_config.yaml", "default_config.json"):
        if (home / "accelerate" / name).is_file():
            return home / "accelerate" / name
    return None


def _distributed_type(config: Path) -> str:
    try:
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"""^\s*["']?distributed_type["']?\s*:\s*["']?(\w+)""", text, re.MULTILINE)
    return found[1] if found else ""


def free_port() -> int:
    """A TCP port that nobody has now, at random: two launches at once shall not take the same."""
    for _ in range(100):
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise UsageError(
        "no free TCP port from 20000 to 29999", "stop some of the processes using them"
    )
