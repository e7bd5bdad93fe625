"""Whose word on the total counts, and which rank's."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from ddptop_runner.model import NodeSnapshot, Progress
from ddptop_runner.progress.combine import RankTold, of_job, of_moment, of_rank, total_steps


def log(step: int, total: int, **more) -> Progress:
    return Progress(step=step, total=total, fraction=step / total, source="log", **more)


def fake_snapshot(**told: Any) -> NodeSnapshot:
    at = dt.datetime(2026, 3, 14, 12, tzinfo=dt.timezone.utc)
    return NodeSnapshot(
        job="a", job_id="a@0", host="h", seq=1, ts=at, state="running", started_at=at, **told
    )


def test_a_total_that_the_script_reported() -> None:
    done = of_rank(RankTold(steps=100, steps_per_s=5.0, total=1000, source="api"), resumed=False)
    assert (done.step, done.total, done.source) == (100, 1000, "api")
    assert (done.fraction, done.eta_s) == (0.1, 180)
    assert total_steps(done) == 1000


@pytest.mark.parametrize(
    ("told", "resumed", "step"),
    [
        (RankTold(steps=10, total=100), False, 10),
        (RankTold(steps=10, total=100), True, None),
        (RankTold(steps=10, global_step=60, total=100), True, 60),
        (RankTold(steps=10, global_step=60, total=100), False, 60),
        (RankTold(steps=10, total=100, text=log(60, 100)), True, 60),
        (RankTold(steps=10, total=100, text=log(60, 100)), False, 60),
        (RankTold(steps=10, total=100, text=log(240, 400)), False, 10),  # micro-batches
        (RankTold(total=100), False, None),
    ],
)
def test_what_is_done_of_a_run_that_was_resumed(told, resumed, step) -> None:
    done = of_rank(told, resumed)
    if step is None:
        assert (done.step, done.fraction, done.eta_s) == (None, None, None)
    else:
        assert (done.step, done.fraction) == (step, step / 100)
    assert done.total == 100


def test_a_share_that_is_known_beats_a_better_source_without_one() -> None:
    told = RankTold(steps=10, total=100, source="trainer", text=log(240, 400))
    assert of_rank(told, resumed=True) == log(240, 400)
    api = of_rank(RankTold(total=100), resumed=True)
    assert of_job([api, log(1, 4)]) == log(1, 4)
    assert of_job([api, None]) == api


@pytest.mark.parametrize(
    ("steps", "resumed", "step"),
    [
        (210, False, 210),  # since the last line, of every ten steps
        (200, False, 200),
        (211, False, 200),  # they do not count the same
        (50, False, 200),
        (210, True, 200),
        (None, False, 200),
    ],
)
def test_a_probe_goes_on_between_two_lines(steps, resumed, step) -> None:
    told = RankTold(steps=steps, text=log(200, 400, eta_s=9.0), text_every=10)
    done = of_rank(told, resumed)
    assert (done.step, done.fraction, done.eta_s, done.source) == (step, step / 400, 9.0, "log")
    beyond = RankTold(steps=405, text=log(398, 400), text_every=10)
    assert of_rank(beyond, resumed=False).step == 398


def test_more_steps_than_the_total_tell_no_share() -> None:
    done = of_rank(RankTold(steps=130, steps_per_s=1.0, total=100), resumed=False)
    assert (done.step, done.fraction, done.eta_s) == (130, None, None)


def test_a_rank_that_stands_still_has_no_eta_and_borrows_none() -> None:
    text = log(10, 100, eta_s=50.0)
    still = RankTold(steps=10, steps_per_s=0.0, total=100, text=text)
    assert of_rank(still, resumed=False).eta_s is None
    unknown = RankTold(steps=10, steps_per_s=None, total=100, text=text)
    assert of_rank(unknown, resumed=False).eta_s == 50


def test_the_best_source_and_the_slowest_rank() -> None:
    ranks = [
        log(90, 100),
        of_rank(RankTold(steps=50, steps_per_s=1.0, total=100, source="trainer"), resumed=False),
        of_rank(RankTold(steps=40, steps_per_s=2.0, total=100, source="trainer"), resumed=False),
    ]
    done = of_job(ranks)
    assert (done.step, done.fraction, done.eta_s, done.source) == (40, 0.4, 50, "trainer")
    api = of_rank(RankTold(steps=10, total=1000, source="api"), resumed=False)
    assert of_job([*ranks, api]) == api


def test_nobody_knows() -> None:
    assert of_job([]) is None
    assert of_job([None, of_rank(RankTold(steps=5), resumed=False)]) is None
    assert total_steps(None) is None
    assert total_steps(Progress(step=3, total=10, counts="epoch", source="log")) is None


@pytest.mark.parametrize(
    ("attempt", "step", "done"),
    [
        (0, 172, 172),  # as many as its own
        (1, 104, None),  # nobody knows from where that attempt went on
        (2, 104, 254),
        (2, None, None),
        (2, 9000, None),
        (None, 104, None),
    ],
)
def test_how_far_it_was_at_a_moment(
    attempt: int | None, step: int | None, done: int | None
) -> None:
    last = fake_snapshot(attempt=2, step=750, total_steps=900, progress=log(900, 900))
    was = of_moment(step, attempt, last)
    assert was is not None
    assert (was.step, was.total, was.counts, was.source) == (done, 900, "run", "log")
    assert was.fraction == (None if done is None else done / 900)


def test_how_far_it_was_where_too_little_is_known() -> None:
    assert of_moment(5, 0, None) is None
    assert of_moment(5, 0, fake_snapshot(attempt=0, step=9)) is None
    reported = fake_snapshot(attempt=1, step=9, total_steps=90)
    assert of_moment(5, 1, reported) == Progress(total=90, source="api")
    assert of_moment(5, 0, reported) == Progress(step=5, total=90, fraction=5 / 90, source="api")
