"""Launches a job from the form, through the command line that a user would type."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from ddptop_runner.base import interpreters, programs, units
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.start import own_command
from ddptop_runner.foreign.arguments import launcher_of, python_target
from ddptop_runner.launch.program import inner
from ddptop_runner.model.spec import JobSpec, NodeSpec

TIMEOUT_S = 120.0
"""How long a launch may take; usually a second or two, longer on a slow network file system."""

DEFAULT_MAX_RESTARTS = "3"


@dataclass(frozen=True)
class LaunchForm:
    """The form's values, as typed."""

    script: str = ""
    """A script's path, or a command: `-- ./run.sh`, or one that names a launcher or a Python."""
    arguments: str = ""
    gpus: tuple[int, ...] | None = None
    """Device indices; () selects none; None if there are no devices to choose from."""
    is_cpu_machine: bool = field(default=False, compare=False)
    """Whether the machine has no NVIDIA hardware, so that a launch needs no number of ranks."""
    nproc: str = ""
    name: str = ""
    max_restarts: str = DEFAULT_MAX_RESTARTS
    options: str = ""
    """Other options of `ddptop launch`."""


def command_words(script: str) -> list[str] | None:
    """The words of a command; None if this is a script.

    Raises:
        ValueError: a quote in a command is not closed.
    """
    text = script.strip()
    if text == "--" or text.startswith("-- "):
        return shlex.split(text[2:])
    try:
        words = shlex.split(text)
    except ValueError:
        return None  # a file may have such a name
    within = inner(words)
    return words if launcher_of(within) or python_target(within) else None


def problem(form: LaunchForm) -> tuple[str, str] | None:
    """The first field that is missing or invalid, and why; None if the form can be submitted."""
    if form.script.strip() in ("", "--"):
        return "script", "script is required"
    try:
        is_command = command_words(form.script) is not None
    except ValueError:
        return "script", "script: unclosed quote"
    for label, text in (("arguments", form.arguments), ("options", form.options)):
        try:
            shlex.split(text)
        except ValueError:
            return label, f"{label}: unclosed quote"
    if is_command and form.nproc.strip():
        return (
            "nproc",
            "ranks: a command starts its own ranks; set the number in its arguments",
        )
    if needs_ranks(form):
        return "nproc", "number of ranks is required when no GPUs are selected"
    for name, label, text in (
        ("nproc", "ranks", form.nproc),
        ("max-restarts", "max restarts", form.max_restarts),
    ):
        if text.strip() and not text.strip().isdecimal():
            return name, f"{label}: {text.strip()} is not a number"
    return None


def needs_ranks(form: LaunchForm) -> bool:
    """Whether the number of ranks is missing and cannot be derived from the GPUs."""
    try:
        is_elsewhere = command_words(form.script) is not None or _has(form, "--hosts")
    except ValueError:
        return False  # an unclosed quote, which is reported instead
    return not (is_elsewhere or form.gpus or form.is_cpu_machine or form.nproc.strip())


def _has(form: LaunchForm, *options: str) -> bool:
    return any(word.partition("=")[0] in options for word in shlex.split(form.options))


def launch_argv(form: LaunchForm) -> list[str]:
    """The arguments to `ddptop` that launch the form's job.

    Raises:
        ValueError: a quote in the arguments or a command is not closed.
    """
    argv = ["launch"]
    if form.gpus is not None and not _has(form, "--gpus", "--hosts"):
        argv += ["--gpus", units.ranks(list(form.gpus)) or "none"]
    if form.nproc.strip():
        argv += ["--nproc", form.nproc.strip()]
    if form.name.strip():
        argv += ["--name", form.name.strip()]
    if form.max_restarts.strip() not in ("", DEFAULT_MAX_RESTARTS):
        argv += ["--max-restarts", form.max_restarts.strip()]
    argv += shlex.split(form.options)
    command = command_words(form.script)
    if command is not None:
        return [*argv, "--", *command, *shlex.split(form.arguments)]
    script = form.script.strip()
    if script.startswith("-m "):
        return [*argv, "-m", script[3:].strip(), *shlex.split(form.arguments)]
    if script.startswith("~"):
        script = os.path.expanduser(script)  # noqa: PTH111 - "~x" stays if there is no user x
    if script.startswith("-"):
        script = f"./{script}"
    return [*argv, script, *shlex.split(form.arguments)]


def argv_of(form: LaunchForm, before: LaunchForm | None) -> list[str]:
    """The arguments that launch the form's job.

    Args:
        form: the form's values.
        before: the values of the ended job; if nothing changed, that job is restarted in its run
            folder.

    Raises:
        ValueError: as `launch_argv`.
    """
    return ["restart", before.name] if form == before else launch_argv(form)


