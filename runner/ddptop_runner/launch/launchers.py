"""Supports other launchers: recognizes the one in a command, and builds the command for a script.

A recipe is self-contained: variables that it needs are part of it, set by `env`, so it can be
repeated and typed by hand. Each recipe's docstring says how it was tested.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ddptop_runner.base import programs
from ddptop_runner.base.errors import UsageError
from ddptop_runner.devices.words import names_of
from ddptop_runner.foreign.arguments import (
    SHELLS,
    WRAPPERS,
    base_name,
    launched_script,
    launcher_of,
    python_target,
)
from ddptop_runner.model.spec import Device, derive_name

LAUNCHERS = ("accelerate", "deepspeed", "horovod", "mpi", "none", "torchrun")
"""Values of `--launcher`; `none` runs one process of the job's Python."""

PROGRAMS = {
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "horovod": ("horovodrun",),
    "mpi": ("mpirun", "mpiexec"),
    "none": (),
    "torchrun": ("torchrun",),
}
"""The names of each launcher's program, in search order."""

PACKAGES = {
    "accelerate": "pip install accelerate",
    "deepspeed": "pip install deepspeed",
    "horovod": "pip install horovod",
    "mpi": "apt-get install openmpi-bin",
    "torchrun": "pip install torch",
}

OWN_DISTRIBUTION = frozenset({"", "NO", "NONE"})
"""Values of `distributed_type` with which accelerate starts only one process."""


class Tools(msgspec.Struct, frozen=True):
    """What a recipe depends on: the machine and the job's environment."""

    python: str
    """The job's interpreter."""
    program: str | None = None
    """The launcher's executable; None for `none`."""
    root: bool = False
    """Whether this user is root, which Open MPI refuses by default."""
    open_mpi: bool = True
    """Whether mpirun is Open MPI's; other implementations reject its options."""
    has_mpirun: bool = False
    accelerate_config: str | None = None
    """The file written by `accelerate config`."""
    accelerate_type: str | None = None
    """The `distributed_type` in that file."""
    port: int = 29500
    """A port that nothing listens on."""
    unset: tuple[str, ...] = ()
    """Which of MASTER_ADDR and MASTER_PORT the job's environment lacks."""


class Wanted(msgspec.Struct, frozen=True):
    """The ranks to start."""

    target: tuple[str, ...]
    """`train.py`, or `-m` and a module name."""
    args: tuple[str, ...]
    nproc: int
    devices: Sequence[Device] = ()
    """Empty for CPU ranks, and while the devices are not decided yet."""
    device_count: int = 0
    """Number of devices that the job has or will have."""
    by_uuid: bool = False
    """Whether CUDA_VISIBLE_DEVICES lists UUIDs."""


class Recipe(msgspec.Struct, frozen=True):
    """A command, and notes about it for the user."""

    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


def recipe(launcher: str, wanted: Wanted, tools: Tools) -> Recipe:
    """The command that starts the ranks with this launcher.

    Raises:
        UsageError: this launcher cannot start such ranks.
    """
    return _RECIPES[launcher](wanted, tools)


def _python(wanted: Wanted, tools: Tools) -> tuple[str, ...]:
    return (tools.python, "-u", *wanted.target, *wanted.args)


def _none(wanted: Wanted, tools: Tools) -> Recipe:
    if wanted.nproc != 1:
        raise UsageError(
            f"--launcher none starts one process, but --nproc is {wanted.nproc}",
            "remove --nproc",
        )
    return Recipe(_python(wanted, tools))


def _torchrun(wanted: Wanted, tools: Tools) -> Recipe:
    """`--standalone` picks a free port; on the default 29500, two jobs would collide."""
    words = ("--standalone", "--nproc-per-node", str(wanted.nproc))
    return Recipe((tools.program or "torchrun", *words, *wanted.target, *wanted.args))


