"""Decides what a job runs: ranks of torch's launcher, a command, or another launcher.

It inspects the file system and installed programs, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import UsageError
from ddptop_runner.foreign.arguments import python_target
from ddptop_runner.launch import advice, launchers
from ddptop_runner.launch.gpus.choice import ON_CPU, DeviceChoice
from ddptop_runner.launch.request import (
    LaunchRequest,
    executable_of,
    program_of,
    require_command,
    require_own_ranks,
)
from ddptop_runner.model.spec import derive_name

LIVE = "using a pseudo-terminal, which Lightning's rich progress bar requires"


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
        UsageError: names what is missing, or which options conflict.
    """
    if request.kind == "command":
        return _command(request, cwd, env, choice)
    if request.launcher is not None:
        return _launched(request, request.launcher, cwd, env, choice)
    if request.pty:
        raise UsageError("--pty works only with commands", "remove it, or use -- COMMAND ARGS")
    ranks = request.nproc or choice.ranks
    script = advice.read(request, cwd, env)
    python = interpreters.choose(request.python, env)
    try:
        untested = interpreters.require_torch(interpreters.inspect(python))
    except UsageError as error:
        raise advice.explain_missing_torch(error, request, script) from None
    notes = [*untested, *advice.notes_on(request, script, ranks, choice.count)]
    nproc = _nproc(request.nproc, choice, notes)
    return Program(request.kind, request.target, request.args, python, nproc, notes=tuple(notes))


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
    interpreter = interpreters.choose(None, env)
    program = program_of(request, cwd, env, interpreter)
    target = python_target((request.target, *request.args))
    live = False
    if target is not None and target.kind in ("script", "module"):
        kind: Literal["script", "module"] = "module" if target.kind == "module" else "script"
        inner = replace(request, kind=kind, target=target.name, args=target.args)
        script = advice.read(inner, cwd, env)
        live = advice.is_live_on_terminals_only(script, program)
    return Program(
        "command",
        request.target,
        request.args,
        program,
        0,
        launcher=launcher,
        pty=request.pty or live,
        notes=(*_without_gpus(choice), *([LIVE] if live and not request.pty else [])),
    )


def _launched(
    request: LaunchRequest, name: str, cwd: Path, env: Mapping[str, str], choice: DeviceChoice
) -> Program:
    require_own_ranks(request, f"--launcher {name}")
    python = interpreters.choose(request.python, env)
    tools = launchers.find_tools(name, python, env, python_given=request.python is not None)
    ranks = 1 if name == "none" else request.nproc or choice.ranks
    script = advice.read(request, cwd, env)
    notes = advice.notes_on(request, script, ranks, choice.count)
    if name == "none":
        nproc = 1 if request.nproc is None else request.nproc
        notes += _without_gpus(choice)
    else:
        nproc = _nproc(request.nproc, choice, notes)
    live = advice.is_live_on_terminals_only(script, python)
    notes += [LIVE] if live and not request.pty else []
    recipe = launchers.recipe(
        name,
        launchers.Wanted(
            ("-m", request.target) if request.kind == "module" else (request.target,),
            request.args,
            nproc,
            choice.devices or (),
            choice.count,
            choice.by_uuid,
        ),
        tools,
    )
    program = executable_of(recipe.argv[0], cwd, env, python)
    return Program(
        "command",
        recipe.argv[0],
        recipe.argv[1:],
        program,
        0,
        launcher=launchers.launcher_name(recipe.argv),
        pty=request.pty or live,
        notes=(*notes, *recipe.notes),
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
