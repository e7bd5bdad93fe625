"""The corpus of outputs in a job that resumes: what its ranks, its bar, and its ETA show.

Time is simulated. A resumed script first skips the batches that it has trained on, quickly, and
then trains on; its probe counts the steps of the new attempt only.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests.support.progress_corpus import START, Case, Run, Tick

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job import progress as job_progress
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.job.ranks import OwnRanks
from ddptop_runner.model import run_step
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.run_step import RunSteps
from ddptop_runner.model.snapshot import Progress, RankSample

SKIPPED_IN_S = 4.0
"""How long the script skips batches, of which its bar draws each."""
LOOK_AFTER_S = 30.0
"""How long after the first step is looked."""

NAMED = "=> resuming from runs/k/last.pt (step {step}, epoch {epoch})\n"
BARS = ("bar", "tqdm", "Keras", "Lightning", "Ultralytics", "HF Trainer", "Steps:")


class Shown(NamedTuple):
    """What a viewer shows, beside the truth."""

    step: int | None
    counts: str | None
    true_step: int
    every: int
    """Steps between two lines."""
    progress: Progress | None
    true_share: float
    true_eta_s: float


def resumed(case: Case, folder: Path, began: int, *, loaded: bool, named: bool) -> Shown:
    """What is shown half a minute after an attempt resumed.

    Args:
        case: the style of output.
        folder: an empty one.
        began: the step of the run that it resumes from; 0 for a first attempt.
        loaded: whether its checkpoint's step is known.
        named: whether its output names the step that it resumes from.
    """
    attempt = 1 if began else 0
    (folder / "logs" / f"attempt-{attempt}").mkdir(parents=True)
    run = case.run._replace(began_at=began)
    skipped_s = SKIPPED_IN_S if began else 0.0
    ticks = [tick._replace(at_s=tick.at_s + skipped_s) for tick in run.ticks()]
    written = [one for tick in ticks for one in case.write(run, tick)]
    if began and any(word in case.name for word in BARS):
        written += _skipped(case, run, skipped_s)
    elif began:  # the epoch's head
        written += [(0.0, text) for _, text in case.write(run, ticks[0]._replace(step=1))]
    if named:
        first = ticks[0]
        written.append((-10.0, NAMED.format(step=began, epoch=first.epoch)))
    written.sort(key=lambda one: one[0])
    every = _every(case, run, ticks)
    table = OwnRanks(1, 1000.0)
    table.started(0, 0, os.getpid())
    steps, log = RunSteps(), RunFolder(folder).log_file(attempt, 0)
    clock = {"s": 0.0}
    end_s, place, told = ticks[-1].at_s + run.validation_s, 0, 0
    progress = JobProgress(RunFolder(folder), str(folder), case.command)
    with (
        log.open("ab", buffering=0) as file,
        mock.patch.object(job_progress, "boottime_s", lambda: 1000.0 + clock["s"]),
        mock.patch.object(
            job_progress, "utc_now", lambda: START + dt.timedelta(seconds=clock["s"])
        ),
    ):
        shown, sample, count = None, None, None
        while clock["s"] < skipped_s + LOOK_AFTER_S:
            clock["s"] += 1.0
            while place < len(written) and written[place][0] <= clock["s"] + 1e-6:
                file.write(written[place][1].encode())
                place += 1
            while told < len(ticks) and ticks[told].at_s <= clock["s"] + 1e-6:
                told += 1
            last_t = 1000.0 + ticks[told - 1].at_s if told else None
            message = ProbeMessage(
                v=1, pid=os.getpid(), seq=1, t=1000.0 + clock["s"], attempt=attempt, rank=0,
                steps=told or None, last_step_t=last_t,
            )  # fmt: skip
            table.receive(message, attempt)
            progress.look(table, attempt, 1000.0)
            known = progress.steps(table, attempt)
            steps.look(
                list(known.values()),
                attempt,
                resumed=attempt > 0,
                loaded=began if loaded else None,
            )
            step = run_step.of_rank(known[0], steps.began, steps.resumed)
            sample = RankSample(rank=0, local_rank=0, host="h", step=told or None, run_step=step)
            counted = run_step.counted(known[0], steps.resumed)
            count = run_step.of_job([sample], attempt, steps.began, [counted])
            done = {0: counted if step is None else step}
            shown = progress.of_job(table, attempt, done)
    progress.close()
    tick = ticks[told - 1]
    return Shown(
        None if count is None else count.step,
        None if count is None else count.counts,
        tick.done,
        every,
        shown,
        tick.done / run.total,
        end_s - clock["s"],
    )


def _skipped(case: Case, run: Run, skipped_s: float) -> list[tuple[float, str]]:
    """The redraws of the epoch's skipped batches."""
    first = next(iter(run.ticks()))
    found = []
    for step in range(1, first.step):
        tick = Tick(
            skipped_s * step / first.step, first.epoch, step, first.of,
            first.done - first.step + step,
        )  # fmt: skip
        found += [(tick.at_s, text) for _, text in case.write(run, tick)]
    return found


def _every(case: Case, run: Run, ticks: list[Tick]) -> int:
    """The most steps between two lines."""
    printing = [tick.done for tick in ticks if any(True for _ in case.write(run, tick))]
    apart = [after - before for before, after in itertools.pairwise(printing)]
    return max(apart, default=run.total)
