"""Decides what a job runs: ranks of torch's launcher, or a command.

It inspects the file system and installed programs, and changes nothing. Scripts that start ranks
themselves are recognized, since under ddptop's ranks each would start as many processes again.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import UsageError
from ddptop_runner.foreign.arguments import (
    SHELLS,
    WRAPPERS,
    base_name,
    launched_script,
    launcher_of,
    python_target,
)
from ddptop_runner.launch.gpus.choice import ON_CPU, DeviceChoice
from ddptop_runner.launch.request import LaunchRequest, executable_of, require_command, script_of
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
        return command_name((request.target, *request.args))
    return derive_name(request.base_name or request.target)


def _command(
    request: LaunchRequest, cwd: Path, env: Mapping[str, str], choice: DeviceChoice
) -> Program:
    launcher = launcher_name((request.target, *request.args))
    require_command(request)
    return Program(
        "command",
        request.target,
        request.args,
        executable_of(request.target, cwd, env),
        0,
        launcher=launcher,
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


# --- commands -------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


def inner(argv: Sequence[str]) -> tuple[str, ...]:
    """The command without a wrapper or shell: it starts with the launcher, interpreter, or program.

    `env A=1 nohup torchrun x.py` → `torchrun x.py`; of shell code, the last command that trains:
    `bash -c 'python prepare.py && A=1 torchrun x.py'` → `torchrun x.py`.
    A wrapper around nothing recognizable is returned unchanged.
    """
    words = tuple(argv)
    if not words or base_name(words[0]) not in SHELLS | WRAPPERS:
        return words
    code = _shell_code(words)
    commands = [words] if code is None else [one.split() for one in re.split(r"[;&|\n]+", code)]
    for command in reversed(commands):
        for tail in _tails(tuple(command)):
            if launcher_of(tail) or python_target(tail):
                return tail
    paths = (tail for tail in _tails(words)[1:] if _is_program(tail[0]) and code is None)
    return next(paths, words)


def _shell_code(words: tuple[str, ...]) -> str | None:
    """The CODE of `sh -c CODE`, also behind a wrapper."""
    for shell, option, code in zip(words, words[1:], words[2:], strict=False):
        if base_name(shell) in SHELLS and re.fullmatch(r"-[a-z]*c", option):
            return code
    return None


def _tails(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [words[index:] for index, word in enumerate(words) if not _VARIABLE.match(word)]


def _is_program(word: str) -> bool:
    """Whether it is a path or a script; a bare word may be an option's value."""
    return not word.startswith("-") and ("/" in word or word.endswith((".py", ".sh")))


def launcher_name(argv: Sequence[str]) -> str | None:
    """What starts the command's ranks, judging by its words; a `foreign.types.Launcher`.

    `python` is a script without a launcher, which may still start ranks itself; None is an unknown
    program.
    """
    words = inner(argv)
    kind = launcher_of(words)
    if kind is None and words and (python_target(words) or words[0].endswith(".py")):
        return "python"
    return kind


def command_name(argv: Sequence[str]) -> str:
    """A job name from the script inside the command, else from its program.

    `torchrun --nproc-per-node 2 train.py` → `train`; `python -m pkg.train` → `train`;
    `mpirun -np 2 ./train` → `mpirun`.
    """
    words = inner(argv)
    target = python_target(words)
    if launcher_of(words) is not None:
        name = launched_script(words) or launcher_of(words)
    elif target is not None:
        name = target.stem
    else:
        name = base_name(words[0]).rsplit(".", 1)[0] if words else None
    return derive_name((name or "job").replace(".", "-"))


# --- scripts that start ranks themselves ----------------------------------------------------------

MOST_BYTES = 192 * 1024
"""Reading and parsing delay a launch by about 100 ms per 100 KiB."""
_SPAWNS = re.compile(
    r"torch\.multiprocessing\.(?:spawn\.)?(?:spawn|start_processes)"
    r"|torch\.distributed\..*\.(?:main|run|elastic_launch)|accelerate\..*notebook_launcher"
)
_RUNS = re.compile(r"os\.(?:system|popen|exec\w+)|subprocess\.\w+")
_NESTED = re.compile(
    r"(?:\S*/)?(?:accelerate|deepspeed|horovodrun|mpirun|mpiexec|srun)(?:\s|$)"
    r"|.*(?<![\w.-])(?:torchrun|torch\.distributed\.(?:run|launch))(?![\w./-])"
)
"""A command line that starts another launcher."""
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})


def starts_own_ranks(script: Path) -> str | None:
    """The call that starts ranks, such as `mp.spawn (line 12)`; None if there is none.

    Also None if the script reads RANK, LOCAL_RANK, or WORLD_SIZE, because it can then be started by
    a launcher as well, and if it cannot be read or parsed. Conditions are not evaluated: a call
    counts wherever it is. The script's own modules are not read.
    """
    try:
        with script.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in the script's strings
            tree = ast.parse(data.decode("utf-8-sig", errors="replace"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree))
    stored = {
        node.slice
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value in _RANK_VARIABLES and node not in stored:
            return None
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                names[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
    for node in nodes:
        if isinstance(node, ast.Call):
            written = ast.unparse(node.func)
            first, dot, rest = written.partition(".")
            full = f"{names.get(first, '')}{dot}{rest}"
            if _SPAWNS.fullmatch(full) or (_RUNS.fullmatch(full) and _runs_launcher(node)):
                return f"{written} (line {node.lineno})"
    return None


def _runs_launcher(call: ast.Call) -> bool:
    words = [
        word
        for argument in call.args[:2]
        for part in ast.walk(argument)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for word in part.value.split()
    ]
    return _NESTED.match(" ".join(words)) is not None
