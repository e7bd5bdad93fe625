"""`ddptop launch`: from the command line to a guarded job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ddptop.output import info, put, table
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.start import own_command
from ddptop_runner.base.units import parse_size
from ddptop_runner.devices.words import cuda_names, name_of, renumbered, wanted_in_words
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import launch as launcher
from ddptop_runner.launch.gpus import shared
from ddptop_runner.launch.request import (
    HostRequest,
    LaunchPlan,
    LaunchRequest,
    parse_hostfile,
    parse_hosts,
    parse_nodes,
)
from ddptop_runner.launch.slurm import split_sbatch

if TYPE_CHECKING:
    from ddptop_runner.launch.device_check import Findings
    from ddptop_runner.launch.readiness import Judged


@dataclass(frozen=True)
class Target:
    """The script, module, or command to run, as typed."""

    kind: Literal["script", "module", "command"]
    """`script`, `module` or `command`."""
    name: str
    args: tuple[str, ...]
    sbatch: tuple[str, ...] = ()
    """With --slurm, the options of sbatch between `--` and the target."""


def split_arguments(
    arguments: Sequence[str], takes_value: Collection[str]
) -> tuple[list[str], Target | None]:
    """Separate ddptop's options from the target; everything after it is kept verbatim.

    Args:
        arguments: everything after `launch`.
        takes_value: names of the options that take a value.

    Returns:
        The options, and the target, or None if there is none.
    """
    options: list[str] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        rest = tuple(arguments[index + 1 :])
        if argument == "--" and "--slurm" in options:
            sbatch, after = split_sbatch(rest)
            late, target = split_arguments(after, ())
            if late:
                raise UsageError(f"{late[0]} is after --", "put ddptop options before --")
            return options, None if target is None else replace(target, sbatch=tuple(sbatch))
        if argument == "--":
            return options, Target("command", rest[0] if rest else "", rest[1:])
        if argument == "-m":
            if not rest:
                raise UsageError("-m requires a module", "use ddptop launch -m MODULE [ARGS]...")
            return options, Target("module", rest[0], rest[1:])
        if not argument.startswith("-") or argument == "-":
            return options, Target("script", argument, rest)
        options.append(argument)
        if argument in takes_value and rest:
            options.append(rest[0])
            index += 1
        index += 1
    return options, None


NOTE_CHARS = 500
LEAST_LOG_BYTES = 64 * 1024
"""With a lower limit, a log could not hold a traceback with its context."""


def hang_timeout(text: str) -> tuple[float | None, bool]:
    """(seconds or None, whether the timeout is learned) for a value of `--hang-timeout`.

    Raises:
        UsageError: it is neither `auto`, `off`, nor a positive number.
    """
    if text in ("off", "auto"):
        return None, text == "auto"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise UsageError(
            f"--hang-timeout {text} is not a valid time",
            "use a positive number of seconds, auto, or off",
        )
    return seconds, False


def size_bytes(text: str | None) -> int | None:
    """Bytes of a size such as `512M` or `2G` (powers of 1024); None for None.

    Raises:
        UsageError: it is not a positive size.
    """
    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise UsageError(f"--log-limit {text} is not a valid size", "use a size like 512M or 2G")
    if size < LEAST_LOG_BYTES:
        raise UsageError(f"--log-limit {text} is too small", "use 64K or more")
    return size


_AS_GIVEN = (
    *("gpus", "force", "wait_gpus", "share_idle", "at", "nproc", "name", "max_restarts", "on_nan"),
    *("allow_shrink", "cwd", "python", "pty", "memory_snapshot"),
)
"""Options that the request takes as they are."""


def request_of(target: Target | None, options: Mapping[str, Any]) -> LaunchRequest:
    """Build the request from the command line.

    Raises:
        UsageError: there is nothing to launch, or a value is invalid.
    """
    if target is None:
        raise UsageError("nothing to launch", "use ddptop launch [OPTIONS] SCRIPT [ARGS]...")
    hang_timeout_s, hang_auto = hang_timeout(options["hang_timeout"])
    return LaunchRequest(
        kind=target.kind,
        target=target.name,
        args=target.args,
        **{name: options[name] for name in _AS_GIVEN},
        after=names_of(options["after"]),
        after_any=names_of(options["after_any"]),
        is_dry=options["dry_run"],
        hang_timeout_s=hang_timeout_s,
        hang_auto=hang_auto,
        zygote=not options["no_zygote"],
        log_limit_bytes=size_bytes(options["log_limit"]),
        env=tuple(options["env"]),
        probe=not options["no_probe"],
        replica_check=not options["no_replica_check"],
        hosts=hosts_of(options.get("hosts"), options.get("hostfile")),
        nodes=None if options.get("nodes") is None else parse_nodes(options["nodes"]),
        check=bool(options.get("check")),
        node_timeout_s=options.get("node_timeout"),
        orphan_timeout_s=options.get("orphan_timeout"),
        note=note_text(options.get("note")),
        notify=receivers(options.get("notify", ())),
    )


def names_of(text: str | None) -> tuple[str, ...]:
    """The jobs that a comma-separated list names."""
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def note_text(text: str | None) -> str | None:
    """The text of `--note`.

    Raises:
        UsageError: it is too long, or not on one line.
    """
    if text is not None and (len(text) > NOTE_CHARS or not text.isprintable()):
        raise UsageError("--note is not valid", f"use one line of up to {NOTE_CHARS} characters")
    return text


def receivers(urls: Sequence[str]) -> tuple[str, ...] | None:
    """The URLs that get messages about a new job; None if there is nothing to send or run.

    What cannot be used is reported, but never keeps a job from starting.
    """
    from ddptop.export import settings

    has_hooks = False
    known: list[str] = []
    try:
        known = settings.read_urls(settings.urls_file())
        has_hooks = bool(settings.read_settings().hooks)
    except DdptopError as error:
        info(f"ddptop: {error}")
    usable = dict.fromkeys(known)  # `notify add` has checked them, which takes half a second
    for url in urls:
        try:
            settings.check_url(url)
            usable[url] = None
        except UsageError as error:
            info(f"ddptop: no messages there: {error}")
    return tuple(usable) if usable or has_hooks else None


def hosts_of(hosts: str | None, hostfile: str | None) -> tuple[HostRequest, ...]:
    """Return the machines that --hosts or --hostfile lists; none if neither is given.

    Raises:
        UsageError: both are given, the file cannot be read, or an entry is invalid.
    """
    if hostfile is None:
        return () if hosts is None else parse_hosts(hosts)
    if hosts is not None:
        raise UsageError("--hosts and --hostfile cannot be used together", "use one of them")
    try:
        text = bounded.read_text(Path(hostfile).expanduser().resolve())
    except OSError as error:
        raise UsageError(
            f"--hostfile {hostfile} cannot be read ({error.strerror})", "check the path"
        ) from None
    return parse_hostfile(text, hostfile)


def run(
    target: Target | None,
    options: Mapping[str, Any],
    watch: bool,
    typed_options: Sequence[str] = (),
) -> int:
    """Launch the job; then become `attach` on a terminal, or print the job's name."""
    request = request_of(target, options)
    if options["slurm"]:
        if options["array"]:
            raise UsageError("--array cannot be used with --slurm", "use sbatch --array")
        if options.get("notify"):  # it would stand in the batch script
            raise UsageError("--notify cannot be used with --slurm", "use ddptop notify add URL")
        from ddptop.commands import launch_slurm

        assert target is not None  # request_of requires it
        return launch_slurm.run(request, options, target.sbatch, typed_options)
    if options["max_requeues"] is not None:
        raise UsageError("--max-requeues requires --slurm", "add --slurm, or remove it")
    if options["array"]:
        from ddptop.commands import launch_array

        return launch_array.run(request, options["array"], options["parallel"], watch)
    if options["parallel"] is not None:
        raise UsageError("--parallel requires --array", "add --array, or remove it")
    plan = prepare(request)
    if options["dry_run"]:
        put(describe(plan))
        return 0
    return start(plan, watch)


