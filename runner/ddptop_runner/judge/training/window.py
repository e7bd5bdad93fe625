"""The last minutes of a job's ranks, from which findings on its training are made."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from ddptop_runner.base.median import median
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.imbalance import busy_s
from ddptop_runner.judge.balance.rank_devices import own_devices
from ddptop_runner.judge.training.replicas import Replicas
from ddptop_runner.judge.training.resume import Course
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample, Resources
from ddptop_runner.model.words import ENDED, Severity, is_validation_loss

SPAN_S = 90.0
"""How far back samples are kept; one is taken a second."""
STRETCHES = 90
MEMORY_EVERY_S, MEMORY_POINTS = 4.0, 450
"""Memory is kept for longer: half an hour."""
FIRST_LOSSES = 3
MAX_BATCHES = 512
"""Hashed batches kept of each rank and attempt."""
ASIDE = frozenset({"start", "compile", "evaluation", "checkpoint"})
"""Phases whose time is no part of the steps."""

Batch = tuple[int, int]
"""(pass over the data, position in it)."""


class Sample(NamedTuple):
    """The loss of one rank at one time."""

    now_s: float
    loss: float | None
    """The mean of the smallest and the largest loss since the previous sample, or the last."""
    loss_range: tuple[float, float] | None


class Stretch(NamedTuple):
    """The steps that a rank took until all ranks had taken some; figures are per step.

    What is unknown is None.
    """

    ends_s: float
    steps: int
    is_pause: bool
    """Whether it includes something else, such as an evaluation."""
    step_time_s: float | None
    busy_s: float | None
    """Without the wait for other ranks."""
    data_wait_s: float | None
    cpu_percent: float | None
    """Of the rank and its loader's workers."""
    cpus: float | None
    threads: float | None
    sm_clock_mhz: float | None
    until_backward_s: float | None = None
    """Its time up to the backward pass, where it first waits for the other ranks."""
    cpu_s: float | None = None
    cpu_wait_s: float | None = None
    other_threads_s: float | None = None
    gc_s: float | None = None
    read_bytes: float | None = None
    batch_elements: float | None = None


def typical(parts: Iterable[Stretch], figure: str) -> float | None:
    """The median of a figure over the stretches in which it is known."""
    return known_median(map(attrgetter(figure), parts))


def known_median(values: Iterable[float | None]) -> float | None:
    """The median of the known values; None without any."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def grows_steadily(values: Sequence[float], parts: int) -> bool:
    """Whether values grow in each of so many equal parts, by half of the usual or more."""
    edges = [values[round(i * (len(values) - 1) / parts)] for i in range(parts + 1)]
    growth = [after - before for before, after in itertools.pairwise(edges)]
    return min(growth) > 0 and min(growth) >= median(growth) / 2


MINUTE_S, FIRST_MINUTES, LATEST_MINUTES = 60.0, 6, 2
LEAST_OF_MINUTE = 5
"""A minute with fewer stretches counts as a pause."""


class Minute(NamedTuple):
    """What a step of all ranks usually took in a minute, without pauses."""

    step_time_s: float | None
    data_wait_s: float | None
    cpu_wait_s: float | None
    sm_clock_mhz: float | None
    batch_elements: float | None


def _totals(rank: RankSample) -> dict[str, float | None]:
    """What a rank has used up to now, by the name of the figure per step."""
    used = rank.resources or Resources()
    return {
        "data_wait_s": used.data_wait_total_s,
        "until_backward_s": rank.until_backward_total_s,
        "cpu_s": used.cpu_total_s,
        "cpu_wait_s": rank.cpu_wait_total_s,
        "other_threads_s": used.other_threads_total_s,
        "gc_s": used.gc_total_s,
        "read_bytes": used.read_total_bytes,
        "batch_elements": used.batch_elements_total,
    }


MAX_PAUSE_S, MAX_PAUSE_STEPS = 5.0, 3
"""Without a step for so long, and so many times the usual, ranks do something else."""


class Memory(NamedTuple):
    """The memory of all ranks at one time, or that of one rank on its device."""

    now_s: float
    used_bytes: int
    """Resident memory of the ranks and their loader workers, or a rank's tensors on its device."""
    available_bytes: int
    """What the machine or the device has left."""
    children_bytes: int = 0
    """The part of `used_bytes` that loader workers and other descendants have."""
    python_blocks: int = 0
    """Blocks of memory that the ranks' Python objects have; 0 if unknown."""


class Evaluation(NamedTuple):
    """A validation loss, and the training loss about then."""

    step: int
    loss: float
    training_loss: float | None


EVALUATION_STEPS = 10
"""Values with fewer steps between them are of one evaluation: the last one counts."""
MAX_EVALUATIONS = 200


