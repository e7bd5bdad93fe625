"""Warns or asks before N ranks of a script start where its source shows that this is wrong.

Each case was tried with two ranks under the variables of torch's launcher:

- `mp.spawn`, or a launcher run from within: twice as many processes, which join one store or, if
  the script names a port, hang on it.
- DataParallel and `MirroredStrategy`: each rank trains alone on all devices.
- `horovod.torch.init`: each rank is rank 0 of 1.
- Lightning 2.6 with `devices=4`: "the product (4 * 1) does not match the world size (2)"; with
  `devices=1` and no strategy each rank trains alone, without a message; `ddp_spawn` starts ranks in
  ranks and dies of a lost connection; `ddp_notebook` hangs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.launch.script import Call, Script, module_file, read_script

_SPAWNING = ("ddp_spawn", "ddp_notebook", "ddp_fork")
"""Strategies of Lightning that start ranks from within, or how their names begin."""
_OTHER_TRAINERS = frozenset({"tensorflow", "keras", "jax", "mxnet", "horovod", "mpi4py"})
"""Packages of scripts that may not need torch."""


class Remedy(msgspec.Struct, frozen=True):
    """The launch that is right."""

    launcher: str | None
    nproc: int | None = None
    effect: str = ""
    """`runs it as one process`."""


class Advice(msgspec.Struct, frozen=True):
    """What to warn about, or to ask."""

    problem: str
    remedy: Remedy | None = None
    asks: bool = False
    """Whether ranks start only if the user confirms."""


class QuestionError(UsageError):
    """Ranks of this script start only if the user confirms; or as the remedy does."""

    def __init__(self, advice: Advice, request: LaunchRequest) -> None:
        self.problem = advice.problem
        self.as_asked = replace(request, as_asked=True)
        """The same request, confirmed."""
        self.remedy: LaunchRequest | None = None
        self.effect = ""
        hint = "pass --nproc N to start N ranks anyway"
        if advice.remedy is not None:
            self.effect = advice.remedy.effect
            self.remedy = replace(_remedied(request, advice.remedy), as_asked=True)
            hint = f"`{typed(self.remedy)}` {self.effect}; {hint}"
        super().__init__(advice.problem, hint)


def read(request: LaunchRequest, cwd: Path, env: Mapping[str, str]) -> Script:
    """The facts of a request's script or module."""
    folders = [Path(cwd, entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if request.kind != "module":
        return read_script(cwd / request.target, folders)
    path = module_file(request.target, [cwd, *folders])
    return Script() if path is None else read_script(path, [cwd, *folders])


def notes_on(request: LaunchRequest, script: Script, ranks: int | None, devices: int) -> list[str]:
    """At most one line to print before a script starts.

    Args:
        request: the request.
        script: the facts of its source.
        ranks: how many there will be; None if that is unknown.
        devices: how many GPUs the job has or will have.

    Raises:
        QuestionError: if the user has to confirm first. `--nproc` or `--launcher` confirms.
    """
    advice = advise(request, script, ranks, devices)
    if advice is None:
        return []
    confirmed = request.nproc is not None or request.launcher is not None or request.as_asked
    if advice.asks and not confirmed:
        raise QuestionError(advice, request)
    if advice.remedy is None:
        return [advice.problem]
    right = typed(_remedied(request, advice.remedy))
    return [f"{advice.problem}; `{right}` {advice.remedy.effect}"]


def advise(
    request: LaunchRequest, script: Script, ranks: int | None, devices: int
) -> Advice | None:
    """What to say before `ranks` ranks start; None if nothing is certainly wrong."""
    if request.launcher == "none":
        return None
    name = f"-m {request.target}" if request.kind == "module" else request.target
    several = "several ranks" if ranks is None else f"{ranks} rank{'s' if ranks > 1 else ''}"
    if not script.takes_ranks and (found := script.of("spawn", "command")):
        problem = f"{name} starts its own ranks: {_call(found[0])}"
        if ranks == 1:
            return Advice(problem, _ONE)
        each = "each rank" if ranks is None else f"each of the {several}"
        return Advice(f"{problem}; {each} would start more", _ONE, asks=True)
    if ranks == 1 and not script.of("lightning"):
        return None
    if len(trainers := script.of("lightning")) == 1:
        return _lightning(name, trainers[0], ranks, several, devices)
    if script.takes_ranks or script.of("init", "parallel", "lightning"):
        return _local_rank(name, script, ranks)
    if found := [call for call in script.of("data_parallel", "mirrored") if call.several]:
        alone = f"{several} would each train independently"
        alone += f" on all {devices} GPUs" if devices > 1 else ""
        problem = f"{name} uses its devices from one process: {_call(found[0])}; {alone}"
        return Advice(problem, _ONE, asks=True)
    if request.launcher != "horovod" and (found := script.of("horovod")):
        problem = f"{name} gets its rank from horovodrun: {_call(found[0])}; without it, {several}"
        remedy = Remedy("horovod", ranks, "starts it with horovodrun")
        return Advice(f"{problem} would each train independently", remedy, asks=True)
    return None


_ONE = Remedy("none", effect="runs it as one process")


def _lightning(
    script: str, call: Call, ranks: int | None, several: str, devices: int
) -> Advice | None:
    strategy = call.arguments.get("strategy")
    if isinstance(strategy, str) and strategy.startswith(_SPAWNING):
        problem = f"{script} starts its own ranks: {_call(call)} uses strategy {strategy}"
        problem += "; under a launcher, it fails or hangs"
        return Advice(problem, _ONE, asks=ranks != 1)
    if ranks is None or not {"**", "num_nodes"}.isdisjoint(call.arguments):
        return None
    wanted = call.arguments.get("devices")
    count = len(wanted) if isinstance(wanted, list) else wanted
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or count == ranks:
        return None
    written = f"{call.name}(devices={wanted!r}) ({call.where})"
    if count == 1 and strategy in (None, "auto"):
        problem = f"{written} uses one device: {several} would each train independently"
        return Advice(problem, _ONE, asks=True)
    problem = f"{written} expects {count} rank{'s' if count > 1 else ''};"
    too_many = 0 < devices < count
    remedy = _ONE if too_many else Remedy(None, count, "starts that many")
    return Advice(f"{problem} Lightning rejects {several}", remedy, asks=True)


def _local_rank(name: str, script: Script, ranks: int | None) -> Advice | None:
    option = script.local_rank_option
    if option is None or "LOCAL_RANK" in script.reads:
        return None
    problem = f"{name} expects {option}, which torchrun no longer passes; torchrun sets"
    problem += " LOCAL_RANK in the environment instead"
    if "deepspeed" in script.imports:
        return Advice(problem, Remedy("deepspeed", ranks, "passes it"))
    return Advice(problem)


def _call(call: Call) -> str:
    return f"{call.name} ({call.where})"


def _remedied(request: LaunchRequest, remedy: Remedy) -> LaunchRequest:
    return replace(request, launcher=remedy.launcher, nproc=remedy.nproc)


def typed(request: LaunchRequest) -> str:
    """The command line of a request, with the options that decide where and how often it runs."""
    words = ["ddptop", "launch"]
    options = {
        "--gpus": request.gpus,
        "--launcher": request.launcher,
        "--nproc": request.nproc,
        "--name": request.name,
        "--cwd": request.cwd,
        "--python": request.python,
    }
    for option, value in options.items():
        words += [] if value is None else [option, str(value)]
    words += ["-m"] if request.kind == "module" else []
    return shlex.join([*words, request.target, *request.args])


def explain_missing_torch(error: UsageError, request: LaunchRequest, script: Script) -> UsageError:
    """The same error; for a script that does not import torch, with the launch that needs none."""
    other = sorted(script.imports & _OTHER_TRAINERS)
    if "torch" in script.imports or not other:
        return error
    right = replace(request, launcher="none", nproc=None)
    return UsageError(
        f"{error.message}, but {request.target} trains with {other[0]}",
        f"`{typed(right)}` runs it without torch's launcher",
    )


def is_live_on_terminals_only(script: Script, python: str) -> bool:
    """Whether its progress shows only on a terminal: Lightning's bar by rich.

    In a file the bar appears once, when the epoch is over.
    """
    trainers = script.of("lightning")
    if not trainers or trainers[0].arguments.get("enable_progress_bar") is False:
        return False
    packages = Path(python).parent.parent.glob("lib/python3*/site-packages/rich/__init__.py")
    return next(packages, None) is not None
