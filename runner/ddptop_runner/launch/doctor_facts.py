"""What `ddptop doctor` looks at: one frozen record per topic, and the function that fills it.

Gatherers only look; `doctor` judges. They run at the same time, each in a thread of its own, and
may be late or raise: the topic is unknown then.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ddptop_runner.base import interpreters, paths
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.machine import cgroup_limit, nearest, read_text, within
from ddptop_runner.devices.once import sample_once
from ddptop_runner.devices.report import driver_library_exists
from ddptop_runner.host import tmux
from ddptop_runner.launch.gpus.usage import is_hot
from ddptop_runner.model.base import Base

ASK_TIMEOUT_S = 2.0
"""For a child process: the driver, an interpreter."""
NAME_TIMEOUT_S = 1.0
"""For one question to the resolver."""
CAP_SYS_PTRACE = 19
NVIDIA = "0x10de"


class Place(Base, frozen=True, kw_only=True):
    """Where to look. Tests give another root and another environment."""

    env: Mapping[str, str]
    root: Path = Path("/")
    cwd: Path
    python: str | None = None
    """The interpreter asked for; None: the one that `launch` would take."""


class PlatformFacts(Base, frozen=True, kw_only=True):
    """The kind of machine."""

    system: str
    release: str
    wsl: bool = False
    container: bool = False
    pidfd: bool = True
    """Whether the kernel gives pidfds to this process."""


def gather_platform(place: Place) -> PlatformFacts:
    """Kernel, WSL, container."""
    release = platform.release()
    pidfd = False
    try:
        os.close(os.pidfd_open(os.getpid()))
        pidfd = True
    except (OSError, AttributeError):
        pass
    marks = (place.root / ".dockerenv", place.root / "run/.containerenv")
    return PlatformFacts(
        system=platform.system(),
        release=release,
        wsl="microsoft" in release.lower(),
        container=any(mark.exists() for mark in marks) or "container" in place.env,
        pidfd=pidfd,
    )


class TmuxFacts(Base, frozen=True, kw_only=True):
    """Whether tmux can hold a job."""

    unusable: str | None
    """Why not, or None."""
    socket_dir: str
    socket_problem: str | None = None


def gather_tmux(place: Place) -> TmuxFacts:
    """The program, its version and the folder of its sockets."""
    return TmuxFacts(
        unusable=tmux.program_problem(),
        socket_dir=str(tmux.socket_dir()),
        socket_problem=tmux.folder_problem(),
    )


class InterpreterFacts(Base, frozen=True, kw_only=True):
    """The job's Python."""

    path: str | None = None
    version: tuple[int, int] | None = None
    torch_version: str | None = None
    problem: str | None = None
    nvidia_devices: int = 0


def gather_interpreter(place: Place) -> InterpreterFacts:
    """Look at the interpreter without importing torch."""
    try:
        found = interpreters.inspect(interpreters.choose(place.python, place.env))
    except DdptopError as error:
        return InterpreterFacts(path=place.python, problem=str(error))
    return InterpreterFacts(
        path=found.path,
        version=found.version,
        torch_version=found.torch_version,
        nvidia_devices=pci_devices(place.root),
    )


class DriverFacts(Base, frozen=True, kw_only=True):
    """The NVIDIA driver as NVML tells it."""

    library: bool
    pci_devices: int
    """Display and 3D controllers of NVIDIA on the PCI bus."""
    driver: str | None = None
    devices: int = 0
    lost: tuple[int, ...] = ()
    ecc: tuple[tuple[int, int], ...] = ()
    """Devices that counted memory errors which could not be corrected, and how many."""
    hot: tuple[tuple[int, float], ...] = ()
    """Devices that are about to lower their clocks, and how many degrees Celsius they have."""
    note: str | None = None


def pci_devices(root: Path) -> int:
    """How many NVIDIA display or 3D controllers the PCI bus has."""
    found = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        kind = read_text(device / "class") or ""
        found += kind.startswith("0x03") and read_text(device / "vendor") == NVIDIA
    return found


def gather_driver(place: Place) -> DriverFacts:
    """Ask NVML in a child process: a sick driver blocks or crashes who asks."""
    on_bus = pci_devices(place.root)
    if not driver_library_exists():
        return DriverFacts(library=False, pci_devices=on_bus)
    report = sample_once(timeout_s=ASK_TIMEOUT_S)
    whole = [gpu for gpu in report.gpus if gpu.parent_uuid is None]
    return DriverFacts(
        library=True,
        pci_devices=on_bus,
        driver=report.driver,
        devices=sum(gpu.parent_uuid is None for gpu in report.gpus),
        lost=tuple(gpu.index for gpu in report.gpus if gpu.lost and gpu.parent_uuid is None),
        ecc=tuple((gpu.index, gpu.ecc_uncorrected) for gpu in whole if gpu.ecc_uncorrected),
        hot=tuple(
            (gpu.index, gpu.temperature_c)
            for gpu in whole
            if gpu.temperature_c is not None and is_hot(gpu)
        ),
        note=report.note,
    )


class PtraceFacts(Base, frozen=True, kw_only=True):
    """Who may read another process's stack."""

    yama_scope: int | None
    capable: bool
    py_spy: bool


