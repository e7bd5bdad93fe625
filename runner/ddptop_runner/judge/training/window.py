"""The last minutes of a job's ranks, from which findings on its training are made."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddptop_runner.base.median import median
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample
from ddptop_runner.model.words import ENDED

SPAN_S = 90.0
"""How far back samples are kept; one is taken a second."""
MEMORY_EVERY_S, MEMORY_POINTS = 4.0, 450
"""Memory is kept for longer: half an hour."""
FIRST_LOSSES = 3
MAX_BATCHES = 512
"""Hashed batches kept of each rank and attempt."""
ASIDE = frozenset({"start", "compile", "evaluation", "checkpoint"})
"""Phases whose time is no part of the steps."""

Batch = tuple[int, int]
"""(pass over the data, position in it)."""


class Totals(NamedTuple):
    """What the steps of a rank have taken since its attempt began."""

    step: int
    own_s: float
    """Their time up to the backward pass, which waits for the other ranks."""
    cpu_wait_s: float
    """How long the training thread waited for a CPU; 0 if unknown."""


class Sample(NamedTuple):
    """The figures of one rank at one time."""

    now_s: float
    step_time_s: float | None
    data_wait_s: float | None
    loss: float | None
    """The mean of the smallest and the largest loss since the previous sample, or the last."""
    loss_range: tuple[float, float] | None
    is_aside: bool
    """Whether the rank is in one of the phases ASIDE."""


class Stretch(NamedTuple):
    """The steps that one rank took between two samples, without a pause."""

    steps: int
    own_s: float
    """Their time up to the backward pass, which waits for the other ranks."""
    cpu_wait_s: float
    ends_s: float


MAX_PAUSE_S = 5.0
"""Without a step for so long, ranks do something else."""


class Memory(NamedTuple):
    """The memory of all ranks at one time."""

    now_s: float
    used_bytes: int
    """Resident memory of the ranks and their loader workers."""
    available_bytes: int
    """What the machine has left."""


class Evaluation(NamedTuple):
    """A validation loss, and the training loss about then."""

    step: int
    loss: float
    training_loss: float | None


VALIDATION = frozenset({"val", "valid", "validation", "eval", "evaluation"})
EVALUATION_STEPS = 10
"""Values with fewer steps between them are of one evaluation: the last one counts."""
MAX_EVALUATIONS = 200


def is_validation_loss(name: str) -> bool:
    """Whether a metric is one by its name, such as `val_loss`, but not `value_loss`."""
    words = set(re.findall("[a-z]+", name.lower()))
    return "loss" in words and not VALIDATION.isdisjoint(words)


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
        self.ranks: list[RankSample] = []
        """Those alive at the last update."""
        self.samples: dict[int, deque[Sample]] = {}
        """By rank, oldest first."""
        self.stretches: dict[int, deque[Stretch]] = {}
        """By rank, oldest first: the steps from sample to sample, without those after a pause."""
        self._counted: dict[int, tuple[Totals | None, float, bool]] = {}
        """By rank, up to where its steps are in `stretches`: totals, time, whether aside since."""
        self.first_losses: dict[int, list[float]] = {}
        """By rank, the largest losses of the first samples of the attempt."""
        self.has_changed_loss: set[int] = set()
        """Ranks whose loss was ever another than at first."""
        self.evaluations: dict[str, list[Evaluation]] = {}
        """Of this attempt, by the name of the validation loss on the first rank that has it."""
        self._reports: dict[str, tuple[int, int]] = {}
        """By that name: the rank, and how often it has reported it."""
        self.memory: deque[Memory] = deque(maxlen=MEMORY_POINTS)
        """Oldest first; empty for ranks on several hosts."""
        self.batches: dict[int, dict[Batch, int]] = {}
        """By rank, the hashes of this attempt's batches."""
        self.earlier: dict[int, dict[Batch, int]] = {}
        """The same of the attempt before."""

    def update(self, snapshot: NodeSnapshot, now_s: float) -> None:
        """Add the ranks of a snapshot; `now_s` is a monotonic clock, in seconds."""
        living = [rank for rank in snapshot.ranks if rank.state not in ENDED]
        if snapshot.attempt != self.attempt:
            self.is_late = self.is_late and self.attempt is None
            self.attempt = snapshot.attempt
            self.earlier, self.batches = self.batches, {}
            self.first_losses, self.has_changed_loss = {}, set()
            self.evaluations, self._reports = {}, {}
        ids = tuple((rank.rank, rank.pid) for rank in living)
        if ids != self._ids:
            self._ids = ids
            self.samples = {rank.rank: deque() for rank in living}
            self.stretches = {rank.rank: deque() for rank in living}
            self._counted.clear()
            self.memory.clear()
        self.ranks = living
        for rank in living:
            self._add(rank, now_s)
            self._add_evaluations(rank)
            batches = self.batches.setdefault(rank.rank, {})
            for one in rank.batch_hashes:
                batches[one.epoch, one.position] = one.crc32
            while len(batches) > MAX_BATCHES:
                del batches[next(iter(batches))]
        self._add_memory(living, now_s)

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
        totals = None
        if rank.step is not None and rank.until_backward_total_s is not None:
            totals = Totals(rank.step, rank.until_backward_total_s, rank.cpu_wait_total_s or 0.0)
        self._add_steps(rank, totals, now_s)
        samples.append(
            Sample(
                now_s=now_s,
                step_time_s=rank.step_time_s,
                data_wait_s=rank.data_wait_s,
                loss=rank.loss if known is None else sum(known) / 2,
                loss_range=known,
                is_aside=rank.phase in ASIDE,
            )
        )
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

    def _add_steps(self, rank: RankSample, now: Totals | None, now_s: float) -> None:
        before, before_s, is_aside = self._counted.get(rank.rank, (None, 0.0, False))
        is_aside = is_aside or rank.phase in ASIDE
        if now is not None and before is not None and now.step == before.step:
            self._counted[rank.rank] = before, before_s, is_aside
            return
        parts = self.stretches[rank.rank]
        is_pause = is_aside or now_s - before_s > MAX_PAUSE_S
        if now is not None and before is not None and now.step > before.step and not is_pause:
            own_s, cpu_wait_s = now.own_s - before.own_s, now.cpu_wait_s - before.cpu_wait_s
            parts.append(Stretch(now.step - before.step, own_s, cpu_wait_s, now_s))
        self._counted[rank.rank] = now, now_s, rank.phase in ASIDE
        while parts and now_s - parts[0].ends_s > SPAN_S:
            parts.popleft()

    def _add_memory(self, living: Sequence[RankSample], now_s: float) -> None:
        known = [rank.rss_bytes for rank in living if rank.rss_bytes is not None]
        if len(known) < len(living) or not known or len({rank.host for rank in living}) > 1:
            return
        if not all((rank.step or 0) > 0 for rank in living):
            self.memory.clear()
        elif not self.memory or now_s - self.memory[-1].now_s >= MEMORY_EVERY_S:
            available_bytes = self._available_bytes()
            if available_bytes is not None:
                self.memory.append(Memory(now_s, sum(known), available_bytes))


def common(batches: Mapping[int, Mapping[Batch, int]]) -> list[Batch]:
    """The batches that are known of all ranks, oldest first."""
    first = next(iter(batches.values()), {})
    return [key for key in first if all(key in others for others in batches.values())]
