"""Defines the request for a launch and its hosts, and refuses invalid ones before it is planned."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ddptop_runner.base.errors import UsageError
from ddptop_runner.host.handover import is_text
from ddptop_runner.launch.gpus.choice import DeviceChoice, parse_gpus
from ddptop_runner.model.spec import MOST_RANKS, JobOptions, JobSpec


@dataclass(frozen=True)
class HostRequest:
    """One requested host."""

    host: str
    """As passed to ssh: an alias, name, or address, with or without `user@`."""
    gpus: str | None = None
    """Its devices, in the form of --gpus; None for those of --gpus, or all."""
    slots: int | None = None
    """Number of ranks, from a hostfile; None for --nproc, or one per GPU."""


class LaunchRequest(JobOptions, frozen=True):
    """A launch as requested by the user."""

    kind: Literal["script", "module", "command"]
    target: str
    """A path, a module name, or the first word of a command."""
    args: tuple[str, ...] = ()
    gpus: str | None = None
    force: bool = False
    """Use busy devices."""
    wait_gpus: bool = False
    """Queue the job until its devices are free."""
    share_idle: bool = False
    """As `wait_gpus`, but also take devices on which only idle processes are."""
    may_wait: bool = False
    """As `wait_gpus` if the job uses devices."""
    after: tuple[str, ...] = ()
    """Queue the job until these have finished."""
    after_any: tuple[str, ...] = ()
    """Queue the job until these have ended."""
    at: str | None = None
    """Queue the job until this time."""
    is_dry: bool = False
    """Only describe the job."""
    nproc: int | None = None
    name: str | None = None
    base_name: str | None = None
    """What to derive the name from, if none is given; None for the target."""
    hang_auto: bool = False
    env: tuple[str, ...] = ()
    """Variables as `K=V`."""
    cwd: str | None = None
    work_in_run_folder: bool = False
    """Give the job a working folder inside its run folder, which is deleted with it."""
    python: str | None = None
    hosts: tuple[HostRequest, ...] = ()
    """The machines to train on; empty for this one only."""
    nodes: tuple[int, int] | None = None
    """`--nodes`: the (fewest, most) machines to train on."""
    check: bool = False
    """Measure each GPU and the network between the hosts first."""
    node_timeout_s: float | None = None
    orphan_timeout_s: float | None = None
    notify: tuple[str, ...] | None = None
    """URLs that get messages about the job; None: nothing is sent, and no hook runs."""

    @property
    def waits(self) -> dict[str, bool]:
        """Which options that queue the job are given."""
        return {
            "--wait-gpus": self.wait_gpus,
            "--share-idle": self.share_idle,
            "--after": bool(self.after),
            "--after-any": bool(self.after_any),
            "--at": self.at is not None,
        }


class LaunchPlan(msgspec.Struct, frozen=True):
    """A launch on which everything is decided, but nothing done."""

    spec: JobSpec
    job_env: dict[str, str]
    """Variables set for the job, in addition to the shell's."""
    notes: tuple[str, ...]
    """Notes for the user, one line each."""
    wrap: tuple[str, ...]
    """The command through which the tmux server must be started to outlive the login."""
    choice: DeviceChoice
    """The devices that the job gets or waits for."""
    request: LaunchRequest


def require_text(words: Iterable[str]) -> None:
    """Refuse words that are not valid UTF-8, as `job.json` must be; they contain surrogates.

    Raises:
        UsageError: names the invalid word.
    """
    for word in words:
        if not is_text(word):
            raise UsageError(
                f"{os.fsencode(word)!r} is not valid UTF-8", "rename it, or set it with --env"
            )


def folder_of(path: str | None) -> Path:
    """A job's working folder: the given one, else the current one.

    Raises:
        UsageError: the folder does not exist.
    """
    try:
        folder = Path(path).expanduser().absolute() if path else Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the working directory was deleted", "change to another directory, or pass --cwd DIR"
        ) from None
    if not folder.is_dir():
        raise UsageError(f"--cwd {path}: no such directory", "create it, or pass another directory")
    return folder


def require_script(cwd: Path, script: str) -> None:
    """Raise UsageError unless the script, relative to `cwd`, can be read."""
    path = cwd / script
    if not script:
        raise UsageError("the script name is empty", "try `ddptop launch train.py`")
    if not path.is_file():
        remedy = "check the path, or pass --cwd"
        if not script.endswith(".py") and "/" not in script and shutil.which(script):
            remedy = f"to run a program, use `ddptop launch -- {script} ...`"
        raise UsageError(f"no script {script} in {cwd}", remedy)
    if script.endswith((".sh", ".bash")):
        raise UsageError(
            f"{script} is not a Python script", f"use `ddptop launch -- bash {script}`"
        )


def script_of(kind: str, target: str, cwd: Path) -> Path | None:
    """The file that runs; None if it cannot be read, or is a module outside the working folder."""
    paths = [cwd / target]
    if kind == "module":
        at = cwd.joinpath(*target.split("."))
        paths = [at / "__main__.py", at.with_name(f"{at.name}.py")]
    return next((path for path in paths if path.is_file() and os.access(path, os.R_OK)), None)


