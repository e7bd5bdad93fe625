"""Simulated histories of healthy and faulty ranks, one sample a second, from a seed and no clock.

A life gives the ranks and devices of one job at a second. What it varies is what real trainings
vary by: noise of batches, tasks and shards that differ, pauses, bursts, warm-up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from ddptop_runner.model.snapshot import GpuSample, RankSample

GIB = 1 << 30
Loss = Callable[[int, float], "float | None"]
"""A value of a rank at a given second."""


@dataclass
class Life:
    """One job. Each function takes a rank and a second; None means unknown."""

    ranks: int = 4
    seconds: int = 300
    loss: Loss = lambda rank, t: 2.0
    work: Loss = lambda rank, t: 0.1
    """Seconds of a step in which the rank computes."""
    wait: Loss = lambda rank, t: 0.005
    """Seconds of a step in which it waits for its data."""
    cpu: Loss = lambda rank, t: 100.0
    rss: Loss = lambda rank, t: 2.0 * GIB
    util: Loss | None = None
    memory: Loss | None = None
    power: Loss | None = None
    throttled: Callable[[int, float], bool] = lambda rank, t: False
    stops: Callable[[float], bool] = lambda t: False
    """Whether no rank takes a step, for example during an evaluation."""
    loss_each_s: float = 1.0
    sync: bool = True
    """Whether the probe reports the time spent waiting for others."""
    together: bool = True
    """Whether the ranks wait for each other in each step."""
    probed: bool = True
    """False if steps and losses are unknown."""
    sick: int | None = None
    """The faulty rank; None if there is none."""
    since: float = 0.0
    """When its fault starts."""
    extra: dict[str, object] = field(default_factory=dict)


class Told:
    """The ranks as sampled: steps advance only while the job takes some."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self._step = 0.0
        self._losses: dict[int, tuple[float | None, int]] = {}
        self._times: dict[int, dict[str, float | None]] = {}

    def at(self, t: float) -> tuple[list[RankSample], list[GpuSample]]:
        life = self.life
        numbers = range(life.ranks)
        work = {rank: life.work(rank, t) or 0.0 for rank in numbers}
        wait = {rank: life.wait(rank, t) or 0.0 for rank in numbers}
        slowest = max(work[rank] + wait[rank] for rank in numbers) + 0.002
        goes_on = not life.stops(t)
        if goes_on:
            self._step += 1 / slowest
        step = int(self._step)
        is_new = goes_on and t % life.loss_each_s < 1.0
        ranks = []
        for rank in numbers:
            if is_new or rank not in self._losses:
                self._losses[rank] = life.loss(rank, t), step
            if goes_on or rank not in self._times:
                own = work[rank] + wait[rank]
                whole = slowest if life.together else own
                self._times[rank] = {
                    "step_time_s": whole,
                    "steps_per_s": 1 / whole,
                    "data_wait_s": wait[rank],
                    "sync_s": max(0.0, whole - own) if life.sync else None,
                }
            ranks.append(self._rank(rank, t, step))
        return ranks, [] if life.util is None else [self._gpu(rank, t) for rank in numbers]

    def _rank(self, number: int, t: float, step: int) -> RankSample:
        life = self.life
        loss, loss_step = self._losses[number]
        state = None
        if loss is not None:
            state = "ok" if math.isfinite(loss) else "nan" if loss != loss else "inf"
        rank = RankSample(
            rank=number,
            local_rank=number,
            host="h",
            pid=100 + number,
            state="running",
            cpu_percent=life.cpu(number, t),
            rss_bytes=int(life.rss(number, t) or 0),
            gpu=None if life.util is None else number,
            gpu_util_percent=_of(life.util, number, t),
            gpu_mem_used_bytes=_bytes(_of(life.memory, number, t)),
            gpu_power_w=_of(life.power, number, t),
        )
        if not life.probed:
            return rank
        return msgspec.structs.replace(
            rank,
            step=step,
            step_source="probe",
            loss=loss if state == "ok" else None,
            loss_min=loss if state == "ok" else None,
            loss_state=state,
            loss_source="probe",
            loss_step=loss_step,
            **self._times[number],
        )

    def _gpu(self, number: int, t: float) -> GpuSample:
        life = self.life
        hot = life.throttled(number, t)
        return GpuSample(
            index=number,
            uuid=f"GPU-{number}",
            util_percent=_of(life.util, number, t),
            mem_used_bytes=_bytes(_of(life.memory, number, t)),
            mem_total_bytes=80 * GIB,
            power_w=_of(life.power, number, t),
            power_limit_w=700.0,
            sm_clock_mhz=1100 if hot else 1755,
            sm_clock_max_mhz=1980,
            temperature_c=91.0 if hot else 60.0,
            throttle_reasons=["thermal, by hardware"] if hot else [],
            processes=[],
        )


def _of(read: Loss | None, number: int, t: float) -> float | None:
    return None if read is None else read(number, t)


def _bytes(value: float | None) -> int | None:
    return None if value is None else int(value)


# --- what losses and loads vary by ---------------------------------------------------------------


