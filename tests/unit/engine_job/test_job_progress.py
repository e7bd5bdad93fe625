"""A live job's progress from output, files, and probes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from tests.support.builders import put_exit
from tests.unit.reading import test_trace_series as made

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs
from ddptop_runner.job import progress as job_progress
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.job.ranks import OwnRanks
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.run_step import Printed
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.reading.event_files import EventFile, rank_of


@pytest.fixture
def table() -> OwnRanks:
    table = OwnRanks(2, boottime_s())
    table.started(0, 0, os.getpid())
    table.started(1, 1, os.getppid())
    return table


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_progress, "TRACES_AFTER_S", 30.0)
    monkeypatch.setattr(job_progress, "TRACES_EVERY_S", 0.02)
    (tmp_path / "run" / "logs" / "attempt-0").mkdir(parents=True)
    progress = JobProgress(RunFolder(tmp_path / "run"), str(tmp_path / "work"))
    yield progress
    progress.close()


def samples(progress: JobProgress, table: OwnRanks, attempt: int = 0) -> list[RankSample]:
    samples = [record.sample(probe=False) for record in table]
    return progress.fill(samples, attempt, table)


def put_events(tmp_path: Path, *steps: tuple[int, dict[str, float]]) -> None:
    """Events of a writer whose pid is not in the name of its file."""
    folder = tmp_path / "work" / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    data = b""
    for step, values in steps:
        scalars = [made.scalar(tag, value) for tag, value in values.items()]
        data += made.record(made.event(step, *scalars, at_s=time.time()))
    (folder / "events.out.tfevents.1795264528.host").write_bytes(data)


def test_the_command_tells_how_many_epochs_there_are(table, tmp_path):
    (tmp_path / "logs" / "attempt-0").mkdir(parents=True)
    folder = RunFolder(tmp_path)
    bars = (f"\r{n:3d}%|##| {n}/100 [00:10<00:10, 1.00it/s]" for n in range(51))
    folder.log_file(0, 0).write_text("".join(bars) + "\r")
    known = JobProgress(folder, str(tmp_path), ["python", "t.py", "--epochs", "4"])
    known.look(table, 0, boottime_s())
    done = known.of_job(table, 0, {})
    known.close()
    assert (done.fraction, done.estimated, done.epoch_fraction) == (0.5 / 4, True, 0.5)


def test_files_are_read_if_nothing_else_has_a_loss(progress, table, tmp_path, wait_until):
    put_events(tmp_path, (9, {"train_loss": 2.5}), (19, {"train_loss": 2.25}))
    progress.look(table, 0, boottime_s() - 20)
    assert progress._files is None  # not yet: output or probe may follow
    began_s = boottime_s() - 40

    def told() -> bool:
        progress.look(table, 0, began_s)
        return samples(progress, table)[0].loss is not None

    wait_until(told)
    followed = progress._files
    progress.look(table, 0, began_s + 1e-4)
    assert progress._files is followed  # another one would cause everything to be read again
    first, second = samples(progress, table)
    assert (first.loss, first.loss_source) == (2.25, "log")
    assert (first.step, first.step_source) == (19, "log")
    # only its name could show which rank wrote the file
    assert (second.loss, second.step) == (None, None)
    with RunFolder(tmp_path / "run").log_file(0, 0).open("w") as log:
        log.write("step 30/100 loss 9.5\n")
    progress.look(table, 0, began_s)
    assert samples(progress, table)[0].loss == 9.5  # the output takes precedence
    done = progress.of_job(table, 0, {})
    assert (done.step, done.total, done.fraction) == (30, 100, 0.3)


def test_on_a_node_without_rank_0_files_are_read_only_where_a_loss_is_missing(progress):
    table = OwnRanks(2, boottime_s(), first_rank=2)
    for record in table:
        table.started(record.rank, record.local_rank, os.getpid())
    progress.look(table, 0, boottime_s() - 100)
    assert progress._files is not None
    for record in table:
        record.reported = msgspec.structs.replace(record.reported, loss_state="ok", loss=9.5)
    progress.look(table, 0, boottime_s() - 100)
    assert progress._files is None


def test_whose_a_file_is():
    def writer(pid: int | None, host: str | None = procs.host_name()) -> int | None:
        file = EventFile("x", 0.0, host=host, pid=pid)
        return rank_of(file, {0: (7, 8), 1: {9}}, others=(88,))

    assert (writer(8), writer(9), writer(88), writer(None, None)) == (0, 1, 0, 0)
    assert writer(9, f"{procs.host_name()}.example.com") == 1
    assert writer(1) is None  # another training may log in the same folder
    assert writer(9, "elsewhere") is None


def test_an_attempt_begins_with_nothing(progress, table, tmp_path):
    with RunFolder(tmp_path / "run").log_file(0, 1).open("w") as log:
        log.write("step 30/100 loss 9.5\n")
    progress.look(table, 0, boottime_s())
    assert samples(progress, table)[1].loss == 9.5
    progress.look(table, 0, boottime_s() - 100)
    assert progress._files is not None  # because of the other rank's loss
    assert progress.of_job(table, 0, {}).step == 30
    # reported before its output is read
    assert (samples(progress, table, 1)[1].step, progress.of_job(table, 1, {})) == (None, None)
    progress.look(table, 1, boottime_s())
    assert progress._files is None
    assert samples(progress, table, 1)[1].loss is None
    assert progress.of_job(table, 1, {}) is None


def test_the_loss_of_a_rank_that_ended_early_is_read_without_waiting_for_its_probe(
    progress, table, tmp_path
):
    for rank in (0, 1):
        RunFolder(tmp_path / "run").log_file(0, rank).write_text("step 30/100 loss 9.5\n")
    progress.look(table, 0, boottime_s())
    put_exit(table[1], RankExit(1, os.getppid(), 0, boottime_s()))
    told = [record.sample(probe=True) for record in table]
    assert [one.loss for one in progress.fill(told, 0, table)] == [None, 9.5]


def test_what_the_output_counts_is_told_beside_the_ranks_own_steps(progress, table, tmp_path):
    log = RunFolder(tmp_path / "run").log_file(0, 0)
    log.write_text("step 390/900 loss 2.5\nstep 400/900 loss 2.4\n")
    progress.look(table, 0, boottime_s())
    for record, steps in zip(table, (153, 157), strict=True):
        record.steps = steps
    first, second = progress.steps(table, 0).values()
    assert (first.own, first.printed) == (153, Printed(400, 390, 10, 900))
    assert (second.own, second.printed) == (157, None)
    assert progress.steps(table, 1)[0].printed is None  # the output belongs to another attempt