def _accelerate(wanted: Wanted, tools: Tools) -> Recipe:
    """Tested with accelerate 1.15.

    `--cpu --num_processes 2` silently starts one process, so CPU ranks start as multi-GPU ranks do,
    with ACCELERATE_USE_CPU. `--multi_gpu` refuses a single process. Port 0 picks a free port. The
    user's configuration decides precision, compilation, FSDP, and DeepSpeed; its list of GPUs would
    override the choice of devices, so `--gpu_ids all` selects all of the job's.
    """
    words = ["--num_processes", str(wanted.nproc), "--num_machines", "1"]
    words += ["--main_process_port", "0"]
    notes: tuple[str, ...] = ()
    own = (tools.accelerate_type or "").upper()
    spreads = tools.accelerate_config is not None and own not in OWN_DISTRIBUTION
    cpu = not wanted.device_count
    env: tuple[str, ...] = ()
    if tools.accelerate_config is None:
        words += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    else:
        words += ["--gpu_ids", "all"]
        notes = (
            f"accelerate uses {tools.accelerate_config} for all settings"
            " except the number of ranks",
        )
    if cpu and wanted.nproc == 1:
        words.append("--cpu")
    elif cpu:
        words.append("--multi_gpu")
        env = ("env", "ACCELERATE_USE_CPU=true")
    elif wanted.nproc > 1 and not spreads:
        words.append("--multi_gpu")
    program = (tools.program or "accelerate", "launch")
    return Recipe((*env, *program, *words, *wanted.target, *wanted.args), notes)


def _deepspeed(wanted: Wanted, tools: Tools) -> Recipe:
    """Tested with deepspeed 0.19 on CPUs; for GPUs, checked against its source.

    `--num_gpus` makes it ignore CUDA_VISIBLE_DEVICES and use GPU 0 and up. Without options it uses
    all of the job's GPUs; `--include` selects some of them.
    """
    words = ["--master_port", str(tools.port)]
    env: tuple[str, ...] = ()
    if not wanted.device_count:
        env = ("env", "DS_ACCELERATOR=cpu")
        words += ["--num_gpus", str(wanted.nproc)]
    elif wanted.by_uuid or any(device.is_mig for device in wanted.devices):
        raise UsageError(
            "deepspeed accepts only GPU indices, but this job uses UUIDs",
            "choose whole GPUs, or remove --launcher",
        )
    elif wanted.nproc > wanted.device_count:
        raise UsageError(
            f"deepspeed starts one rank per GPU: {wanted.nproc} were requested, but the job has"
            f" {wanted.device_count} ({names_of(wanted.devices)})",
            f"pass --nproc {wanted.device_count}",
        )
    elif wanted.nproc < wanted.device_count:
        if not wanted.devices:
            raise UsageError(
                "a queued deepspeed job must use all the GPUs that it is waiting for, but only"
                f" {wanted.nproc} {'rank was' if wanted.nproc == 1 else 'ranks were'} requested",
                f"pass --gpus auto:{wanted.nproc}",
            )
        some = ",".join(str(device.index) for device in wanted.devices[: wanted.nproc])
        words += ["--include", f"localhost:{some}"]
    target = wanted.target
    if target[0] == "-m":
        target = ("--module", *target[1:])
    return Recipe((*env, tools.program or "deepspeed", *words, *target, *wanted.args))


def _horovod(wanted: Wanted, tools: Tools) -> Recipe:
    """Tested with horovod 0.28.1, built with gloo only; a build with MPI needs mpirun."""
    words = ["-np", str(wanted.nproc), "-H", f"localhost:{wanted.nproc}"]
    if not tools.has_mpirun:
        words.append("--gloo")
    return Recipe((tools.program or "horovodrun", *words, *_python(wanted, tools)))


def _mpi(wanted: Wanted, tools: Tools) -> Recipe:
    """Tested with Open MPI 4.1.

    By default it refuses root, refuses more ranks than cores, and binds each of two ranks, with its
    data loaders, to one core; options undo all three. It sets no MASTER_ADDR and MASTER_PORT, which
    `torch.distributed` needs with gloo or NCCL.
    """
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(tools.port)}
    env = [f"{name}={master[name]}" for name in tools.unset]
    words = ["-np", str(wanted.nproc)]
    if tools.open_mpi:
        words += ["--allow-run-as-root"] if tools.root else []
        words += ["--oversubscribe", "--bind-to", "none"]
    command = (tools.program or "mpirun", *words, *_python(wanted, tools))
    return Recipe(("env", *env, *command) if env else command)


_RECIPES = {
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "horovod": _horovod,
    "mpi": _mpi,
    "none": _none,
    "torchrun": _torchrun,
}


# --- what is installed ---

MPI_ANSWER_S = 10.0
PORTS = range(20000, 30000)
"""Below the ephemeral ports that the kernel assigns to connections."""


