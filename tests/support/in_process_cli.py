"""Fixtures for tests of the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from ddptop.__main__ import main

from ddptop_runner.devices import hardware
from ddptop_runner.devices.report import empty_report
from ddptop_runner.devices.words import LIBRARY_MISSING
from ddptop_runner.launch.gpus import choice as launch_devices


@pytest.fixture
def ddptop_cli(ddptop_home, monkeypatch, capfd) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The usual fixture, but in this process: starting one costs more than most commands do.

    No time limit interrupts it.
    """

    def run(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["ddptop", *arguments])
        capfd.readouterr()
        status = main()
        shown = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, status, shown.out, shown.err)

    return run


@pytest.fixture
def bad_input(ddptop_home, tmp_path, monkeypatch, capfd) -> Callable[..., str]:
    """`bad_input(status, *arguments)`: the line printed on stderr. Runs in this process."""
    (tmp_path / "train.py").write_text("raise SystemExit('it must never run')")
    (tmp_path / "three.sh").write_text("exit 1\n")
    (tmp_path / "folder.py").mkdir()
    monkeypatch.setattr(launch_devices, "sample_once", lambda **_: empty_report(LIBRARY_MISSING))
    monkeypatch.setattr(hardware, "exists", lambda: True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # this test's own Python starts no process
    monkeypatch.delenv("CONDA_PREFIX", raising=False)

    def run(status: int, *arguments: str) -> str:
        before = sorted(ddptop_home.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["ddptop", *arguments])
        assert main() == status
        shown = capfd.readouterr()
        assert shown.out == ""
        (line,) = shown.err.splitlines()
        assert line.startswith("ddptop: ")
        assert sorted(ddptop_home.rglob("*")) == before, "a refused command left something behind"
        return line

    return run
