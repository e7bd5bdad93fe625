"""What a person installs: the wheel's contents, its requirements, and the pinned set-up."""

from __future__ import annotations

import email
import email.message
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support.programs import captured

from ddptop_runner.version import __version__

ROOT = Path(__file__).parents[3]
DIST_INFO = f"ddptop-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    built = captured(
        *[sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        timeout=60,
    )
    assert built.returncode == 0, built.stderr
    [file] = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    return email.message_from_bytes(wheel.read(f"{DIST_INFO}/METADATA"))


def test_the_wheel_holds_two_packages_and_nothing_else(wheel):
    assert {name.split("/")[0] for name in wheel.namelist()} == {
        "ddptop",
        "ddptop_runner",
        DIST_INFO,
    }


@pytest.mark.parametrize(
    "name",
    [
        "ddptop/__main__.py",
        "ddptop/demo/train.py",
        "ddptop/py.typed",
        "ddptop/tui/ddptop.tcss",
        "ddptop/tui/screens/job.tcss",
        "ddptop_runner/py.typed",
        "ddptop_runner/probe/inject/sitecustomize.py",
        "ddptop_runner/probe/probe.py",
    ],
)
def test_the_wheel_holds_what_is_loaded_by_path(wheel, name):
    assert name in wheel.namelist()


def test_the_wheel_holds_every_file_of_agent_and_probe(wheel):
    names = set(wheel.namelist())
    runner = ROOT / "runner" / "ddptop_runner"
    files = [file for part in ("agent", "probe") for file in (runner / part).rglob("*.py")]
    assert any("agent" in file.parts for file in files)
    missing = [file for file in files if str(file.relative_to(ROOT / "runner")) not in names]
    assert missing == []


def test_installing_ddptop_never_brings_torch(metadata):
    requirements = metadata.get_all("Requires-Dist")
    assert requirements
    plain = [line for line in requirements if "extra ==" not in line]
    heavy = re.compile(r"^(torch|numpy|nvidia-(?!ml-py))", re.IGNORECASE)
    assert [line for line in plain if heavy.match(line)] == []
    torch = [line for line in requirements if line.startswith("torch")]
    assert torch and all("extra == 'torch'" in line.replace('"', "'") for line in torch)


def test_the_command_is_installed(wheel):
    entry_points = wheel.read(f"{DIST_INFO}/entry_points.txt").decode()
    assert "ddptop = ddptop.__main__:main" in entry_points


def test_everything_that_is_installed_is_pinned():
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = line.partition(";")[0].strip()
            name, version = requirement.split("==")
            assert re.fullmatch(r"[0-9.]+", version), f"{line}: no local part, no range"
            pinned[canonical(name)] = version
    project = (ROOT / "pyproject.toml").read_text()
    sections = re.findall(r"^(?:dependencies|torch|dev|dist) = \[(.*?)\]", project, re.M | re.S)
    assert len(sections) == 4
    wanted = [re.match(r"[\w.-]+", entry) for entry in re.findall(r'"([^"]+)"', "".join(sections))]
    names = {canonical(found[0]) for found in wanted if found}
    assert {"textual", "torch", "pytest"} <= names
    assert names - set(pinned) == set()


def test_every_pip_line_of_the_set_up_is_constrained():
    lines = [
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if "$(PIP) install" in line or "pip install" in line
    ]
    assert lines
    given = re.compile(r" -c (\$\(@D\)/)?constraints\.txt ")
    assert [line for line in lines if not given.search(line)] == []


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("script", "line"),
    [
        (None, "is not installed: ddptop needs Python 3.10 or newer"),
        (
            '[ "$1" = -V ] && echo Python 3.9.1; exit 1',
            "is Python 3.9.1; use a newer one: make PYTHON=",
        ),
        ('case "$2" in *ensurepip*) exit 1; esac', "sudo apt install python3-venv"),
    ],
    ids=["no python", "old python", "no ensurepip"],
)
def test_set_up_says_in_one_line_what_is_missing(tmp_path, script, line):
    python = tmp_path / "python3"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
    }
    made = captured(
        "make", f"VENV={tmp_path}/venv", f"PYTHON={python}", "demo", cwd=ROOT, env=env, timeout=60
    )
    assert made.returncode == 2
    said = [text for text in made.stderr.splitlines() if not text.startswith("make: ***")]
    assert len(said) == 1 and line in said[0]
    assert not (tmp_path / "venv").exists()