def prepare(request: LaunchRequest) -> LaunchPlan:
    """Return the plan; for several hosts, query them first and print the results."""
    if not request.hosts:
        return launcher.prepare(request, os.environ)
    from ddptop_runner.jobs import launch_hosts

    def show(judged: Judged) -> None:
        info(table(judged.rows[0], judged.rows[1:]))
        for line in [*judged.notes, *judged.refusals[:-1]]:  # the last refusal is raised
            info(f"ddptop: {line}")

    def show_check(found: Findings) -> None:
        for line in [*found.broken[:-1], *found.slow]:
            info(f"ddptop: {line}")
        if not found.broken:
            info(f"ddptop: --check: {found.summary}")

    return launch_hosts.prepare(request, os.environ, show, show_check)


def start(plan: LaunchPlan, watch: bool) -> int:
    """Start a plan and either become `ddptop attach` or return."""
    view = start_plan(plan)
    if watch:
        become_attach(view.job)
    put(view.job)
    return 0


def start_plan(plan: LaunchPlan) -> JobView:
    """Start a plan and print its notes."""
    for note in plan.notes:
        info(f"ddptop: {note}")
    view, trouble = launcher.start(plan)
    if trouble:
        info(f"ddptop: {trouble}")
    devices = view.spec.devices
    if view.spec.is_queued:
        info(f"ddptop: {view.job} is queued; to cancel, run ddptop stop {view.job}")
        if (problem := shared.problem()) is not None:
            info(f"ddptop: {problem}")
    elif devices and renumbered(devices):
        info(f"ddptop: {cuda_names(devices)} (CUDA_VISIBLE_DEVICES renumbers them)")
    return view