def find_tools(launcher: str, python: str, env: Mapping[str, str], *, python_given: bool) -> Tools:
    """Find a launcher's program: next to `python` first, then on PATH.

    Args:
        launcher: one of `LAUNCHERS`.
        python: the job's interpreter.
        env: the job's variables.
        python_given: whether the user chose `python`; PATH is then not searched, as another
            environment's launcher would run another Python.

    Raises:
        UsageError: the launcher is not installed there.
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
        sibling = Path(python).with_name(name)
        if os.access(sibling, os.X_OK):
            return str(sibling)
    for name in PROGRAMS[launcher]:
        if path is not None and (found := shutil.which(name, path=path)):
            return os.path.abspath(found)  # noqa: PTH100 - do not resolve links
    what = PROGRAMS[launcher][0]
    if launcher == "mpi":
        raise UsageError("mpirun is not on PATH", f"install it with {PACKAGES[launcher]}")
    raise UsageError(
        f"{what} not found next to {python}" + (" or on PATH" if path is not None else ""),
        f"run {PACKAGES[launcher]} there, or pass --python PATH from an environment that has it",
    )


def _mpirun_on(path: str) -> str | None:
    return next(filter(None, (shutil.which(name, path=path) for name in PROGRAMS["mpi"])), None)


def _is_open_mpi(program: str) -> bool:
    """Whether it is Open MPI, judging by `--version`; assumed if it prints nothing."""
    try:
        version = programs.run([program, "--version"], MPI_ANSWER_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return True
    return "HYDRA" not in version and "Intel" not in version


def accelerate_config(env: Mapping[str, str]) -> Path | None:
    """The configuration that `accelerate launch` reads by default; None if there is none."""
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
    """A random unused TCP port; random, so that concurrent launches pick different ones."""
    import secrets  # it loads OpenSSL

    for _ in range(100):
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise UsageError(
        "no free TCP ports between 20000 and 29999", "stop some of the processes using them"
    )


# --- parsing a command line ---

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_BEFORE_COMMANDS = frozenset({"exec", "do", "then", "else", "if", "while", "until", "!", "{"})
_NO_COMMANDS = frozenset({"done", "fi", "esac", "}", "wait", "exit", "for", "case", "cd", "export"})
"""Shell keywords and builtins that are never the command wanted."""
_MOST_SHELLS = 3
"""How many nested shells to unwrap."""


def inner(argv: Sequence[str]) -> tuple[str, ...]:
    """The command without its wrappers: it starts with the launcher, interpreter, or program.

    `env A=1 nohup torchrun x.py` → `torchrun x.py`; `bash -c 'A=1 python x.py'` → `python x.py`;
    `bash run.sh` → `run.sh`.
    A wrapper around nothing recognizable is returned unchanged.
    """
    words = tuple(argv)
    for _ in range(_MOST_SHELLS):
        words = _without_wrappers(words)
        if not words or base_name(words[0]) not in SHELLS:
            return words
        code = _code_of_shell(words)
        if not code:
            has_script = len(words) > 1 and not words[1].startswith("-")
            return words[1:] if has_script else words
        words = code
    return words


def _without_wrappers(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or base_name(words[0]) not in WRAPPERS:
        return words
    for index in range(1, len(words)):
        rest = words[index:]
        if _VARIABLE.match(rest[0]):
            continue
        if base_name(rest[0]) in SHELLS or launcher_of(rest) or python_target(rest):
            return rest
    for index in range(1, len(words)):
        word = words[index]
        if word[:1] != "-" and not _VARIABLE.match(word) and _looks_like_program(word):
            return words[index:]
    return words


def _looks_like_program(word: str) -> bool:
    """Whether it is a path or a script; a bare word may be an option's value."""
    return "/" in word or word.endswith((".py", ".sh"))


def _code_of_shell(words: tuple[str, ...]) -> tuple[str, ...]:
    """The last training command in `sh -c CODE`, else the last command; empty for other words."""
    if len(words) < 3 or not re.fullmatch(r"-[a-z]*c", words[1]):
        return ()
    try:
        lexer = shlex.shlex(words[2].replace("\n", ";"), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        code = list(lexer)
    except ValueError:
        return ()
    commands: list[tuple[str, ...]] = [()]
    for word in code:
        if word and set(word) <= set(";&|()"):
            commands.append(())
        elif commands[-1] or not (_VARIABLE.match(word) or word in _BEFORE_COMMANDS):
            commands[-1] += (word,)
    found = [words for words in reversed(commands) if words and words[0] not in _NO_COMMANDS]
    trains = (words for words in found if launcher_of(words) or python_target(words))
    return next(trains, found[0] if found else ())


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