def falling(start: float, end: float, tau_s: float) -> Callable[[float], float]:
    return lambda t: end + (start - end) * math.exp(-t / tau_s)


def burst(t: float, each_s: float, lasts_s: float, phase_s: float = 0.0) -> bool:
    return (t + phase_s) % each_s < lasts_s and t > lasts_s


def healthy(seed: int = 0) -> dict[str, Life]:
    """Jobs that must not raise an alert."""
    lives: dict[str, Life] = {}

    def one(name: str, life: Life) -> None:
        assert name not in lives
        lives[name] = life

    def chance(name: str) -> random.Random:
        return random.Random(f"{name} {seed}")

    # times
    busy = chance("busy")
    one(
        "a busy interpreter",
        Life(4, work=lambda r, t: 0.1 * (1 + abs(busy.gauss(0, 0.03))
                                         + 0.5 * burst(t, 50, 12, 13 * r))),
    )  # fmt: skip
    one(
        "bursts of loading",
        Life(
            4,
            wait=lambda r, t: 0.08 if burst(t, 60, 12, 17 * r) else 0.004,
            cpu=lambda r, t: 191.0 if burst(t, 60, 12, 17 * r) else 100.0,
        ),
    )
    lengths = chance("lengths")
    one(
        "sequences of all lengths",
        Life(4, work=lambda r, t: 0.1 * lengths.lognormvariate(0, 0.35)),
    )
    one(
        "one rank that logs",
        Life(4, work=lambda r, t: 0.112 if r == 0 else 0.1,
             cpu=lambda r, t: 118.0 if r == 0 else 100.0),
    )  # fmt: skip
    collector = chance("gc")
    one(
        "the garbage collector",
        Life(4, work=lambda r, t: 0.1 * (4 if collector.random() < 0.05 else 1)),
    )
    own = chance("own pace")
    one(
        "steps of each rank's own pace",
        Life(4, work=lambda r, t: 0.2 * own.lognormvariate(0, 0.3), sync=False, together=False),
    )
    # pauses of one rank, while no steps are taken
    one(
        "torch.compile",
        Life(
            4,
            cpu=lambda r, t: 800.0 if r == 0 and (t < 70 or 150 < t < 180) else 100.0,
            stops=lambda t: t < 70 or 150 < t < 180,
        ),
    )
    one(
        "an evaluation on rank 0",
        Life(
            4,
            cpu=lambda r, t: (700.0 if r == 0 else 20.0) if burst(t, 110, 45) else 100.0,
            stops=lambda t: burst(t, 110, 45),
            work=lambda r, t: 0.1,
        ),
    )
    one(
        "a checkpoint of rank 0",
        Life(
            4,
            util=lambda r, t: (0.0 if r == 0 else 100.0) if burst(t, 90, 25) else 97.0,
            memory=lambda r, t: 40.0 * GIB,
            power=lambda r, t: (90.0 if r == 0 else 180.0) if burst(t, 90, 25) else 600.0,
            stops=lambda t: burst(t, 90, 25),
        ),
    )
    card = chance("cards")
    one(
        "stages of a pipeline",
        Life(
            4,
            util=lambda r, t: (55.0, 70.0, 85.0, 40.0)[r] + card.gauss(0, 5),
            memory=lambda r, t: (60.0, 40.0, 25.0, 50.0)[r] * GIB,
            power=lambda r, t: (400.0, 480.0, 560.0, 330.0)[r],
        ),
    )
    return lives


def sick(seed: int = 0) -> dict[str, Life]:
    """Jobs that must raise an alert."""
    of = random.Random(f"sick {seed}")
    ill = 1

    def noise(share: float = 0.15) -> float:
        return 1 + of.gauss(0, share)

    base = falling(2.3, 0.8, 50)
    lives = {
        "NaN": Life(
            4, loss=lambda r, t: math.nan if r == ill and t > 60 else base(t) * noise(), since=60
        ),
        "a straggler by 30 %": Life(4, work=lambda r, t: (0.13 if r == ill else 0.1) * noise(0.03)),
        "a straggler by 30 % from a moment on, 8 ranks": Life(
            8, work=lambda r, t: (0.13 if r == ill and t > 90 else 0.1) * noise(0.05), since=90
        ),
        "a straggler by its data": Life(
            4, wait=lambda r, t: (0.05 if r == ill else 0.004) * noise(0.2), sync=False
        ),
        "a straggler that nobody waits for": Life(
            4, work=lambda r, t: (0.3 if r == ill else 0.2) * noise(0.05), sync=False,
            together=False,
        ),
        "a throttled device": Life(
            4, work=lambda r, t: 0.145 if r == ill and t > 60 else 0.1,
            util=lambda r, t: 97.0, memory=lambda r, t: 40.0 * GIB,
            power=lambda r, t: 380.0 if r == ill and t > 60 else 610.0,
            throttled=lambda r, t: r == ill and t > 60, since=60,
        ),
    }  # fmt: skip
    return {name: replace(life, sick=ill) for name, life in lives.items()}
