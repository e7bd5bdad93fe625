"""Checks that a machine is ready for long training: one check per topic, each with a remedy.

Checks change nothing. `examine` runs all of them at once, each in its own thread, and never raises:
a check that raises or takes too long gets the status `unknown`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from ddptop_runner.base import interpreters, paths, programs
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.units import plural, size
from ddptop_runner.devices.hardware import pci_devices
from ddptop_runner.devices.report import DeviceReport, library_problem, sample_once
from ddptop_runner.host import survival, tmux
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.words import Base

if TYPE_CHECKING:
    from ddptop_runner.launch.readiness import Judged
    from ddptop_runner.launch.request import HostRequest

Status = Literal["ok", "warning", "error", "unknown"]
"""`error`: launches fail or jobs are lost; `warning`: something works less well; `unknown`: the
check failed or took too long."""

DEADLINE_S = 2.5
"""Time limit for all topics together."""
ASK_TIMEOUT_S = 2.0
"""Time limit for a child process that queries the driver, which may block or crash."""
GIB = 2**30
LOW_DISK_BYTES = 1 * GIB
LOW_SHARED_MEMORY_BYTES = 1 * GIB


class Check(Base, frozen=True, kw_only=True):
    """One check and its result."""

    id: str
    title: str
    """Name of the check."""
    status: Status
    """`unknown` if the check itself failed or took too long."""
    detail: str
    """What was found."""
    remedy: str | None = None
    """How to fix it; None if nothing needs fixing."""


class Report(Base, frozen=True, kw_only=True):
    """What `doctor --json` prints."""

    schema: int = SCHEMA
    checks: list[Check]


class HostReport(Base, frozen=True, kw_only=True):
    """The checks of one host."""

    host: str
    checks: list[Check]
    """`together` is whether it can train with the others; the rest are `doctor` checks there."""


class HostsReport(Base, frozen=True, kw_only=True):
    """What `doctor --hosts LIST --json` prints."""

    schema: int = SCHEMA
    hosts: list[HostReport]


class Place(Base, frozen=True, kw_only=True):
    """What the checks inspect. Tests pass another root and environment."""

    env: Mapping[str, str]
    root: Path = Path("/")
    cwd: Path
    python: str | None = None
    """The requested interpreter; None for the one that `launch` would use."""


class Judgment(NamedTuple):
    """A check's result, without its name."""

    status: Status
    detail: str
    remedy: str | None = None


class Topic(NamedTuple):
    """A check and its name."""

    id: str
    title: str
    check: Callable[[Place], Judgment]


def check_python(place: Place) -> Judgment:
    """The interpreter that runs the ranks; torch is not imported."""
    try:
        found = interpreters.inspect(interpreters.choose(place.python, place.env))
    except DdptopError as error:
        return Judgment("error", str(error), "pass --python PATH")
    try:
        untested = interpreters.require_torch(found)
    except DdptopError as error:
        return Judgment("error", error.message, error.hint)
    what = f"torch {found.torch_version} in {found.path}"
    what += f" (Python {found.version[0]}.{found.version[1]})"
    if str(found.torch_version).endswith("+cpu") and pci_devices(place.root):
        return Judgment(
            "warning",
            f"{what} cannot use this machine's NVIDIA devices",
            "install a CUDA build of torch",
        )
    if untested:
        return Judgment("warning", f"{what}: {untested[0]}", "report what does not work")
    return Judgment("ok", what)


def check_driver(place: Place) -> Judgment:
    """NVML must report the devices."""
    report = sample_once(timeout_s=ASK_TIMEOUT_S) if library_problem() is None else None
    return judge_driver(pci_devices(place.root), report)


