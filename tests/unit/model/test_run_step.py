"""The step of a run: which source takes precedence, and when only the attempt's count is known."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.support.builders import make_snapshot, make_spec

from ddptop_runner.model.run_step import (
    Printed,
    RankSteps,
    RunSteps,
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


RESUMED = {
    "nothing tells": ([RankSteps(own=98)], [640], (98, "attempt")),
    "the script prints its global step": (
        [RankSteps(own=100, printed=goes_on(740), slack=3), RankSteps(own=98, slack=3)],
        [640],
        (738, "run"),
    ),
    "from an older checkpoint than the last one": (
        [RankSteps(own=100, printed=goes_on(420, 340), slack=3)],
        [320, 640],
        (420, "run"),
    ),
    "from a checkpoint that was not seen": (
        [RankSteps(own=100, printed=goes_on(820), slack=3)],
        [640],
        (820, "run"),
    ),
    "the output counts from 0 again": (
        [RankSteps(own=98, printed=Printed(80, 20, 20))],
        [640],
        (98, "attempt"),
    ),
    "the output counts from 0 again, up to a total": (
        [RankSteps(own=98, printed=Printed(80, 1, 20, total=500))],
        [],
        (98, "attempt"),
    ),
    "the output counts each epoch": (
        [RankSteps(own=98, printed=goes_on(720, of_run=False))],
        [640],
        (98, "attempt"),
    ),
    "the script reports": ([RankSteps(own=98, reported=738)], [640], (738, "run")),
    "one rank reports": (
        [RankSteps(own=99, reported=739, slack=3), RankSteps(own=98, slack=3)],
        [640],
        (738, "run"),
    ),
    "report and output disagree": (
        [RankSteps(own=98, reported=738, printed=goes_on(2952))],
        [],
        (738, "run"),
    ),
    "no probe, and the output goes on": ([RankSteps(printed=goes_on(740))], [], (740, "run")),
    "no probe, and the output counts from 0": (
        [RankSteps(printed=Printed(80, 20, 20))],
        [640],
        (80, "attempt"),
    ),
    "micro-batches that go on": (
        [RankSteps(own=60, printed=goes_on(2800, 2564, 4), slack=3)],
        [640],
        (2800, "run"),
    ),
    "nobody took a step": ([RankSteps()], [640], None),
}
FIRST = {
    "only the probe counts": ([RankSteps(own=98), RankSteps(own=96)], (96, "run")),
    "between two lines": ([RankSteps(own=98, printed=Printed(80, 20, 20))], (98, "run")),
    "resumed before ddptop": (
        [RankSteps(own=98, printed=Printed(5080, 5020, 20), slack=3)],
        (5080, "run"),
    ),
    "micro-batches": ([RankSteps(own=60, printed=Printed(240, 4, 4), slack=3)], (240, "run")),
    "micro-batches beside a trainer's total": (
        [RankSteps(own=60, total=100, printed=Printed(240, 4, 4, total=400), slack=3)],
        (60, "run"),
    ),
    "the output counts evaluations": ([RankSteps(own=900, printed=Printed(9, 1, 1))], (900, "run")),
    "each epoch anew": ([RankSteps(own=98, printed=Printed(10, 1, 1, of_run=False))], (98, "run")),
    "before the first step": ([RankSteps(own=0)], (0, "run")),
}


def job_step(ranks: list[RankSteps], candidates: list[int], attempt: int) -> tuple[int, str] | None:
    run = RunSteps()
    run.look(ranks, attempt, resumed=attempt > 0, candidates=candidates)
    samples = []
    for number, one in enumerate(ranks):
        step = of_rank(one, run.began, run.resumed)
        own = one.own if one.own is not None or one.printed is None else one.printed.step
        samples.append(
            RankSample(rank=number, local_rank=number, host="h", step=own, run_step=step)
        )
    found = of_job(samples, attempt, run.began, [counted(one, run.resumed) for one in ranks])
    return None if found is None else (found.step, found.counts)


@pytest.mark.parametrize("case", RESUMED)
def test_the_step_after_a_restart(case: str) -> None:
    ranks, candidates, step = RESUMED[case]
    assert job_step(ranks, candidates, 1) == step


@pytest.mark.parametrize("case", FIRST)
def test_the_step_of_a_first_attempt(case: str) -> None:
    ranks, step = FIRST[case]
    assert job_step(ranks, [], 0) == step


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