def gather_ptrace(place: Place) -> PtraceFacts:
    """Yama's setting, our capability, py-spy."""
    scope = read_text(place.root / "proc/sys/kernel/yama/ptrace_scope")
    capable = False
    for line in (read_text(place.root / "proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            capable = bool(int(line.split()[1], 16) >> CAP_SYS_PTRACE & 1)
    return PtraceFacts(
        yama_scope=int(scope) if scope else None,
        capable=capable,
        py_spy=shutil.which("py-spy", path=place.env.get("PATH")) is not None,
    )


class LimitFacts(Base, frozen=True, kw_only=True):
    """Limits that ranks inherit; None is no limit."""

    open_files: int | None
    open_files_hard: int | None
    processes: int | None
    """The tighter of `ulimit -u` (root has none) and the cgroup's pids.max."""
    core_bytes: int | None
    locked_bytes: int | None
    infiniband: bool


def gather_limits(place: Place) -> LimitFacts:
    """The soft limits of this process and the pids controller."""
    open_files, open_files_hard = map(_or_none, resource.getrlimit(resource.RLIMIT_NOFILE))
    by_user = _or_none(resource.getrlimit(resource.RLIMIT_NPROC)[0]) if os.getuid() else None
    by_cgroup = cgroup_limit(place.root, "pids", "pids.max", "pids.max")
    known = [limit for limit in (by_user, by_cgroup) if limit is not None]
    return LimitFacts(
        open_files=open_files,
        open_files_hard=open_files_hard,
        processes=min(known) if known else None,
        core_bytes=_or_none(resource.getrlimit(resource.RLIMIT_CORE)[0]),
        locked_bytes=_or_none(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        infiniband=(place.root / "dev/infiniband").is_dir(),
    )


class DiskFacts(Base, frozen=True, kw_only=True):
    """Room for one kind of file."""

    what: str
    path: str
    free_bytes: int
    free_files: int | None
    """None where the file system has no fixed number of files."""


def gather_disk(place: Place) -> tuple[DiskFacts, ...]:
    """The file systems of the run folders and of the working folder."""
    rooms = []
    for what, path in (("run folders", paths.runs_dir()), ("working directory", place.cwd)):
        room = os.statvfs(nearest(path))
        rooms.append(
            DiskFacts(
                what=what,
                path=str(path),
                free_bytes=room.f_bavail * room.f_frsize,
                free_files=room.f_favail if room.f_files else None,
            )
        )
    return tuple(rooms)


class SharedMemoryFacts(Base, frozen=True, kw_only=True):
    """/dev/shm, which data loaders and NCCL use; None where there is none."""

    size_bytes: int | None
    free_bytes: int | None


def gather_shared_memory(place: Place) -> SharedMemoryFacts:
    """Size and room of /dev/shm."""
    folder = place.root / "dev/shm"
    if not folder.is_dir():
        return SharedMemoryFacts(size_bytes=None, free_bytes=None)
    room = os.statvfs(folder)
    return SharedMemoryFacts(
        size_bytes=room.f_blocks * room.f_frsize, free_bytes=room.f_bavail * room.f_frsize
    )


class HostFacts(Base, frozen=True, kw_only=True):
    """What the resolver says of this host's own name; None: no answer in a second."""

    name: str
    addresses: tuple[str, ...] | None
    """Empty: the name is not known."""
    reverse_s: float | None
    """How long the question for the name of the first address took."""


def gather_host(place: Place) -> HostFacts:
    """Forward and reverse look-up, each with a time limit."""
    name = socket.gethostname()
    answer = within(NAME_TIMEOUT_S, lambda: _addresses(name))
    addresses = None if answer is None else answer[0]
    first = addresses[0] if addresses else "127.0.0.1"
    reverse = within(NAME_TIMEOUT_S, lambda: _has_name(first))
    return HostFacts(
        name=name, addresses=addresses, reverse_s=None if reverse is None else reverse[1]
    )


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


class FolderFacts(Base, frozen=True, kw_only=True):
    """The folder that holds all run folders."""

    path: str
    problem: str | None
    """Why nothing can be written there, or None."""
    shared: str | None
    """The name of a file system shared between hosts, or None."""
    local_reason: str | None
    """Why database and sockets cannot lie there, or None."""


def gather_folder(place: Place) -> FolderFacts:
    """Try to write, and look at the file system."""
    home = paths.state_home()
    existing = nearest(home)
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
    return FolderFacts(
        path=str(home),
        problem=problem,
        shared=paths.shared_file_system(home),
        local_reason=paths.local_dir_reason(paths.run_folder("a-job")),
    )


class MemoryFacts(Base, frozen=True, kw_only=True):
    """Memory that ranks may use."""

    total_bytes: int | None
    limit_bytes: int | None
    """The cgroup's limit, or None without one."""


def gather_memory(place: Place) -> MemoryFacts:
    """The machine's memory and the cgroup's limit."""
    total = None
    for line in (read_text(place.root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
    limit = cgroup_limit(place.root, "memory", "memory.max", "memory.limit_in_bytes")
    return MemoryFacts(total_bytes=total, limit_bytes=limit)


class ClockFacts(Base, frozen=True, kw_only=True):
    """The wall clock beside something that was written before now."""

    now_s: float
    newest_file_s: float
    """When ddptop's own newest file was written: the clock cannot be earlier."""
    boottime: bool


def gather_clock(place: Place) -> ClockFacts:
    """Wall clock, and whether CLOCK_BOOTTIME exists."""
    files = Path(__file__).parent.glob("*.py")
    return ClockFacts(
        now_s=time.time(),
        newest_file_s=max(file.stat().st_mtime for file in files),
        boottime=hasattr(time, "CLOCK_BOOTTIME"),
    )


class SlurmFacts(Base, frozen=True, kw_only=True):
    """Whether a batch system is here."""

    job_id: str | None
    installed: bool


def gather_slurm(place: Place) -> SlurmFacts:
    """Slurm's variables and programs."""
    sbatch = shutil.which("sbatch", path=place.env.get("PATH"))
    return SlurmFacts(job_id=place.env.get("SLURM_JOB_ID"), installed=sbatch is not None)


def _or_none(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
