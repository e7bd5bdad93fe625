"""Checks whether this machine can run, guard, and show long training: one check per topic.

Checks change nothing. `examine` runs all of them at once, each in its own thread, and never raises:
a check that raises or takes too long gets the status `unknown`.
"""

from __future__ import annotations

import os
import platform
import queue
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from ddptop_runner.base import interpreters, paths, programs
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.units import size
from ddptop_runner.devices.hardware import pci_devices
from ddptop_runner.devices.report import DeviceReport, driver_library_exists, sample_once
from ddptop_runner.host import oom, survival, tmux
from ddptop_runner.launch.gpus.usage import is_hot
from ddptop_runner.launch.slurm import config_of
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.model.words import Base

Status = Literal["ok", "warning", "error", "unknown"]
"""`error`: launches fail or jobs are lost; `warning`: something works less well; `unknown`: the
check failed or took too long."""

DEADLINE_S = 2.5
"""Time limit for all topics together."""
ASK_TIMEOUT_S = 2.0
"""Time limit for a child process that queries the driver, which may block or crash."""
NAME_TIMEOUT_S = 1.0
"""Time limit for one name lookup."""
GIB = 2**30
MIB = 2**20
LOW_DISK_BYTES = 1 * GIB
NO_DISK_BYTES = 50 * MIB
LOW_SHARED_MEMORY_BYTES = 1 * GIB
LOW_MEMORY_BYTES = 4 * GIB
LOW_OPEN_FILES = 4096
LOW_PROCESSES = 2048
SLOW_LOOKUP_S = 0.5
CAP_SYS_PTRACE = 19


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
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        return Judgment(
            "warning",
            f"{', '.join(where)}; no pidfd, so the order in which ranks exit is approximate",
            "use kernel 5.3 or newer, or a container profile that allows pidfd_open",
        )
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
    problems = [report.note] if report.note else []
    remedies = []
    if errors := [f"GPU {gpu.index}: {gpu.ecc_uncorrected}" for gpu in gpus if gpu.ecc_uncorrected]:
        problems.append(f"uncorrectable memory errors ({', '.join(errors)})")
        remedies.append("check `nvidia-smi -q -d ECC,ROW_REMAPPER`; a reset may help")
    if hot := [f"GPU {gpu.index}: {gpu.temperature_c:.0f} °C" for gpu in gpus if is_hot(gpu)]:
        problems.append(f"at or near the slowdown temperature ({', '.join(hot)})")
        remedies.append("check the fans, airflow, and power limit")
    if problems:
        return Judgment("warning", f"{known}: {'; '.join(problems)}", "; ".join(remedies) or None)
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


