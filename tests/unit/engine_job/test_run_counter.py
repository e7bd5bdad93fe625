"""A counter that runs on across epochs, with one line for each, before and after a restart."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job import progress as job_progress
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.job.ranks import OwnRanks
from ddptop_runner.model import run_step
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.run_step import RunSteps
from ddptop_runner.model.snapshot import Progress
from ddptop_runner.reading.progress.combine import total_steps

START = dt.datetime(2026, 3, 14, 12, tzinfo=dt.timezone.utc)


class Training:
    """A rank that does 2 steps per second and prints a line after each epoch of 20 steps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = RunFolder(folder)
        self._at_s = 0.0
        monkeypatch.setattr(job_progress, "boottime_s", lambda: 1000.0 + self._at_s)
        monkeypatch.setattr(
            job_progress, "utc_now", lambda: START + dt.timedelta(seconds=self._at_s)
        )
        self._progress = JobProgress(self._folder, str(folder), ["python", "train.py"])
        self._steps = RunSteps()

    def train(
        self, attempt: int, began: int, until: int, head: str = ""
    ) -> tuple[int | None, Progress | None]:
        """(the step of the run, the progress) once an attempt has reached `until`."""
        (self._folder.path / "logs" / f"attempt-{attempt}").mkdir(parents=True)
        log = self._folder.log_file(attempt, 0)
        log.write_text(head)
        table, shown, step = OwnRanks(1, 1000.0), None, None
        table.started(0, 0, os.getpid())
        for done in range(began + 2, until + 1, 2):
            self._at_s += 1.0
            if done % 20 == 0:
                with log.open("a") as file:
                    file.write(f"epoch {done // 20} step {done}/240 loss {3 / done:.4f}\n")
            message = ProbeMessage(
                v=1, pid=os.getpid(), seq=done, t=1000.0 + self._at_s, attempt=attempt, rank=0,
                steps=done - began, last_step_t=1000.0 + self._at_s,
            )  # fmt: skip
            table.receive(message, attempt)
            self._progress.look(table, attempt, 1000.0 + self._at_s - (done - began) / 2)
            ranks = self._progress.steps(table, attempt)
            self._steps.look(list(ranks.values()), attempt, resumed=attempt > 0)
            step = run_step.of_rank(ranks[0], self._steps.began, self._steps.resumed)
            shown = self._progress.of_job(table, attempt, {0: step})
        return step, shown

    def close(self) -> None:
        self._progress.close()


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    made = Training(tmp_path, monkeypatch)
    yield made
    made.close()


def check(progress: Progress | None, step: int) -> None:
    assert progress is not None
    assert (progress.counts, total_steps(progress), progress.estimated) == ("run", 240, False)
    assert progress.fraction == pytest.approx(step / 240)
    assert progress.eta_s == pytest.approx((240 - step) / 2, abs=1)


def test_a_counter_that_rises_when_the_epoch_grows_is_the_runs(training: Training) -> None:
    step, progress = training.train(0, 0, 46)
    assert step == 46
    check(progress, 46)


@pytest.mark.parametrize(
    "head", ["resumed from ckpt/last.pt at epoch 4, step 80\n", ""], ids=["named", "unnamed"]
)
def test_after_a_restart_it_still_is(training: Training, head: str) -> None:
    training.train(0, 0, 84)
    step, progress = training.train(1, 80, 126, head)
    assert step == 126
    check(progress, 126)


def test_it_is_unknown_while_the_total_may_be_that_of_the_epoch(training: Training) -> None:
    step, progress = training.train(0, 0, 30)
    assert step == 30 and progress is not None
    assert (progress.fraction, progress.eta_s) == (None, None)
