"""The doctor's checks on fake machines, and that nothing makes it fail."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ddptop_runner.base import paths
from ddptop_runner.base.clock import utc_now
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host import survival, tmux
from ddptop_runner.launch import doctor
from ddptop_runner.launch.doctor import (
    GIB,
    Judgment,
    Place,
    Topic,
    examine,
    judge_driver,
    judge_logout,
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
        (0, but(DRIVER, gpus=[]), "ok", "no NVIDIA devices", None),
        (2, but(DRIVER, note="metrics missing"), "warning", "2 devices: metrics missing", None),
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
        (LOGOUT, "warning", "lingering is off", "loginctl enable-linger ann"),
        (but(LOGOUT, linger=True), "ok", "outlive", None),
        (IN_SESSION, "ok", "systemd-run", None),
    ],
)
def test_the_logout(found, status, detail, remedy) -> None:
    assert is_(judge_logout(found), status, detail, remedy)


def statvfs(free_bytes: int, size_bytes: int = 32 * GIB) -> Any:
    return lambda _: SimpleNamespace(f_bavail=free_bytes, f_blocks=size_bytes, f_frsize=1)


@pytest.mark.parametrize(
    ("room", "status", "detail", "remedy"),
    [
        (statvfs(90 * GIB), "ok", "run folders 90.0 GiB free, working directory 90.0", None),
        (statvfs(GIB // 2), "warning", "512 MiB free", "ddptop rm"),
    ],
)
def test_the_disk(tmp_path, monkeypatch, room, status, detail, remedy) -> None:
    monkeypatch.setattr(os, "statvfs", room)
    assert is_(doctor.check_disk(place(tmp_path)), status, detail, remedy)


@pytest.mark.parametrize(
    ("room", "status", "detail", "remedy"),
    [
        (statvfs(32 * GIB), "ok", "32.0 GiB, 32.0 GiB free", None),
        (statvfs(64 * 2**20, 64 * 2**20), "warning", "bus error", "shm-size"),
        (statvfs(100 * 2**20), "warning", "100 MiB free", "shm-size"),
    ],
)
def test_shared_memory(tmp_path, monkeypatch, room, status, detail, remedy) -> None:
    monkeypatch.setattr(os, "statvfs", room)
    assert is_(doctor.check_shared_memory(place(tmp_path)), status, detail, remedy)


def test_slurm(tmp_path) -> None:
    assert is_(doctor.check_slurm(place(tmp_path)), "ok", "no batch system found", None)


def test_a_home_on_a_shared_disk_or_that_is_a_file(ddptop_home: Path, monkeypatch) -> None:
    assert is_(doctor.check_folder(place(Path("/"))), "ok", str(ddptop_home), None)
    monkeypatch.setattr(paths, "local_dir_reason", lambda _: "it is on nfs")
    assert is_(doctor.check_folder(place(Path("/"))), "ok", "/var/tmp", None)
    ddptop_home.rmdir()
    ddptop_home.write_text("")
    assert is_(doctor.check_folder(place(Path("/"))), "error", str(ddptop_home), "DDPTOP_HOME")


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


def test_what_slurm_lacks_is_named(tmp_path, monkeypatch) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()

    def put(*names: str, status: int = 0) -> None:
        for name in names:
            (bin_ / name).write_text(f"#!/bin/sh\nexit {status}\n")
            (bin_ / name).chmod(0o755)

    here = place(tmp_path, PATH=str(bin_))
    put("sbatch", "squeue")
    unused = "installed, but no cluster responds"
    assert is_(doctor.check_slurm(here), "ok", unused, None)
    inside = place(tmp_path, PATH=str(bin_), SLURM_JOB_ID="7")
    assert is_(doctor.check_slurm(inside), "warning", "srun, scontrol not found", "PATH")
    put("sinfo", status=1)
    assert is_(doctor.check_slurm(here), "ok", unused, None)
    put("sinfo")
    assert is_(doctor.check_slurm(here), "warning", "srun, scontrol not found", "PATH")
    put("srun", "scontrol")
    assert is_(doctor.check_slurm(here), "warning", "on a local disk", "DDPTOP_HOME")
    monkeypatch.setattr(paths, "shared_file_system", lambda _: "nfs")
    assert is_(doctor.check_slurm(here), "ok", "Slurm's commands are installed", None)


def test_an_empty_machine_makes_no_check_fail(tmp_path: Path) -> None:
    checks = examine(place(tmp_path))
    assert [check.id for check in checks] == [topic.id for topic in doctor.TOPICS]
    assert all("cannot be checked" not in check.detail for check in checks)
