"""Every fault of the kit once, on real jobs: what ends, who is named, what is left and what lost.

Jobs take their faults one after the other, so that each is launched and each torch imported as
rarely as can be; between two faults the job trains again.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ddptop.faults import places
from ddptop.faults.kinds import BY_NAME, Fault
from ddptop.faults.trial import Trial
from tests.e2e.terminal import Terminal

from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import read_all

pytestmark = [pytest.mark.torch, pytest.mark.tmux, pytest.mark.slow]

TRAIN = Path(__file__).parents[2] / "ddptop" / "demo" / "train.py"
TINY = [
    "--layers",
    "1",
    "--width",
    "64",
    "--context",
    "32",
    "--batch-size",
    "4",
    "--save-every",
    "10",
    "--pause",
    "0.02",
]
KEPT = ["--record", "record", "--out", "out", "--fault-file", "fault"]
HANG_TIMEOUT_S = 4.0
GAP_S = 60.0
"""Where twenty want a core the supervisor once had none for 21 s; `make faults` allows 6."""

JOBS = {
    "nothing of this is felt by the ranks": (
        *("stop", "supervisor-killed", "terminal-closed", "tmux-killed", "log-flood"),
    ),
    "a rank ends": ("kill", "raise", "exit-code", "exit-0", "oom"),
    "ranks stand still, or train on nonsense": ("hang-python", "hang-collective", "nan"),
    "who holds the job ends": ("agent-killed", "guardian-killed", "corrupt-files"),
}
BY_DEMO = ("gpu-lost", "disk-full")
"""What these need is made by `ddptop demo`."""


def quick(fault: Fault) -> Fault:
    if fault.restarts and fault.hang_timeout_s is not None:
        return dataclasses.replace(fault, hang_timeout_s=HANG_TIMEOUT_S)
    return fault


def test_every_fault_is_tried() -> None:
    tried = [name for names in JOBS.values() for name in names]
    assert sorted([*tried, *BY_DEMO]) == sorted(BY_NAME)


@pytest.mark.parametrize("names", JOBS.values(), ids=JOBS)
def test_the_job_goes_on_and_its_story_is_true(
    names: tuple[str, ...],
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    faults = [quick(BY_NAME[name]) for name in names]
    flags = [flag for fault in faults for flag in fault.flags()]
    answer = ddptop_cli(
        *["launch", "-d", "--nproc", "2", "--max-restarts", str(len(names)), *flags],
        *["--cwd", str(tmp_path), str(TRAIN), *TINY, *KEPT, "--steps", "1000000"],
    )
    assert answer.returncode == 0, answer.stderr
    trial = Trial(run_folder(answer.stdout.strip()))
    outcomes = []
    for number, fault in enumerate(faults):
        outcome = trial.run(fault, rank=(number + 1) % 2)
        assert outcome.complaints == [], fault.name
        outcomes.append(outcome)
    assert ddptop_cli("stop", answer.stdout.strip(), "--grace", "5").returncode == 0
    assert trial.end(30, outcomes, wanted="stopped", gap_s=GAP_S) == []


def test_the_demo_tells_what_becomes_of_a_lost_gpu(
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    answer = ddptop_cli(*["demo", "--fault", "gpu-lost", *TINY, "--steps", "150"], timeout_s=200)
    if "C compiler" in answer.stderr:
        pytest.skip(answer.stderr)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = [line.split("  ", 1)[-1] for line in answer.stdout.splitlines()]
    assert [line.split(":")[0] for line in told if line.startswith("fault ")] == [
        "fault gpu-lost (rank 1)"
    ]
    assert any(line.startswith("gpu_lost: GPU 1 is lost") for line in told)
    assert any("GPU 1" in line and "set aside; continuing" in line for line in told)
    assert told[-1].startswith("gpu-lost: as expected")


def test_the_demo_shows_a_full_disk_on_its_screen(
    ddptop_home: Path, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    try:
        with places.small_disk(tmp_path / "disk"):
            pass
    except UsageError as error:
        pytest.skip(str(error))
    terminal = Terminal.of_ddptop("demo", "--fault", "disk-full", *TINY, "--steps", "400")
    terminal.read_until(b"run folder's disk has been full", 90)
    terminal.read_until(b"finished", 90)
    terminal.type(b"q")
    terminal.read_until(b"disk-full: as expected", 60)
    assert terminal.exit_status(30) == 0


def test_a_fault_that_there_is_not_gets_one_line(
    ddptop_cli: Callable[..., subprocess.CompletedProcess[str]], ddptop_home: Path
) -> None:
    for arguments, words in (
        (["--fault", "nosuch"], "--fault nosuch is not a known fault; choose from kill, stop,"),
        (["--fault", "kill", "--rank", "7"], "--rank 7 does not exist; ranks are 0 to 1"),
        (["--fault", "disk-full", "--detach"], "remove --detach"),
    ):
        answer = ddptop_cli("demo", *arguments)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert words in answer.stderr
        assert answer.stderr.count("\n") == 1
    listed = ddptop_cli("demo", "--fault", "list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(BY_NAME)
    assert read_all() == ([], [])
