"""Which ranks the monitor marks, and for how long."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import msgspec
import pytest

from ddptop_runner.judge.balance.imbalance import slow_ranks
from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.model.snapshot import Alert, NodeSnapshot, RankSample

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def look(watch: JobWatch, ranks: Iterable[RankSample], second: float, **more: object):
    """The alerts of one update."""
    snapshot = NodeSnapshot(
        job="j", job_id="j@1", host="h", seq=1, ts=NOON + dt.timedelta(seconds=second),
        started_at=NOON, state="running", ranks=list(ranks), **more,
    )  # fmt: skip
    return watch.update(snapshot, second)[0]


def steady(slow: int | None, second: int, **more: object) -> list[RankSample]:
    return [
        RankSample(
            rank=n, local_rank=n, host="h", pid=100 + n, state="running", step=5 * second,
            steps_per_s=5.0, step_time_s=0.2, sync_s=0.01 if n == slow else 0.1, **more,
        )
        for n in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize(("ranks", "slow_ranks"), [(2, [1]), (3, [1]), (4, [1, 3])])
def test_a_slow_rank_is_compared_with_the_others_only(ranks: int, slow_ranks: list[int]) -> None:
    watch = JobWatch()
    for second in range(30):
        samples = [
            RankSample(
                rank=n, local_rank=n, host="h", pid=100 + n, state="running", steps_per_s=10.0,
                step_time_s=0.1, sync_s=0.02 if n in slow_ranks else 0.05, step=10 * second,
            )
            for n in range(ranks)
        ]  # fmt: skip
        alerts = look(watch, samples, second)
    (alert,) = alerts
    assert alert.ranks == slow_ranks
    assert ": 50 ms), costing 30% of each step" in alert.message
    assert (": it is busy" if len(slow_ranks) == 1 else ": rank 1 is busy") in alert.message


def test_a_supervisor_that_is_started_again_keeps_what_was_marked() -> None:
    since = NOON - dt.timedelta(seconds=300)
    was = Alert(id="straggler", severity="warning", ranks=[2], message="as it was", since=since)
    shown = [msgspec.structs.replace(was, evidence={"share_percent": 30.0})]
    watch = JobWatch()
    watch.recall(shown)
    first = look(watch, steady(2, 0), 0)
    assert first == shown
    for second in range(1, 90):
        alerts = look(watch, steady(2, second), second)
        assert slow_ranks(alerts) == {2}
    assert alerts[0].message != "as it was" and alerts[0].since == since
    forgets = JobWatch()
    forgets.recall(shown)
    for second in range(100):
        alerts = look(forgets, steady(None, second), second)
    assert alerts == []


def test_figures_of_a_pause_do_not_count() -> None:
    """One rank works for a minute while the others wait: an evaluation or a checkpoint."""
    watch, step = JobWatch(), 0
    for second in range(200):
        pause = 100 <= second < 160
        step += not pause
        ranks = [
            msgspec.structs.replace(one, step=step, cpu_percent=900.0 if pause and n == 0 else 50.0)
            for n, one in enumerate(steady(None, second))
        ]
        assert look(watch, ranks, second) == []