def command_line(form: LaunchForm, before: LaunchForm | None = None) -> str:
    """The shell command line, with capitals in place of missing values."""
    try:
        argv = argv_of(form, before)
    except ValueError:
        return "ddptop launch ..."
    words = [word for word in argv if word]
    line = shlex.join(["ddptop", *words])
    return line if form.script.strip() else f"{line} SCRIPT"


def run_cli(arguments: Sequence[str]) -> str:
    """Run ddptop's own command line without a terminal; returns its stdout.

    Raises:
        DdptopError: the command failed; has its error line.
    """
    try:
        ended = programs.run(own_command("ddptop", *arguments), TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DdptopError(
            f"ddptop {arguments[0]} did not respond within {TIMEOUT_S:.0f} s",
            "run ddptop ls to see whether the job started",
        ) from error
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines()
        text = lines[-1].removeprefix("ddptop: ") if lines else "no error message"
        raise DdptopError(text)
    return ended.stdout


def launch(form: LaunchForm, before: LaunchForm | None = None) -> str:
    """Launch or restart a job; returns its name.

    Raises:
        DdptopError: the command failed; has its error line.
    """
    argv = argv_of(form, before)
    if before is not None and argv[0] == "restart":
        run_cli(argv)
        return before.name
    return run_cli([argv[0], "-d", *argv[1:]]).strip().splitlines()[-1]


def form_of(spec: JobSpec) -> LaunchForm:
    """The values a job was launched with, except its devices, which the form selects."""
    script = {"script": spec.target, "module": f"-m {spec.target}"}.get(spec.kind)
    nodes = [] if spec.placement is None else spec.placement.nodes
    per_node = nodes[0].nproc if nodes else spec.nproc
    is_auto = spec.is_command or spec.devices or any(node.devices for node in nodes)
    return LaunchForm(
        script=script or shlex.join(["--", *spec.command()]),
        arguments=shlex.join(spec.args) if script else "",
        nproc="" if is_auto else str(per_node),
        name=spec.job,
        max_restarts=str(spec.max_restarts),
        options=shlex.join(_options(spec)),
    )


def _options(spec: JobSpec) -> list[str]:
    words: list[str] = []
    if spec.placement is not None:
        place, nodes = spec.placement, spec.placement.nodes
        words += ["--hosts", ",".join(map(_host, nodes))]
        if not any(node.devices for node in nodes):
            words += ["--gpus", "none"]
        if place.min_nodes < len(nodes):
            words += ["--nodes", f"{place.min_nodes}:{len(nodes)}"]
        words += ["--node-timeout", f"{place.node_timeout_s:g}"]
        words += ["--orphan-timeout", f"{place.orphan_timeout_s:g}"]
    elif not spec.is_command and spec.python != interpreters.choose(None, os.environ):
        words += ["--python", spec.python]
    if spec.cwd != os.path.realpath("."):
        words += ["--cwd", spec.cwd]
    if spec.hang_timeout_s is not None:
        words += ["--hang-timeout", f"{spec.hang_timeout_s:g}"]
    elif spec.probe and not spec.hang_auto:
        words += ["--hang-timeout", "off"]
    if spec.on_nan != "alert":
        words += ["--on-nan", spec.on_nan]
    if spec.log_limit_bytes is not None:
        words += ["--log-limit", str(spec.log_limit_bytes)]
    flags = {
        "--allow-shrink": spec.allow_shrink,
        "--no-zygote": not spec.zygote,
        "--no-probe": not spec.probe,
        "--no-replica-check": not spec.replica_check,
        "--memory-snapshot": spec.memory_snapshot,
        "--pty": spec.pty,
    }
    return [*words, *(flag for flag, is_given in flags.items() if is_given)]


def _host(node: NodeSpec) -> str:
    devices = units.ranks([device.index for device in node.devices or ()])
    return f"{node.host}:{devices}" if devices else node.host


def complete_path(text: str) -> str | None:
    """Complete `text` to the first Python file or folder that matches; None if none does.

    Reads the file system, so do not call it in the event loop.
    """
    if not text:
        return None
    folder, start = os.path.split(os.path.expanduser(text))  # noqa: PTH111 - keeps a final slash
    try:
        with os.scandir(folder or ".") as entries:
            names = sorted(  # a script is more likely than a folder
                (entry.is_dir(), entry.name)
                for entry in entries
                if entry.name.startswith(start)
                and (start or not entry.name.startswith("."))
                and (entry.is_dir() or entry.name.endswith(".py"))
            )
    except OSError:
        return None
    if not names:
        return None
    is_folder, name = names[0]
    found = text[: len(text) - len(start)] + name + "/" * is_folder
    return found if found != text else None
