"""Checks whether this machine can run, guard, and show long training: one check per topic.

Checks change nothing. `examine` runs all of them at once, each in its own thread, and never raises:
a check that raises or takes too long gets the status `unknown`.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ddptop_runner.base import interpreters, paths, programs
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.units import size
from ddptop_runner.devices.hardware import pci_devices
from ddptop_runner.devices.report import DeviceReport, driver_library_exists, sample_once
from ddptop_runner.host import survival, tmux
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.words import Base

Status = Literal["ok", "warning", "error", "unknown"]
"""`error`: launches fail or jobs are lost; `warning`: something works less well; `unknown`: the
check failed or took too long."""

DEADLINE_S = 2.5
"""Time limit for all topics together."""
ASK_TIMEOUT_S = 2.0
"""Time limit for a child process that queries the driver, which may block or crash."""
GIB = 2**30
MIB = 2**20
LOW_DISK_BYTES = 1 * GIB
NO_DISK_BYTES = 50 * MIB
LOW_SHARED_MEMORY_BYTES = 1 * GIB
LOW_OPEN_FILES = 4096


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


def check_platform(place: Place) -> Judgment:
    """Jobs run only on Linux."""
    system, release = platform.system(), platform.release()
    if system != "Linux":
        return Judgment(
            "error", f"{system}; jobs run only on Linux", "copy run folders here to view them"
        )
    where = [f"Linux {release}"]
    where += ["WSL2"] if "microsoft" in release.lower() else []
    marks = (place.root / ".dockerenv", place.root / "run/.containerenv")
    if any(mark.exists() for mark in marks) or "container" in place.env:
        where.append("in a container; all jobs end when it exits")
    return Judgment("ok", ", ".join(where))


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
    report = sample_once(timeout_s=ASK_TIMEOUT_S) if driver_library_exists() else None
    return judge_driver(pci_devices(place.root), report)


def judge_driver(on_bus: int, report: DeviceReport | None) -> Judgment:
    """Judge the driver's report.

    Args:
        on_bus: the number of NVIDIA devices on the PCI bus.
        report: NVML's devices; None if there is no driver library.
    """
    if report is None:
        if not on_bus:
            return Judgment("ok", "no NVIDIA devices; jobs run on the CPU (launch --nproc N)")
        return Judgment(
            "error",
            f"{on_bus} NVIDIA device{'s' if on_bus > 1 else ''}"
            " on the PCI bus, but libnvidia-ml.so.1 is missing",
            "install the NVIDIA driver; for a container, use the NVIDIA runtime"
            " (docker run --gpus all)",
        )
    gpus = [gpu for gpu in report.gpus if gpu.parent_uuid is None]
    if lost := [str(gpu.index) for gpu in gpus if gpu.lost]:
        return Judgment(
            "error",
            f"the driver lost GPU{'s' if len(lost) > 1 else ''} {', '.join(lost)}",
            "check `dmesg`; reboot to recover",
        )
    if not gpus:
        return Judgment("error" if on_bus else "ok", report.note or "the driver reports no devices")
    devices = f"{len(gpus)} device{'s' if len(gpus) > 1 else ''}"
    known = f"driver {report.driver or 'version unknown'}, {devices}"
    if report.note:
        return Judgment("warning", f"{known}: {report.note}")
    return Judgment("ok", known)


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
    words = {True: "yes", False: "no", None: "unknown"}
    detail = (
        f"KillUserProcesses {words[found.kill_user_processes]}, RemoveIPC"
        f" {words[found.remove_ipc]}, linger {words[found.linger]}, this shell is "
        + {
            "session": "in a login session",
            "manager": "under the user's systemd manager",
            "elsewhere": "outside any login session",
        }[found.placement]
    )
    decided = survival.plan(found)
    if decided.risk:
        return Judgment("warning", f"{decided.risk} [{detail}]", decided.remedy)
    if decided.wrap:
        detail += "; launch uses systemd-run --user --scope"
    return Judgment("ok", detail)


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
    rooms = [
        (what, path, os.statvfs(paths.nearest(path)))
        for what, path in (("run folders", paths.runs_dir()), ("working directory", place.cwd))
    ]
    free = {what: room.f_bavail * room.f_frsize for what, _, room in rooms}
    for what, path, room in rooms:
        no_inodes = room.f_files > 0 and not room.f_favail  # 0 of 0 means no limit
        if no_inodes or free[what] < NO_DISK_BYTES:
            kind = "inodes" if no_inodes else "space"
            return Judgment("error", f"no free {kind} for {what} ({path})", "free some space")
    detail = ", ".join(f"{what} {size(left)} free" for what, left in free.items())
    for what, path, _ in rooms:
        if free[what] < LOW_DISK_BYTES:
            return Judgment("warning", f"{detail} ({path})", "free some space: ddptop rm JOB...")
    return Judgment("ok", detail)


def check_shared_memory(place: Place) -> Judgment:
    """Data loaders and NCCL pass data through /dev/shm."""
    folder = place.root / "dev/shm"
    if not folder.is_dir():
        return Judgment("error", "/dev/shm does not exist", "mount a tmpfs there")
    room = os.statvfs(folder)
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    detail = f"{size(total)}, {size(free)} free"
    if total < LOW_SHARED_MEMORY_BYTES:
        return Judgment(
            "warning",
            f"{detail}; data loader workers crash with a bus error when it is full",
            "docker run --shm-size=8g, or: sudo mount -o remount,size=8g /dev/shm",
        )
    if free < LOW_SHARED_MEMORY_BYTES // 4:
        return Judgment(
            "warning", detail, "delete files left in /dev/shm by dead processes (ls -la /dev/shm)"
        )
    return Judgment("ok", detail)


def check_limits(place: Place) -> Judgment:
    """Limits that ranks inherit and may hit late in a run."""
    open_files, most_open_files = map(_or_none, resource.getrlimit(resource.RLIMIT_NOFILE))
    locked_bytes = _or_none(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    detail = f"open files {'unlimited' if open_files is None else open_files}"
    if open_files is not None and open_files < LOW_OPEN_FILES:
        raised = min(LOW_OPEN_FILES * 16, most_open_files or LOW_OPEN_FILES * 16)
        remedy = f"run `ulimit -n {raised}` before launching"
        if raised < LOW_OPEN_FILES:
            remedy = "raise nofile in /etc/security/limits.conf"
        return Judgment("warning", f"{detail}; data loaders may run out of open files", remedy)
    if locked_bytes is not None and (place.root / "dev/infiniband").is_dir():
        return Judgment(
            "warning",
            f"{detail}; locked memory {locked_bytes // 1024} KiB, too low for InfiniBand",
            "ulimit -l unlimited",
        )
    return Judgment("ok", detail)


def _or_none(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def check_host(_: Place) -> Judgment:
    """A hostname that does not resolve breaks process groups."""
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)[0][4][0]
    except OSError:
        return Judgment(
            "warning",
            f"{name} does not resolve; gloo may fail to connect",
            f"add the line '127.0.1.1 {name}' to /etc/hosts",
        )
    return Judgment("ok", f"{name} resolves to {address}")


SLURM_TOOLS = ("sbatch", "srun", "squeue", "scontrol")


def check_slurm(place: Place) -> Judgment:
    """Slurm must be usable for `launch --slurm`."""
    job_id = place.env.get("SLURM_JOB_ID")
    found = {tool: shutil.which(tool, path=place.env.get("PATH")) for tool in SLURM_TOOLS}
    if not any(found.values()):
        if job_id:
            return Judgment("ok", f"inside Slurm job {job_id}; jobs end when it ends")
        return Judgment("ok", "no batch system found")
    if missing := [tool for tool, path in found.items() if path is None]:
        return Judgment(
            "warning",
            f"Slurm is installed, but {', '.join(missing)} not found",
            "add Slurm's commands to PATH (module load slurm)",
        )
    try:
        done = programs.run([str(found["scontrol"]), "ping"], ASK_TIMEOUT_S, env=place.env)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is None or " UP" not in done.stdout:
        return Judgment(
            "warning", "Slurm is installed, but its controller does not respond", "check `sinfo`"
        )
    detail = f"inside Slurm job {job_id}; jobs end with it" if job_id else "Slurm responds"
    if paths.shared_file_system(paths.state_home()) is None:
        return Judgment(
            "warning",
            f"{detail}; run folders are in {paths.state_home()}, on a local disk",
            "set DDPTOP_HOME to a directory that all nodes share",
        )
    return Judgment("ok", detail)


TOPICS = (
    Topic("platform", "Platform", check_platform),
    Topic("python", "Python and torch", check_python),
    Topic("nvidia", "NVIDIA driver", check_driver),
    Topic("tmux", "tmux", check_tmux),
    Topic("logout", "Logout", check_logout),
    Topic("home", "Run folders", check_folder),
    Topic("disk", "Disk", check_disk),
    Topic("shm", "Shared memory", check_shared_memory),
    Topic("limits", "Limits", check_limits),
    Topic("host", "Hostname", check_host),
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
