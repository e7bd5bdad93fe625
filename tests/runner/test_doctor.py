"""The doctor's judgements as tables, its facts from fake roots, and that nothing makes it fail."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddptop_runner.base.machine import cgroup_limit, nearest, within
from ddptop_runner.host import survival
from ddptop_runner.launch import doctor
from ddptop_runner.launch import doctor_facts as facts
from ddptop_runner.launch.doctor import GIB, MIB, Judgement, Topic, examine

LINUX = facts.PlatformFacts(system="Linux", release="6.1.0")
TMUX = facts.TmuxFacts(unusable=None, socket_dir="/tmp/tmux-7")
PYTHON = facts.InterpreterFacts(path="/env/bin/python", version=(3, 11), torch_version="2.13.0")
DRIVER = facts.DriverFacts(library=True, pci_devices=2, driver="580.1", devices=2)
PTRACE = facts.PtraceFacts(yama_scope=1, capable=False, py_spy=True)
LIMITS = facts.LimitFacts(
    open_files=65536,
    open_files_hard=None,
    processes=None,
    core_bytes=0,
    locked_bytes=8 * MIB,
    infiniband=False,
)
DISK = facts.DiskFacts(what="run folders", path="/r", free_bytes=90 * GIB, free_files=1000)
SHM = facts.SharedMemoryFacts(size_bytes=32 * GIB, free_bytes=32 * GIB)
HOST = facts.HostFacts(name="box", addresses=("10.0.0.7",), reverse_s=0.01)
FOLDER = facts.FolderFacts(path="/h", problem=None, shared=None, local_reason=None)
MEMORY = facts.MemoryFacts(total_bytes=64 * GIB, limit_bytes=None)
CLOCK = facts.ClockFacts(now_s=1000.0, newest_file_s=900.0, boottime=True)
SLURM = facts.SlurmFacts(job_id=None, installed=False)
LOGOUT = survival.SurvivalFacts(systemd=True, uid=1000, user="ann", placement="manager")


def but(record: Any, **changes: object) -> Any:
    return msgspec.structs.replace(record, **changes)


# judge, facts, status, words of the detail, words of the remedy (None: no remedy)
CASES: list[tuple[Any, Any, str, str, str | None]] = [
    (doctor.judge_platform, LINUX, "ok", "Linux 6.1.0", None),
    (doctor.judge_platform, but(LINUX, wsl=True), "ok", "WSL2", None),
    (doctor.judge_platform, but(LINUX, container=True), "ok", "all jobs end", None),
    (doctor.judge_platform, but(LINUX, pidfd=False), "warning", "approximate", "kernel 5.3"),
    (doctor.judge_platform, but(LINUX, system="Darwin"), "error", "only on Linux", "run folders"),
    (doctor.judge_tmux, TMUX, "ok", "/tmp/tmux-7", None),
    (doctor.judge_tmux, but(TMUX, unusable="tmux 3.1 is too old"), "warning", "daemons", "3.2a"),
    (doctor.judge_tmux, but(TMUX, socket_problem="is open"), "warning", "is open", "chmod 700"),
    (doctor.judge_python, PYTHON, "ok", "torch 2.13.0 in /env/bin/python (Python 3.11)", None),
    (doctor.judge_python, but(PYTHON, torch_version=None), "error", "not installed", "--python"),
    (doctor.judge_python, but(PYTHON, torch_version="2.5.1"), "error", "too old", "2.6"),
    (doctor.judge_python, but(PYTHON, problem="x: no such file"), "error", "x: no", "--python"),
    (
        doctor.judge_python,
        but(PYTHON, torch_version="2.13.0+cpu", nvidia_devices=1),
        "warning",
        "cannot use",
        "CUDA",
    ),
    (doctor.judge_python, but(PYTHON, torch_version="2.13.0+cpu"), "ok", "+cpu", None),
    (doctor.judge_driver, DRIVER, "ok", "driver 580.1, 2 devices", None),
    (doctor.judge_driver, but(DRIVER, library=False), "error", "2 NVIDIA devices", "--gpus all"),
    (
        doctor.judge_driver,
        but(DRIVER, library=False, pci_devices=0),
        "ok",
        "jobs run on the CPU",
        None,
    ),
    (doctor.judge_driver, but(DRIVER, lost=(1,)), "error", "lost GPU 1", "reboot"),
    (doctor.judge_driver, but(DRIVER, devices=0, note="no answer"), "error", "no answer", None),
    (doctor.judge_driver, but(DRIVER, note="figures missing"), "warning", "figures", None),
    (
        doctor.judge_driver,
        but(DRIVER, ecc=((1, 3),)),
        "warning",
        "uncorrectable memory errors (GPU 1: 3)",
        "nvidia-smi -q -d ECC",
    ),
    (doctor.judge_driver, but(DRIVER, hot=((0, 88.0),)), "warning", "slowdown", "airflow"),
    (doctor.judge_ptrace, PTRACE, "warning", "ptrace_scope 1", "sysctl"),
    (doctor.judge_ptrace, but(PTRACE, capable=True), "ok", "can trace", None),
    (doctor.judge_ptrace, but(PTRACE, yama_scope=0), "ok", "can trace", None),
    (doctor.judge_ptrace, but(PTRACE, py_spy=False), "ok", "the probe provides", None),
    (doctor.judge_limits, LIMITS, "ok", "open files 65536, processes unlimited", None),
    (doctor.judge_limits, but(LIMITS, open_files=1024), "warning", "1024", "ulimit -n 65536"),
    (
        doctor.judge_limits,
        but(LIMITS, open_files=1024, open_files_hard=1024),
        "warning",
        "1024",
        "limits.conf",
    ),
    (doctor.judge_limits, but(LIMITS, processes=500), "warning", "500", "--pids-limit"),
    (doctor.judge_limits, but(LIMITS, infiniband=True), "warning", "InfiniBand", "ulimit -l"),
    (
        doctor.judge_limits,
        but(LIMITS, infiniband=True, locked_bytes=None, core_bytes=None),
        "ok",
        "core dumps unlimited",
        None,
    ),
    (doctor.judge_disk, (DISK,), "ok", "run folders 90.0 GiB free", None),
    (doctor.judge_disk, (DISK, but(DISK, free_bytes=GIB // 2)), "warning", "512 MiB", "ddptop rm"),
    (doctor.judge_disk, (DISK, but(DISK, free_bytes=0)), "error", "no free space", "free"),
    (doctor.judge_disk, (but(DISK, free_files=0),), "error", "no free inodes", "free"),
    (doctor.judge_disk, (but(DISK, free_files=None),), "ok", "90.0", None),
    (doctor.judge_shared_memory, SHM, "ok", "32.0 GiB", None),
    (doctor.judge_shared_memory, but(SHM, size_bytes=64 * MIB), "warning", "bus error", "shm-size"),
    (doctor.judge_shared_memory, but(SHM, free_bytes=0), "warning", "0 B free", "delete files"),
    (
        doctor.judge_shared_memory,
        but(SHM, size_bytes=None),
        "error",
        "/dev/shm does not exist",
        "tmpfs",
    ),
    (doctor.judge_host, HOST, "ok", "box resolves to 10.0.0.7", None),
    (doctor.judge_host, but(HOST, addresses=("127.0.1.1",)), "ok", "loopback", None),
    (doctor.judge_host, but(HOST, addresses=()), "warning", "does not resolve", "/etc/hosts"),
    (doctor.judge_host, but(HOST, addresses=None), "warning", "within 1 s", "/etc/hosts"),
    (doctor.judge_host, but(HOST, reverse_s=0.7), "warning", "by 0.7 s", "'10.0.0.7 box'"),
    (doctor.judge_host, but(HOST, reverse_s=None), "warning", "over 1 s", "/etc/hosts"),
    (doctor.judge_folder, FOLDER, "ok", "local disk", None),
    (doctor.judge_folder, but(FOLDER, local_reason="it is on nfs"), "ok", "/var/tmp", None),
    (doctor.judge_folder, but(FOLDER, problem="Read-only"), "error", "Read-only", "DDPTOP_HOME"),
    (doctor.judge_survival, survival.SurvivalFacts(systemd=False), "ok", "no systemd", None),
    (doctor.judge_survival, LOGOUT, "warning", "linger unknown", "loginctl enable-linger ann"),
    (doctor.judge_survival, but(LOGOUT, linger=True), "ok", "linger yes", None),
    (
        doctor.judge_survival,
        but(
            LOGOUT,
            placement="session",
            kill_user_processes=True,
            linger=True,
            systemd_run=True,
            runtime_dir="/run/user/1000",
        ),
        "ok",
        "systemd-run",
        None,
    ),
    (doctor.judge_memory, MEMORY, "ok", "64.0 GiB, no cgroup limit", None),
    (doctor.judge_memory, but(MEMORY, limit_bytes=32 * GIB), "ok", "limited to 32.0 GiB", None),
    (doctor.judge_memory, but(MEMORY, limit_bytes=2 * GIB), "warning", "2.0 GiB", "--memory"),
    (doctor.judge_memory, but(MEMORY, total_bytes=None), "ok", "unknown", None),
    (doctor.judge_clock, CLOCK, "ok", "no problems found", None),
    (doctor.judge_clock, but(CLOCK, now_s=800.0), "warning", "100 s behind", "timedatectl"),
    (doctor.judge_clock, but(CLOCK, boottime=False), "warning", "CLOCK_BOOTTIME", None),
    (doctor.judge_slurm, SLURM, "ok", "no batch system found", None),
    (doctor.judge_slurm, but(SLURM, job_id="42"), "ok", "Slurm job 42", None),
]


@pytest.mark.parametrize(("judge", "found", "status", "detail", "remedy"), CASES)
def test_judgement(judge: Any, found: Any, status: str, detail: str, remedy: str | None) -> None:
    judged = judge(found)
    assert judged.status == status
    assert detail in judged.detail
    if remedy is None:
        assert judged.remedy is None
    else:
        assert judged.remedy is not None and remedy in judged.remedy
    assert "\n" not in judged.detail


def test_every_topic_is_judged_in_a_table() -> None:
    assert {topic.judge for topic in doctor.TOPICS} == {case[0] for case in CASES}


def place(root: Path, **env: str) -> facts.Place:
    return facts.Place(env={"PATH": "/nowhere", **env}, root=root, cwd=root)


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

    def late(_: facts.Place) -> None:
        release.wait(30)

    def broken(_: facts.Place) -> None:
        raise ZeroDivisionError("by the driver")

    topics = [
        Topic("late", "Late", late, lambda _: Judgement("ok", "")),
        Topic("broken", "Broken", broken, lambda _: Judgement("ok", "")),
        Topic("fine", "Fine", lambda _: None, lambda _: Judgement("ok", "well")),
    ]
    checks = examine(place(Path("/")), topics, deadline_s=1.0)
    release.set()
    assert [check.status for check in checks] == ["unknown", "unknown", "ok"]
    assert "no response within 1 s" in checks[0].detail
    assert "ZeroDivisionError: by the driver" in checks[1].detail


# --- facts from fake roots -------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "7\n"}, 7),
        (
            {  # an ancestor may be tighter
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


def test_nvidia_devices_on_the_bus(tmp_path: Path) -> None:
    devices = "sys/bus/pci/devices"
    write(
        tmp_path,
        {
            f"{devices}/a/vendor": "0x10de\n",
            f"{devices}/a/class": "0x030200\n",
            f"{devices}/b/vendor": "0x10de\n",
            f"{devices}/b/class": "0x040300\n",  # its sound device
            f"{devices}/c/vendor": "0x8086\n",
            f"{devices}/c/class": "0x030000\n",
        },
    )
    assert facts.pci_devices(tmp_path) == 1


def test_the_right_to_trace(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/sys/kernel/yama/ptrace_scope": "1\n",
            "proc/self/status": "Name:\tx\nCapEff:\t0000000000080000\n",
        },
    )
    assert facts.gather_ptrace(place(tmp_path)) == but(PTRACE, capable=True, py_spy=False)


def test_a_home_that_is_a_file_is_an_error(ddptop_home: Path) -> None:
    assert facts.gather_folder(place(Path("/"))).problem is None
    ddptop_home.rmdir()
    ddptop_home.write_text("")
    judged = doctor.judge_folder(facts.gather_folder(place(Path("/"))))
    assert judged.status == "error" and str(ddptop_home) in judged.detail


def test_an_interpreter_without_torch_and_none_at_all(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho '[[3, 12], null]'\n")
    bare.chmod(0o755)
    where = but(place(tmp_path), python=str(bare))
    judged = doctor.judge_python(facts.gather_interpreter(where))
    assert judged.status == "error" and f"torch is not installed in {bare}" in judged.detail
    where = but(place(tmp_path), python="/no/such/python")
    judged = doctor.judge_python(facts.gather_interpreter(where))
    assert judged.status == "error" and "/no/such/python" in judged.detail


def test_late_answers_are_not_waited_for(tmp_path: Path) -> None:
    release = threading.Event()
    assert within(0.05, lambda: release.wait(30)) is None
    release.set()
    assert within(5.0, lambda: 1 // 0) is None
    answer = within(5.0, lambda: 42)
    assert answer is not None and answer[0] == 42 and answer[1] >= 0
    assert nearest(tmp_path / "not" / "there") == tmp_path
