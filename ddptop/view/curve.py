"""A job's loss over its steps and over its time, and what can be read off it. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WINDOW_SHARE = 0.02
"""A loss at some step is the median over this share of the steps before it: one batch says
little."""


@dataclass(frozen=True)
class Sample:
    """The loss over a short time: of all ranks, their median."""

    at_s: float
    """Seconds since the job's start."""
    step: int | None
    """Optimizer steps taken by then; None where they are not known."""
    loss: float | None
    """None where none was finite."""
    attempt: int | None = None
    is_bad: bool = False
    """Whether a loss was NaN or infinite."""


@dataclass(frozen=True)
class Best:
    """The least loss, and where it was."""

    loss: float
    step: int | None
    at_s: float


@dataclass(frozen=True)
class LossCurve:
    """A job's losses in order of time."""

    samples: tuple[Sample, ...] = ()

    @property
    def by_step(self) -> list[Sample]:
        """Samples in order of their steps; where an attempt went back, its own count."""
        kept: list[Sample] = []
        for sample in self.samples:
            if sample.step is None:
                continue
            while kept and (kept[-1].step or 0) >= sample.step:
                if kept[-1].step == sample.step and kept[-1].attempt == sample.attempt:
                    break
                kept.pop()
            kept.append(sample)
        return kept

    @property
    def last_step(self) -> int | None:
        """The last step of which a loss is known."""
        known = [one.step for one in self.by_step if one.loss is not None]
        return known[-1] if known else None

    @property
    def last_s(self) -> float | None:
        """The last moment at which a loss is known, in seconds since the start."""
        return next((one.at_s for one in reversed(self.samples) if one.loss is not None), None)

    @property
    def last(self) -> Sample | None:
        """The last sample of which a loss is known, or was not finite."""
        return next((s for s in reversed(self.samples) if s.loss is not None or s.is_bad), None)

    @property
    def bad_since(self) -> Sample | None:
        """The first sample after which no loss was finite any more."""
        found = None
        for sample in reversed(self.samples):
            if sample.loss is not None:
                break
            found = sample if sample.is_bad else found
        return found

    def best(self) -> Best | None:
        """The least loss of all."""
        known = [one for one in self.samples if one.loss is not None]
        if not known:
            return None
        least = min(known, key=lambda one: one.loss if one.loss is not None else math.inf)
        return Best(least.loss or 0.0, least.step, least.at_s)

    def loss_at_step(self, step: int) -> float | None:
        """The loss at a step; None if unknown."""
        return _around([(float(s.step or 0), s.loss) for s in self.by_step], step)

    def loss_at_s(self, at_s: float) -> float | None:
        """The loss so long after the start, in seconds; None where it is not known."""
        return _around([(s.at_s, s.loss) for s in self.samples], at_s)

    def steps_per_s(self) -> float | None:
        """Steps taken per second of training, over all attempts, without the time between them."""
        steps, seconds = 0, 0.0
        for one, other in _pairs(self.samples):
            steps += (other.step or 0) - (one.step or 0)
            seconds += other.at_s - one.at_s
        return steps / seconds if steps > 0 and seconds > 0 else None

    def step_time_s(self) -> float | None:
        """Seconds per step: the same steps over the same time as `steps_per_s`."""
        pace = self.steps_per_s()
        return None if pace is None else 1 / pace


def _pairs(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Neighbours of one attempt whose steps are known."""
    known = [one for one in samples if one.step is not None]
    return [
        (one, other) for one, other in itertools.pairwise(known) if one.attempt == other.attempt
    ]


def _around(points: Sequence[tuple[float, float | None]], place: float) -> float | None:
    """The median of the losses just before a place, else what lies between its neighbours.

    None before the first loss and past the last one.
    """
    known = [(at, loss) for at, loss in points if loss is not None]
    if not known or not known[0][0] <= place <= known[-1][0]:
        return None
    start = place * (1 - WINDOW_SHARE)
    places = [at for at, _ in known]
    after = bisect.bisect_right(places, place)
    inside = [loss for _, loss in known[bisect.bisect_left(places, start) : after]]
    if inside:
        return statistics.median(inside)
    (left, before), (right, behind) = known[after - 1], known[after]
    return before + (behind - before) * (place - left) / (right - left)


def common_step(curves: Sequence[LossCurve]) -> int | None:
    """The last step that all jobs reached; None if any job's steps are unknown."""
    last = [curve.last_step for curve in curves]
    return None if not last or None in last else min(step for step in last if step is not None)


def common_s(curves: Sequence[LossCurve]) -> float | None:
    """The longest elapsed time that all jobs reached, in seconds since each one's start."""
    last = [curve.last_s for curve in curves]
    return None if not last or None in last else min(at for at in last if at is not None)


def better(losses: Sequence[float | None]) -> tuple[int, float] | None:
    """Whose loss is least, and by which share of the next one; None where that is not known."""
    known = sorted((loss, place) for place, loss in enumerate(losses) if loss is not None)
    if len(known) < 2 or len(known) < len(losses):
        return None
    (least, place), (next_, _) = known[0], known[1]
    if least == next_ or not next_:
        return None
    return place, (next_ - least) / abs(next_)


def offsets_of(
    taken: Sequence[tuple[int, int]], told: Mapping[int, int], *, printed: bool
) -> dict[int, int]:
    """By attempt, the steps before it.

    Args:
        taken: each attempt in order, with the steps that it took.
        told: by attempt, the steps before it, where its script said so.
        printed: whether steps are as the output says them: they then go on by themselves.

    Returns:
        An attempt of which nothing tells where it went on stands behind the one before it.
    """
    if printed:
        return {attempt: 0 for attempt, _ in taken}
    found: dict[int, int] = {}
    end = 0
    for attempt, steps in taken:
        found[attempt] = told.get(attempt, end)
        end = found[attempt] + steps
    return found or dict(told)
