"""The rank that others wait for is named by its busy time, never by its step time, with why."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from ddptop.job.help import explain_alert as explain

from ddptop_runner.judge.balance.job_watch import JobWatch
from ddptop_runner.judge.training.slow import HOLD_S, LEAST_STRETCHES
from ddptop_runner.model.snapshot import Alert, GpuSample, NodeSnapshot, RankSample, Resources

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


def watched(ranks: list[RankSample], gpus: list[GpuSample] | None = None) -> list[list[Alert]]:
    """The alerts of each second, while the ranks take a step a second; their totals add up."""
    watch, found = JobWatch(), []
    for second in range(LEAST_STRETCHES + 12):
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=NOON + dt.timedelta(seconds=second),
            started_at=NOON, state="running", ranks=[at(one, second) for one in ranks],
            gpus=gpus or [],
        )  # fmt: skip
        found.append(watch.update(snapshot, float(second))[0])
    return found


def at(one: RankSample, second: int) -> RankSample:
    """The rank at its step `second`, given what it uses per step as totals."""
    totals = {
        name: value * second
        for name, value in msgspec.structs.asdict(one.resources or Resources()).items()
        if value is not None and "_total" in name
    }
    return msgspec.structs.replace(
        one,
        step=second,
        cpu_wait_total_s=None if one.cpu_wait_total_s is None else one.cpu_wait_total_s * second,
        until_backward_total_s=(one.until_backward_total_s or 0.0) * second or None,
        resources=one.resources and msgspec.structs.replace(one.resources, **totals),
    )


def found(*ranks: RankSample, gpus: list[GpuSample] | None = None) -> list[Alert]:
    return [one for one in watched([*ranks], gpus)[-1] if one.id == "straggler"]


def words(*ranks: RankSample, gpus: list[GpuSample] | None = None) -> str:
    return "".join(alert.message for alert in found(*ranks, gpus=gpus))


def test_who_waits_for_data_is_named_though_all_steps_take_equally_long():
    (one,) = found(rank(0), rank(1), rank(2, wait=0.09), rank(3, wait=0.03))
    assert (one.severity, one.ranks) == ("warning", [2])
    assert one.message == (
        "rank 2 is holding up the others: it waits 90 ms of each 200 ms step for data"
        " (median of the others: 20 ms), costing 35% of each step"
    )
    assert one.evidence == {
        "share_percent": 35.0,
        "excess_s": 0.07,
        "data_wait_s": 0.09,
        "data_wait_s_of_others": 0.02,
    }


def test_of_two_ranks_the_other_is_no_median():
    assert "(the other: 20 ms)" in words(rank(0), rank(1, wait=0.09))


@pytest.mark.parametrize(("waits_s", "is_named"), [((0.08, 0.09, 0.1), True),
    ((0.0, 0.08, 0.2, 0.01, 0.09, 0.18, 0.24), False)])  # fmt: skip
def test_a_difference_within_chance_is_not_named(waits_s: tuple[float, ...], is_named: bool):
    watch = JobWatch()
    for second in range(LEAST_STRETCHES + 20):
        own = waits_s[second % len(waits_s)]
        ranks = [at(rank(n, wait=own if n == 2 else 0.02), second) for n in range(4)]
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=NOON + dt.timedelta(seconds=second),
            started_at=NOON, state="running", ranks=ranks,
        )  # fmt: skip
        alerts = watch.update(snapshot, float(second))[0]
    assert any(one.id == "straggler" for one in alerts) is is_named


def test_who_is_busy_for_longer_is_named_where_the_wait_for_others_is_known():
    four = [rank(number, sync=0.1) for number in (0, 1, 3)]
    four.insert(2, rank(2, sync=0.005))
    assert words(*four) == (
        "rank 2 is holding up the others: it is busy for 195 ms of each 200 ms step"
        " (median of the others: 100 ms), costing 48% of each step"
    )


def test_who_takes_longer_up_to_its_backward_pass_is_named_on_the_cpu():
    """DDP measures how long it waits only in every hundredth step."""
    four = [rank(n, sync=0.1, until_backward_total_s=0.09 if n == 2 else 0.03) for n in range(4)]
    assert words(*four) == (
        "rank 2 is holding up the others: it takes 90 ms of each 200 ms step up to its backward"
        " pass (median of the others: 30 ms), costing 30% of each step"
    )
    on_gpus = [msgspec.structs.replace(one, gpu=one.rank) for one in four]
    assert not words(*on_gpus, gpus=gpus()), "a device works on after that"


def gpus(mhz: int = 1980, *reasons: str) -> list[GpuSample]:
    """Four devices, of which number 2 has this clock."""
    return [
        GpuSample(
            index=n, sm_clock_mhz=mhz if n == 2 else 1980,
            throttle_reasons=[*reasons] if n == 2 else [], util_percent=0.0,
        )
        for n in range(4)
    ]  # fmt: skip


def used(slow: bool, figure: str, one: float, others: float, cpu_s: float) -> Resources:
    """A slow rank and the others are on the CPU for so long, and differ by a figure."""
    return Resources(**{"cpu_total_s": cpu_s if slow else 0.1, figure: one if slow else others})


BUSY, ASLEEP = 0.195, 0.1
"""CPU time of a rank that is busy for longer, and of one that sleeps meanwhile."""


@pytest.mark.parametrize(
    ("figure", "one", "others", "cpu_s", "why"),
    [
        (
            "gc_total_s",
            0.06,
            0.001,
            BUSY,
            "it spends 60 ms of each 200 ms step in Python's garbage",
        ),
        ("gc_total_s", 0.06, 0.05, BUSY, ""),
        ("batch_elements_total", 900, 500, BUSY, "its batches are 1.8 times as large"),
        ("batch_elements_total", 600, 500, BUSY, ""),
        ("threads", 1, 8, BUSY, "it computes with 1 thread, the others with 8"),
        ("threads", 1, 8, ASLEEP, ""),
        ("threads", 1, 1, BUSY, ""),
        ("cpus", 1, 8, BUSY, "it may run on 1 of the CPUs, the others on 8"),
        ("read_total_bytes", 1 << 20, 0, ASLEEP, "it reads 1 MiB from disk in each step"),
        ("read_total_bytes", 1 << 20, 0, BUSY, ""),
        ("read_total_bytes", 1 << 10, 0, ASLEEP, ""),
        ("other_threads_total_s", 0.09, 0.0, ASLEEP, "other threads of its process run"),
        ("other_threads_total_s", 0.09, 0.09, ASLEEP, ""),
    ],
)
def test_the_cause_is_told_if_the_figures_show_it(figure, one, others, cpu_s, why):
    ranks = [
        rank(n, sync=0.005 if n == 2 else 0.1, resources=used(n == 2, figure, one, others, cpu_s))
        for n in range(4)
    ]
    message = words(*ranks)
    assert why in message
    if not why:
        assert ("or waits for a lock or for files;" in message) is (cpu_s == ASLEEP)


@pytest.mark.parametrize(
    ("cpu_wait_s", "cpus", "what", "why"),
    [
        (
            0.06,
            8,
            "waits 60 ms of each 200 ms step for a CPU",
            "other processes or threads use its CPUs",
        ),
        (0.06, 1, "waits 60 ms of each 200 ms step for a CPU", "it may run on 1 of the CPUs"),
        (0.02, 8, "is busy for 195 ms", ""),
    ],
)
def test_who_waits_for_a_cpu_is_told_from_who_computes(cpu_wait_s, cpus, what, why):
    four = [
        rank(
            n, sync=0.005 if n == 2 else 0.1, cpu_wait_total_s=cpu_wait_s if n == 2 else 0.001,
            resources=Resources(cpu_total_s=0.13 if n == 2 else 0.1, cpus=cpus if n == 2 else 8),
        )
        for n in range(4)
    ]  # fmt: skip
    assert f"it {what}" in words(*four) and why in words(*four)
    everyone = [msgspec.structs.replace(one, cpu_wait_total_s=cpu_wait_s) for one in four]
    assert "for a CPU" not in words(*everyone), "the others wait for one as well"


@pytest.mark.parametrize(("cpus", "threads_s", "is_why"), [(1, 0.09, True), (1, 0.01, False),
    (7, 0.09, False), (8, 0.09, False)])  # fmt: skip
def test_threads_that_share_fewer_cpus_take_turns(cpus, threads_s, is_why):
    """While one computes, the training thread sleeps until it has finished its part."""
    four = [
        rank(
            n, sync=0.005 if n == 2 else 0.1, cpu_wait_total_s=0.001,
            resources=Resources(
                cpu_total_s=ASLEEP, other_threads_total_s=threads_s, cpus=cpus if n == 2 else 8
            ),
        )
        for n in range(4)
    ]  # fmt: skip
    assert ("of the CPUs, the others on 8" in words(*four)) is is_why


def test_on_cpus_with_too_much_work_the_rank_with_more_of_it_waits_for_that():
    """As four ranks on two CPUs, where each waits for as long as it computes, and more."""
    four = [
        rank(
            n, sync=0.005 if n == 2 else 0.1, cpu_wait_total_s=0.16 if n == 2 else 0.09,
            resources=Resources(
                cpu_total_s=0.06 if n == 2 else 0.04,
                batch_elements_total=1536 if n == 2 else 1024,
            ),
        )
        for n in range(4)
    ]  # fmt: skip
    said = words(*four)
    assert "is busy for 195 ms" in said
    assert "its batches are 1.5 times as large as the others'" in said


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (gpus(1100, "thermal, by hardware"),
         "GPU 2 runs at 1100 MHz, the others at 1980 (thermal, by hardware); "),
        (gpus(1900), ""),
        (gpus(1980), ""),
    ],
)  # fmt: skip
def test_a_slower_device_is_told(devices, why):
    four = [rank(n, sync=0.005 if n == 2 else 0.1, gpu=n) for n in range(4)]
    assert words(*four, gpus=devices).startswith(
        f"rank 2 is holding up the others: {why}it is busy"
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
    shown = [bool(alerts) for alerts in watched([rank(0), rank(1), rank(2, wait=0.09)])]
    assert shown.index(True) == LEAST_STRETCHES + HOLD_S
    assert explain("straggler").startswith("At each step, all ranks wait for the slowest one.")
