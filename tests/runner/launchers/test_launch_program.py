"""The program that a job runs, depending on the request, what is installed, and its devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.launch.advice import QuestionError
from ddptop_runner.launch.gpus.choice import ON_CPU, DeviceChoice
from ddptop_runner.launch.program import LIVE, Program, name_for, program_for
from ddptop_runner.launch.request import LaunchRequest
from ddptop_runner.model.spec import Device, DeviceQueue

NO_GPU = DeviceChoice(None)
NO_DRIVER = DeviceChoice(None, why_none="the NVIDIA driver is not loaded")
GPUS = [Device(index=2, uuid="GPU-2"), Device(index=5, uuid="GPU-5")]
TWO = DeviceChoice(GPUS)
QUEUED = DeviceChoice(None, DeviceQueue(candidates=GPUS, count=2, since=utc_now()))
MP = "import torch.multiprocessing as mp\nmp.spawn(f)\n"
LIGHTNING = "import lightning as L\nL.Trainer()\n"


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
    assert made.pty and made.notes == ()


def test_command_without_gpus_is_explained(place):
    hidden = DeviceChoice([], why_none="CUDA_VISIBLE_DEVICES is ''")
    for asked in ({"kind": "command", "target": "mpirun"}, {"launcher": "none"}):
        notes = place.program(hidden, **asked).notes
        assert notes == ("this job has no GPUs: CUDA_VISIBLE_DEVICES is ''",)


@pytest.mark.parametrize("choice", [TWO, QUEUED], ids=["devices", "devices to come"])
def test_a_launcher_gets_a_rank_per_device(place, choice):
    made = place.program(choice, launcher="deepspeed")
    assert made.args[0] == "--master_port" and made.args[2:] == ("train.py",)
    assert made.target == made.python == f"{place.bin}/deepspeed"
    assert (made.kind, made.nproc, made.launcher) == ("command", 0, "deepspeed")
    assert "--num_processes 2" in " ".join(place.program(choice, launcher="accelerate").args)


def test_a_launcher_with_variables_is_started_through_env(place):
    made = place.program(NO_GPU, launcher="accelerate", nproc=3)
    assert made.target == "env" and Path(made.python).name == "env"
    assert made.args[:2] == ("ACCELERATE_USE_CPU=true", f"{place.bin}/accelerate")


def test_one_process_gets_all_devices(place):
    made = place.program(TWO, launcher="none", args=("--lr", "1"))
    assert made.args == ("-u", "train.py", "--lr", "1")
    assert (made.target, made.launcher, made.notes) == (f"{place.bin}/python", "python", ())


def test_who_names_a_launcher_is_told_only(place):
    (place.cwd / "train.py").write_text(MP)
    (note,) = place.program(TWO, launcher="mpi").notes
    assert "each of the 2 ranks would start more; `ddptop launch --launcher none train.py`" in note
    assert place.program(TWO, launcher="none").notes == ()


@pytest.mark.torch
def test_who_names_none_is_asked(place):
    (place.cwd / "train.py").write_text(MP)
    for choice, words in ((TWO, "each of the 2 ranks"), (NO_DRIVER, "each rank")):
        with pytest.raises(QuestionError, match=f"{words} would start more"):
            place.program(choice, python=sys.executable)
    insisted = place.program(TWO, python=sys.executable, as_asked=True)
    assert (insisted.kind, insisted.nproc) == ("script", 2) and len(insisted.notes) == 1


def test_without_nvidia_hardware_there_are_two_ranks_unless_told(place):
    made = place.program(NO_GPU, python=sys.executable)
    assert (made.nproc, made.notes) == (2, (ON_CPU,))
    made = place.program(NO_GPU, launcher="accelerate")
    assert "--num_processes 2" in " ".join(made.args) and made.notes == (ON_CPU,)
    made = place.program(NO_GPU, nproc=3, python=sys.executable)
    assert (made.nproc, made.notes) == (3, ())
    with pytest.raises(UsageError, match=r"no GPUs \(the NVIDIA driver is not loaded\), so the"):
        place.program(NO_DRIVER, python=sys.executable)
    with pytest.raises(UsageError, match="the number of ranks is unknown; pass --nproc N"):
        place.program(DeviceChoice([]), python=sys.executable)  # --gpus none


def test_an_environment_without_torch(place):
    (place.cwd / "train.py").write_text("import tensorflow\n")
    (place.bin / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    with pytest.raises(UsageError, match="trains with tensorflow; `ddptop launch --launcher none"):
        place.program(TWO)
    assert place.program(TWO, launcher="none").target == f"{place.bin}/python"


def test_a_bar_that_needs_a_terminal_gets_one(place):
    (place.cwd / "train.py").write_text(LIGHTNING)
    rich = place.bin.parent / "lib" / "python3.12" / "site-packages" / "rich"
    direct = {"kind": "command", "target": "python", "args": ("train.py",)}
    for asked in ({"launcher": "none"}, direct):
        assert not place.program(NO_GPU, **asked).pty
    rich.mkdir(parents=True)
    (rich / "__init__.py").touch()
    for asked in ({"launcher": "none"}, direct):
        made = place.program(NO_GPU, **asked)
        assert made.pty and made.notes == (LIVE,)
        assert place.program(NO_GPU, pty=True, **asked).notes == ()


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, "train"),
        ({"launcher": "mpi", "target": "x/run_it.py"}, "run_it"),
        ({"kind": "module", "target": "pkg.fit"}, "fit"),
        ({"kind": "command", "target": "mpirun", "args": ("python", "a.py")}, "a"),
        ({"kind": "command", "target": "./x", "base_name": "other"}, "other"),
    ],
)
def test_a_name(asked, name):
    assert name_for(LaunchRequest(**{"kind": "script", "target": "train.py", **asked})) == name