class Window:
    """The living ranks of one attempt.

    Args:
        available_bytes: returns the memory that this host has left; None if unknown.
    """

    def __init__(self, available_bytes: Callable[[], int | None]) -> None:
        self._available_bytes = available_bytes
        self._ids: object = None
        self.attempt: int | None = None
        self.is_late = False
        """Whether the attempt began before it was watched, as after a supervisor's restart."""
        self.workers: str | None = None
        """What loader processes that a rank waits for were doing."""
        self.ranks: list[RankSample] = []
        """Those alive at the last update."""
        self.samples: dict[int, deque[Sample]] = {}
        """By rank, oldest first."""
        self.stretches: dict[int, deque[Stretch]] = {}
        """By rank, oldest first, as many of each."""
        self.minutes: list[Minute] = []
        """The FIRST_MINUTES of the attempt, and the LATEST_MINUTES."""
        self._minute_since_s: float | None = None
        self.gpus: dict[int, GpuSample] = {}
        """By rank, its own device."""
        self._counted: dict[int, tuple[int | None, dict[str, float | None]]] = {}
        """By rank, its step at the end of its last stretch, and its totals."""
        self._counted_s, self._is_aside = 0.0, False
        """When that was, and whether any rank has done something else since."""
        self.first_losses: dict[int, list[float]] = {}
        """By rank, the largest losses of the first samples of the attempt."""
        self.has_changed_loss: set[int] = set()
        """Ranks whose loss was ever another than at first."""
        self.evaluations: dict[str, list[Evaluation]] = {}
        """Of this attempt, by the name of the validation loss on the first rank that has it."""
        self._reports: dict[str, tuple[int, int]] = {}
        """By that name: the rank, and how often it has reported it."""
        self.memory: dict[int | None, deque[Memory]] = {}
        """By rank, that on its device; with None, that of the host, if it is only one. Oldest
        first."""
        self.batches: dict[int, dict[Batch, int]] = {}
        """By rank, the hashes of this attempt's batches."""
        self.earlier: dict[int, dict[Batch, int]] = {}
        """The same of the attempt before."""
        self.course, self.earlier_course = Course(), Course()
        """Where the first rank of this attempt, and that of the one before, has been."""
        self.replicas = Replicas()

    def finding(
        self,
        id_: str,
        severity: Severity,
        message: str,
        evidence: Mapping[str, float | None],
        *,
        hold_s: float = 5.0,
    ) -> Finding:
        """A finding on all ranks."""
        ranks = tuple(rank.rank for rank in self.ranks)
        return Finding(id_, severity, message, ranks, hold_s=hold_s, evidence=evidence)

    def update(self, snapshot: NodeSnapshot, now_s: float) -> None:
        """Add the ranks of a snapshot; `now_s` is a monotonic clock, in seconds."""
        living = [rank for rank in snapshot.ranks if rank.state not in ENDED]
        if snapshot.attempt != self.attempt:
            self.is_late = self.is_late and self.attempt is None
            self.attempt = snapshot.attempt
            self.earlier, self.batches = self.batches, {}
            self.earlier_course, self.course = self.course, Course()
            self.replicas = Replicas()
            self.first_losses, self.has_changed_loss = {}, set()
            self.workers = None
            self.evaluations, self._reports = {}, {}
        ids = tuple((rank.rank, rank.pid) for rank in living)
        if ids != self._ids:
            self._ids = ids
            self.samples = {rank.rank: deque() for rank in living}
            self.stretches = {rank.rank: deque(maxlen=STRETCHES) for rank in living}
            self._counted = {}
            self.minutes, self._minute_since_s = [], None
            self.memory.clear()
        self.ranks, self.gpus = living, own_devices(living, snapshot.gpus)
        self._add_steps(now_s)
        self.replicas.add(living)
        if living:
            self.course.add(living[0])
        self._add_minute(now_s)
        for rank in living:
            self._add(rank, now_s)
            self._add_evaluations(rank)
            batches = self.batches.setdefault(rank.rank, {})
            for one in rank.batch_hashes:
                batches[one.epoch, one.position] = one.crc32
            while len(batches) > MAX_BATCHES:
                del batches[next(iter(batches))]
        self._add_memory(now_s)

    def _add(self, rank: RankSample, now_s: float) -> None:
        samples, known = self.samples[rank.rank], None
        is_measured = rank.loss_source != "log" and rank.loss_state == "ok"
        if is_measured and rank.loss_min is not None and rank.loss_max is not None:
            known = rank.loss_min, rank.loss_max
            first = self.first_losses.setdefault(rank.rank, [])
            if len(first) < FIRST_LOSSES:
                first.append(rank.loss_max)
            if known != (first[0], first[0]):
                self.has_changed_loss.add(rank.rank)
        loss = rank.loss if known is None else sum(known) / 2
        samples.append(Sample(now_s, loss, known))
        while now_s - samples[0].now_s > SPAN_S:
            samples.popleft()

    def _add_evaluations(self, rank: RankSample) -> None:
        for name, loss in rank.metrics.items():
            number, before = self._reports.get(name, (rank.rank, 0))
            reports = rank.metric_reports.get(name, 0)
            if loss is None or number != rank.rank or reports == before:
                continue
            if not is_validation_loss(name):
                continue
            self._reports[name] = rank.rank, reports
            losses = [one.loss for one in self.samples[rank.rank] if one.loss is not None]
            now = Evaluation(rank.step or 0, loss, median(losses) if losses else None)
            known = self.evaluations.setdefault(name, [])
            if known and now.step - known[-1].step < EVALUATION_STEPS:
                known.pop()
            known.append(now)
            del known[:-MAX_EVALUATIONS]

    def _add_steps(self, now_s: float) -> None:
        """Add a stretch of each rank once all have taken steps since the last."""
        is_aside = any(rank.phase in ASIDE for rank in self.ranks)
        self._is_aside = self._is_aside or is_aside
        before, passed_s = self._counted, now_s - self._counted_s
        if before and any(rank.step == before[rank.rank][0] is not None for rank in self.ranks):
            return
        now = {rank.rank: (rank.step, _totals(rank)) for rank in self.ranks}
        for rank in self.ranks if before else ():
            (first, totals), (last, totals_now) = before[rank.rank], now[rank.rank]
            steps = 0 if first is None or last is None else max(0, last - first)
            usual_s = MAX_PAUSE_STEPS * (rank.step_time_s or 0.0)
            is_pause = self._is_aside or passed_s > max(MAX_PAUSE_S, usual_s)
            gpu, used = self.gpus.get(rank.rank), rank.resources or Resources()
            figures: dict[str, float | None] = {
                "step_time_s": rank.step_time_s,
                "busy_s": busy_s(rank),
                "data_wait_s": rank.data_wait_s,
                "cpu_percent": rank.cpu_percent,
                "cpus": used.cpus,
                "threads": used.threads,
                "sm_clock_mhz": None if gpu is None else gpu.sm_clock_mhz,
            }
            for name, total in totals.items():
                total_now = totals_now[name]
                if total is not None and total_now is not None and steps:
                    figures[name] = (total_now - total) / steps
            self.stretches[rank.rank].append(Stretch(now_s, steps, is_pause, **figures))
        self._counted, self._counted_s, self._is_aside = now, now_s, is_aside

    def _add_minute(self, now_s: float) -> None:
        since_s = self._minute_since_s
        if since_s is None or not all((rank.step or 0) > 0 for rank in self.ranks):
            self._minute_since_s = now_s
            return
        if now_s - since_s < MINUTE_S:
            return
        self._minute_since_s = now_s
        of_ranks = [
            [part for part in parts if part.ends_s > since_s and not part.is_pause]
            for parts in self.stretches.values()
        ]
        if any(len(parts) < LEAST_OF_MINUTE for parts in of_ranks):
            return
        figures = ([typical(parts, name) for parts in of_ranks] for name in Minute._fields)
        self.minutes.append(Minute(*map(known_median, figures)))
        if len(self.minutes) > FIRST_MINUTES + LATEST_MINUTES:
            del self.minutes[FIRST_MINUTES]

    def _add_memory(self, now_s: float) -> None:
        if not all((rank.step or 0) > 0 for rank in self.ranks):
            self.memory.clear()
            return
        if any(now_s - points[-1].now_s < MEMORY_EVERY_S for points in self.memory.values()):
            return
        known: dict[int | None, Memory | None] = {None: self._of_host(now_s)}
        for rank in self.ranks:
            used, gpu = rank.device_allocated_bytes, self.gpus.get(rank.rank)
            if used is None or gpu is None or None in (gpu.mem_total_bytes, gpu.mem_used_bytes):
                continue
            left = (gpu.mem_total_bytes or 0) - (gpu.mem_used_bytes or 0)
            known[rank.rank] = Memory(now_s, used, left)
        for key, memory in known.items():
            if memory is not None:
                self.memory.setdefault(key, deque(maxlen=MEMORY_POINTS)).append(memory)
        for key in [key for key in self.memory if known.get(key) is None]:
            del self.memory[key]  # unknown by now

    def _of_host(self, now_s: float) -> Memory | None:
        known = [rank.rss_bytes for rank in self.ranks if rank.rss_bytes is not None]
        if len(known) < len(self.ranks) or len({rank.host for rank in self.ranks}) != 1:
            return None
        available_bytes = self._available_bytes()
        if available_bytes is None:
            return None
        children = sum(rank.children_rss_bytes or 0 for rank in self.ranks)
        blocks = sum(rank.python_blocks or 0 for rank in self.ranks)
        return Memory(now_s, sum(known), available_bytes, children, blocks)


def common(batches: Mapping[int, Mapping[Batch, int]]) -> list[Batch]:
    """The batches that are known of all ranks, oldest first."""
    first = next(iter(batches.values()), {})
    return [key for key in first if all(key in others for others in batches.values())]
