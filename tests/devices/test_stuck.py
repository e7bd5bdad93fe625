"""Full utilization at idle power without progress, and jobs that only look similar."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.devices.jobs import (
    JOB,
    change,
    change_all,
    make_gpu,
    make_job,
    make_rank,
    of_rank,
    somebody,
)

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.stuck import StuckWatch
from ddptop_runner.model.snapshot import GpuSample, RankSample

RANKS, GPUS = make_job()
TRAINING = change_all(GPUS, util_percent=98.0, power_w=540.0)
SPINNING = change_all(GPUS, util_percent=100.0, mem_util_percent=0.0, power_w=120.0)
UNSEEN = change_all(RANKS, step=None, cpu_percent=1.0)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


class Watched:
    """A monitored job, one second at a time."""

    def __init__(self, **options: Any) -> None:
        self.watch = StuckWatch()
        self.second = 1000.0
        self.step = 0
        self.options = options

    def look(
        self,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        passed_s: float = 1.0,
        **options: Any,
    ) -> Finding | None:
        self.second += passed_s
        found = self.watch.update(self.second, ranks, gpus, JOB, **{**self.options, **options})
        assert len(found) <= 1
        assert bool(found) == bool(self.watch.stuck_ranks) == (self.watch.reason is not None)
        return found[0] if found else None

    def trains(
        self, seconds: int, gpus: Sequence[GpuSample] = TRAINING, every: int = 1, number: int = 4
    ) -> None:
        """A step every so many seconds, with no finding in between."""
        for second in range(seconds):
            self.step += second % every == 0
            ranks = [make_rank(rank, step=self.step, cpu_percent=1.0) for rank in range(number)]
            assert self.look(ranks, gpus) is None, second

    def stands(
        self,
        gpus: Sequence[GpuSample] = SPINNING,
        seconds: int = 1200,
        ranks: Sequence[RankSample] | None = None,
    ) -> tuple[int, Finding] | None:
        """(seconds without a step until the finding, the finding); None if there was none."""
        if ranks is None:
            ranks = [make_rank(r, step=self.step, cpu_percent=1.0) for r in range(len(gpus))]
        for second in range(1, seconds + 1):
            finding = self.look(ranks, gpus)
            if finding is not None:
                return second, finding
        return None


def test_a_job_that_trained_and_spins_now():
    job = Watched()
    job.trains(60)
    found = job.stands()
    assert found is not None
    after_s, finding = found
    assert 59 <= after_s <= 62
    assert (finding.id, finding.severity, finding.hold_s) == ("stuck", "error", 0)
    assert (finding.ranks, finding.gpus) == ((0, 1, 2, 3), (0, 1, 2, 3))
    assert finding.message == (
        "ranks 0-3 are probably waiting in a collective: GPUs 0-3 show 100% utilization at idle "
        "power (120 W at most, 17% of the limit, down from 540 W while making progress) for 60 s, "
        "no progress for 61 s; compare the ranks' stacks"
    )
    assert job.watch.stuck_ranks == {0, 1, 2, 3}
    assert job.watch.reason == (
        "100% utilization at idle power (120 W at most, 17% of the limit, down from 540 W while "
        "making progress) for 60 s"
    )
    job.trains(5)  # it continues
    assert job.watch.stuck_ranks == frozenset()


def test_the_rank_that_keeps_the_others_waiting_is_named():
    job = Watched()
    job.trains(60)
    found = job.stands(change(SPINNING, {2: {"util_percent": 0.0, "power_w": 75.0}}))
    assert found is not None
    after_s, finding = found
    assert 299 <= after_s <= 302  # a rank may well be writing a checkpoint
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.message.startswith(
        "ranks 0, 1, 3 are probably waiting in a collective: GPUs 0, 1, 3"
    )
    assert "; rank 2, with GPU 2 at 0%, is probably holding them up: see its" in finding.message
    assert job.watch.stuck_ranks == {0, 1, 3}


def test_a_pause_as_long_as_before_is_no_trouble():
    job = Watched()
    job.trains(501, every=100)
    found = job.stands()
    assert found is not None
    assert 299 <= found[0] <= 302  # three times the longest pause


def test_a_job_that_was_stuck_before_anyone_looked():
    job = Watched()
    found = job.stands(ranks=UNSEEN)
    assert found is not None
    after_s, finding = found
    assert 300 <= after_s <= 302
    assert finding.severity == "warning"
    assert finding.message == (
        "ranks 0-3 are probably waiting in a collective: GPUs 0-3 show 100% utilization at idle "
        "power (120 W at most, 17% of the limit) for 5 min, no steps or log lines to confirm it; "
        "compare the ranks' stacks"
    )
    job = Watched()
    found = job.stands(ranks=RANKS)
    assert found is not None and "for 5 min, no progress; compare" in found[1].message


def test_a_job_whose_progress_cannot_be_seen_by_its_own_drop_of_power():
    job = Watched()
    for _ in range(120):
        assert job.look(UNSEEN, TRAINING) is None
    found = job.stands(change_all(SPINNING, power_w=220.0), ranks=UNSEEN)
    assert found is not None
    after_s, finding = found
    assert 120 <= after_s <= 125
    assert finding.severity == "warning"
    assert "(220 W at most, 31% of the limit, down from 540 W before) for 2 min" in finding.message


def test_without_a_limit_the_own_level_tells():
    job = Watched()
    job.trains(60, change_all(TRAINING, power_limit_w=None))
    found = job.stands(change_all(SPINNING, power_limit_w=None))
    assert found is not None
    assert "at idle power (120 W at most, down from 540 W while" in found[1].message
    assert Watched().stands(change_all(SPINNING, power_limit_w=None), ranks=UNSEEN) is None


def test_where_the_pids_are_of_another_namespace_the_order_of_devices_tells():
    def hidden(gpus: Sequence[GpuSample]) -> list[GpuSample]:
        return change_all(gpus, processes=[somebody(30, command=None, pid=88000)])

    job = Watched()
    job.trains(60, hidden(TRAINING))
    found = job.stands(hidden(SPINNING))
    assert found is not None and found[1].ranks == (0, 1, 2, 3)


def test_a_log_that_grows_is_progress():
    job = Watched()
    for second in range(400):
        at_s = 1000.0 + second // 10 * 10
        assert job.look(UNSEEN, SPINNING, progress_at_s=at_s) is None
    for _ in range(500):
        finding = job.look(UNSEEN, SPINNING, progress_at_s=1390.0)
        if finding is not None:
            break
    assert finding is not None
    assert 1689 <= job.second <= 1692


def test_a_loss_read_from_a_log_is_progress():
    job = Watched()
    for second in range(600):
        at = NOON + dt.timedelta(seconds=second // 20 * 20)
        assert job.look(change_all(UNSEEN, last_progress_at=at), SPINNING) is None


def test_a_job_over_several_hosts_may_wait_for_another_host():
    job = Watched(world_size=8)
    job.trains(60)
    found = job.stands()
    assert found is not None and 299 <= found[0] <= 302
    job = Watched(world_size=4)
    job.trains(60)
    found = job.stands()
    assert found is not None and found[0] <= 62


WRITING = change(SPINNING, {0: {"util_percent": 0.0, "power_w": 75.0}})


def idle(rank: int, step: int, **fields: Any) -> list[RankSample]:
    ranks = [make_rank(number, step=step, cpu_percent=100.0) for number in range(4)]
    return change(ranks, {rank: fields})


HEALTHY: dict[str, Callable[[Watched], tuple[int, Finding] | None]] = {
    "idle": lambda job: job.stands(change_all(GPUS, util_percent=0.0, power_w=70.0)),
    "little utilization": lambda job: job.stands(
        change_all(GPUS, util_percent=30.0, power_w=100.0)
    ),
    "evaluation at the power of work": lambda job: job.stands(change_all(SPINNING, power_w=400.0)),
    "evaluation that reads memory": lambda job: job.stands(
        change_all(SPINNING, mem_util_percent=20.0)
    ),
    "one device not at full utilization": lambda job: job.stands(
        change(SPINNING, {1: {"util_percent": 60.0}})
    ),
    "two devices aside": lambda job: job.stands(
        change(SPINNING, {1: {"util_percent": 0.0}, 2: {"util_percent": 0.0}})
    ),
    "a checkpoint that is written within five minutes": lambda job: job.stands(
        WRITING, seconds=290
    ),
    "a rank that evaluates on its CPU": lambda job: job.stands(
        WRITING, ranks=idle(0, job.step, cpu_percent=100.0)
    ),
    "a rank blocked by its disk": lambda job: job.stands(
        WRITING, ranks=idle(0, job.step, cpu_percent=0.0, state="blocked")
    ),
    "a paused rank": lambda job: job.stands(
        WRITING, ranks=idle(0, job.step, cpu_percent=0.0, state="paused")
    ),
    "somebody else is on a device": lambda job: job.stands(
        change(SPINNING, {1: {"processes": [of_rank(1), somebody()]}})
    ),
    "a device whose utilization is not known": lambda job: job.stands(
        change(SPINNING, {1: {"util_percent": None}})
    ),
    "power not known": lambda job: job.stands(change_all(SPINNING, power_w=None)),
    "a lost device": lambda job: job.stands(
        change(SPINNING, {1: {"lost": True, "util_percent": None, "processes": None}})
    ),
    "no devices": lambda job: job.stands([]),
    "one device": lambda job: job.stands(SPINNING[:1]),
    "ranks that ended": lambda job: job.stands(
        ranks=[make_rank(rank, state="exited") for rank in range(4)]
    ),
}


@pytest.mark.parametrize("case", HEALTHY.values(), ids=list(HEALTHY))
def test_not_stuck(case):
    job = Watched()
    job.trains(60)
    assert case(job) is None


def test_a_small_model_that_steps_at_low_power_from_the_start():
    job = Watched()
    job.trains(1500, SPINNING, every=50)


def test_small_model_without_visible_steps_uses_memory():
    assert Watched().stands(change_all(SPINNING, mem_util_percent=3.0), ranks=UNSEEN) is None


def test_a_small_model_drops_little():
    job = Watched()
    job.trains(60, change_all(TRAINING, power_w=690.0))  # as while kernels are tuned
    job.trains(600, change_all(TRAINING, power_w=230.0))
    assert job.stands(change_all(SPINNING, power_w=190.0)) is None


def test_power_that_is_halved_and_still_of_work():
    job = Watched()
    job.trains(60, change_all(TRAINING, power_w=690.0))
    assert job.stands(change_all(SPINNING, power_w=300.0)) is None


def test_power_of_the_start_is_not_that_of_progress():
    job = Watched()
    start = [make_rank(rank, step=0, cpu_percent=1.0) for rank in range(4)]
    for _ in range(250):
        assert job.look(start, change_all(TRAINING, util_percent=20.0, power_w=90.0)) is None
    job.trains(4, change_all(TRAINING, power_w=240.0))
    found = job.stands(change_all(SPINNING, power_w=118.0))
    assert found is not None and found[0] <= 62
    assert "down from 240 W while making progress" in found[1].message


def test_a_stray_context_makes_no_suspect():
    job = Watched()
    job.trains(60)
    here = change(
        SPINNING,
        {0: {"util_percent": 0.0, "processes": [of_rank(0), of_rank(1, 0.5), of_rank(2, 0.5)]}},
    )
    found = job.stands(here)
    assert found is not None
    assert "; rank 0, with GPU 0 at 0%, is probably" in found[1].message


def test_spinning_that_is_interrupted_begins_anew():
    job = Watched()
    job.trains(60)
    for second in range(600):
        here = SPINNING if second % 50 else change_all(SPINNING, util_percent=90.0)
        assert job.stands(here, seconds=1) is None


def test_a_suspended_machine_is_not_stuck():
    job = Watched()
    job.trains(60)
    ranks = [make_rank(rank, step=job.step, cpu_percent=1.0) for rank in range(4)]
    assert job.look(ranks, SPINNING) is None
    assert job.look(ranks, SPINNING, passed_s=7200) is None
    found = job.stands(ranks=ranks)
    assert found is not None and found[0] >= 59


def test_restarted_ranks_have_their_own_time():
    job = Watched()
    job.trains(60)
    assert job.stands(seconds=50) is None
    again = [make_rank(rank, pid=200 + rank, step=job.step, cpu_percent=1.0) for rank in range(4)]
    gpus = [
        make_gpu(
            *[rank, of_rank(rank, pid=200 + rank)],
            **{"util_percent": 100.0, "mem_util_percent": 0.0, "power_w": 120.0},
        )
        for rank in range(4)
    ]
    found = job.stands(gpus, ranks=again)
    assert found is not None and 299 <= found[0] <= 302


@pytest.mark.parametrize("seed", range(24))
def test_a_job_that_progresses_is_never_stuck(seed):
    """Steps, logs, evaluations on all ranks, and checkpoints on one, at any size."""
    life = random.Random(seed)
    number = life.choice([2, 4, 8])
    level_w = life.uniform(90, 690)
    every = life.choice([1, 2, 10, 50])
    visible = life.random() < 0.7
    job = Watched()
    gpus = [make_gpu(index, of_rank(index)) for index in range(number)]
    step, second, pause_ends = 0, 0, 0
    doing = "trains"
    while second < 1500:
        second += 1
        if second >= pause_ends:
            doing = "trains"
            if second % 400 == 399:
                doing = life.choice(["all evaluate", "one writes"])
                pause_ends = second + life.randint(5, 150 if doing == "one writes" else 55)
        step += doing == "trains" and second % every == 0
        ranks = [
            make_rank(rank, step=step if visible else None, cpu_percent=life.uniform(0, 110))
            for rank in range(number)
        ]
        mem = life.uniform(6, 60)
        if doing == "trains":
            fields = {"util_percent": life.uniform(80, 100), "mem_util_percent": mem}
            here = change_all(gpus, power_w=level_w * life.uniform(0.8, 1.1), **fields)
        elif doing == "all evaluate":
            fields = {"util_percent": life.uniform(50, 100), "mem_util_percent": mem}
            here = change_all(gpus, power_w=level_w * life.uniform(0.4, 1), **fields)
        else:
            here = change_all(gpus, power_w=110.0, util_percent=100.0, mem_util_percent=0.0)
            here = change(here, {0: {"util_percent": life.uniform(0, 4), "power_w": 80.0}})
        assert job.look(ranks, here) is None, (second, doing)
