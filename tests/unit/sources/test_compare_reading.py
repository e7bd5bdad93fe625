"""Losses from a history, at the steps to which they belong."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
from ddptop.sources.compare import MOST_POINTS, RunReader, curve_of, read_run
from tests.support import fake_home, fake_story

from ddptop_runner.job.registry import read_job
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.store.history_reader import Series


def losses(median: list[float], step: list[int | None], attempt: list[int | None]) -> Series:
    t = list(range(100, 100 + len(median)))
    return Series(bucket_s=1, t=t, mean=median, step=step, attempt=attempt)


def test_a_band_is_one_curve_with_each_attempts_steps_where_they_belong() -> None:
    found = curve_of(
        losses([6.0, 3.0, 2.0], [9, 19, 5], [0, 0, 1]), 95.0, {0: 0, 1: 20}, printed=False
    )
    assert [one.loss for one in found.samples] == [6.0, 3.0, 2.0]
    assert [one.step for one in found.samples] == [9, 19, 25]
    assert [one.at_s for one in found.samples] == [5.5, 6.5, 7.5]
    # the steps of an attempt without a known start are unknown
    assert curve_of(losses([6.0], [9], [3]), 95.0, {0: 0}, printed=False).samples[0].step is None
    assert curve_of(losses([6.0], [9], [3]), 95.0, {}, printed=True).samples[0].step == 9


def test_a_bucket_without_a_finite_loss_is_kept() -> None:
    one = msgspec.structs.replace(
        losses([4.0], [1], [0]),
        nonfinite_t=[100, 101],
        nonfinite_step=[1, 2],
        nonfinite_attempt=[0, 0],
    )
    found = curve_of(one, 100.0, {0: 0}, printed=False)
    assert [(s.loss, s.is_bad, s.step) for s in found.samples] == [(4.0, True, 1), (None, True, 2)]


def test_a_part_is_read_more_finely_and_the_rest_stays(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "long", "1", steps=4000)
    reader = RunReader(folder.history_db)
    whole = reader.read(read_job(folder))
    assert len(whole.curve.samples) <= MOST_POINTS + 1
    apart = [b.at_s - a.at_s for a, b in itertools.pairwise(whole.curve.samples)]
    assert min(apart) == 3.0
    part = reader.closer(whole, 500, 800)
    inside = [one.at_s for one in part.curve.samples if 500 <= one.at_s <= 800]
    assert len(inside) >= 299
    assert part.curve.samples[0] == whole.curve.samples[0]
    assert part.curve.samples[-1] == whole.curve.samples[-1]
    places = [one.step for one in part.curve.samples]
    assert places == sorted(places)
    assert reader.closer(whole, 9000, 9001) is whole


def test_steps_continue_over_a_restart_from_its_reported_start(
    ddptop_home: Path,
) -> None:
    folder = fake_story.learner(ddptop_home, "again", "1", steps=200, restart_at=100)
    found = read_run(read_job(folder))
    assert found.curve.last_step == 200
    assert [number for number, _ in found.attempts] == [0, 1]
    # its script reports that the second attempt resumed at step 80
    fake_home.change(folder, attempts_began={0: 0, 1: 80})
    told = read_run(read_job(folder)).curve
    assert told.last_step == 180
    assert [one.attempt for one in told.by_step].count(0) == 40  # of the first, up to step 80


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
    assert found.step is not None and found.step.step == 20  # the snapshot's
