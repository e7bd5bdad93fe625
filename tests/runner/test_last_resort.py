"""A defect of ddptop itself is told, and costs no job."""

from __future__ import annotations

import pytest
from ddptop_runner.job.group import Group
from ddptop_runner.job.last_resort import LastResort
from tests.runner.emitted import EmittedLog
from tests.runner.restarts.test_group_restarts import Around, run

from ddptop_runner.job import failure, group_failures
from ddptop_runner.judge.hangs.types import HangVerdict
from ddptop_runner.judge.losses import BadLoss

pytestmark = pytest.mark.usefixtures("ddptop_home")


def broken(*args: object, **more: object) -> object:
    raise TypeError("never thought of")


def test_a_defect_is_told_once_for_each_place(capsys: pytest.CaptureFixture[str]) -> None:
    story = EmittedLog()
    defects = LastResort(story)  # type: ignore[arg-type]
    assert [defects.call(broken, 3) for _ in range(3)] == [3, 3, 3]
    assert defects.call(lambda: 4, 3) == 4
    [(type_, message)] = story.lines
    assert type_ == "alert"
    assert "TypeError at" in message and "test_last_resort.py" in message
    assert capsys.readouterr().err.count("Traceback") == 1


@pytest.mark.parametrize(("budget", "restarted"), [(2, True), (0, False)])
def test_a_failure_that_cannot_be_judged_is_still_answered(
    monkeypatch: pytest.MonkeyPatch, budget: int, restarted: bool
) -> None:
    monkeypatch.setattr(failure, "judge", broken)

    async def scenario(group: Group, around: Around) -> None:
        story = EmittedLog()
        around.defects = LastResort(story)  # type: ignore[arg-type, attr-defined]
        answers: list[dict[str, object]] = []
        group._send_to_agent = answers.append
        await group._answer_torn_down({"question": 7, "attempt": 0, "workers": []})
        used = int(restarted)
        assert answers == [{"answer": 7, "restart": restarted, "restarts_left": budget - used}]
        assert len(story.lines) == 1
        assert group.state == ("restarting" if restarted else "starting")
        assert (group.job.ending is None) is restarted

    run(scenario, max_restarts=budget)


def test_evidence_that_cannot_be_kept_does_not_keep_the_agent_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group, around: Around) -> None:
        story = EmittedLog()
        around.defects = LastResort(story)  # type: ignore[arg-type, attr-defined]
        monkeypatch.setattr(group, "_keep_evidence", broken)
        answers: list[dict[str, object]] = []
        group._send_to_agent = answers.append
        await group._answer_failing({"question": 3, "attempt": 0, "ranks": [1]})
        assert answers == [{"answer": 3}]
        assert len(story.lines) == 1

    run(scenario)


HANG = HangVerdict((1,), 60.0, "no step for 60 s")
BAD = BadLoss(rank=1, step=7, what="NaN")


@pytest.mark.parametrize(
    ("broken_is", "found", "spec", "restarted"),
    [
        ("hang_cause", HANG, {"max_restarts": 2}, True),
        ("hang_cause", HANG, {"max_restarts": 0}, False),
        ("_keep_evidence", HANG, {"max_restarts": 2}, True),
        ("_keep_evidence", BAD, {"max_restarts": 2, "on_nan": "restart"}, True),
        ("_with_work_lost", BAD, {"max_restarts": 2, "on_nan": "stop"}, False),
    ],
)
def test_ranks_that_hang_or_train_on_nan_are_ended_though_the_cause_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch,
    broken_is: str,
    found: HangVerdict | BadLoss,
    spec: dict[str, object],
    restarted: bool,
) -> None:
    async def scenario(group: Group, around: Around) -> None:
        story, sent, ended = EmittedLog(), [], []
        around.defects = LastResort(story)  # type: ignore[arg-type, attr-defined]
        where = group_failures if broken_is == "hang_cause" else group
        monkeypatch.setattr(where, broken_is, broken)
        group._send_to_agent = sent.append

        async def end_ranks(grace_s: float) -> None:
            ended.append(grace_s)

        monkeypatch.setattr(group, "_end_ranks", end_ranks)
        if isinstance(found, HangVerdict):
            await group._end_hang(found)
        else:
            await group._end_bad_loss(found)
        assert len(story.lines) == 1
        assert group.job.cause is not None and group.job.cause.summary.startswith("The ")
        if restarted:
            assert sent == [{"type": "restart_group", "restarts_left": 1}] and not ended
            assert group.state == "restarting"
            assert group.job.restart is not None and group.job.restart.end_ranks
        else:
            assert sent == [] and len(ended) == 1
            assert group.job.ending is not None and group.job.ending.cause == group.job.cause

    run(scenario, **spec)
