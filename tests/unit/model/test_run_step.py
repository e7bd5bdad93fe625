"""The step of a run: which source takes precedence, and when only the attempt's count is known."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from tests.support.builders import make_snapshot, make_spec
from tests.support.tables import table

from ddptop_runner.model.run_step import (
    Printed,
    RankSteps,
    RunSteps,
    abreast,
    counted,
    in_words,
    of_job,
    of_rank,
    of_snapshot,
    own_in_words,
)
from ddptop_runner.model.snapshot import Progress, RankSample, RunStep

AT = dt.datetime(2026, 3, 14, 12, tzinfo=dt.timezone.utc)


def goes_on(step: int, first: int = 660, every: int = 20, **more: Any) -> Printed:
    """The output of a script that prints its own global step."""
    return Printed(step, first, every, **more)


RESUMED, FIRST = (table(__file__, name) for name in ("resumed", "first"))


def job_step(case: dict[str, Any], attempt: int) -> list[Any] | None:
    ranks = msgspec.convert(case["ranks"], list[RankSteps])
    run = RunSteps()
    candidates = case.get("candidates", [])
    run.look(ranks, attempt, resumed=attempt > 0, candidates=candidates)
    samples = []
    for number, one in enumerate(ranks):
        step = of_rank(one, run.began, run.resumed)
        own = one.own if one.own is not None or one.printed is None else one.printed.step
        samples.append(
            RankSample(rank=number, local_rank=number, host="h", step=own, run_step=step)
        )
    found = of_job(samples, attempt, run.began, [counted(one, run.resumed) for one in ranks])
    return None if found is None else [found.step, found.counts]


@pytest.mark.parametrize("case", RESUMED)
def test_the_step_after_a_restart(case: str) -> None:
    assert job_step(RESUMED[case], 1) == RESUMED[case].get("step")


@pytest.mark.parametrize("case", FIRST)
def test_the_step_of_a_first_attempt(case: str) -> None:
    assert job_step(FIRST[case], 0) == FIRST[case].get("step")


def test_several_restarts_are_remembered_and_a_new_attempt_begins_with_nothing() -> None:
    run = RunSteps()
    run.look([RankSteps(own=640)], 0, resumed=False)
    for attempt, began in ((1, 640), (2, 720)):
        run.look([], attempt, resumed=True, candidates=[640, 720])
        assert run.began is None  # the steps of the previous attempt say nothing about this one
        told = goes_on(began + 40, began + 20)
        run.look([RankSteps(own=41, printed=told, slack=2)], attempt, resumed=True,
                 candidates=[640, 720])  # fmt: skip
        assert run.began == began
    assert run.attempts_began == {0: 0, 1: 640, 2: 720}
    # between two lines the output lags, but the attempt's starting step is still known
    run.look([RankSteps(own=59, printed=told, slack=2)], 2, resumed=True, candidates=[640, 720])
    assert run.began == 720
    # and by a restarted supervisor
    again = RunSteps()
    last = make_snapshot(make_spec(), attempt=2, attempts_began=run.attempts_began)
    again.recall(last, resumed=True)
    again.look([RankSteps(own=60)], 2, resumed=True, candidates=[640, 720])
    assert (again.began, again.attempts_began) == (720, run.attempts_began)


def test_a_restarted_supervisor_remembers_what_a_loaded_checkpoint_told() -> None:
    last = make_snapshot(make_spec(), attempt=0, attempts_began={0: 3150})
    run = RunSteps()
    run.recall(last, resumed=False)
    run.look([RankSteps(own=60)], 0, resumed=False)  # before the probe has reported again
    assert run.began == 3150
    run.look([RankSteps(own=61)], 0, resumed=True, loaded=3150)
    assert run.attempts_began == {0: 3150}


def test_a_launcher_that_starts_its_ranks_again_resumes_within_an_attempt() -> None:
    run = RunSteps()
    run.look([RankSteps(own=640)], 0, resumed=False)
    run.look([RankSteps(own=9)], 0, resumed=True)
    assert (run.began, run.attempts_began) == (None, {})


def test_steps_of_an_attempt_in_words() -> None:
    rank = RankSample(rank=0, local_rank=0, host="h", step=98, run_step=1738)
    assert (in_words(rank), in_words(rank, 50)) == ("step 1,738", "step 1,690")
    own = RankSample(rank=0, local_rank=0, host="h", step=98, step_counts="attempt")
    assert in_words(own) == "step 98 of this attempt"
    assert in_words(RankSample(rank=0, local_rank=0, host="h")) == ""
    assert own_in_words(98, 640, 1) == "step 738"
    assert own_in_words(98, None, 1) == "step 98 of attempt 1"


@pytest.mark.parametrize(
    ("second", "age_s", "state", "shown"),
    [
        (103, 0.2, "running", 100),  # it was read 0.15 s later, after three more steps
        (101, 0.35, "running", 100),
        (102, 0.35, "running", 102),  # read at the same moment
        (110, 0.2, "running", 110),
        (101, 5.0, "running", 101),  # the first may have stopped
        (101, 0.2, "failed", 101),
        (99, 0.2, "failed", 99),  # the first does not step beside it
    ],
)
def test_ranks_that_step_together_show_the_same_step(
    second: int, age_s: float, state: Any, shown: int
) -> None:
    first_age_s = 5.0 if age_s > 1 else 0.35
    ranks = [
        RankSample(
            rank=rank, local_rank=rank, host="h", state=state if rank else "running", step=step,
            run_step=step + 600, step_time_s=0.05,
            last_progress_at=AT - dt.timedelta(seconds=ago_s),
        )
        for rank, (step, ago_s) in enumerate([(100, first_age_s), (second, age_s)])
    ]  # fmt: skip
    found = abreast(make_snapshot(make_spec(), ts=AT, ranks=ranks)).ranks
    assert [rank.step for rank in found] == [100, shown]
    assert [rank.run_step for rank in found] == [700, 600 + shown]


def test_a_snapshot_of_an_older_version() -> None:
    def step(**told: Any) -> tuple[int, str] | None:
        found = of_snapshot(make_snapshot(make_spec(), **told))
        return None if found is None else (found.step, found.counts)

    assert of_snapshot(None) is None and step() is None
    assert step(step=98, attempt=0) == (98, "run")
    assert step(step=98, attempt=1) == (98, "attempt")
    progress = Progress(step=738, total=900, source="log")
    assert step(step=98, attempt=1, progress=progress) == (738, "run")
    new = RunStep(step=738, counts="run", attempt=1)
    assert step(step=98, attempt=1, run_step=new) == (738, "run")