def check_memory(place: Place) -> Judgment:
    """A cgroup's memory limit kills ranks without a message."""
    total = "unknown"
    for line in (read_text(place.root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            total = size(int(line.split()[1]) * 1024)
    limit = cgroup_limit(place.root, "memory", "memory.max", "memory.limit_in_bytes")
    if limit is None:
        return Judgment("ok", f"{total}, no cgroup limit")
    detail = f"{total}, limited to {size(limit)} by the cgroup"
    if limit < LOW_MEMORY_BYTES:
        return Judgment(
            "warning",
            f"{detail}; the kernel kills ranks that exceed it",
            "raise the container's --memory, or the unit's MemoryMax=",
        )
    return Judgment("ok", detail)


def check_limits(place: Place) -> Judgment:
    """Limits that ranks inherit and may hit late in a run."""
    open_files, most_open_files = map(_or_none, resource.getrlimit(resource.RLIMIT_NOFILE))
    core_bytes = _or_none(resource.getrlimit(resource.RLIMIT_CORE)[0])
    locked_bytes = _or_none(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    by_user = _or_none(resource.getrlimit(resource.RLIMIT_NPROC)[0]) if os.getuid() else None
    by_cgroup = cgroup_limit(place.root, "pids", "pids.max", "pids.max")
    processes = min((limit for limit in (by_user, by_cgroup) if limit is not None), default=None)
    detail = f"open files {_limit(open_files)}, processes {_limit(processes)}, core dumps "
    detail += {None: "unlimited", 0: "off"}.get(core_bytes, "limited")
    if processes is not None and processes < LOW_PROCESSES:
        return Judgment(
            "warning",
            f"{detail}; a rank needs about 100 threads and processes",
            "raise `ulimit -u`, or the container's --pids-limit",
        )
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


def _limit(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def check_host(_: Place) -> Judgment:
    """A hostname that resolves slowly, or not at all, delays or breaks process groups."""
    name = socket.gethostname()
    answer = within(NAME_TIMEOUT_S, lambda: _addresses(name))
    hosts = f"add the line '127.0.1.1 {name}' to /etc/hosts"
    if answer is None:
        return Judgment("warning", f"{name}: the resolver did not respond within 1 s", hosts)
    addresses = answer[0]
    if not addresses:
        return Judgment("warning", f"{name} does not resolve; gloo may fail to connect", hosts)
    detail = f"{name} resolves to {addresses[0]}"
    if all(one.startswith("127.") or one == "::1" for one in addresses):
        detail += " (loopback, fine on a single machine)"
    reverse = within(NAME_TIMEOUT_S, lambda: _has_name(addresses[0]))
    if reverse is None or reverse[1] > SLOW_LOOKUP_S:
        took = "over 1 s" if reverse is None else f"{reverse[1]:.1f} s"
        return Judgment(
            "warning",
            f"{detail}; a reverse lookup delays the startup of each process group by {took}",
            f"add the line '{addresses[0]} {name}' to /etc/hosts",
        )
    return Judgment("ok", detail)


def _addresses(name: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _has_name(address: str) -> bool:
    try:
        socket.gethostbyaddr(address)
    except OSError:
        return False
    return True


def check_ptrace(place: Place) -> Judgment:
    """Stacks of ranks without a probe require py-spy and permission to trace."""
    if shutil.which("py-spy", path=place.env.get("PATH")) is None:
        return Judgment("ok", "py-spy is not installed; only ranks with the probe provide stacks")
    scope = read_text(place.root / "proc/sys/kernel/yama/ptrace_scope") or "0"
    for line in (read_text(place.root / "proc/self/status") or "").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> CAP_SYS_PTRACE & 1:
            scope = "0"
    if scope == "0":
        return Judgment("ok", "py-spy is installed and can trace")
    return Judgment(
        "warning",
        f"py-spy is installed but cannot trace (ptrace_scope {scope})",
        "sudo sysctl kernel.yama.ptrace_scope=0",
    )


def check_clock(_: Place) -> Judgment:
    """Event times come from the wall clock; durations do not."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return Judgment("warning", "no CLOCK_BOOTTIME; a system suspend looks like a hang")
    files = Path(__file__).parent.glob("*.py")  # a correct clock is not earlier than these
    behind_s = max(file.stat().st_mtime for file in files) - time.time()
    if behind_s > 1:
        return Judgment(
            "warning",
            f"the clock is at least {behind_s:.0f} s behind the timestamps on ddptop's files",
            "synchronize it (timedatectl set-ntp true)",
        )
    return Judgment("ok", "no problems found")


SLURM_TOOLS = ("sbatch", "srun", "squeue", "scontrol")
SLOW_NODE_FAILURE_S = 300


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
        argv = [str(found["scontrol"]), "show", "config"]
        done = programs.run(argv, ASK_TIMEOUT_S, env=place.env)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    config = {} if done is None else config_of(done.stdout)
    return judge_slurm(config, job_id, paths.shared_file_system(paths.state_home()))


def judge_slurm(config: Mapping[str, str], job_id: str | None, shared: str | None) -> Judgment:
    """Judge Slurm's settings.

    Args:
        config: the settings from `scontrol show config`; empty if the controller did not respond.
        job_id: the job ID of the allocation that this runs in.
        shared: the shared file system of the run folders; None if they are on a local disk.
    """
    if not config:
        return Judgment(
            "warning", "Slurm is installed, but its controller does not respond", "check `sinfo`"
        )
    names = ("SlurmdTimeout", "JobRequeue", "PreemptMode")
    known = ", ".join(f"{name} {config[name]}" for name in names if name in config)
    where = f"inside Slurm job {job_id}; jobs end with it" if job_id else "Slurm responds"
    detail = f"{where}; {known}"
    problems, remedies = [], []
    if config.get("JobRequeue") == "0":
        problems.append("JobRequeue 0: jobs are not requeued after a node failure")
        remedies.append("pass --requeue to sbatch, as ddptop launch --slurm does")
    timeout = re.match(r"([0-9]+)", config.get("SlurmdTimeout", ""))
    if timeout is not None and int(timeout[1]) > SLOW_NODE_FAILURE_S:
        problems.append(f"a dead node is noticed after {timeout[1]} s")
        remedies.append("ask the administrator for a lower SlurmdTimeout")
    if shared is None:
        problems.append(f"run folders are in {paths.state_home()}, on a local disk")
        remedies.append("set DDPTOP_HOME to a directory that all nodes share")
    if problems:
        return Judgment("warning", f"{detail}; {'; '.join(problems)}", "; ".join(remedies))
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
    Topic("memory", "Memory", check_memory),
    Topic("limits", "Limits", check_limits),
    Topic("host", "Hostname", check_host),
    Topic("stacks", "Stacks", check_ptrace),
    Topic("clock", "Clock", check_clock),
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


T = TypeVar("T")


def read_text(file: Path) -> str | None:
    """A small file's text, stripped; None if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def within(limit_s: float, ask: Callable[[], T]) -> tuple[T, float] | None:
    """(the result of `ask()`, the seconds it took); None if it is late or raises.

    The thread of a late call is left running, because a name lookup cannot be interrupted.
    """
    answers: queue.SimpleQueue[tuple[T, float] | None] = queue.SimpleQueue()

    def run() -> None:
        started = time.monotonic()
        try:
            answers.put((ask(), time.monotonic() - started))
        except Exception:  # reported as None
            answers.put(None)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return None


def cgroup_limit(root: Path, controller: str, v2_file: str, v1_file: str) -> int | None:
    """The lowest limit of this process's cgroup and its ancestors; None if there is none.

    Args:
        root: the root of the file system.
        controller: its name in cgroup v1, such as "memory".
        v2_file: the file with the limit in cgroup v2.
        v1_file: the file with the limit in cgroup v1.
    """
    hierarchies = oom.cgroup_folders(controller, "self", root / "proc", root / "sys/fs/cgroup")
    found = (
        oom.number_in(folder / (v1_file if version == 1 else v2_file))
        for version, folders in hierarchies
        for folder in folders
    )
    return min((one for one in found if one is not None and one < oom.NO_LIMIT), default=None)