def overrides_of(pairs: Sequence[str]) -> dict[str, str]:
    """Parse variables given as `K=V`.

    Raises:
        UsageError: names an entry in another form.
    """
    overrides = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--env {pair} is not in the form NAME=VALUE", "use --env NAME=VALUE")
        overrides[name] = value
    return overrides


def require_command(request: LaunchRequest) -> None:
    """Refuse options that have no effect on a command, which runs unchanged.

    Raises:
        UsageError: names the option and the remedy.
    """
    for option, is_given, remedy in (
        ("--nproc", request.nproc is not None, "set the number of ranks in the command itself"),
        ("--python", request.python is not None, f"use -- {request.python} SCRIPT"),
        ("--allow-shrink", request.allow_shrink, "launch the script directly: SCRIPT ARGS"),
    ):
        if is_given:
            raise UsageError(
                f"{option} does not apply to commands, which start their own ranks", remedy
            )


def require_valid(request: LaunchRequest) -> None:
    """Refuse values that no job can have.

    Raises:
        UsageError: names the option and the remedy.
    """
    nproc = request.nproc
    if nproc is not None and not 1 <= nproc <= MOST_RANKS:
        raise UsageError(
            f"--nproc {nproc} is not a valid number of ranks", f"use 1 to {MOST_RANKS}"
        )
    if request.max_restarts < 0:
        raise UsageError(f"--max-restarts {request.max_restarts} is negative", "use 0 or more")
    for option in (option for option, given in request.waits.items() if given and request.force):
        raise UsageError(f"--force cannot be used with {option}", "use one of them")
    needs_probe = {
        "--hang-timeout": request.hang_timeout_s is not None,
        "--memory-snapshot": request.memory_snapshot,
        f"--on-nan {request.on_nan}": request.on_nan != "alert",
    }
    for option in (option for option, given in needs_probe.items() if given and not request.probe):
        raise UsageError(
            f"{option} requires the probe, which --no-probe disables", "remove one of them"
        )
    require_text([request.target, *request.args, request.cwd or "", request.python or ""])


def require_one_way(request: LaunchRequest) -> None:
    """Refuse options that conflict with several machines, or that require them.

    Raises:
        UsageError: names the option and the remedy.
    """
    if not request.hosts:
        needs_hosts = {
            "--nodes": request.nodes is not None,
            "--check": request.check,
            "--node-timeout": request.node_timeout_s is not None,
            "--orphan-timeout": request.orphan_timeout_s is not None,
        }
        for option in (option for option, given in needs_hosts.items() if given):
            needs = "--hosts or --slurm" if option == "--nodes" else "--hosts"
            raise UsageError(f"{option} requires {needs}", "list the machines, as in --hosts a,b")
        return
    if request.kind == "command":
        raise UsageError(
            "--hosts does not apply to commands, which start their own ranks",
            "launch the script directly: ddptop launch --hosts ... SCRIPT",
        )
    one_machine_only = {
        **request.waits,
        "--pty": request.pty,
        "--allow-shrink": request.allow_shrink,
    }
    for option in (option for option, given in one_machine_only.items() if given):
        remedy = "use --nodes MIN:MAX" if option == "--allow-shrink" else f"remove {option}"
        raise UsageError(f"{option} works on one machine only, not with --hosts", remedy)
    for option, seconds in {
        "--node-timeout": request.node_timeout_s,
        "--orphan-timeout": request.orphan_timeout_s,
    }.items():
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{option} {seconds:g} is not a valid time", "use positive seconds")
    fewest_nodes(request.nodes, len(request.hosts))


def executable_of(program: str, cwd: Path, env: Mapping[str, str]) -> str:
    """The file that a command's first word names, as the job resolves it.

    Args:
        program: the first word: a name to find on PATH, or a path relative to `cwd`.
        cwd: the job's working folder.
        env: the job's variables.

    Returns:
        An absolute path. Links are not followed, because a virtual environment's Python is one.

    Raises:
        UsageError: the program is missing or cannot be executed.
    """
    if not program:
        raise UsageError(
            "-- requires a command", "try `ddptop launch -- torchrun --nproc-per-node 2 x.py`"
        )
    if "/" in program:
        if not os.access(path := cwd / program, os.X_OK) or path.is_dir():
            remedy = f"use -- python {program}" if program.endswith(".py") else "check the path"
            raise UsageError(f"{program} is not an executable file", remedy)
        return os.path.normpath(path)
    if (found := shutil.which(program, path=env.get("PATH", os.defpath))) is not None:
        return os.path.normpath(cwd / found)
    remedy = "install it, or activate its environment"
    if (cwd / program).is_file():
        remedy = f"use -- {'python ' if program.endswith('.py') else './'}{program}"
    elif program.startswith("-"):
        remedy = "ddptop options go before --"
    raise UsageError(f"no program {program} on PATH", remedy)


# --- parsing `--hosts`, `--hostfile`, and `--nodes` -----------------------------------------------

