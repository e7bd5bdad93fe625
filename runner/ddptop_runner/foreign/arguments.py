"""Parses command lines: interpreter and script, launcher, wrapper, and options."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddptop_runner.devices.owners import shortened
from ddptop_runner.foreign.types import Launcher, ProcessFacts
from ddptop_runner.store.log_clean import sanitized_line

_PYTHON = re.compile(r"python(\d[\d.]*t?)?(-dbg|-intel64)?|pypy3?[\d.]*|pt_main_thread")
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = _words("sh bash dash zsh ksh fish csh tcsh busybox")
WRAPPERS = _words(
    """
    nohup time env uv uvx conda mamba micromamba poetry pdm pixi hatch pipenv timeout nice ionice
    numactl taskset setsid stdbuf sudo script strace nsys ncu tini dumb-init docker-init
    """
)
_LAUNCHER_SCRIPTS: dict[str, Launcher] = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.pt": "deepspeed",
    "horovodrun": "horovod",
}
_LAUNCHER_MODULES: dict[str, Launcher] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "horovod.runner.launch": "horovod",
}
_LAUNCHER_PROGRAMS: dict[str, Launcher] = {
    **dict.fromkeys(_words("mpirun mpiexec orterun prterun prte prted orted"), "mpirun"),
    **dict.fromkeys(_words("mpirun.openmpi mpiexec.openmpi"), "mpirun"),
    "srun": "srun",
    "slurmstepd": "srun",
}
_HELPER_CODE = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker")
_TEST_WORKER = "exec(eval(sys.stdin.readline()))"
"""The code that execnet runs for pytest-xdist."""
_SPAWN_MAIN = "multiprocessing.spawn"
_TOOLS = _words(
    """
    pytest tensorboard wandb py-spy ddptop jupyter jupyter-lab jupyter-notebook jupyterhub pylsp pip
    nvitop gpustat
    """
)
_TOOL_MODULES = _TOOLS | {"ddptop_runner", "jupyter_server", "notebook", "jupyterlab"}
_TOOL_FOLDERS = ("/ddptop_runner/", "/_inductor/compile_worker/")
_KERNELS = ("ipykernel", "ipykernel_launcher", "colab_kernel_launcher")


@dataclass(frozen=True)
class Target:
    """What an interpreter runs."""

    kind: Literal["script", "module", "code", "interactive"]
    name: str
    """A path, a module name, code, or empty."""
    args: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """A short name for the target."""
        if self.kind == "script":
            base = base_name(self.name)
            if base == "__main__.py" and "/" in self.name:  # python FOLDER
                base = base_name(self.name.rpartition("/")[0])
            return base.removesuffix(".py") or "python"
        if self.kind == "module":
            return self.name.removesuffix(".__main__").rpartition(".")[2] or "python"
        return "python"


def base_name(path: str) -> str:
    """The last part of a path, without a login shell's leading `-`."""
    return path.rpartition("/")[2].removeprefix("-")


def is_python(process: ProcessFacts) -> bool:
    """Whether it runs Python, judging by its executable, first word, or name."""
    if process.comm.startswith("pt_"):
        return True
    first = process.argv[0] if process.argv else ""
    return any(map(_is_interpreter, (process.program or "", first, process.comm)))


@functools.lru_cache(maxsize=4096)
def _is_interpreter(path: str) -> bool:
    return _PYTHON.fullmatch(base_name(path)) is not None


@functools.lru_cache(maxsize=4096)
def python_target(argv: tuple[str, ...]) -> Target | None:
    """What a Python command line runs; None if the first word is not an interpreter."""
    if not argv or not _is_interpreter(argv[0]):
        return None
    index = 1
    while index < len(argv):
        word = argv[index]
        if word == "-" or not word.startswith("-"):
            break
        if word in _OPTIONS_WITH_VALUE:
            index += 2
            continue
        if not word.startswith("--"):
            for kind, letter in (("module", "m"), ("code", "c")):
                before, found, glued = word[1:].partition(letter)
                if found and not set(before) & set("cmXW"):
                    rest = [glued, *argv[index + 1 :]] if glued else list(argv[index + 1 :])
                    if not rest:
                        return Target("interactive", "")
                    # a type checker cannot infer that the loop variable is one of Target's kinds
                    return Target(
                        "module" if kind == "module" else "code", rest[0], tuple(rest[1:])
                    )
        index += 1
    if index >= len(argv) or argv[index] == "-" or not argv[index]:
        return Target("interactive", "")
    return Target("script", argv[index], tuple(argv[index + 1 :]))