def judge_driver(on_bus: int, report: DeviceReport | None) -> Judgment:
    """Judge the driver's report.

    Args:
        on_bus: the number of NVIDIA devices on the PCI bus.
        report: NVML's devices; None if there is no driver library.
    """
    gpus = [] if report is None else [gpu for gpu in report.gpus if gpu.parent_uuid is None]
    if report is None and on_bus:
        return Judgment(
            "error",
            f"{plural(on_bus, 'NVIDIA device')} on the PCI bus, but libnvidia-ml.so.1 is missing",
            "install the NVIDIA driver; for a container, use the NVIDIA runtime"
            " (docker run --gpus all)",
        )
    if report is None or (not gpus and not on_bus):
        return Judgment("ok", "no NVIDIA devices; jobs run on the CPU (launch --nproc N)")
    if not gpus:
        return Judgment("error", report.note or "the driver reports no devices")
    if lost := [str(gpu.index) for gpu in gpus if gpu.lost]:
        return Judgment(
            "error", f"the driver lost GPU {', '.join(lost)}", "check `dmesg`; reboot to recover"
        )
    known = f"driver {report.driver or 'version unknown'}, {plural(len(gpus), 'device')}"
    return Judgment("warning", f"{known}: {report.note}") if report.note else Judgment("ok", known)


def check_tmux(_: Place) -> Judgment:
    """Without tmux, jobs run as daemons."""
    folder = tmux.socket_dir()
    if unusable := tmux.program_problem():
        return Judgment(
            "warning",
            f"{unusable}; jobs run as daemons, without a tmux pane",
            "install tmux 3.2a or newer (sudo apt install tmux)",
        )
    if problem := tmux.folder_problem():
        return Judgment(
            "warning",
            f"{folder} {problem}; jobs run as daemons, without a tmux pane",
            f"chmod 700 {folder}, or set TMUX_TMPDIR to a directory of your own",
        )
    return Judgment("ok", f"usable; sockets are in {folder}")


def check_logout(place: Place) -> Judgment:
    """What systemd does to jobs at logout."""
    return judge_logout(survival.gather(place.env, place.root))


def judge_logout(found: survival.SurvivalFacts) -> Judgment:
    """Judge what happens to jobs when their user logs out."""
    if not found.systemd:
        return Judgment("ok", "no systemd; logging out does not affect jobs")
    decided = survival.plan(found)
    if decided.risk:
        return Judgment("warning", decided.risk, decided.remedy)
    how = " (started through systemd-run --user --scope)" if decided.wrap else ""
    return Judgment("ok", f"jobs outlive the login{how}")


def check_folder(_: Place) -> Judgment:
    """Run folders must be writable; any file system works."""
    home = paths.state_home()
    existing = paths.nearest(home)
    problem = None
    try:
        if existing == home:
            with tempfile.TemporaryFile(dir=home):
                pass
        elif not existing.is_dir():
            problem = f"{existing} is not a directory"
        elif not os.access(existing, os.W_OK | os.X_OK):
            problem = f"{existing} is not writable"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is not None:
        return Judgment(
            "error", f"{home} cannot be used ({problem})", "set DDPTOP_HOME to a writable directory"
        )
    if reason := paths.local_dir_reason(paths.run_folder("a-job")):
        return Judgment("ok", f"{home} ({reason}; live files are in /var/tmp)")
    return Judgment("ok", f"{home}, on a local disk")


def check_disk(place: Place) -> Judgment:
    """A full disk loses checkpoints and history."""
    folders = {"run folders": paths.runs_dir(), "working directory": place.cwd}
    free = {}
    for what, path in folders.items():
        room = os.statvfs(paths.nearest(path))
        free[what] = room.f_bavail * room.f_frsize
    detail = ", ".join(f"{what} {size(left)} free" for what, left in free.items())
    if min(free.values()) < LOW_DISK_BYTES:
        return Judgment("warning", detail, "free some space: ddptop rm JOB...")
    return Judgment("ok", detail)


def check_shared_memory(place: Place) -> Judgment:
    """Data loaders and NCCL pass data through /dev/shm."""
    room = os.statvfs(place.root / "dev/shm")
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    detail = f"{size(total)}, {size(free)} free"
    if min(total, free * 4) >= LOW_SHARED_MEMORY_BYTES:
        return Judgment("ok", detail)
    return Judgment(
        "warning",
        f"{detail}; data loader workers crash with a bus error when it is full",
        "docker run --shm-size=8g, or: sudo mount -o remount,size=8g /dev/shm",
    )


SLURM_TOOLS = ("sbatch", "srun", "squeue", "scontrol")


