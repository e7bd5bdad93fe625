"""Selects what each chart shows: a job's losses, compared losses, or a device's history. Pure.

The default of a job's losses is the ranks' median on a dim band from the lowest to the highest
rank, with outliers in the alert style. Eight lines in eight colors would share cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ddptop.charts.curves import ChartOptions, Curve, Curves, unit_of
from ddptop.job.compare import LETTERS, LOSS, Run
from ddptop.job.series import ChartData, DeviceHistory, Frame, Points, by_step, restarts
from ddptop.style import Line, line
from ddptop_runner.base.units import deviation, name_ranks
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.words import is_validation_loss

THROUGHPUT = "throughput"
VALIDATIONS = ("strong", "ok", "busy")
"""Styles of validation losses; also the most that are drawn."""
NOTED = 3
"""Most outliers in the title."""
OVER_S = 10.0
"""Time over which steps are counted; over one second, a single step would matter too much."""
_SOON = 3
"""Number of samples after which a younger attempt has a rate."""


def names_of(data: ChartData) -> tuple[str, ...]:
    """Names of everything that the chart can show, the loss first."""
    return (LOSS, THROUGHPUT, *data.scalars)


def no_steps(data: ChartData) -> str | None:
    """One sentence on why the loss cannot be drawn by step; None if it can."""
    known = () if data.middle is None else data.middle.step
    if data.stepped is not None or any(step is not None for step in known):
        return None
    if data.watched:
        return "by step: n/a (the steps of this job, which ddptop did not start, are unknown)"
    return "by step: n/a (step numbers are unknown for these losses)"


def curves_of(data: ChartData, options: ChartOptions, name: str = LOSS) -> Curves:
    """The curves of the losses or of another metric, on the axis of the view."""
    convert: Callable[[Points], Points] = lambda points: points  # noqa: E731
    frame = {field: getattr(data, field) for field in Frame.__struct_fields__}
    if options.view.axis == "step" and no_steps(data) is None:
        if data.stepped is not None and name != THROUGHPUT:
            data = data.stepped
            frame = {field: getattr(data, field) for field in Frame.__struct_fields__}
        else:
            convert = by_step
            frame |= _step_axis(data)
    if name == THROUGHPUT:
        found = () if data.middle is None else (rates(data.middle),)
        curves = [Curve(name, convert(one), "steps/s", 0.0, style="median") for one in found]
        empty = "no throughput yet; it needs a loss with step numbers"
    elif name != LOSS:
        curves = [
            Curve(name, convert(points), unit_of(name), style="median", is_exact=True)
            for points in (data.scalars.get(name),)
            if points is not None
        ]
        empty = f"no {name} yet"
    else:
        curves = [*_losses(data, options, convert), *_validations(data.scalars, convert)]
        empty = data.empty
    is_loss = name == LOSS
    notes = _notes(data) if is_loss else ()
    return Curves(tuple(curves), empty=empty, notes=notes, fitted=is_loss, **frame)


def _step_axis(data: ChartData) -> dict[str, object]:
    """The axis of the losses by step."""
    stepped = by_step(data.middle) if data.middle is not None else Points()
    last = max(1.0, float(data.last_step or 0), *stepped.t[-1:])
    return {
        "since": 0.0,
        "until": last,
        "whole": (0.0, last),
        "marks": tuple((at, f"attempt {attempt}") for at, attempt in restarts(stepped)),
        "by_step": True,
    }


def _losses(
    data: ChartData, options: ChartOptions, convert: Callable[[Points], Points]
) -> list[Curve]:
    """The median, or single ranks; the most important curve first."""
    chosen = options.rank if options.rank in data.series else None
    is_one = data.number <= 1
    median = Curve(
        LOSS if is_one else "median",
        convert(data.middle) if data.middle is not None else Points(),
        "loss",
        style="median",
        has_pattern=False,
        band="samples" if is_one else "ranks",
    )

    def rank(number: int, style: str, *, named: bool = True) -> Curve:
        points = convert(data.series[number])
        return replace(
            median, name=f"rank {number}", points=points, style=style, band="", named=named
        )

    odd = [number for number in data.apart if number in data.series]
    if options.mode == "rank" and chosen is not None:
        own = replace(rank(chosen, "chosen"), band="samples")
        return [own] if is_one else [own, replace(median, style="dim", band="")]
    if options.mode == "ranks" and not is_one:
        named = [] if chosen is None or chosen in odd else [rank(chosen, "chosen")]
        named += [rank(number, "warn") for number in odd]
        others = [number for number in data.series if number not in (chosen, *odd)]
        return [*named, *(rank(number, "dim", named=False) for number in others)]
    return [median, *(rank(number, "warn") for number in odd)]


def _validations(scalars: Mapping[str, Points], convert: Callable[[Points], Points]) -> list[Curve]:
    """The first scalars with names of validation losses."""
    chosen = {name: points for name, points in scalars.items() if is_validation_loss(name)}
    return [
        Curve(
            name,
            convert(points),
            "loss",
            style=style,
            has_pattern=False,
            is_exact=True,
            is_rare=True,
        )
        for style, (name, points) in zip(VALIDATIONS, chosen.items(), strict=False)
    ]


def _notes(data: ChartData) -> tuple[Line, ...]:
    """Ranks with a loss that is not finite, and outliers."""
    bad = [rank for rank, points in data.series.items() if points.not_finite]
    notes = [line((f"{name_ranks(bad, compact=True)} ✕ NaN", "bad"))] if bad else []
    for rank, ratio in sorted(data.apart.items(), key=lambda item: -abs(item[1]))[:NOTED]:
        if rank not in bad:
            notes.append(line((f"rank {rank} {deviation(ratio)}", "warn")))
    return tuple(notes)


def rates(points: Points) -> Points:
    """Steps per second up to each sample; restarts at a new attempt or when steps go back."""
    known = [
        (t, step, attempt, place)
        for place, (t, step, attempt) in enumerate(
            zip(points.t, points.step, points.attempt or [None] * len(points.t), strict=False)
        )
        if step is not None
    ]
    kept: list[int] = []
    found: list[float] = []
    first = before = 0
    for now, (t, step, attempt, place) in enumerate(known):
        if now and (attempt != known[now - 1][2] or step < known[now - 1][1]):
            first = before = now
        while before + 1 < now and t - known[before + 1][0] >= OVER_S:
            before += 1
        if now - first < _SOON and t - known[before][0] < OVER_S:
            continue
        kept.append(place)
        found.append((step - known[before][1]) / (t - known[before][0]))
    return replace(points.only(kept), low=found, mean=found, high=found, not_finite=())


STYLES = ("median", "strong", "ok", "warn", "title", "bad", "chosen", "dim")
"""Styles of the jobs' curves, in order. Color-blind people can distinguish the first four; beyond
these, patterns and letters help."""


def name_of(place: int, run: Run) -> str:
    """`A lin-lr1e-2`."""
    return f"{LETTERS[place]} {run.label or run.job}"


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


LEAST_SPAN_S = 900.0
"""A history of devices is drawn over at least this time."""


def device_curves(device: GpuSample, figures: Mapping[str, Points]) -> list[Curve]:
    """Utilization, memory, and power with their limits at the top, and temperature.

    Figures that the driver does not report have no curve.
    """
    known = {
        "util": Curve("GPU", Points(), "%", 0.0, 100.0),
        "memory": Curve("GPU mem", Points(), "bytes", 0.0, device.mem_total_bytes),
        "power": Curve("power", Points(), "W", 0.0, device.power_limit_w),
        "temperature": Curve("temperature", Points(), "°C"),
    }
    return [
        replace(curve, points=points)
        for name, curve in known.items()
        if (points := figures.get(name)) is not None and points.t
    ]


def figures_of(gpu: GpuSample, history: DeviceHistory) -> Curves:
    """The history of a device."""
    return Curves(
        tuple(device_curves(gpu, history.figures)),
        since=min(history.since, history.until - LEAST_SPAN_S),
        until=history.until,
        marks=history.marks,
        watched=True,
        empty="no history yet: recording starts now",
    )
