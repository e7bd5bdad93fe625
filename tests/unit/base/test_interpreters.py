"""Which Python a job gets, and what is checked before anything starts."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from ddptop_runner.base import interpreters
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.interpreters import Interpreter, choose, inspect, require_torch


def program(path: Path, text: str = "exit 0") -> str:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> dict[str, str]:
    """A virtual environment, a conda environment, and a PATH with python3 and python."""
    for place in ("venv", "conda"):
        program(tmp_path / place / "bin" / "python")
    program(tmp_path / "path" / "python3")
    program(tmp_path / "old" / "python")
    monkeypatch.chdir(tmp_path)
    return {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": str(tmp_path / "path"),
    }


ORDER = [
    # (changed variables, whether ddptop's own Python has torch, the choice)
    ({}, True, "venv/bin/python"),
    ({"VIRTUAL_ENV": None}, True, "conda/bin/python"),
    ({"VIRTUAL_ENV": ""}, True, "conda/bin/python"),
    ({"VIRTUAL_ENV": "removed"}, True, "conda/bin/python"),
    ({"VIRTUAL_ENV": None, "CONDA_PREFIX": None}, True, None),
    ({"VIRTUAL_ENV": None, "CONDA_PREFIX": None}, False, "path/python3"),
    ({"VIRTUAL_ENV": None, "CONDA_PREFIX": None, "PATH": "old"}, False, "old/python"),
    ({"VIRTUAL_ENV": None, "CONDA_PREFIX": None, "PATH": "none"}, False, None),
]


@pytest.mark.parametrize(("changes", "own_torch", "expected"), ORDER)
def test_the_active_environments_python_is_the_default(
    machine, tmp_path, monkeypatch, changes, own_torch, expected
):
    for name, value in changes.items():
        machine.pop(name)
        if value is not None:
            machine[name] = str(tmp_path / value) if value else ""
    monkeypatch.setattr(
        interpreters.importlib.util, "find_spec", lambda name: object() if own_torch else None
    )
    wanted = sys.executable if expected is None else str(tmp_path / expected)
    assert choose(None, machine) == wanted


def test_an_interpreter_is_looked_up_on_the_shells_path_and_below_home(
    machine, tmp_path, monkeypatch
):
    assert choose("python3", machine) == str(tmp_path / "path" / "python3")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose("~/conda/bin/python", machine) == str(tmp_path / "conda" / "bin" / "python")


@pytest.mark.parametrize("asked", ["none", "/none/python", "venv", "plain.txt", ""])
def test_what_is_no_program_is_refused(machine, tmp_path, asked):
    (tmp_path / "plain.txt").write_text("")
    with pytest.raises(UsageError, match="no such interpreter") as caught:
        choose(asked, machine)
    assert f"--python {asked}" in str(caught.value)


@pytest.mark.torch
def test_own_interpreter_is_known_without_a_process_and_without_importing_torch(monkeypatch):
    monkeypatch.setattr(interpreters.programs, "run", None)
    own = inspect(sys.executable)
    assert own.version == sys.version_info[:2]
    assert own.torch_version is not None and own.torch_version[0].isdigit()
    require_torch(own)


def site_with_torch(folder: Path, version: str | None) -> Path:
    """A folder with something that looks like torch and must never be imported."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    if version is not None:
        (package / "version.py").write_text(f"debug = False\n__version__ = '{version}'\n")
    return folder


def python_that_sees(tmp_path: Path, site: Path | None, before: str = "") -> str:
    """A program that is this Python without its packages, but with those in `site`."""
    path = "" if site is None else f"PYTHONPATH={site} "
    command = f'{before}{path}exec {sys.executable} -S "$@"'
    return program(tmp_path / "bin" / "other-python", command)


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "2.5.1", None])
def test_another_interpreter_is_asked(tmp_path, version):
    python = python_that_sees(tmp_path, site_with_torch(tmp_path / "site", version))
    found = inspect(python)
    assert found == Interpreter(python, sys.version_info[:2], version or "unknown")


def test_files_of_the_working_folder_are_not_taken_for_modules(tmp_path, monkeypatch):
    python = python_that_sees(tmp_path, None)
    for name in ("json.py", "importlib.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    site_with_torch(tmp_path, "9.9")
    monkeypatch.chdir(tmp_path)
    assert inspect(python).torch_version is None


NO_PYTHONS = {
    "says nothing": ("exit 0", "unexpected output"),
    "fails silently": ("exit 7", "exit status 7"),
    "fails with words": ("echo one >&2; echo 'bad option: -c' >&2; exit 2", "bad option: -c"),
    "echoes": ('echo "$@"', "unexpected output"),
    "answers other JSON": ("echo 3", "unexpected output"),
    "answers a list": ("echo '[[3], null]'", "unexpected output"),
    "no text": (r"printf '\377\376\n'", "unexpected output"),
    "waits for input": ("cat", "unexpected output"),
}


@pytest.mark.parametrize("case", NO_PYTHONS.values(), ids=list(NO_PYTHONS))
def test_what_is_no_python_is_refused_in_one_line(tmp_path, case):
    text, problem = case
    path = program(tmp_path / "tool", text)
    with pytest.raises(UsageError) as caught:
        inspect(path)
    expected = f"{path} is not a working Python interpreter ({problem}); pass --python PATH"
    assert str(caught.value) == expected


def test_a_python_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreters, "ANSWER_S", 0.1)
    path = program(tmp_path / "tool", "exec sleep 60")
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"no response within 0\.1 s"):
        inspect(path)
    assert time.monotonic() - began < 40


def test_a_file_of_another_machine_is_refused(tmp_path):
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF\x00")
    path.chmod(0o755)
    with pytest.raises(UsageError, match="is not a working Python interpreter") as caught:
        inspect(str(path))
    assert os.strerror(8) in str(caught.value)


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("2.6.0", None),
        ("2.13.0a0+git12", None),
        ("unknown", None),  # what is unknown is tried
        ("2.5.1+cu121", "torch 2.5.1+cu121 in /p is too old; install torch 2.6 or newer"),
        ("1.13.1", "too old"),
        (None, "torch is not installed in /p; activate an environment that has it"),
    ],
)
def test_torch_of_2_6_or_newer_is_needed(version, problem):
    interpreter = Interpreter("/p", (3, 11), version)
    if problem is None:
        require_torch(interpreter)
        return
    with pytest.raises(UsageError) as caught:
        require_torch(interpreter)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("torch", "python", "unknown"),
    [
        ("2.6.0+cu124", (3, 10), None),
        ("2.15.1", (3, 13), None),
        ("unknown", (3, 12), None),
        ("2.16.0.dev20260101", (3, 12), "torch 2.16.0.dev20260101"),
        ("3.0", (3, 11), "torch 3.0"),
        ("10.0.1", (3, 14), "torch 10.0.1 and Python 3.14"),
        ("2.6.0", (3, 9), "Python 3.9"),
    ],
)
def test_a_version_that_was_not_tested_is_named(torch, python, unknown):
    tested = "only with torch 2.6 to 2.15 and Python 3.10 to 3.13"
    expected = [] if unknown is None else [f"ddptop is not tested with {unknown}, {tested}"]
    assert require_torch(Interpreter("/p", python, torch)) == expected
