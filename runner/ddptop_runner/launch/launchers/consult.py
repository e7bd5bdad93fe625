"""Reads the script and environment of a launch, and asks for advice on them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.launchers.advice import Advice, Asked, advise
from ddptop_runner.launch.launchers.script_facts import UNKNOWN, ScriptFacts, script_facts
from ddptop_runner.launch.launchers.script_source import module_file
from ddptop_runner.launch.request import LaunchRequest

OTHER_TRAINERS = frozenset({"tensorflow", "keras", "jax", "mxnet", "horovod", "mpi4py"})


class QuestionError(UsageError):
    """Ranks of this script are started only when the person says so; or as the remedy does."""

    def __init__(self, advice: Advice, request: LaunchRequest) -> None:
        self.problem = advice.problem
        self.as_asked = replace(request, as_asked=True)
        """What was asked, insisted on."""
        self.remedy: LaunchRequest | None = None
        """What is right instead."""
        self.says = ""
        """What it does."""
        hint = "pass --nproc N to start N ranks anyway"
        if advice.remedy is not None:
            self.says = advice.remedy.says
            self.remedy = replace(
                request,
                launcher=advice.remedy.launcher,
                nproc=advice.remedy.nproc,
                as_asked=True,
            )
            hint = f"`{typed(self.remedy)}` {self.says}; {hint}"
        super().__init__(advice.problem, hint)


def read(
    request: LaunchRequest, cwd: Path, env: Mapping[str, str], ranks: int | None, devices: int
) -> ScriptFacts:
    """What the script or module of a request tells."""
    more = [Path(cwd, entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if request.kind == "module":
        folders = [cwd, *more]
        path = module_file(request.target, folders)
    else:
        folders, path = more, cwd / request.target
    if path is None:
        return UNKNOWN
    number = 2 if ranks is None else ranks
    return script_facts(path, request.args, ranks=number, devices=devices, folders=folders)


def notes_on(
    request: LaunchRequest,
    facts: ScriptFacts,
    env: Mapping[str, str],
    ranks: int | None,
    devices: int,
) -> list[str]:
    """What to tell before a script is started; at most a line.

    Raises:
        QuestionError: where its ranks must not be started without the person's word. Who gave
            `--nproc` or `--launcher` gave it, and is told only.
    """
    script = f"-m {request.target}" if request.kind == "module" else request.target
    cpu = env.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    advice = advise(facts, Asked(script, ranks, devices, request.launcher, cpu_said=cpu))
    if advice is None:
        return []
    said = request.nproc is not None or request.launcher is not None or request.as_asked
    if advice.asks and not said:
        raise QuestionError(advice, request)
    if advice.remedy is None:
        return [advice.problem]
    right = replace(request, launcher=advice.remedy.launcher, nproc=advice.remedy.nproc)
    return [f"{advice.problem}; `{typed(right)}` {advice.remedy.says}"]


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


def explain_missing_torch(
    error: UsageError, request: LaunchRequest, facts: ScriptFacts
) -> UsageError:
    """The same error; for a script that wants no torch with the launch that needs none."""
    other = sorted(facts.imports & OTHER_TRAINERS)
    if "torch" in facts.imports or not other:
        return error
    right = replace(request, launcher="none", nproc=None)
    return UsageError(
        f"{error.message}, but {request.target} trains with {other[0]}",
        f"`{typed(right)}` runs it without torch's launcher",
    )


def is_live_on_terminals_only(facts: ScriptFacts, python: str) -> bool:
    """Whether its progress is seen only where it writes to a terminal: Lightning's bar by rich.

    In a file it appears once, when the epoch is over.
    """
    seen = facts.first("lightning", "lightning_cli")
    if seen is None or seen.told.get("enable_progress_bar") is False:
        return False
    packages = Path(python).parent.parent.glob("lib/python3*/site-packages/rich/__init__.py")
    return next(packages, None) is not None
