"""Losses out of a history, with steps where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.comparing.reading import curve_of, points_for, read_run
from tests.tui import fake_home, fake_story

from ddptop_runner.history import Series
from ddptop_runner.model import RankSample, encode
from ddptop_runner.registry import read_job


def series(values: list[float], attempts: list[int | None] | None = None) -> Series:
    t = list(range(100, 100 + len(values)))
    return Series(
        bucket_s=1,
        t=t,
        min=values,
        mean=values,
        max=values,
        last=values,
        attempt=attempts or [0] * len(values),
    )


def test_the_ranks_are_one_curve_of_medians_at_the_slowest_ones_steps() -> None:
    losses = {0: series([4.0, 2.0]), 1: series([6.0, 3.0]), 2: series([90.0, 4.0])}
    steps = {0: series([10, 20]), 1: series([9, 19]), 2: series([10, 20])}
    found = curve_of(losses, steps, 95.0, {}, counted=True)
    assert [one.loss for one in found.samples] == [6.0, 3.0]
    assert [one.step for one in found.samples] == [9, 19]
    assert [one.at_s for one in found.samples] == [5.5, 6.5]


def test_a_bucket_without_a_finite_loss_is_kept() -> None:
    one = series([4.0])
    bad = Series(bucket_s=1, t=one.t, min=[4.0], mean=[4.0], max=[4.0], last=[4.0], attempt=[0],
                 nonfinite_t=[100, 101])  # fmt: skip
    found = curve_of({0: bad}, {0: series([1, 2])}, 100.0, {}, counted=True)
    assert [(s.loss, s.is_bad, s.step) for s in found.samples] == [(4.0, True, 1), (None, True, 2)]


def test_a_restart_is_counted_on_and_where_it_said_where_it_went_on_from_there(
    ddptop_home: Path,
) -> None:
    folder = fake_story.learner(ddptop_home, "again", "1", steps=200, restart_at=100)
    found = read_run(read_job(folder))
    assert found.curve.last_step == 200
    assert [number for number, _ in found.attempts] == [0, 1]
    # its script says that the second attempt went on at step 80
    rank = RankSample(rank=0, local_rank=0, host=fake_home.HOST, step=100, global_step=180)
    fake_home.change(folder, ranks=[rank])
    told = read_run(read_job(folder)).curve
    assert told.last_step == 180
    assert [one.attempt for one in told.by_step].count(0) == 40  # of the first, up to step 80


def test_what_was_kept_at_a_failure_tells_of_earlier_attempts(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "again", "1", steps=200, restart_at=100)
    rank = RankSample(rank=0, local_rank=0, host=fake_home.HOST, step=100, global_step=1100)
    kept = folder.evidence_dir / "attempt-0-failure"
    kept.mkdir()
    snapshot = fake_home.change(folder, attempt=0, ranks=[rank])
    (kept / "snapshot.json").write_bytes(encode(snapshot))
    fake_home.change(folder, attempt=1, ranks=[])
    steps = [one.step for one in read_run(read_job(folder)).curve.samples]
    assert (steps[0], steps[49], steps[50]) == (1002, 1100, 1102)


def test_printed_steps_are_the_runs_own(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "printed", "1", steps=200, restart_at=100)
    rank = RankSample(rank=0, local_rank=0, host=fake_home.HOST, step=100, step_source="log")
    fake_home.change(folder, ranks=[rank])
    found = read_run(read_job(folder)).curve
    assert found.last_step == 100
    assert {one.attempt for one in found.by_step} == {1}


def test_a_job_without_a_history_has_no_curve(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "none", "1", steps=20)
    fake_story.without_history(folder)
    found = read_run(read_job(folder))
    assert found.curve.samples == ()
    assert found.steps == 20  # the snapshot's


@pytest.mark.parametrize(("ranks", "points"), [(1, 1500), (8, 1500), (64, 937), (1024, 200)])
def test_many_ranks_are_read_more_coarsely(ranks: int, points: int) -> None:
    assert points_for(ranks) == points
