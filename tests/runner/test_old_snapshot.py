"""A live job whose last supervisor was of a version that kept no `JobState` in the snapshot."""

from __future__ import annotations

import os

import pytest
from tests.runner.builders import make_snapshot, make_spec
from tests.runner.resuming import begin, connect, fail, finish, run

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.host import procs
from ddptop_runner.job.old_snapshot import state_of
from ddptop_runner.model.snapshot import RankSample

pytestmark = pytest.mark.usefixtures("ddptop_home")

EXIT = {"rank": 1, "pid": 7, "returncode": -9, "at_boottime_s": 100.25, "ended_by_us": False}


def old(state: str, **group: object):
    ranks = [RankSample(rank=0, local_rank=0, host=procs.host_name(), pid=os.getpid(), step=7)]
    return make_snapshot(
        make_spec(), state=state, restarts_used=2, ranks=ranks, memory={"group": group}
    )


def test_a_wait_for_a_restart_goes_on_and_is_not_counted_again():
    async def scenario() -> None:
        at_s = boottime_s() + 0.1
        decided = {"attempt": 0, "restart": True, "end_ranks": False}
        snapshot = old("restarting", decided=decided, restart_at_s=at_s, exits=[EXIT])
        driver, around = begin(snapshot)
        pending = driver.job.restart
        assert pending is not None and pending.at_s == at_s
        assert (driver.job.phase, driver.job.budget.used) == ("restarting", 2)
        assert [(one.rank, one.returncode) for one in driver.attempt.table.exits()] == [(1, -9)]
        sent = connect(driver)
        fail(driver, question=4)
        await finish(around)
        assert boottime_s() >= at_s and driver.job.budget.used == 2
        assert [one.get("restart") for one in sent] == [True]
        around.history.close()

    run(scenario)


def test_stops_endings_and_requested_agents_are_taken_over():
    stop = state_of(old("stopping", kill_at_s=12.0, ending={"state": "stopped"}))
    assert stop.stop is not None and stop.stop.kill_at_s == 12.0
    assert stop.ending is not None and stop.ending.state == "stopped"
    wanted = state_of(old("restarting", wanted_agent={"attempt": 1, "restarts_left": 1}))
    assert wanted.wanted_agent is not None and wanted.wanted_agent.attempt == 1
    sent = state_of(old("restarting", restart_asked=0)).restart
    assert sent is not None and sent.sent and not sent.counted
    assert state_of(old("queued", was_started=False)).in_queue
