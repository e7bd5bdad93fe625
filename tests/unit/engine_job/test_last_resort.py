"""An internal error of ddptop is reported, and does not affect the job."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from tests.support.emitted import EmittedLog
from tests.support.resuming import (
    AGENT,
    PIDS,
    ask,
    begin,
    connect,
    finish,
    start,
    told,
)

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.job import failure
from ddptop_runner.judge.hangs.verdict import HangVerdict
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.node import driver as driver_module
from ddptop_runner.node.alerts import LastResort

pytestmark = pytest.mark.usefixtures("ddptop_home")


def broken(*args: object, **more: object) -> object:
    raise TypeError("never thought of")


def test_a_defect_is_reported_once_for_each_place(capsys):
    log: Any = EmittedLog()
    defects = LastResort(log)
    assert [defects.call(broken, 3) for _ in range(3)] == [3, 3, 3]
    assert defects.call(lambda: 4, 3) == 4
    [(type_, message)] = log.lines
    assert type_ == "alert"
    assert "TypeError at" in message and "test_last_resort.py" in message
    assert capsys.readouterr().err.count("Traceback") == 1


@pytest.mark.parametrize(("budget", "restarted"), [(2, True), (0, False)])
async def test_a_failure_that_cannot_be_judged_is_still_answered(monkeypatch, budget, restarted):
    monkeypatch.setattr(failure, "judge", broken)

    driver, around = begin(max_restarts=budget)
    start(driver)
    sent = connect(driver)
    for pid in PIDS:
        driver.attempt.exited(pid, 1, boottime_s())
    ask(driver, "torn_down", 7)
    await finish(around)
    assert sent == [pt.AnswerAgent(question=7, restart=restarted)]
    assert len(told("alert")) == 1
    assert driver.job.phase == ("restarting" if restarted else "failed")
    assert (driver.job.ending is None) is restarted


async def test_a_start_that_cannot_be_judged_ends_all_the_same(monkeypatch):
    monkeypatch.setattr(failure, "never_started", broken)
    driver, around = begin(max_restarts=0)
    driver.processes = Mock(end_leftovers=AsyncMock(), everything_started=Mock(return_value=[]))
    driver.agent_pid = AGENT
    driver.process_exited(AGENT, 1, boottime_s())
    await finish(around)
    assert len(told("alert")) == 1
    assert driver.job.phase == "failed"
    assert driver.job.cause is not None and driver.job.cause.kind == "launch"


HANG = HangVerdict((1,), "no step for 60 s")
BAD = RankSample(
    rank=1, local_rank=1, host="h", state="running", loss_state="nan", loss_bad_since=7
)


@pytest.mark.parametrize(
    ("broken_is", "found", "spec", "restarted"),
    [
        ("cause_of", HANG, {"max_restarts": 2}, True),
        ("cause_of", HANG, {"max_restarts": 0}, False),
        ("_keep_evidence", HANG, {"max_restarts": 2}, True),
        ("_keep_evidence", BAD, {"max_restarts": 2, "on_nan": "restart"}, True),
        ("_with_achievements", BAD, {"max_restarts": 2, "on_nan": "stop"}, False),
    ],
)
async def test_ranks_that_hang_or_train_on_nan_are_ended_without_a_known_cause(
    monkeypatch, broken_is, found, spec, restarted
):
    driver, around = begin(**spec)
    driver.processes = Mock(end_leftovers=AsyncMock(), everything_started=Mock(return_value=[]))
    start(driver)
    sent = connect(driver)
    around.log.emit(ev.RunningAssumed(attempt=0))
    where = driver_module if broken_is == "cause_of" else driver
    monkeypatch.setattr(where, broken_is, broken)
    ended = AsyncMock(return_value=None)
    monkeypatch.setattr(driver, "_end_ranks", ended)
    driver.attempt.trouble.found = found
    driver.take(pt.TroubleFound(reason="hang" if found is HANG else "nan"))
    await finish(around)
    assert len([one for one in told("alert") if "internal error" in one.message]) == 1
    assert driver.job.cause is not None and driver.job.cause.summary.startswith("The ")
    if restarted:
        assert sent == [pt.TellAgent(order="restart_group")]
        assert not ended.called and driver.job.phase == "restarting"
        assert driver.job.restart is not None
    else:
        assert sent == [] and ended.call_count == 1
        assert driver.job.ending is not None
        assert driver.job.ending.cause == driver.job.cause


async def test_evidence_that_cannot_be_kept_does_not_keep_the_agent_waiting(monkeypatch):
    driver, around = begin()
    start(driver)
    sent = connect(driver)
    monkeypatch.setattr(driver, "_keep_evidence", broken)
    ask(driver, "failing", 3, ranks=[1])
    await finish(around)
    assert [one.question for one in sent] == [3]
    assert len(told("alert")) == 1
