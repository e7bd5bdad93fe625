"""The doctor's checks on fake machines, and that nothing makes it fail."""

from __future__ import annotations

import os
import platform
import resource
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ddptop_runner.base import paths
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import nearest
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host import survival, tmux
from ddptop_runner.launch import doctor
from ddptop_runner.launch.doctor import (
    GIB,
    MIB,
    Judgment,
    Place,
    Topic,
    cgroup_limit,
    examine,
    judge_driver,
    judge_logout,
    within,
)
from ddptop_runner.model.snapshot import GpuSample


def but(record: Any, **changes: object) -> Any:
    return msgspec.structs.replace(record, **changes)


def place(root: Path, **env: str) -> Place:
    return Place(env={"PATH": "/nowhere", **env}, root=root, cwd=root)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def is_(judged: Judgment, status: str, detail: str, remedy: str | None) -> bool:
    """A judgment with this text; None means without a remedy."""
    assert judged.status == status
    assert detail in judged.detail and "\n" not in judged.detail
    assert (judged.remedy is None) if remedy is None else (remedy in str(judged.remedy))
    return True


@pytest.mark.parametrize(
    ("system", "release", "mark", "pidfd", "status", "detail", "remedy"),
    [
        ("Linux", "6.1.0", None, True, "ok", "Linux 6.1.0", None),
        ("Linux", "5.15-microsoft", None, True, "ok", "WSL2", None),
        ("Linux", "6.1.0", ".dockerenv", True, "ok", "all jobs end", None),
        ("Linux", "6.1.0", None, False, "warning", "approximate", "kernel 5.3"),
        ("Darwin", "23", None, True, "error", "only on Linux", "run folders"),
    ],
)
def test_the_kind_of_machine(
    tmp_path, monkeypatch, system, release, mark, pidfd, status, detail, remedy
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    write(tmp_path, {} if mark is None else {mark: ""})
    assert is_(doctor.check_platform(place(tmp_path)), status, detail, remedy)


@pytest.mark.parametrize(
    ("program", "folder", "status", "detail", "remedy"),
    [
        (None, None, "ok", "/tmp/tmux-7", None),
        ("tmux 3.1 is too old", None, "warning", "daemons", "3.2a"),
        (None, "is open", "warning", "/tmp/tmux-7 is open", "chmod 700"),
    ],
)
def test_tmux(tmp_path, monkeypatch, program, folder, status, detail, remedy) -> None:
    monkeypatch.setattr(tmux, "socket_dir", lambda: Path("/tmp/tmux-7"))
    monkeypatch.setattr(tmux, "program_problem", lambda: program)
    monkeypatch.setattr(tmux, "folder_problem", lambda: folder)
    assert is_(doctor.check_tmux(place(tmp_path)), status, detail, remedy)


def python(folder: Path, torch: str | None) -> str:
    """An interpreter that responds as if it had this torch."""
    package = folder / "torch"
    write(package, {"__init__.py": "", "version.py": f"__version__ = {torch!r}\n"})
    origin = "null" if torch is None else f'\\"{package}/__init__.py\\"'
    (folder / "python").write_text(f'#!/bin/sh\necho "[[3, 12], {origin}]"\n')
    (folder / "python").chmod(0o755)
    return str(folder / "python")


GPU = {"sys/bus/pci/devices/a/vendor": "0x10de\n", "sys/bus/pci/devices/a/class": "0x030200\n"}


@pytest.mark.parametrize(
    ("torch", "files", "status", "detail", "remedy"),
    [
        ("2.13.0", {}, "ok", "torch 2.13.0 in {python} (Python 3.12)", None),
        ("2.13.0+cpu", {}, "ok", "+cpu", None),
        ("2.13.0+cpu", GPU, "warning", "cannot use", "CUDA"),
        ("2.5.1", {}, "error", "too old", "2.6"),
        (None, {}, "error", "torch is not installed in {python}", "--python"),
    ],
)
def test_the_interpreter(tmp_path, torch, files, status, detail, remedy) -> None:
    write(tmp_path, files)
    where = but(place(tmp_path), python=python(tmp_path, torch))
    judged = doctor.check_python(where)
    assert is_(judged, status, detail.format(python=where.python), remedy)


def test_no_interpreter_at_all(tmp_path) -> None:
    where = but(place(tmp_path), python="/no/such/python")
    assert is_(doctor.check_python(where), "error", "/no/such/python", "--python")


TWO = [GpuSample(index=0, uuid="GPU-0"), GpuSample(index=1, uuid="GPU-1")]
DRIVER = DeviceReport(ts=utc_now(), boottime_s=1.0, driver="580.1", gpus=TWO)


@pytest.mark.parametrize(
    ("on_bus", "report", "status", "detail", "remedy"),
    [
        (2, DRIVER, "ok", "driver 580.1, 2 devices", None),
        (2, None, "error", "2 NVIDIA devices", "--gpus all"),
        (0, None, "ok", "jobs run on the CPU", None),
        (2, but(DRIVER, gpus=[TWO[0], but(TWO[1], lost=True)]), "error", "lost GPU 1", "reboot"),
        (2, but(DRIVER, gpus=[], note="no answer"), "error", "no answer", None),
        (0, but(DRIVER, gpus=[]), "ok", "reports no devices", None),
        (2, but(DRIVER, note="metrics missing"), "warning", "2 devices: metrics missing", None),
        (
            *(2, but(DRIVER, gpus=[TWO[0], but(TWO[1], ecc_uncorrected=3)])),
            *("warning", "uncorrectable memory errors (GPU 1: 3)", "nvidia-smi -q -d ECC"),
        ),
        (
            *(1, but(DRIVER, gpus=[but(TWO[0], temperature_c=88.0, temperature_slowdown_c=90.0)])),
            *("warning", "slowdown temperature (GPU 0: 88 °C)", "airflow"),
        ),
    ],
)
def test_the_driver(on_bus, report, status, detail, remedy) -> None:
    assert is_(judge_driver(on_bus, report), status, detail, remedy)


LOGOUT = survival.SurvivalFacts(systemd=True, uid=1000, user="ann", placement="manager")
IN_SESSION = but(
    LOGOUT,
    placement="session",
    kill_user_processes=True,
    linger=True,
    systemd_run=True,
    has_manager=True,
)


@pytest.mark.parametrize(
    ("found", "status", "detail", "remedy"),
    [
        (survival.SurvivalFacts(systemd=False), "ok", "no systemd", None),
        (LOGOUT, "warning", "linger unknown", "loginctl enable-linger ann"),
        (but(LOGOUT, linger=True), "ok", "linger yes", None),
        (IN_SESSION, "ok", "systemd-run", None),
    ],
)
def test_the_logout(found, status, detail, remedy) -> None:
    assert is_(judge_logout(found), status, detail, remedy)


def statvfs(free_bytes: int, size_bytes: int = 32 * GIB, files: int = 9, inodes: int = 9) -> Any:
    return lambda _: SimpleNamespace(
        f_bavail=free_bytes, f_blocks=size_bytes, f_frsize=1, f_files=files, f_favail=inodes
    )


@pytest.mark.parametrize(
    ("room", "status", "detail", "remedy"),
    [
        (statvfs(90 * GIB), "ok", "run folders 90.0 GiB free, working directory 90.0", None),
        (statvfs(GIB // 2), "warning", "512 MiB free", "ddptop rm"),
        (statvfs(0), "error", "no free space for run folders", "free"),
        (statvfs(90 * GIB, inodes=0), "error", "no free inodes", "free"),
        (statvfs(90 * GIB, files=0, inodes=0), "ok", "90.0", None),
    ],
)
def test_the_disk(tmp_path, monkeypatch, room, status, detail, remedy) -> None:
    monkeypatch.setattr(os, "statvfs", room)
    assert is_(doctor.check_disk(place(tmp_path)), status, detail, remedy)


@pytest.mark.parametrize(
    ("room", "status", "detail", "remedy"),
    [
        (statvfs(32 * GIB), "ok", "32.0 GiB, 32.0 GiB free", None),
        (statvfs(64 * MIB, 64 * MIB), "warning", "bus error", "shm-size"),
        (statvfs(100 * MIB), "warning", "100 MiB free", "delete files"),
        (None, "error", "/dev/shm does not exist", "tmpfs"),
    ],
)
def test_shared_memory(tmp_path, monkeypatch, room, status, detail, remedy) -> None:
    if room is not None:
        (tmp_path / "dev/shm").mkdir(parents=True)
        monkeypatch.setattr(os, "statvfs", room)
    assert is_(doctor.check_shared_memory(place(tmp_path)), status, detail, remedy)


CGROUP = {"proc/self/cgroup": "0::/\n"}
MEMINFO = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\n"}


@pytest.mark.parametrize(
    ("files", "status", "detail", "remedy"),
    [
        (MEMINFO, "ok", "64.0 GiB, no cgroup limit", None),
        (
            {**MEMINFO, **CGROUP, "sys/fs/cgroup/memory.max": str(32 * GIB)},
            *("ok", "limited to 32.0 GiB", None),
        ),
        (
            {**MEMINFO, **CGROUP, "sys/fs/cgroup/memory.max": str(2 * GIB)},
            *("warning", "2.0 GiB", "--memory"),
        ),
        ({}, "ok", "unknown", None),
    ],
)
def test_the_memory(tmp_path, files, status, detail, remedy) -> None:
    write(tmp_path, files)
    assert is_(doctor.check_memory(place(tmp_path)), status, detail, remedy)


NONE = resource.RLIM_INFINITY
USUAL = {
    resource.RLIMIT_NOFILE: (65536, NONE),
    resource.RLIMIT_CORE: (0, 0),
    resource.RLIMIT_MEMLOCK: (8 * MIB, 8 * MIB),
    resource.RLIMIT_NPROC: (NONE, NONE),
}
FEW_PROCESSES = {**CGROUP, "sys/fs/cgroup/pids.max": "500"}
INFINIBAND = {"dev/infiniband/uverbs0": ""}


@pytest.mark.parametrize(
    ("limits", "files", "status", "detail", "remedy"),
    [
        ({}, {}, "ok", "open files 65536, processes unlimited, core dumps off", None),
        ({resource.RLIMIT_NOFILE: (1024, NONE)}, {}, "warning", "1024", "ulimit -n 65536"),
        ({resource.RLIMIT_NOFILE: (1024, 1024)}, {}, "warning", "1024", "limits.conf"),
        ({}, FEW_PROCESSES, "warning", "processes 500", "--pids-limit"),
        ({}, INFINIBAND, "warning", "InfiniBand", "ulimit -l"),
        (
            {resource.RLIMIT_MEMLOCK: (NONE, NONE), resource.RLIMIT_CORE: (NONE, NONE)},
            *(INFINIBAND, "ok", "core dumps unlimited", None),
        ),
    ],
)
def test_the_limits(tmp_path, monkeypatch, limits, files, status, detail, remedy) -> None:
    monkeypatch.setattr(resource, "getrlimit", {**USUAL, **limits}.__getitem__)
    write(tmp_path, files)
    assert is_(doctor.check_limits(place(tmp_path)), status, detail, remedy)


@pytest.mark.parametrize(
    ("addresses", "reverse_s", "status", "detail", "remedy"),
    [
        (("10.0.0.7",), 0.01, "ok", "box resolves to 10.0.0.7", None),
        (("127.0.1.1",), 0.01, "ok", "loopback", None),
        ((), 0.01, "warning", "does not resolve", "/etc/hosts"),
        (None, 0.01, "warning", "within 1 s", "/etc/hosts"),
        (("10.0.0.7",), 0.7, "warning", "by 0.7 s", "'10.0.0.7 box'"),
        (("10.0.0.7",), None, "warning", "over 1 s", "/etc/hosts"),
    ],
)
def test_the_host_name(tmp_path, monkeypatch, addresses, reverse_s, status, detail, remedy) -> None:
    answers = [
        None if addresses is None else (addresses, 0.01),
        None if reverse_s is None else (True, reverse_s),
    ]
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr(doctor, "within", lambda *_: answers.pop(0))
    assert is_(doctor.check_host(place(tmp_path)), status, detail, remedy)


def test_unknown_name_has_no_addresses(monkeypatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    monkeypatch.setattr(socket, "gethostbyaddr", _raise_os_error)
    assert doctor._addresses("box") == () and not doctor._has_name("10.0.0.7")
    monkeypatch.setattr(socket, "getaddrinfo", _raise_os_error)
    assert doctor._addresses("box") == ()


def _raise_os_error(*_: object, **__: object) -> None:
    raise OSError("no such name")


@pytest.mark.parametrize(
    ("scope", "capabilities", "status", "detail"),
    [
        ("1", "0", "warning", "ptrace_scope 1"),
        ("1", "80000", "ok", "can trace"),
        ("0", "0", "ok", "can trace"),
        (None, "0", "ok", "can trace"),
    ],
)
def test_the_right_to_trace(tmp_path, scope, capabilities, status, detail) -> None:
    write(tmp_path, {"py-spy": "", "proc/self/status": f"Name:\tx\nCapEff:\t{capabilities}\n"})
    (tmp_path / "py-spy").chmod(0o755)
    if scope is not None:
        write(tmp_path, {"proc/sys/kernel/yama/ptrace_scope": f"{scope}\n"})
    judged = doctor.check_ptrace(place(tmp_path, PATH=str(tmp_path)))
    assert is_(judged, status, detail, None if status == "ok" else "sysctl")
    assert is_(doctor.check_ptrace(place(tmp_path)), "ok", "only ranks with the probe", None)


def test_the_clock(tmp_path, monkeypatch) -> None:
    assert is_(doctor.check_clock(place(tmp_path)), "ok", "no problems found", None)
    newest = max(file.stat().st_mtime for file in Path(doctor.__file__).parent.glob("*.py"))
    monkeypatch.setattr(time, "time", lambda: newest - 100)
    assert is_(doctor.check_clock(place(tmp_path)), "warning", "100 s behind", "timedatectl")
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert is_(doctor.check_clock(place(tmp_path)), "warning", "CLOCK_BOOTTIME", None)


def test_slurm(tmp_path) -> None:
    assert is_(doctor.check_slurm(place(tmp_path)), "ok", "no batch system found", None)
    assert is_(doctor.check_slurm(place(tmp_path, SLURM_JOB_ID="42")), "ok", "job 42", None)


def test_what_slurm_lacks_is_named(tmp_path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()

    def put(*names: str, printed: str = "") -> None:
        for name in names:
            (bin_ / name).write_text(f"#!/bin/sh\necho '{printed}'\n")
            (bin_ / name).chmod(0o755)

    here = place(tmp_path, PATH=str(bin_))
    put("sbatch", "squeue")
    assert is_(doctor.check_slurm(here), "warning", "srun, scontrol not found", "PATH")
    put("srun", "scontrol")
    assert is_(doctor.check_slurm(here), "warning", "controller does not respond", "sinfo")
    put("scontrol", printed="SlurmdTimeout           = 600 sec\nJobRequeue = 0")
    judged = doctor.check_slurm(here)
    assert is_(judged, "warning", "noticed after 600 s", "DDPTOP_HOME")
    assert "JobRequeue 0: jobs are not" in judged.detail
    config = {"SlurmdTimeout": "300 sec", "JobRequeue": "1", "PreemptMode": "REQUEUE"}
    assert is_(doctor.judge_slurm(config, None, "nfs"), "ok", "PreemptMode REQUEUE", None)
    assert is_(doctor.judge_slurm(config, "7", "nfs"), "ok", "inside Slurm job 7", None)


def test_a_home_on_a_shared_disk_or_that_is_a_file(ddptop_home: Path, monkeypatch) -> None:
    assert is_(doctor.check_folder(place(Path("/"))), "ok", str(ddptop_home), None)
    monkeypatch.setattr(paths, "local_dir_reason", lambda _: "it is on nfs")
    assert is_(doctor.check_folder(place(Path("/"))), "ok", "/var/tmp", None)
    ddptop_home.rmdir()
    ddptop_home.write_text("")
    assert is_(doctor.check_folder(place(Path("/"))), "error", str(ddptop_home), "DDPTOP_HOME")


def test_an_empty_machine_makes_no_check_fail(tmp_path: Path) -> None:
    checks = examine(place(tmp_path))
    assert [check.id for check in checks] == [topic.id for topic in doctor.TOPICS]
    assert all("cannot be checked" not in check.detail for check in checks)


def test_this_machine_is_looked_at_quickly(tmp_path: Path) -> None:
    started = time.monotonic()
    checks = {check.id: check for check in examine(place(Path("/")), deadline_s=25.0)}
    assert time.monotonic() - started < 30.0
    assert checks["platform"].status in ("ok", "warning")
    assert "GiB free" in checks["disk"].detail
    assert checks["memory"].detail[0].isdigit()


def test_what_raises_or_is_late_is_unknown() -> None:
    release = threading.Event()

    def late(_: Place) -> Judgment:
        release.wait(30)
        return Judgment("ok", "")

    def broken(_: Place) -> Judgment:
        raise ZeroDivisionError("by the driver")

    topics = [
        Topic("late", "Late", late),
        Topic("broken", "Broken", broken),
        Topic("fine", "Fine", lambda _: Judgment("ok", "well")),
    ]
    checks = examine(place(Path("/")), topics, deadline_s=1.0)
    release.set()
    assert [check.status for check in checks] == ["unknown", "unknown", "ok"]
    assert "no response within 1 s" in checks[0].detail
    assert "ZeroDivisionError: by the driver" in checks[1].detail


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "7\n"}, 7),
        (
            {  # an ancestor may have a lower limit
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "70\n",
                "sys/fs/cgroup/a/memory.max": "50\n",
            },
            50,
        ),
        (
            {  # version 1, in a container that shows the host's path
                "proc/self/cgroup": "4:cpu,memory:/docker/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "99\n",
            },
            99,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
    ],
)
def test_cgroup_limit(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    write(tmp_path, files)
    assert cgroup_limit(tmp_path, "memory", "memory.max", "memory.limit_in_bytes") == limit


def test_late_answers_are_not_waited_for(tmp_path: Path) -> None:
    release = threading.Event()
    assert within(0.05, lambda: release.wait(30)) is None
    release.set()
    assert within(5.0, lambda: 1 // 0) is None
    answer = within(5.0, lambda: 42)
    assert answer is not None and answer[0] == 42 and answer[1] >= 0
    assert nearest(tmp_path / "not" / "there") == tmp_path