HOST_FORMS = "use HOST, USER@HOST, or HOST:GPUS, as in --hosts a,b:0-3,me@c:0,2"
_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9_.+\\-]*@)?"
_HOST = re.compile(_USER + r"[A-Za-z0-9_][A-Za-z0-9_.%+-]*")
"""A host or alias that is safe on an ssh command line: above all, no leading dash."""
_IPV6 = re.compile(rf"({_USER})\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\](?::(.*))?")
_CONTINUES = re.compile(r"\d+(?:-\d+)?|(?:GPU|MIG)-[0-9A-Za-z/-]+")
"""What follows a comma if it is another of the host's devices, not another host."""


def parse_hosts(text: str, option: str = "--hosts") -> tuple[HostRequest, ...]:
    """Parse `a,b:0-3,me@c:0,2`, where a number after a comma continues the list of GPUs.

    Raises:
        UsageError: names the invalid part.
    """
    found: list[HostRequest] = []
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UsageError(f"{option} is empty", HOST_FORMS)
    for part in parts:
        if found and found[-1].gpus is not None and _CONTINUES.fullmatch(part):
            found[-1] = HostRequest(found[-1].host, f"{found[-1].gpus},{part}")
        else:
            found.append(_host(part, option, text))
    for one in found:
        if one.gpus is not None:
            parse_gpus(one.gpus, f"{option}: the GPUs of {one.host}")
    return require_distinct(found, option)


def parse_hostfile(text: str, name: str) -> tuple[HostRequest, ...]:
    """Parse one host per line: `HOST[:GPUS] [slots=N]`; `#` starts a comment.

    Args:
        text: the file's content.
        name: the file's name, for messages.

    Raises:
        UsageError: names the invalid line.
    """
    found: list[HostRequest] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}, line {number}"
        host, *more = parse_hosts(words[0], where)
        if more:
            raise UsageError(f"{where}: {words[0]!r} is more than one host", "write one per line")
        slots = None
        for word in words[1:]:
            if (given := re.fullmatch(r"slots=([0-9]{1,5})", word)) is None or int(given[1]) < 1:
                raise UsageError(f"{where}: {word!r} is not slots=N", "use HOST[:GPUS] [slots=N]")
            slots = int(given[1])
        found.append(HostRequest(host.host, host.gpus, slots))
    if not found:
        raise UsageError(f"{name} names no hosts", "write one host per line: HOST[:GPUS] [slots=N]")
    return require_distinct(found, name)


def _host(part: str, option: str, text: str) -> HostRequest:
    if not part:
        raise UsageError(f"{option} {text!r} has an empty entry", HOST_FORMS)
    if "[" in part or "]" in part:
        if (bracketed := _IPV6.fullmatch(part)) is None:
            raise UsageError(f"{option}: {part!r} is not a valid host", "use [ADDRESS]:GPUS")
        user, host, gpus = bracketed.groups()
        host, gpus = f"{user}{host}", gpus
    else:
        host, colon, rest = part.partition(":")
        gpus = rest if colon else None
        if gpus is not None and gpus.count(":") > gpus.startswith("auto:"):
            raise UsageError(
                f"{option}: {part!r} has several colons", "put an IPv6 address in brackets: [::1]"
            )
        if not _HOST.fullmatch(host):
            raise UsageError(f"{option}: {part!r} is not a valid host", HOST_FORMS)
    return HostRequest(host, gpus)


def require_distinct(hosts: Sequence[HostRequest], option: str) -> tuple[HostRequest, ...]:
    """Return `hosts`, provided that each is listed once.

    Raises:
        UsageError: a host is listed twice.
    """
    seen: set[str] = set()
    for one in hosts:
        if one.host in seen:
            raise UsageError(
                f"{option} lists {one.host} twice", "list each host once, as in HOST:0-3"
            )
        seen.add(one.host)
    return tuple(hosts)


def parse_nodes(text: str) -> tuple[int, int]:
    """Parse `--nodes MIN:MAX` or `--nodes N` into (fewest, most).

    Raises:
        UsageError: the text is neither, or MIN is greater than MAX.
    """
    found = re.fullmatch(r"([0-9]{1,5})(?::([0-9]{1,5}))?", text.strip())
    if found is None or int(found[1]) < 1:
        raise UsageError(f"--nodes {text} is not a number of machines", "use N, or MIN:MAX")
    fewest, most = int(found[1]), int(found[2] or found[1])
    if most < fewest:
        raise UsageError(f"--nodes {text}: MIN is greater than MAX", f"use {most}:{fewest}")
    return fewest, most


def fewest_nodes(nodes: tuple[int, int] | None, hosts: int) -> int:
    """The fewest hosts that the job may train on: all of them, unless --nodes says otherwise.

    Raises:
        UsageError: --nodes does not match the number of hosts listed.
    """
    if nodes is None:
        return hosts
    fewest, most = nodes
    if most != hosts:
        asked = f"--nodes {fewest}" if fewest == most else f"--nodes {fewest}:{most}"
        raise UsageError(
            f"{asked}, but --hosts lists {hosts}",
            f"list {most} hosts, or use --nodes {min(fewest, hosts)}:{hosts}",
        )
    return fewest
