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


class Wander:
    """Slowly changing noise of each rank, as from documents that it reads one after the other."""

    def __init__(self, chance: random.Random, tau_s: float, size: float) -> None:
        self._chance, self._keep, self._size = chance, math.exp(-1 / tau_s), size
        self._at: dict[int, tuple[float, float]] = {}

    def __call__(self, rank: int, t: float) -> float:
        last, value = self._at.get(rank, (-1.0, self._chance.gauss(0, self._size)))
        while last < t:
            push = self._chance.gauss(0, self._size * math.sqrt(1 - self._keep**2))
            last, value = last + 1, value * self._keep + push
        self._at[rank] = last, value
        return value


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

    def noisy(name: str, base: Callable[[float], float], share: float) -> Loss:
        of = chance(name)
        return lambda rank, t: base(t) * (1 + of.gauss(0, share))

    def lognormal(name: str, base: Callable[[float], float], sigma: float) -> Loss:
        of = chance(name)
        return lambda rank, t: base(t) * of.lognormvariate(-sigma * sigma / 2, sigma)

    # losses: noise
    for ranks in (2, 4):
        base = falling(2.3, 0.6, 60)
        one(f"small batches, {ranks} ranks", Life(ranks, loss=noisy(f"small{ranks}", base, 0.45)))
        name = f"batches of one, {ranks} ranks"
        one(name, Life(ranks, loss=lognormal(name, base, 1.0)))
        of = chance(f"zero{ranks}")
        name = f"losses around zero, {ranks} ranks"
        one(name, Life(ranks, loss=lambda rank, t, of=of: of.gauss(0, 0.3)))
    one("small batches, 8 ranks", Life(8, loss=noisy("small8", falling(4.0, 1.0, 40), 0.5)))
    one("a falling loss", Life(4, loss=noisy("fall", falling(10.0, 0.3, 30), 0.05)))
    likely, through = chance("ll"), chance("0")
    one("log likelihood", Life(4, loss=lambda rank, t: -3.0 + likely.gauss(0, 0.6)))
    one("through zero", Life(2, loss=lambda rank, t: 2 - t / 75 + through.gauss(0, 0.1)))
    of = chance("lbfgs")
    one(
        "LBFGS",
        Life(
            2, loss=lambda rank, t, of=of: 2.3 * 10 ** -min(7, t / 20) * of.uniform(0.3, 3.0),
            loss_each_s=2.0,
        ),
    )  # fmt: skip
    jump = chance("lbfgs line search")
    one(
        "LBFGS, a line search that fails",
        Life(4, loss=lambda rank, t: 1e-5 * (jump.choice((1, 1, 300)))),
    )
    waves, of = Wander(chance("gan waves"), 15, 0.5), chance("gan")
    one(
        "a generator's loss",
        Life(2, loss=lambda rank, t: 0.9 * math.exp(waves(0, t)) * of.lognormvariate(0, 0.4)),
    )
    critic = chance("critic")
    one(
        "a critic's loss near zero",
        Life(4, loss=lambda rank, t: 0.02 * math.sin(t / 9) + critic.gauss(0, 0.05)),
    )
    spikes = chance("spikes")
    one(
        "single batches far off",
        Life(4, loss=lambda r, t: 2.0 * (spikes.uniform(3, 20) if spikes.random() < 0.03 else 1)),
    )
    documents = Wander(chance("documents"), 12, 0.25)
    one("documents", Life(4, loss=lambda rank, t: 2.5 * math.exp(documents(rank, t))))
    documents2 = Wander(chance("documents2"), 12, 0.2)
    one("documents, 2 ranks", Life(2, loss=lambda rank, t: 2.5 * math.exp(documents2(rank, t))))
    walk, step = Wander(chance("walk"), 60, 1.0), chance("rl")
    one(
        "reinforcement learning",
        Life(4, loss=lambda rank, t: 0.3 * walk(0, t) + step.gauss(0, 0.15)),
    )
    one("small losses", Life(4, loss=noisy("tiny", falling(4e-2, 1e-3, 30), 0.5)))
    one("large losses", Life(4, loss=noisy("large", falling(1000.0, 1.0, 20), 0.3)))
    # losses: ranks that differ
    tasks = chance("tasks")

    def of_tasks(rank: int, t: float) -> float:
        base = (falling(2.3, 0.5, 60), falling(0.05, 0.004, 90), falling(7.0, 2.0, 200))[rank % 3]
        return base(t) * (1 + tasks.gauss(0, 0.15))

    one("a task each, 3 ranks", Life(3, loss=of_tasks))
    one("a task each, 2 ranks", Life(2, loss=of_tasks))
    easy, rest = falling(0.7, 0.69, 60), falling(5.0, 0.4, 50)
    mixed = chance("mixed")
    one(
        "a task that is learned beside one that is not",
        Life(2, loss=lambda r, t: (easy, rest)[r](t) * (1 + mixed.gauss(0, 0.1))),
    )
    hard = chance("hard")
    one(
        "a harder shard",
        Life(4, loss=lambda r, t: (1.8 if r == 1 else 1) * falling(2.3, 0.5, 60)(t)
             * (1 + hard.gauss(0, 0.1))),
    )  # fmt: skip
    harder = chance("harder")
    one(
        "a harder shard, 2 ranks",
        Life(2, loss=lambda r, t: (2.5 if r == 1 else 1) * falling(2.3, 0.5, 60)(t)
             * (1 + harder.gauss(0, 0.2))),
    )  # fmt: skip
    parting = chance("parting")
    one(
        "shards that part",
        Life(4, loss=lambda r, t: falling(2.3, (0.2, 0.4, 0.6, 1.1)[r], 50)(t)
             * (1 + parting.gauss(0, 0.1))),
    )  # fmt: skip
    drop = chance("drop")
    one(
        "the learning rate drops, with a harder shard",
        Life(4, loss=lambda r, t: (3.0 if r == 2 else 1.0) * (0.9 if t < 150 else 0.3)
             * (1 + drop.gauss(0, 0.1))),
    )  # fmt: skip
    restart = chance("restart")
    one(
        "a warm restart",
        Life(4, loss=lambda r, t: (0.5 + 1.2 * math.exp(-(t % 100) / 15))
             * (1.3 if r == 0 else 1) * (1 + restart.gauss(0, 0.15))),
    )  # fmt: skip
    longer = chance("longer")
    one(
        "longer contexts from a moment on",
        Life(4, loss=lambda r, t: (1.0 if t < 120 else 2.2) * (1 + longer.gauss(0, 0.15))),
    )
    sort = chance("sorted")
    one(
        "sorted classes",
        Life(4, loss=lambda r, t: 1 + 0.8 * math.sin(t / 8 + 1.6 * r) + sort.gauss(0, 0.1)),
    )
    grok = chance("grok")
    one(
        "a plateau that all leave",
        Life(4, loss=lambda r, t: (2.3 if t < 140 + 4 * r else 0.3) * (1 + grok.gauss(0, 0.05))),
    )
    epochs = chance("epochs")
    one(
        "epochs that overfit",
        Life(2, loss=lambda r, t: 2.0 * 0.7 ** (t // 60) * (1 + epochs.gauss(0, 0.2))),
    )
    slow = chance("slow log")
    one(
        "a loss in ten seconds",
        Life(4, 600, loss=lambda r, t: 1.5 * (1 + slow.gauss(0, 0.4)), loss_each_s=10.0),
    )
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
    # loads
    load = chance("load")
    one("a noisy load of the CPU", Life(4, cpu=lambda r, t: max(5.0, load.gauss(120, 60))))
    workers = chance("workers")
    one(
        "workers that start at each epoch",
        Life(4, cpu=lambda r, t: 420.0 if burst(t, 75, 11, workers.random() * 3 + r) else 110.0),
    )
    card = chance("cards")
    one(
        "cards of one kind",
        Life(
            8,
            util=lambda r, t: card.uniform(70, 100),
            memory=lambda r, t: (44.0 if r == 0 else 40.0) * GIB,
            power=lambda r, t: 600 * (1 + card.gauss(0, 0.12)),
        ),
    )
    one(
        "stages of a pipeline",
        Life(
            4,
            util=lambda r, t: (55.0, 70.0, 85.0, 40.0)[r] + card.gauss(0, 5),
            memory=lambda r, t: (60.0, 40.0, 25.0, 50.0)[r] * GIB,
            power=lambda r, t: (400.0, 480.0, 560.0, 330.0)[r],
        ),
    )
    one(
        "caches that grow",
        Life(2, rss=lambda r, t: (2.0 + t / 150 + (0.1 if r else 0)) * GIB),
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
        "a rank diverges": Life(
            4, loss=lambda r, t: base(t) * noise() * (math.exp((t - 120) / 40)
                                                      if r == ill and t > 120 else 1),
            since=120,
        ),
        "a rank diverges slowly, 2 ranks": Life(
            2, 420, loss=lambda r, t: base(t) * noise() * (1 + (t - 120) / 60
                                                           if r == ill and t > 120 else 1),
            since=120,
        ),
        "a rank explodes wildly, 2 ranks": Life(
            2, loss=lambda r, t: of.lognormvariate(0, 1.5) * (1e6 if r == ill and t > 120 else 1),
            since=120,
        ),
        "a rank lost its shard": Life(
            4, loss=lambda r, t: (2.3 if r == ill and t > 150 else base(t)) * noise(), since=150
        ),
        "a rank lost its shard, 2 ranks": Life(
            2, loss=lambda r, t: (2.3 if r == ill and t > 150 else base(t)) * noise(), since=150
        ),
        "a rank gets empty batches": Life(
            4, loss=lambda r, t: (0.05 if r == ill and t > 150 else base(t)) * noise(), since=150
        ),
        "a rank does not learn": Life(
            4, loss=lambda r, t: (2.3 if r == ill else base(t)) * noise()
        ),
        "a rank does not learn, 2 ranks": Life(
            2, loss=lambda r, t: (2.3 if r == ill else base(t)) * noise()
        ),
        "a rank leaves zero": Life(
            4, loss=lambda r, t: of.gauss(0, 0.3) + (5.0 if r == ill and t > 120 else 0), since=120
        ),
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
        "a leak of one rank": Life(
            4, rss=lambda r, t: (2.0 + (t / 100 if r == ill else 0)) * GIB
        ),
        "a leak on one device": Life(
            4, util=lambda r, t: 97.0, power=lambda r, t: 600.0,
            memory=lambda r, t: (30.0 + (t / 12 if r == ill else 0)) * GIB,
        ),
        "a device that has half of the work": Life(
            4, util=lambda r, t: 45.0 if r == ill else 96.0, probed=False,
            power=lambda r, t: 300.0 if r == ill else 600.0, memory=lambda r, t: 40.0 * GIB,
        ),
        "a thread that spins": Life(
            4, cpu=lambda r, t: (250.0 if r == ill and t > 90 else 100.0) * noise(0.1), since=90
        ),
    }  # fmt: skip
    return {name: replace(life, sick=ill) for name, life in lives.items()}
