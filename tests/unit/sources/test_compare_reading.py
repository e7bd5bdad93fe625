"""Losses from a history, at the steps to which they belong."""

from __future__ import annotations

from pathlib import Path

from ddptop.sources.compare import read_run
from ddptop.sources.history import JobHistory, points_of
from ddptop.sources.past import read_story
from tests.support import fake_home, fake_story
from tests.support.own_views import read

from ddptop_runner.job.event_log import as_row
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.events import FailureJudged
from ddptop_runner.model.snapshot import Cause, RankSample
from ddptop_runner.store.history import HistoryWriter
from ddptop_runner.store.history_reader import Series


def test_steps_are_those_of_the_run_where_its_start_is_known() -> None:
    t, values = [100, 101, 102], [6.0, 3.0, 2.0]
    series = Series(
        bucket_s=1, t=t, min=values, mean=values, max=values, step=[9, 19, 5], attempt=[0, 0, 1],
        nonfinite_t=[102, 103], nonfinite_step=[5, 6], nonfinite_attempt=[1, 1],
    )  # fmt: skip
    found = points_of(series, {0: 0, 1: 20})
    assert (found.t, found.step) == ([100.5, 101.5, 102.5, 103.5], [9, 19, 25, 26])
    assert (found.mean, found.not_finite) == ([*values, None], [102.5, 103.5])
    assert points_of(series, {0: 0}).step == [9, 19, None, None]


def test_steps_continue_over_a_restart_from_its_reported_start(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "again", "1", steps=200, restart_at=100)
    found = read_run(read(folder), JobHistory(folder.history_db))
    assert found.curve.last_step == 200
    assert [number for number, _ in found.attempts] == [0, 1]
    # its script reports that the second attempt resumed at step 80
    fake_home.change(folder, attempts_began={0: 0, 1: 80})
    told = read_run(read(folder), JobHistory(folder.history_db)).curve
    assert told.last_step == 180
    assert list(told.by_step.attempt).count(0) == 40  # of the first, up to step 80


def test_printed_steps_are_the_runs_own(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "printed", "1", steps=200, restart_at=100)
    rank = RankSample(rank=0, local_rank=0, host=fake_home.HOST, step=100, step_source="log")
    fake_home.change(folder, ranks=[rank])
    found = read_run(read(folder), JobHistory(folder.history_db)).curve
    assert found.last_step == 100
    assert set(found.by_step.attempt) == {1}


def test_a_job_without_a_history_has_no_curve(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "none", "1", steps=20)
    fake_story.without_history(folder)
    found = read_run(read(folder), JobHistory(folder.history_db))
    assert not found.curve.points.t


def test_the_steps_of_a_failed_attempt_are_those_of_its_end(ddptop_home: Path) -> None:
    folder = fake_story.learner(ddptop_home, "failed", "1", steps=40)
    fake_home.change(folder, step=None)
    view, history = read(folder), JobHistory(folder.history_db)
    sampled = read_story(view, history).attempts[-1].steps
    writer = HistoryWriter(folder.history_db)
    cause = Cause(kind="signal", rank=0, summary="killed")
    outcome = AttemptOutcome(
        attempt=0, lived_s=20.0, steps=43, exit_code=None, signal="SIGKILL", exception=None
    )
    judged = FailureJudged(attempt=0, cause=cause, outcome=outcome)
    writer.event(as_row(judged))
    writer.close(final=True)
    exact = read_story(view, JobHistory(folder.history_db)).attempts[-1].steps
    assert (sampled, exact) == (40, 43), "later than the last sample"
