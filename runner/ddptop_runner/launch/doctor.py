"""Whether this machine can run, guard and show a long training: one judged check per topic.

A check is a pure function of its topic's facts. `examine` gathers all facts at the same time and
never raises: a topic that raises or is late becomes a check of status `unknown`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.units import size
from ddptop_runner.host import survival
from ddptop_runner.launch import doctor_facts as facts
from ddptop_runner.model.base import Base
from ddptop_runner.model.snapshot import SCHEMA

Status = Literal["ok", "warning", "error", "unknown"]
"""`error`: a launch fails or a job is lost; `warning`: something works less well; `unknown`: the
machine did not tell."""

DEADLINE_S = 2.5
"""All topics together."""
GIB = 2**30
MIB = 2**20
LOW_DISK_BYTES = 1 * GIB
NO_DISK_BYTES = 50 * MIB
LOW_SHARED_MEMORY_BYTES = 1 * GIB
LOW_MEMORY_BYTES = 4 * GIB
LOW_OPEN_FILES = 4096
LOW_PROCESSES = 2048
SLOW_LOOK_UP_S = 0.5


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


class Judgement(NamedTuple):
    """A check without its name."""

    status: Status
    detail: str
    remedy: str | None = None


class Topic(NamedTuple):
    """A thing to look at."""

    id: str
    title: str
    gather: Callable[[facts.Place], Any]
    judge: Callable[[Any], Judgement]


# --- judges ----------------------------------------------------------------------------------


def judge_platform(found: facts.PlatformFacts) -> Judgement:
    """Linux runs jobs."""
    if found.system != "Linux":
        return Judgement(
            "error", f"{found.system}; jobs run only on Linux", "copy run folders here to view them"
        )
    where = [f"Linux {found.release}"]
    where += ["WSL2"] if found.wsl else []
    where += ["in a container; all jobs end when it exits"] if found.container else []
    if not found.pidfd:
        return Judgement(
            "warning",
            f"{', '.join(where)}; no pidfd, so the order in which ranks exit is approximate",
            "use kernel 5.3 or newer, or a container profile that allows pidfd_open",
        )
    return Judgement("ok", ", ".join(where))


def judge_tmux(found: facts.TmuxFacts) -> Judgement:
    """Without tmux a job runs as a daemon."""
    if found.unusable:
        return Judgement(
            "warning",
            f"{found.unusable}; jobs run as daemons, without a tmux pane",
            "install tmux 3.2a or newer (sudo apt install tmux)",
        )
    if found.socket_problem:
        return Judgement(
            "warning",
            f"{found.socket_dir} {found.socket_problem}; jobs run as daemons, without a tmux pane",
            f"chmod 700 {found.socket_dir}, or set TMUX_TMPDIR to a directory of your own",
        )
    return Judgement("ok", f"usable; sockets are in {found.socket_dir}")


def judge_python(found: facts.InterpreterFacts) -> Judgement:
    """What runs the ranks."""
    if found.problem or found.path is None or found.version is None:
        return Judgement("error", found.problem or "no Python found", "pass --python PATH")
    python = f"{found.path} (Python {found.version[0]}.{found.version[1]})"
    try:
        interpreters.require_torch(
            interpreters.Interpreter(found.path, found.version, found.torch_version)
        )
    except UsageError as error:
        return Judgement("error", error.message, error.hint)
    version = str(found.torch_version)
    if found.nvidia_devices and version.endswith("+cpu"):
        return Judgement(
            "warning",
            f"torch {version} in {python} cannot use this machine's NVIDIA devices",
            "install a CUDA build of torch",
        )
    return Judgement("ok", f"torch {version} in {python}")


def judge_driver(found: facts.DriverFacts) -> Judgement:
    """Devices are seen through NVML."""
    if not found.library:
        if found.pci_devices:
            return Judgement(
                "error",
                f"{found.pci_devices} NVIDIA device{'s' if found.pci_devices > 1 else ''}"
                " on the PCI bus, but libnvidia-ml.so.1 is missing",
                "install the NVIDIA driver; for a container, use the NVIDIA runtime"
                " (docker run --gpus all)",
            )
        return Judgement("ok", "no NVIDIA devices; jobs run on the CPU (launch --nproc N)")
    if found.lost:
        numbers = ", ".join(map(str, found.lost))
        return Judgement(
            "error",
            f"the driver lost GPU{'s' if len(found.lost) > 1 else ''} {numbers}",
            "check `dmesg`; reboot to recover",
        )
    if not found.devices:
        return Judgement(
            "error" if found.pci_devices else "ok", found.note or "the driver reports no devices"
        )
    devices = f"{found.devices} device{'s' if found.devices > 1 else ''}"
    known = f"driver {found.driver or 'version unknown'}, {devices}"
    ill, remedies = [], []
    if found.ecc:
        counts = (f"GPU {index}: {errors}" for index, errors in found.ecc)
        ill.append(f"uncorrectable memory errors ({', '.join(counts)})")
        remedies.append("check `nvidia-smi -q -d ECC,ROW_REMAPPER`; a reset may help")
    if found.hot:
        degrees = (f"GPU {index}: {celsius:.0f} °C" for index, celsius in found.hot)
        ill.append(f"at or near the slowdown temperature ({', '.join(degrees)})")
        remedies.append("check the fans, airflow, and power limit")
    if found.note:
        ill.insert(0, found.note)
    if ill:
        return Judgement("warning", f"{known}: {'; '.join(ill)}", "; ".join(remedies) or None)
    return Judgement("ok", known)


def judge_ptrace(found: facts.PtraceFacts) -> Judgement:
    """Stacks of ranks without a probe need py-spy and the right to trace."""
    may = found.capable or found.yama_scope == 0 or found.yama_scope is None
    if not found.py_spy:
        return Judgement(
            "ok", "the probe provides stacks; ranks without it have none (py-spy is not installed)"
        )
    if may:
        return Judgement("ok", "py-spy is installed and can trace")
    return Judgement(
        "warning",
        f"py-spy is installed but cannot trace (ptrace_scope {found.yama_scope})",
        "sudo sysctl kernel.yama.ptrace_scope=0",
    )


def judge_limits(found: facts.LimitFacts) -> Judgement:
    """Limits that end trainings late."""
    few = found.open_files is not None and found.open_files < LOW_OPEN_FILES
    files = "unlimited" if found.open_files is None else str(found.open_files)
    processes = "unlimited" if found.processes is None else str(found.processes)
    detail = f"open files {files}, processes {processes}, core dumps "
    detail += {None: "unlimited", 0: "off"}.get(found.core_bytes, "limited")
    if found.processes is not None and found.processes < LOW_PROCESSES:
        return Judgement(
            "warning",
            f"{detail}; a rank needs about 100 threads and processes",
            "raise `ulimit -u`, or the container's --pids-limit",
        )
    if few:
        wanted = LOW_OPEN_FILES * 16
        hard = found.open_files_hard
        raised = wanted if hard is None else min(wanted, hard)
        remedy = f"run ulimit -n {raised} before launching"
        if raised < LOW_OPEN_FILES:
            remedy = "raise nofile in /etc/security/limits.conf"
        return Judgement("warning", f"{detail}; data loaders may run out of open files", remedy)
    if found.infiniband and found.locked_bytes is not None:
        return Judgement(
            "warning",
            f"{detail}; locked memory {found.locked_bytes // 1024} KiB, too low for InfiniBand",
            "ulimit -l unlimited",
        )
    return Judgement("ok", detail)


def judge_disk(found: Sequence[facts.DiskFacts]) -> Judgement:
    """A full disk loses checkpoints and history."""
    detail = ", ".join(f"{room.what} {size(room.free_bytes)} free" for room in found)
    for room in found:
        if room.free_bytes < NO_DISK_BYTES or room.free_files == 0:
            what = "inodes" if room.free_files == 0 else "space"
            return Judgement(
                "error", f"no free {what} for {room.what} ({room.path})", "free some space"
            )
    for room in found:
        if room.free_bytes < LOW_DISK_BYTES:
            return Judgement(
                "warning", f"{detail} ({room.path})", "free some space: ddptop rm JOB..."
            )
    return Judgement("ok", detail)


def judge_shared_memory(found: facts.SharedMemoryFacts) -> Judgement:
    """Data loaders and NCCL move data through it."""
    if found.size_bytes is None:
        return Judgement("error", "/dev/shm does not exist", "mount a tmpfs there")
    detail = f"{size(found.size_bytes)}"
    if found.free_bytes is not None:
        detail += f", {size(found.free_bytes)} free"
    if found.size_bytes < LOW_SHARED_MEMORY_BYTES:
        return Judgement(
            "warning",
            f"{detail}; data loader workers crash with a bus error when it is full",
            "docker run --shm-size=8g, or: sudo mount -o remount,size=8g /dev/shm",
        )
    if found.free_bytes is not None and found.free_bytes < LOW_SHARED_MEMORY_BYTES // 4:
        return Judgement(
            "warning", detail, "delete files left in /dev/shm by dead processes (ls -la /dev/shm)"
        )
    return Judgement("ok", detail)


def judge_host(found: facts.HostFacts) -> Judgement:
    """A name that resolves slowly or not at all delays or breaks process groups."""
    hosts = f"add the line '127.0.1.1 {found.name}' to /etc/hosts"
    if found.addresses is None:
        return Judgement("warning", f"{found.name}: the resolver did not respond within 1 s", hosts)
    if not found.addresses:
        return Judgement(
            "warning", f"{found.name} does not resolve; gloo may fail to connect", hosts
        )
    detail = f"{found.name} resolves to {found.addresses[0]}"
    loopback = all(a.startswith("127.") or a == "::1" for a in found.addresses)
    if loopback:
        detail += " (loopback, fine for one machine)"
    if found.reverse_s is None or found.reverse_s > SLOW_LOOK_UP_S:
        took = "over 1 s" if found.reverse_s is None else f"{found.reverse_s:.1f} s"
        line = f"'{found.addresses[0]} {found.name}'"
        return Judgement(
            "warning",
            f"{detail}; a reverse lookup delays each process group startup by {took}",
            f"add the line {line} to /etc/hosts",
        )
    return Judgement("ok", detail)


def judge_folder(found: facts.FolderFacts) -> Judgement:
    """Run folders must be writable; anywhere will do."""
    if found.problem:
        return Judgement(
            "error",
            f"{found.path} cannot be used ({found.problem})",
            "set DDPTOP_HOME to a writable directory",
        )
    if found.local_reason:
        return Judgement("ok", f"{found.path} ({found.local_reason}; live files are in /var/tmp)")
    return Judgement("ok", f"{found.path}, on a local disk")


def judge_survival(found: survival.SurvivalFacts) -> Judgement:
    """What systemd does at logout."""
    if not found.systemd:
        return Judgement("ok", "no systemd; logging out does not affect jobs")
    words = {True: "yes", False: "no", None: "unknown"}
    detail = (
        f"KillUserProcesses {words[found.kill_user_processes]}, RemoveIPC"
        f" {words[found.remove_ipc]}, linger {words[found.linger]}, this shell is "
        + {
            "session": "in a login session",
            "manager": "under the user's systemd",
            "elsewhere": "outside any login session",
        }[found.placement]
    )
    decided = survival.plan(found)
    if decided.risk:
        return Judgement("warning", f"{decided.risk} [{detail}]", decided.remedy)
    if decided.wrap:
        detail += "; launch uses systemd-run --user --scope"
    return Judgement("ok", detail)


def judge_memory(found: facts.MemoryFacts) -> Judgement:
    """A cgroup's limit kills ranks without a word."""
    total = "unknown" if found.total_bytes is None else f"{size(found.total_bytes)}"
    if found.limit_bytes is None:
        return Judgement("ok", f"{total}, no cgroup limit")
    detail = f"{total}, limited to {size(found.limit_bytes)} by the cgroup"
    if found.limit_bytes < LOW_MEMORY_BYTES:
        return Judgement(
            "warning",
            f"{detail}; the kernel kills ranks that exceed it",
            "raise the container's --memory, or the unit's MemoryMax=",
        )
    return Judgement("ok", detail)


