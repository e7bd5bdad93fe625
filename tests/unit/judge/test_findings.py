"""Findings about a job's balance; next to each, the healthy jobs that look similar."""

from __future__ import annotations

import datetime as dt
import random

import pytest
from tests.support.device_findings import (
    GPUS,
    RANKS,
    Case,
    assert_healthy,
    the,
)
from tests.support.device_jobs import (
    JOB,
    change,
    make_gpu,
    make_rank,
    of_rank,
    somebody,
)

from ddptop_runner.judge.alerts import AlertBook
from ddptop_runner.judge.balance.findings import find
from ddptop_runner.judge.balance.rank_devices import join

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def test_a_healthy_job():
    assert_healthy((RANKS, GPUS))


# -- the devices themselves ------------------------------------------------------------------------


def with_gpu(place: int = 3, **fields: object) -> Case:
    return RANKS, change(GPUS, {place: fields})


def test_a_throttled_device():
    case = with_gpu(
        throttle_reasons=["power cap", "thermal, by hardware"], temperature_c=91, sm_clock_mhz=1095
    )
    finding = the(case, "throttled")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (3,), (3,))
    assert finding.hold_s == 20
    assert finding.message == (
        "GPU 3 (rank 3) is running at reduced clocks (thermal, by hardware; 91 °C; 1095 of 1980 "
        "MHz): every rank waits for the slowest one; check cooling and the power supply"
    )


def test_xids_with_their_meaning():
    case = with_gpu(xid=[45, 79])
    finding = the(case, "xid-79-3")
    assert (finding.severity, finding.ranks, finding.gpus) == ("error", (3,), (3,))
    assert finding.message == (
        "GPU 3 (rank 3) reported XID 79 (the device fell off the bus): reset the device or reboot; "
        "if it recurs, check power, seating, and dmesg"
    )
    assert the(with_gpu(xid=[31, 31]), "xid-31-3").severity == "info"  # an error in the program
    found = find(*with_gpu(xid=[13, 777]), JOB)
    assert [(one.id, one.severity) for one in found] == [
        ("xid-13-3", "info"),
        ("xid-777-3", "warning"),
    ]
    assert found[1].message == "GPU 3 (rank 3) reported XID 777: see dmesg and nvidia-smi -q"


def test_memory_errors():
    finding = the(with_gpu(remap_failed=True), "remap-3")
    assert (finding.severity, finding.gpus) == ("error", (3,))


def beside(*processes: object) -> Case:
    return RANKS, change(GPUS, {3: {"processes": [of_rank(3), *processes]}})


def test_a_process_of_somebody_else():
    finding = the(beside(somebody(1, pid=7), somebody()), "other-process-3")
    assert (finding.severity, finding.ranks, finding.gpus) == ("warning", (3,), (3,))
    assert finding.hold_s == 5
    assert finding.message == (
        "pid 4242 (alice, python eval.py) and 1 more, not part of this job, use 13.0 GiB on GPU 3 "
        "(rank 3), leaving less memory and compute time for the job"
    )


def test_a_launcher_on_a_device_is_the_jobs():
    ranks = [make_rank(0), make_rank(1)]
    gpus = [
        make_gpu(0, somebody(30, pid=100), somebody(0.5, pid=90)),
        make_gpu(1, somebody(30, pid=101)),
    ]
    joined, labeled = join(ranks, gpus, {}, [], JOB, helpers={90, 100})
    assert find(joined, labeled, JOB) == []
    assert [(p.job, p.rank) for p in labeled[0].processes or ()] == [(JOB, 0), (JOB, None)]
    joined, labeled = join(ranks, gpus, {}, [], JOB)
    assert the((joined, labeled), "other-process-0")


# -- at large --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_healthy_job_has_no_alert_from_its_start_to_its_end(seed):
    """Second by second: contexts appear one by one, then steps, evaluations, checkpoints, and
    exits."""
    life = random.Random(seed)
    number = life.choice([1, 2, 3, 4, 8])
    counted = life.random() < 0.7  # otherwise, no probe reports steps
    told = life.random() < 0.9
    share = number % 2 == 0 and life.random() < 0.3  # two ranks on each device
    devices = number // 2 if share else number
    size_gib = life.uniform(2, 70) / (2 if share else 1)
    uneven = life.random() < 0.3  # stages of a pipeline
    sizes = [size_gib * (life.uniform(0.4, 1) if uneven else 1) for _ in range(number)]
    comes_at = sorted(life.uniform(2, 90) for _ in range(number))
    starts_at = max(comes_at) + life.uniform(1, 60)
    pauses = [
        (at, at + life.uniform(5, 100), life.choice(["evaluates", "writes", "all evaluate"]))
        for at in (starts_at + 60, starts_at + 200)
    ]
    ends_at = [pauses[-1][1] + 30 + life.uniform(0, 20) for _ in range(number)]
    book = AlertBook()
    step = 0
    for second in range(int(max(ends_at)) + 5):
        pause = next((what for start, end, what in pauses if start <= second < end), None)
        trains = second >= starts_at and pause is None
        step += trains
        gpus = []
        ranks = [
            make_rank(
                rank,
                gpu=rank % devices,
                step=(step or None) if counted else None,
                steps_per_s=(5.0 if trains else 0.0) if counted and step else None,
                state="exited" if second >= ends_at[rank] else "running",
            )
            for rank in range(number)
        ]
        for index in range(devices):
            here = [
                of_rank(rank, sizes[rank] * min(1.0, 0.1 + (second - comes_at[rank]) / 20))
                for rank in range(index, number, devices)
                if comes_at[rank] <= second < ends_at[rank]
            ]
            util, power = (life.uniform(85, 100), 500.0) if trains else (0.0, 70.0)
            if pause == "all evaluate" or (pause == "evaluates" and index == 0):
                util, power = life.uniform(70, 100), 400.0
            elif pause is not None and index > 0:
                util, power = life.choice([(100.0, 130.0), (0.0, 70.0)])
            elif here and not trains:
                util, power = life.uniform(0, 60), 120.0
            gpus.append(
                make_gpu(
                    index,
                    *here,
                    util_percent=util if here else 0.0,
                    power_w=power,
                    **({} if told else {"processes": None}),
                )
            )
        alerts, _ = book.update(find(ranks, gpus, JOB), NOW, float(second))
        assert alerts == [], f"second {second} of {number} ranks, pause: {pause}"
