"""Losses of a foreign job that only logs to files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.foreign.toys import census_of, job_of

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign import job_record
from ddptop_runner.foreign.watch import ForeignBook


def test_a_followed_job_that_prints_nothing_is_read_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until
) -> None:
    monkeypatch.setattr(job_record, "FILES_AFTER_S", 0.0)
    monkeypatch.setattr(job_record, "FILES_EVERY_S", 0.02)
    logs = tmp_path / "lightning_logs" / "version_0"
    logs.mkdir(parents=True)
    book = ForeignBook()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=tmp_path, **quiet) as process:
        try:
            job = job_of(process.pid, started_at=utc_now())
            (logs / "metrics.csv").write_text(
                "epoch,step,train_loss,val_loss,lr\n0,9,2.5,,\n0,19,2.25,3.5,0.1\n"
            )

            def rank(follow: str | None):
                (view,) = book.update(census_of(job), [], utc_now(), follow=follow)
                return view.snapshot.ranks[0]

            assert rank(None).loss is None  # a job that nobody watches is not read
            wait_until(lambda: rank(job.name).loss is not None)
            told = rank(job.name)
            assert (told.loss, told.loss_source, told.step) == (2.25, "log", 19)
            assert book.chart(job.name, 0, 1e11, 10)[0].last == [2.25]
            scalars = book.scalars(job.name, 0, 1e11, 10)
            assert {name: one.last for name, one in scalars.items()} == {
                "lr": [0.1],
                "validation loss": [3.5],
            }
        finally:
            process.kill()
            book.close()
    assert not [fd for fd in os.listdir("/proc/self/fd") if "metrics.csv" in _target(fd)]


def _target(fd: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""