def check_slurm(place: Place) -> Judgment:
    """Slurm must be usable for `launch --slurm`, where there is a cluster."""
    found = {tool: shutil.which(tool, path=place.env.get("PATH")) for tool in SLURM_TOOLS}
    if not any(found.values()):
        return Judgment("ok", "no batch system found")
    if "SLURM_JOB_ID" not in place.env and not _slurm_answers(place):
        return Judgment("ok", "Slurm's commands are installed, but no cluster responds")
    if missing := [tool for tool, path in found.items() if path is None]:
        return Judgment(
            "warning",
            f"Slurm is installed, but {', '.join(missing)} not found",
            "add Slurm's commands to PATH (module load slurm)",
        )
    if paths.shared_file_system(paths.state_home()) is None:
        return Judgment(
            "warning",
            f"run folders are in {paths.state_home()}, on a local disk",
            "set DDPTOP_HOME to a directory that all nodes share",
        )
    return Judgment("ok", "Slurm's commands are installed")


def _slurm_answers(place: Place) -> bool:
    asked = shutil.which("sinfo", path=place.env.get("PATH"))
    try:
        return asked is not None and not programs.run([asked, "-h"], ASK_TIMEOUT_S).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False


TOPICS = (
    Topic("python", "Python and torch", check_python),
    Topic("nvidia", "NVIDIA driver", check_driver),
    Topic("tmux", "tmux", check_tmux),
    Topic("logout", "Logout", check_logout),
    Topic("home", "Run folders", check_folder),
    Topic("disk", "Disk", check_disk),
    Topic("shm", "Shared memory", check_shared_memory),
    Topic("slurm", "Slurm", check_slurm),
)


def examine(
    place: Place, topics: Sequence[Topic] = TOPICS, deadline_s: float = DEADLINE_S
) -> list[Check]:
    """Run all checks within about `deadline_s`; returns them in the order of `topics`."""
    found: dict[str, Check] = {}

    def check(topic: Topic) -> None:
        try:
            judged = topic.check(place)
        except Exception as error:  # the fault may be what the check is for
            judged = Judgment("unknown", f"check failed ({type(error).__name__}: {error})")
        found[topic.id] = Check(id=topic.id, title=topic.title, **judged._asdict())

    threads = [threading.Thread(target=check, args=(topic,), daemon=True) for topic in topics]
    deadline = time.monotonic() + deadline_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [
        found.get(topic.id)
        or Check(
            id=topic.id,
            title=topic.title,
            status="unknown",
            detail=f"no response within {deadline_s:g} s",
        )
        for topic in topics
    ]


def examine_hosts(hosts: Sequence[HostRequest], python: str) -> tuple[Judged, HostsReport]:
    """Examine all hosts at once, and whether they fit together.

    Args:
        hosts: the machines.
        python: the job's interpreter, which is the same on all hosts.
    """
    from ddptop_runner.launch.preflight import DoctorWanted
    from ddptop_runner.launch.readiness import Wanted
    from ddptop_runner.launch.survey import LIMIT_S, Survey

    wanted = Wanted(target="", kind="none", cwd="/", python=python, force=True, trains=False)
    with Survey(hosts) as survey:
        judged = survey.collect(wanted, None, {})
        question = DoctorWanted(python=python)
        answers = survey.ask_all(LIMIT_S, {one.host: question for one in hosts}, Report)
    reports = []
    for one in hosts:
        checks = [_together(one.host, judged)]
        if one.host in answers:
            checks += answers[one.host].checks
        reports.append(HostReport(host=one.host, checks=checks))
    return judged, HostsReport(hosts=reports)


def _together(host: str, judged: Judged) -> Check:
    against = [refusal for refusal in judged.refusals if host in refusal.hosts]
    notes = [str(note) for note in judged.notes if host in note.hosts]
    detail = "; ".join(refusal.problem for refusal in against) or "; ".join(notes)
    return Check(
        id="together",
        title="Several machines",
        status="error" if against else "warning" if notes else "ok",
        detail=detail or "reachable and compatible with the other hosts",
        remedy="; ".join(refusal.remedy for refusal in against) or None,
    )
