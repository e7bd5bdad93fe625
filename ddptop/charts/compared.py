"""Puts losses or scalars of several jobs into one chart, by time or by step. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.charts.curves import Curve, Curves, unit_of
from ddptop.job.compare import LETTERS, LOSS, Run
from ddptop.job.series import restarts

STYLES = ("median", "strong", "ok", "warn")
"""Styles of the jobs' curves, in order, with colors that color-blind people can distinguish."""


def name_of(place: int, run: Run) -> str:
    """`A lin-lr1e-2`."""
    return f"{LETTERS[place]} {run.job}"


def _empty(runs: Sequence[Run], what: str) -> str:
    if trouble := next((run.trouble for run in runs if run.trouble), None):
        return trouble
    names = " and ".join(run.job for run in runs)
    if what != LOSS:
        return f"no {what} found for {names}"
    return f"no loss found for {names}; ddptop reads it from the probe, ddptop.report, or the log"


def compared_curves(runs: Sequence[Run], what: str = LOSS, *, by_step: bool) -> Curves:
    """One curve per job, interrupted only by that job's restarts: `A↻2` is attempt 2 of job A.

    Args:
        runs: the jobs.
        what: the loss, or the name of a scalar.
        by_step: whether the axis has steps, which all must have, or seconds since each job's start.
    """
    curves: list[Curve] = []
    marks: list[tuple[float, str]] = []
    until = 1.0
    for place, run in enumerate(runs):
        loss = run.curve.by_step if by_step else run.curve.points
        chosen = run.curve_by(what)
        points = chosen.by_step if by_step else chosen.points
        starts = (
            restarts(loss) if by_step else [(at, number) for number, at in run.attempts if number]
        )
        marks += [(at, f"{LETTERS[place]}↻{number}") for at, number in starts]
        until = max([until, *(one.t[-1] for one in (loss, points) if one.t)])
        curves.append(
            Curve(
                name=name_of(place, run),
                points=points,
                unit=unit_of(what),
                style=STYLES[place],
                is_exact=what != LOSS,
                cuts=[at for at, _ in starts],
            )
        )
    return Curves(
        curves=tuple(curves),
        since=0.0,
        until=until,
        marks=tuple(marks),
        ended=True,
        by_step=by_step,
        empty=_empty(runs, what),
        fitted=what == LOSS,
    )


def without_steps(runs: Sequence[Run]) -> str | None:
    """One sentence on why the losses cannot be drawn by step; None if they can."""
    unknown = [name_of(place, run) for place, run in enumerate(runs) if not run.curve.by_step.t]
    if runs and not unknown:
        return None
    return f"by step: n/a (steps are unknown for {' and '.join(unknown) or 'these jobs'})"