def launcher_of(argv: tuple[str, ...]) -> Launcher | None:
    """The launcher that a command line starts, if any."""
    if not argv:
        return None
    target = python_target(argv)
    if target is None:
        first = base_name(argv[0].partition(": ")[0])  # a process title: `slurmstepd: [7.0]`
        return _LAUNCHER_PROGRAMS.get(first) or _LAUNCHER_SCRIPTS.get(first)
    if target.kind == "module":
        return _LAUNCHER_MODULES.get(target.name)
    if target.kind != "script":
        return None
    kind = _LAUNCHER_SCRIPTS.get(base_name(target.name))
    if kind == "accelerate" and base_name(target.name) == "accelerate":
        return kind if target.args[:1] == ("launch",) else None
    return kind


def is_shell(process: ProcessFacts) -> bool:
    """Whether it is a shell."""
    return bool(process.argv) and base_name(process.argv[0]) in SHELLS


def is_wrapper(process: ProcessFacts) -> bool:
    """Whether it only runs another command, like `time`, `uv run`, and `conda run`."""
    if not process.argv:
        return False
    first = base_name(process.argv[0])
    target = python_target(process.argv)
    if target is None:
        return first in WRAPPERS
    return target.kind == "script" and base_name(target.name) in WRAPPERS


def is_spawned(process: ProcessFacts) -> bool:
    """Whether multiprocessing started it with the `spawn` method."""
    if "--multiprocessing-fork" in process.argv:
        return True
    return _code_has(process, (f"from {_SPAWN_MAIN} import",))


def is_helper(process: ProcessFacts) -> bool:
    """Whether it is never a rank, whatever its environment says: trackers, workers, tools."""
    if process.comm.startswith("pt_data_"):
        return True
    return _code_has(process, _HELPER_CODE) or is_tool(process)


def is_tool(process: ProcessFacts) -> bool:
    """Whether it is an interactive or test program that may load a framework without training."""
    if not process.argv:
        return False
    target = python_target(process.argv)
    if target is None:
        return base_name(process.argv[0]) in _TOOLS
    if target.kind == "module":
        return target.name.split(".")[0] in _TOOL_MODULES
    if target.kind == "code":
        return _TEST_WORKER in target.name
    if target.kind == "script":
        if any(folder in target.name for folder in _TOOL_FOLDERS):
            return True
        return base_name(target.name) in _TOOLS
    return False


def is_kernel(process: ProcessFacts) -> bool:
    """Whether it is a notebook kernel."""
    target = python_target(process.argv)
    if target is None or target.kind not in ("module", "script"):
        return False
    name = target.name if target.kind == "module" else target.stem
    return name.split(".")[0] in _KERNELS


def _code_has(process: ProcessFacts, needles: Sequence[str]) -> bool:
    """Whether it is `python -c CODE` and the code contains one of these."""
    target = python_target(process.argv)
    if target is None or target.kind != "code":
        return False
    return any(needle in target.name for needle in needles)


def launched_script(argv: tuple[str, ...]) -> str | None:
    """The script or module that a launcher's command line starts, if it names one."""
    target = python_target(argv)
    args = argv[1:] if target is None else target.args
    for word, following in zip(args, [*args[1:], ""][: len(args)], strict=True):
        if word in ("-m", "--module") and following:
            return Target("module", following).stem
        if word.endswith(".py") and not word.startswith("-"):
            return Target("script", word).stem
    return None


def stem_of(process: ProcessFacts) -> str:
    """A short name for what the process runs or launches."""
    if is_kernel(process):
        return "notebook"
    kind = launcher_of(process.argv)
    if kind is not None:
        return _name(launched_script(process.argv) or kind)
    target = python_target(process.argv)
    if target is not None and (target.kind != "code" or not is_spawned(process)):
        stem = target.stem
    else:
        words = process.argv[0].split() if process.argv else []
        stem = base_name(words[0]) if words and not is_spawned(process) else process.comm
    return _name(stem)


def _name(stem: str) -> str:
    return re.sub(r"[^\w.-]+", "-", stem).strip("-")[:48] or "python"


def command_line(argv: Sequence[str]) -> str:
    """A command as a user would type it: one line, safe to print, of bounded length.

    Drops the interpreter's folder, and the interpreter itself before an installed program, because
    /proc shows `torchrun` as `/venv/bin/python /venv/bin/torchrun`.
    """
    words = list(argv)
    if words and _is_interpreter(words[0]):
        words[0] = base_name(words[0])
        if len(words) > 1 and words[1].rpartition("/")[0].endswith("/bin"):
            words = [base_name(words[1]), *words[2:]]
    elif words and words[0].startswith("/"):
        words[0] = base_name(words[0])
    return shortened(sanitized_line(shlex.join(words)))
