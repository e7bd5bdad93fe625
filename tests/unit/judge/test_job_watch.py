"""All monitors of one job, on complete snapshots."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.support.device_jobs import JOB, change_all, make_gpu, make_job, of_rank

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


@pytest.mark.parametrize("state", ["queued", "restarting", "stopping", "finished", "lost"])
def test_while_the_group_comes_and_goes_nothing_is_found(state):
    watch = JobWatch()
    for second in range(30):
        assert watch.update(snapshot(gpus=STRAY, state=state), second) == ([], [])