def judge_clock(found: facts.ClockFacts) -> Judgement:
    """Times of events come from the wall clock, durations do not."""
    if not found.boottime:
        return Judgement("warning", "no CLOCK_BOOTTIME; a system suspend looks like a hang")
    behind_s = found.newest_file_s - found.now_s
    if behind_s > 1:
        return Judgement(
            "warning",
            f"the clock is at least {behind_s:.0f} s behind the timestamps of ddptop's files",
            "synchronize it (timedatectl set-ntp true)",
        )
    return Judgement("ok", "no problems found")


def judge_slurm(found: facts.SlurmFacts) -> Judgement:
    """Information only."""
    if found.job_id:
        return Judgement("ok", f"inside Slurm job {found.job_id}; jobs end when it ends")
    return Judgement("ok", "Slurm is installed" if found.installed else "no batch system found")


def gather_survival(place: facts.Place) -> survival.SurvivalFacts:
    """Facts of `survival`, which launch uses too."""
    return survival.gather(place.env, place.root)


TOPICS = (
    Topic("platform", "Platform", facts.gather_platform, judge_platform),
    Topic("python", "Python and torch", facts.gather_interpreter, judge_python),
    Topic("nvidia", "NVIDIA driver", facts.gather_driver, judge_driver),
    Topic("tmux", "tmux", facts.gather_tmux, judge_tmux),
    Topic("logout", "Logout", gather_survival, judge_survival),
    Topic("home", "Run folders", facts.gather_folder, judge_folder),
    Topic("disk", "Disk", facts.gather_disk, judge_disk),
    Topic("shm", "Shared memory", facts.gather_shared_memory, judge_shared_memory),
    Topic("memory", "Memory", facts.gather_memory, judge_memory),
    Topic("limits", "Limits", facts.gather_limits, judge_limits),
    Topic("host", "Host name", facts.gather_host, judge_host),
    Topic("stacks", "Stacks", facts.gather_ptrace, judge_ptrace),
    Topic("clock", "Clock", facts.gather_clock, judge_clock),
    Topic("slurm", "Slurm", facts.gather_slurm, judge_slurm),
)


def examine(
    place: facts.Place, topics: Sequence[Topic] = TOPICS, deadline_s: float = DEADLINE_S
) -> list[Check]:
    """All checks in the order of `topics`, in at most about `deadline_s`. Never raises."""
    found: dict[str, Check] = {}

    def look(topic: Topic) -> None:
        try:
            judged = topic.judge(topic.gather(place))
        except Exception as error:  # a doctor that dies of the illness helps nobody
            judged = Judgement("unknown", f"check failed ({type(error).__name__}: {error})")
        found[topic.id] = Check(id=topic.id, title=topic.title, **judged._asdict())

    threads = [threading.Thread(target=look, args=(topic,), daemon=True) for topic in topics]
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
