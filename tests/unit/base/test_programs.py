"""What helper programs print is bounded, and they are ended in time."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from ddptop_runner.base import programs


def sh(script: str, **options: object) -> subprocess.CompletedProcess[str]:
    return programs.run(["sh", "-c", script], 20.0, **options)  # type: ignore[arg-type]


def test_it_returns_status_output_and_errors() -> None:
    done = sh("cat; echo wrong >&2; exit 3", data=b"x" * 200_000)
    assert (done.returncode, done.stdout, done.stderr) == (3, "x" * 200_000, "wrong\n")


def test_a_program_that_reads_nothing_may_exit() -> None:
    assert sh("exit 1", data=b"x" * 2_000_000).returncode == 1


def test_a_flood_ends_the_program() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OSError, match="printed more than 16 MiB"):
        sh("yes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_a_program_out_of_time_ends_with_all_it_started() -> None:
    began_s = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as late:
        programs.run(["sh", "-c", "echo begun; sleep 60 & wait"], 0.5)
    assert late.value.stdout == "begun\n"
    assert time.monotonic() - began_s < 20


def test_a_program_that_is_started_survives_its_terminal_and_appends_to_its_log(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = programs.start(["sh", "-c", "echo after >&2"], log)
    assert os.getsid(process.pid) == process.pid
    assert process.wait(20) == 0
    assert log.read_text() == "before\nafter\n"