def become_attach(job: str) -> None:
    """Replace this process with the TUI, which frees what launching loaded. Never returns."""
    os.execv(sys.executable, own_command("ddptop", "attach", job))


def describe(plan: LaunchPlan) -> str:
    """Return what `--dry-run` prints: devices, ranks, variable names, argv, and policy."""
    spec = plan.spec
    placement = spec.placement
    devices = "none (CPU)"
    if plan.choice.waits and spec.queue is not None and spec.queue.candidates:
        devices = f"queued until free: {wanted_in_words(spec.queue)}"
    elif spec.devices:
        devices = ", ".join(
            f"{name_of(device)} as cuda:{position}" for position, device in enumerate(spec.devices)
        )
    hang = "learned during the run" if spec.hang_auto else "off"
    if spec.hang_timeout_s is not None:
        hang = f"after {spec.hang_timeout_s:g} s without progress"
    backing: str = spec.backing
    if spec.backing == "tmux":
        backing = f"tmux session {spec.job} (tmux -L {spec.tmux_socket} attach -t {spec.job})"
    probe = "on" if spec.probe else "off; steps and losses come only from the output"
    if spec.is_command:
        who = "the command" if spec.launcher in (None, "python") else spec.launcher
        how = f"set by {who}"
        program = [f"program:       {spec.python}"]
    else:
        how, program = str(spec.nproc), []
    if placement is not None:
        from ddptop_runner.jobs.launch_hosts import in_words, node_in_words

        where = [f"machines:      {in_words(placement)}"]
        where += [f"node:          {node_in_words(node)}" for node in placement.nodes]
        variables_set = sorted({*spec.env_overrides, "DDPTOP_JOB_ID"})
        inherited = sorted(set(plan.job_env) - set(variables_set))
    else:
        where = [f"devices:       {devices}"]
        variables_set, inherited = sorted(plan.job_env), spec.env_names
    lines = [
        f"job:           {spec.job}",
        *where,
        f"ranks:         {how}",
        f"argv:          {shlex.join(spec.command())}",
        *program,
        f"cwd:           {spec.cwd}",
        f"sets:          {', '.join(variables_set)}",
        f"inherits:      {', '.join(inherited)}",
        f"restarts:      up to {spec.max_restarts} without progress; "
        "failures that would recur are not retried",
        f"hang timeout:  {hang}",
        f"on NaN:        {spec.on_nan}",
        "GPU failure:   the job "
        + ("continues without the failed GPU" if spec.allow_shrink else "ends"),
        f"probe:         {probe}",
        f"runs in:       {backing}",
    ]
    if spec.is_command:
        lines.append(f"output:        {'a pseudo-terminal' if spec.pty else 'its log'}")
    if spec.log_limit_bytes is not None:
        limit = spec.log_limit_bytes
        lines.append(f"log limit:     {limit} bytes per rank; the start of longer logs is dropped")
    lines += [f"note:          {note}" for note in plan.notes]
    return "\n".join(lines)
