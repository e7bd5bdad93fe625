"""The rank that others wait for is named by its busy time, never by its step time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec
import pytest
from ddptop.job.help import explain_alert as explain

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.job_watch import (
    HOLD_S,
    LEAST_SAMPLES,
    JobWatch,
    slow,
    straggler_finding,
)
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def rank(
    number: int,
    wait: float | None = 0.02,
    sync: float | None = None,
    step: float | None = 0.2,
    **more: object,
) -> RankSample:
    fields = {"state": "running", "steps_per_s": 5.0, "pid": 100 + number, **more}
    return RankSample(
        rank=number,
        local_rank=number,
        host="h",
        step_time_s=step,
        data_wait_s=wait,
        sync_s=sync,
        **fields,
    )


def words(*ranks: RankSample) -> str:
    return "".join(finding.message for finding in found(ranks))


def found(ranks: Sequence[RankSample]) -> list[Finding]:
    apart = slow(ranks)
    return [straggler_finding(ranks, apart)] if apart else []


def test_who_waits_for_data_is_named_though_all_steps_take_equally_long():
    four = [rank(0), rank(1), rank(2, wait=0.09), rank(3, wait=0.03)]
    (one,) = found(four)
    assert (one.id, one.severity, one.ranks) == ("straggler", "warning", (2,))
    assert one.message == (
        "rank 2 is holding up the others: it waits 90 ms of each 200 ms step for data"
        " (median of the others: 20 ms), costing 35% of each step"
    )


def test_other_processes_are_blamed_for_what_a_rank_waits_for_a_cpu():
    four = [rank(number, sync=0.005 if number == 2 else 0.1) for number in range(4)]
    told = straggler_finding(four, slow(four), {2: 0.06}).message
    assert "it waits 60 ms of each 200 ms step for a CPU, which other processes have" in told
    assert "is busy" in straggler_finding(four, slow(four), {2: 0.02}).message


def test_who_is_busy_for_longer_is_named_where_the_wait_for_others_is_known():
    four = [rank(number, sync=0.1) for number in (0, 1, 3)]
    four.insert(2, rank(2, sync=0.005))
    assert words(*four) == (
        "rank 2 is holding up the others: it is busy for 195 ms of each 200 ms step"
        " (median of the others: 100 ms), costing 48% of each step"
    )


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0), rank(1), rank(2, wait=0.05), rank(3)],  # under a fifth of a step
        [rank(0, step=0.02), rank(1, step=0.02, wait=0.028), rank(2, step=0.02)],  # 8 ms
        [rank(0), rank(1, wait=None), rank(2, wait=0.09), rank(3)],  # one is unknown
        [rank(0, wait=0.09)],  # busy
        [rank(0), rank(1), rank(2, wait=0.09, state="quiet"), rank(3)],
        [rank(0), rank(1), rank(2, wait=0.09, steps_per_s=None), rank(3)],
        [rank(0, sync=0.1), rank(1, sync=0.1), rank(2, wait=0.09, sync=0.1)],  # it waits as well
    ],
)
def test_no_rank_is_named_without_a_reason(ranks: list[RankSample]):
    assert not words(*ranks)


def test_ranks_that_do_not_wait_for_each_other_are_judged_by_their_steps():
    four = [rank(n, wait=None, step=0.3 if n == 2 else 0.2) for n in range(4)]
    assert words(*four) == (
        "rank 2 is holding up the others: it takes 300 ms per step (median of the others: 200 ms)"
    )


def test_it_is_shown_once_it_has_lasted():
    watch = JobWatch()
    ranks = [rank(0), rank(1), rank(2, wait=0.09), rank(3)]
    shown = []
    for second in range(40):
        ranks = [msgspec.structs.replace(one, step=second) for one in ranks]
        now = NOON + dt.timedelta(seconds=second)
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=now, started_at=NOON,
            state="running", ranks=ranks,
        )  # fmt: skip
        alerts, _ = watch.update(snapshot, float(second))
        shown.append(any(alert.id == "straggler" for alert in alerts))
    assert shown.index(True) == LEAST_SAMPLES - 1 + HOLD_S
    assert explain("straggler").startswith("At each step, all ranks wait for the slowest one.")
