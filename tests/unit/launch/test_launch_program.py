"""The program that a job runs, depending on the request, what is installed, and its devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.gpus.choice import ON_CPU, DeviceChoice
from ddptop_runner.launch.program import Program, name_for, program_for
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.model.spec import Device, Waiting

NO_GPU = DeviceChoice(None)
NO_DRIVER = DeviceChoice(None, why_none="the NVIDIA driver is not loaded")
GPUS = [Device(index=2, uuid="GPU-2"), Device(index=5, uuid="GPU-5")]
TWO = DeviceChoice(GPUS)
QUEUED = DeviceChoice(None, Waiting(candidates=GPUS, count=2, since=utc_now()))
MP = "import torch.multiprocessing as mp\nmp.spawn(f)\n"


class Place:
    """A working folder, and an environment with these launchers."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder
        self.bin = folder / "v" / "bin"
        self.bin.mkdir(parents=True)
        for name in ("python", "deepspeed", "accelerate", "mpirun"):
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)
        (folder / "train.py").write_text("import torch\n")

    def program(self, choice: DeviceChoice, **asked: object) -> Program:
        asked = {"kind": "script", "target": "train.py", **asked}
        env = {"VIRTUAL_ENV": str(self.bin.parent), "PATH": f"{self.bin}:/usr/bin:/bin"}
        return program_for(LaunchRequest(**asked), self.cwd, env, choice)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_a_command_is_left_as_it_is(place):
    made = place.program(TWO, kind="command", target="mpirun", args=("-np", "2", "./x"), pty=True)
    assert (made.kind, made.target, made.args) == ("command", "mpirun", ("-np", "2", "./x"))
    assert (made.python, made.nproc, made.launcher) == (f"{place.bin}/mpirun", 0, "mpirun")
    assert made.notes == ()


def test_command_without_gpus_is_explained(place):
    hidden = DeviceChoice([], why_none="CUDA_VISIBLE_DEVICES is ''")
    notes = place.program(hidden, kind="command", target="mpirun").notes
    assert notes == ("this job has no GPUs: CUDA_VISIBLE_DEVICES is ''",)


@pytest.mark.torch
def test_a_script_that_starts_ranks_is_refused_unless_nproc_confirms(place):
    (place.cwd / "train.py").write_text(MP)
    problem = r"train.py starts its own ranks: mp.spawn \(line 2\), so each rank would start more"
    right = f"`ddptop launch -- {sys.executable} train.py --lr 'a b'`"
    asked = {"python": sys.executable, "args": ("--lr", "a b")}
    for choice in (TWO, QUEUED, NO_DRIVER):
        with pytest.raises(UsageError, match=problem) as refused:
            place.program(choice, **asked)
        assert refused.value.hint.startswith(f"use {right}, or pass --nproc N")
    insisted = place.program(TWO, nproc=2, **asked)
    assert (insisted.kind, insisted.nproc, len(insisted.notes)) == ("script", 2, 1)
    assert right in insisted.notes[0]
    (note,) = place.program(DeviceChoice(GPUS[:1]), **asked).notes
    assert "mp.spawn (line 2)" in note and right in note


@pytest.mark.torch
def test_without_nvidia_hardware_there_are_two_ranks_unless_told(place):
    made = place.program(NO_GPU, python=sys.executable)
    assert (made.nproc, made.notes) == (2, (ON_CPU,))
    made = place.program(NO_GPU, nproc=3, python=sys.executable)
    assert (made.nproc, made.notes) == (3, ())
    with pytest.raises(UsageError, match=r"no GPUs \(the NVIDIA driver is not loaded\), so the"):
        place.program(NO_DRIVER, python=sys.executable)
    with pytest.raises(UsageError, match="the number of ranks is unknown; pass --nproc N"):
        place.program(DeviceChoice([]), python=sys.executable)  # --gpus none


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, "train"),
        ({"target": "x/run_it.py"}, "run_it"),
        ({"kind": "module", "target": "pkg.fit"}, "fit"),
        ({"kind": "command", "target": "mpirun", "args": ("python", "a.py")}, "a"),
        ({"kind": "command", "target": "./x", "base_name": "other"}, "other"),
    ],
)
def test_a_name(asked, name):
    assert name_for(LaunchRequest(**{"kind": "script", "target": "train.py", **asked})) == name
