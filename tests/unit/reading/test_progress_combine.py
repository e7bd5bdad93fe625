"""Which source of the total takes precedence, and which rank's."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import NodeSnapshot, Progress, RunStep
from ddptop_runner.reading.progress.combine import (
    ended,
    of_job,
    of_moment,
    of_rank,
    of_snapshot,
    total_steps,
)
from ddptop_runner.reading.progress.rank_view import NOTHING


def told(total: int | None = None, source: Any = None) -> ProbeMessage:
    return msgspec.structs.replace(NOTHING, total_steps=total, total_source=source)


def at(steps_per_s: float) -> Any:
    """Seconds left at that pace."""
    return lambda rest: rest / steps_per_s


def log(step: int, total: int, **more) -> Progress:
    return Progress(step=step, total=total, fraction=step / total, source="log", **more)


def fake_snapshot(**told: Any) -> NodeSnapshot:
    at = dt.datetime(2026, 3, 14, 12, tzinfo=dt.timezone.utc)
    return NodeSnapshot(
        job="a", job_id="a@0", host="h", seq=1, ts=at, state="running", started_at=at, **told
    )


def test_a_total_that_the_script_reported() -> None:
    done = of_rank(told(1000, source="api"), 100, at(5.0))
    assert (done.step, done.total, done.source) == (100, 1000, "api")
    assert (done.fraction, done.eta_s) == (0.1, 180)
    assert total_steps(done) == 1000


@pytest.mark.parametrize(
    ("steps", "step"),
    [
        (210, 210),  # since the last line, of every ten steps
        (200, 200),
        (211, 200),  # they count differently
        (50, 200),
        (None, 200),
    ],
)
def test_the_run_goes_on_between_two_lines(steps, step) -> None:
    done = of_rank(told(), steps, None, text=log(200, 400, eta_s=9.0), text_every=10)
    assert (done.step, done.fraction, done.eta_s, done.source) == (step, step / 400, 9.0, "log")
    assert of_rank(told(), 405, None, text=log(398, 400), text_every=10).step == 398


def test_a_rank_that_stands_still_has_no_eta_and_borrows_none() -> None:
    text = log(10, 100, eta_s=50.0)
    still = of_rank(told(100), 10, None, text=text)
    assert still.eta_s is None
    unknown = of_rank(told(100), 10, lambda rest: None, text=text)
    assert unknown.eta_s == 50


def test_the_best_source_and_the_slowest_rank() -> None:
    ranks = [
        log(90, 100),
        of_rank(told(100, source="trainer"), 50, at(1.0)),
        of_rank(told(100, source="trainer"), 40, at(2.0)),
    ]
    done = of_job(ranks)
    assert (done.step, done.fraction, done.eta_s, done.source) == (40, 0.4, 50, "trainer")
    api = of_rank(told(1000, source="api"), 10, None)
    assert of_job([*ranks, api]) == api


@pytest.mark.parametrize(
    ("run", "done"),
    [
        (RunStep(step=172, counts="run"), 172),
        (RunStep(step=104, counts="attempt"), None),
        (RunStep(step=9000, counts="run"), None),
        (None, None),
    ],
)
def test_how_far_it_was_at_a_moment(run: RunStep | None, done: int | None) -> None:
    last = fake_snapshot(attempt=2, step=750, total_steps=900, progress=log(900, 900))
    was = of_moment(run, last)
    assert was is not None
    assert (was.step, was.total, was.counts, was.source) == (done, 900, "run", "log")
    assert was.fraction == (None if done is None else done / 900)
    reported = fake_snapshot(attempt=1, step=9, total_steps=90)
    assert of_moment(None, reported) == Progress(total=90, source="api")


def test_how_far_it_was_where_no_total_is_known() -> None:
    run = RunStep(step=5, counts="run")
    assert of_moment(run, None) is None
    assert of_moment(run, fake_snapshot(attempt=0, step=9)) is None


def test_what_has_ended_has_nothing_ahead_and_a_whole_is_no_estimate() -> None:
    told = log(47, 188, counts="epoch", eta_s=9.0, epoch_eta_s=3.0, estimated=True)
    over = ended(told)
    assert (over.eta_s, over.epoch_eta_s, over.fraction, over.estimated) == (None, None, 0.25, True)
    assert not ended(log(188, 188, estimated=True)).estimated


@pytest.mark.parametrize(
    ("state", "progress", "fraction"),
    [
        ("finished", log(29, 30), 1.0),
        ("finished", log(28, 30), 28 / 30),
        ("stopped", log(29, 30), 29 / 30),
        ("finished", Progress(epoch=4, epochs=5, fraction=0.8, source="log"), 1.0),
        ("finished", Progress(total=30, source="log"), None),
    ],
)
def test_a_finished_script_may_count_from_0(
    state: str, progress: Progress, fraction: float | None
) -> None:
    over = of_snapshot(
        msgspec.structs.replace(fake_snapshot(progress=progress), state=state), is_live=False
    )
    assert over is not None and over.fraction == fraction


def test_nobody_knows() -> None:
    assert of_job([]) is None
    assert of_job([None, of_rank(told(), 5, None)]) is None
    assert total_steps(None) is None
    assert total_steps(Progress(step=3, total=10, counts="epoch", source="log")) is None
