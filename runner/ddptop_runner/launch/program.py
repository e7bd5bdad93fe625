"""Decides what a job runs: ranks of torch's launcher, or a command.

It inspects the file system and installed programs, and changes nothing.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch import launchers
from ddptop_runner.launch.advice import starts_own_ranks
from ddptop_runner.launch.gpus.choice import ON_CPU, DeviceChoice
from ddptop_runner.launch.request import LaunchRequest, program_of, require_command, script_of
from ddptop_runner.model.spec import derive_name


@dataclass(frozen=True)
class Program:
    """What a job runs, in the form of JobSpec."""

    kind: Literal["script", "module", "command"]
    target: str
    args: tuple[str, ...]
    python: str
    """The job's interpreter; for a command, the file that is executed."""
    nproc: int
    """0 for a command, which starts its own ranks."""
    launcher: str | None = None
    pty: bool = False
    notes: tuple[str, ...] = ()


def program_for(
    request: LaunchRequest, cwd: Path, env: Mapping[str, str], choice: DeviceChoice
) -> Program:
    """Decide what runs.

    Args:
        request: the request.
        cwd: the job's working folder.
        env: the job's variables.
        choice: the devices that the job has or will have.

    Raises:
        UsageError: names what is missing, which options conflict, or that the script starts ranks
            itself; with `--nproc`, the last is only a note.
    """
    if request.kind == "command":
        return _command(request, cwd, env, choice)
    if request.pty:
        raise UsageError("--pty works only with commands", "remove it, or use -- COMMAND ARGS")
    python = interpreters.choose(request.python, env)
    notes = interpreters.require_torch(interpreters.inspect(python))
    ranks = request.nproc or choice.ranks
    if (spawning := starting_ranks(request, cwd)) is not None:
        on_path = shutil.which("python", path=env.get("PATH")) == python
        words = ["python" if on_path else python]
        words += ["-m"] if request.kind == "module" else []
        right = f"`ddptop launch -- {shlex.join([*words, request.target, *request.args])}`"
        if request.nproc is None and ranks != 1:
            raise UsageError(
                f"{spawning}, so each rank would start more",
                f"use {right}, or pass --nproc N to start N ranks anyway",
            )
        notes.append(f"{spawning}; {right} runs it as one process")
    nproc = _nproc(request.nproc, choice, notes)
    return Program(request.kind, request.target, request.args, python, nproc, notes=tuple(notes))


def starting_ranks(request: LaunchRequest, cwd: Path) -> str | None:
    """`train.py starts its own ranks: mp.spawn (line 12)`; None unless it does."""
    script = script_of(request.kind, request.target, cwd)
    call = None if script is None else starts_own_ranks(script)
    if call is None:
        return None
    name = f"-m {request.target}" if request.kind == "module" else request.target
    return f"{name} starts its own ranks: {call}"


def name_for(request: LaunchRequest) -> str:
    """The name of a job that was not given one."""
    if request.base_name is None and request.kind == "command":
        return launchers.command_name((request.target, *request.args))
    return derive_name(request.base_name or request.target)


def _command(
    request: LaunchRequest, cwd: Path, env: Mapping[str, str], choice: DeviceChoice
) -> Program:
    launcher = launchers.launcher_name((request.target, *request.args))
    require_command(request, launcher)
    return Program(
        "command",
        request.target,
        request.args,
        program_of(request, cwd, env, interpreters.choose(None, env)),
        0,
        launcher=launcher,
        pty=request.pty,
        notes=_without_gpus(choice),
    )


def _without_gpus(choice: DeviceChoice) -> tuple[str, ...]:
    return () if choice.why_none is None else (f"this job has no GPUs: {choice.why_none}",)


def _nproc(asked: int | None, choice: DeviceChoice, notes: list[str]) -> int:
    device_count = choice.count
    if asked is not None:
        notes += _without_gpus(choice)
        if device_count and asked > device_count:
            notes.append(
                f"{asked} ranks share {device_count} GPU{'s' if device_count > 1 else ''};"
                " NCCL does not support two ranks on one device"
            )
        return asked
    if choice.ranks is None:
        why = "" if choice.why_none is None else f" ({choice.why_none})"
        raise UsageError(
            f"this job has no GPUs{why}, so the number of ranks is unknown", "pass --nproc N"
        )
    if not device_count:
        notes.append(ON_CPU)
    return choice.ranks
