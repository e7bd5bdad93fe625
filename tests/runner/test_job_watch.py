"""All monitors of one job, on complete snapshots."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.devices.jobs import JOB, change_all, make_gpu, make_job, of_rank

from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import JobState

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
RANKS, GPUS = make_job(2)


def snapshot(ranks=RANKS, gpus=GPUS, state: JobState = "running", second: int = 0) -> NodeSnapshot:
    now = NOON + dt.timedelta(seconds=second)
    return NodeSnapshot(
        job=JOB,
        job_id=f"{JOB}@1",
        host="h",
        seq=second,
        ts=now,
        started_at=NOON,
        state=state,
        ranks=list(ranks),
        gpus=list(gpus),
    )


STRAY = [make_gpu(0, of_rank(0), of_rank(1, 0.5)), GPUS[1]]
SPINNING = change_all(GPUS, util_percent=100.0, power_w=100.0, mem_util_percent=0.0)


def test_findings_wait_and_facts_do_not():
    watch = JobWatch()
    lost = change_all(STRAY, lost=True)
    for second in range(5):
        assert watch.update(snapshot(gpus=STRAY, second=second), second) == ([], [])
    alerts, new = watch.update(snapshot(gpus=STRAY, second=5), 5)
    assert [alert.id for alert in new] == ["stray-context-0"]
    assert alerts == new
    assert alerts[0].since == NOON
    alerts, new = watch.update(snapshot(gpus=lost, second=6), 6)
    assert [alert.id for alert in new] == ["gpu-lost"]


def test_stuck_ranks_are_told_and_alerted():
    watch = JobWatch()
    seen = []
    for second in range(400):
        alerts, new = watch.update(snapshot(gpus=SPINNING, second=second), second)
        seen += [alert.id for alert in new]
        assert [alert.id for alert in alerts] == (["stuck"] if watch.stuck.stuck_ranks else [])
    assert seen == ["stuck"]
    assert watch.stuck.stuck_ranks == {0, 1}


def test_reporting_ranks_are_judged_only_by_the_hang_watch():
    watch = JobWatch()
    ranks = change_all(RANKS, has_probe=True)
    found = [watch.update(snapshot(ranks, SPINNING, second=s), s)[1] for s in range(400)]
    assert not any(found)
    half = [ranks[0], *RANKS[1:]]
    found = [watch.update(snapshot(half, SPINNING, second=s), s)[1] for s in range(400, 800)]
    assert any(found), "a rank without a probe is known by its device"


@pytest.mark.parametrize("state", ["queued", "restarting", "stopping", "finished", "lost"])
def test_while_the_group_comes_and_goes_nothing_is_found(state):
    watch = JobWatch()
    for second in range(30):
        assert watch.update(snapshot(gpus=STRAY, state=state), second) == ([], [])
