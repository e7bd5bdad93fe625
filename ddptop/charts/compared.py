"""Puts losses or scalars of several jobs into one chart, by time or by step. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ddptop.charts.figures import Curve, FiguresData, unit_of
from ddptop.job.compare import LETTERS, LOSS, Run, Sample
from ddptop.job.series import Points

STYLES = ("median", "strong", "ok", "warn")
"""Styles of the jobs' curves, in order, with colors that color-blind people can distinguish."""


def name_of(place: int, run: Run) -> str:
    """`A lin-lr1e-2`."""
    return f"{LETTERS[place]} {run.job}"


def _points(samples: Sequence[Sample], places: Sequence[float]) -> Points:
    kept = [(at, one) for at, one in zip(places, samples, strict=True) if one.loss is not None]
    losses = [one.loss for _, one in kept]
    return Points(
        t=[at for at, _ in kept],
        low=losses,
        mean=losses,
        high=losses,
        not_finite=[at for at, one in zip(places, samples, strict=True) if one.is_bad],
    )


def _empty(runs: Sequence[Run], what: str) -> str:
    if trouble := next((run.trouble for run in runs if run.trouble), None):
        return trouble
    names = " and ".join(run.job for run in runs)
    if what != LOSS:
        return f"no {what} found for {names}"
    return f"no loss found for {names}; ddptop reads it from the probe, ddptop.report, or the log"


def _curves(
    runs: Sequence[Run], points: Sequence[Points], marks: Sequence[tuple[float, str]], what: str
) -> tuple[Curve, ...]:
    """One curve per job, interrupted only by that job's restarts."""
    return tuple(
        Curve(
            name=name_of(place, run),
            points=points[place],
            unit=unit_of(what),
            style=STYLES[place],
            cuts=[at for at, label in marks if label[0] == LETTERS[place]],
        )
        for place, run in enumerate(runs)
    )


def by_time_data(runs: Sequence[Run], what: str = LOSS) -> FiguresData:
    """The losses, or the scalar `what`, by seconds since each job's start."""
    samples = [run.curve_by(what).samples for run in runs]
    points = [_points(mine, [one.at_s for one in mine]) for mine in samples]
    ends = [mine[-1].at_s for mine in (*samples, *(run.curve.samples for run in runs)) if mine]
    marks = tuple(
        (at, _mark(place, attempt))
        for place, run in enumerate(runs)
        for attempt, at in run.attempts
        if attempt
    )
    return FiguresData(
        curves=_curves(runs, points, marks, what),
        since=0.0,
        until=max([1.0, *ends]),
        marks=marks,
        ended=True,
        empty=_empty(runs, what),
    )


def by_step_data(runs: Sequence[Run], what: str = LOSS) -> FiguresData | None:
    """The losses, or the scalar `what`, by step; None if any job's steps are unknown."""
    samples = [run.curve.by_step for run in runs]
    if not all(samples):
        return None
    shown = samples if what == LOSS else [run.curve_by(what).by_step for run in runs]
    points = [_points(mine, [float(one.step or 0) for one in mine]) for mine in shown]
    marks = tuple(
        (float(one.step or 0), _mark(place, one.attempt))
        for place, mine in enumerate(samples)
        for before, one in itertools.pairwise(mine)
        if one.attempt and one.attempt != before.attempt
    )
    return FiguresData(
        curves=_curves(runs, points, marks, what),
        since=0.0,
        until=max(1.0, *(float(mine[-1].step or 0) for mine in (*samples, *shown) if mine)),
        marks=marks,
        ended=True,
        by_step=True,
        empty=_empty(runs, what),
    )


def _mark(place: int, attempt: int | None) -> str:
    """The label of a restart: `A↻2` where job A's attempt 2 begins."""
    return f"{LETTERS[place]}↻{attempt}"


def without_steps(runs: Sequence[Run]) -> str:
    """One sentence on why the losses cannot be drawn by step."""
    names = " and ".join(
        name_of(place, run) for place, run in enumerate(runs) if not run.curve.by_step
    )
    return f"by step: n/a (steps are unknown for {names or 'these jobs'})"
