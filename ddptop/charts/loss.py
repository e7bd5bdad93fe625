"""Draws the loss chart: axes, braille curves, restarts, and non-finite values.

The default view is the ranks' median on a dim band from the lowest to the highest rank, with
outliers drawn above it in the alert style. Eight lines in eight colors would share cells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from ddptop.charts.axis import Reading, Scale
from ddptop.charts.braille import Canvas
from ddptop.charts.figures import form_of, unit_of
from ddptop.charts.frame import (
    MARKER,
    Chart,
    Overlay,
    Painted,
    Plane,
    Plot,
    Sheet,
    break_columns,
    cells_of_names,
    draw,
    name_ends,
    tick_rows,
    value_range,
)
from ddptop.charts.smooth import smoothed_columns
from ddptop.charts.window import View
from ddptop.job.series import ChartData, Columns, Points, across, bin_points, ratios
from ddptop.style import Line
from ddptop_runner.base.units import deviation, name_ranks, rate
from ddptop_runner.model.words import is_validation_loss

ChartMode = Literal["median", "ranks", "rank"]
MODES: tuple[ChartMode, ...] = ("median", "ranks", "rank")

_FLATTENS = 5.0
"""The rest looks flat if the first tenth spans this many times the range of the last half."""
_LEAST_FITTED = 20
"""Minimum number of values to decide that."""
HIDES = 0.25
"""Distance from the median, relative to it, below which a line would hide it."""
VALIDATIONS = ("strong", "ok", "busy")
"""Styles of validation losses; also the most that are drawn."""
_STYLES = ("band", "band", "dim", *VALIDATIONS, "dim", "median", "warn", "chosen")
"""Style of each layer."""
_BAND, _RAW, _BETWEEN, _OFTEN, _, _, _OTHER, _MEDIAN, _OUTLIER, _CHOSEN = range(len(_STYLES))
_MARKED_EVERY = 8
"""Evaluations closer than this many dot columns are a line without markers."""
_SAME_RATIO = 1e-3
"""Values with a smaller relative difference may be the same one, rounded for printing."""


class ChartOptions(msgspec.Struct, frozen=True):
    """How the user wants to see the chart."""

    mode: ChartMode = "median"
    rank: int = 0
    """The chosen rank."""
    logarithmic: bool = False
    smoothing: float = 0.0
    """Weight of the moving average; 0 for no smoothing."""
    view: View = msgspec.field(default_factory=View)
    """The visible part of the axis, and the cursor."""
    fitted: bool = False
    """Whether a start that would flatten the rest makes the axis logarithmic or is cut off."""


class LossPlot(msgspec.Struct, frozen=True):
    """Everything to draw, in dot columns."""

    ranks: dict[int, Columns]
    apart: dict[int, float]
    middle: Columns
    """Median and band of the ranks that are not outliers."""
    number: int
    """Number of ranks."""
    breaks: frozenset[int]
    """Columns where a new attempt starts; curves do not cross them."""
    validations: Mapping[str, Columns] = {}
    """Validation losses by reported name; their values are connected however far apart they are."""


def _validations(data: ChartData, since: float, until: float, dots: int) -> dict[str, Columns]:
    """The first scalars with names of validation losses, without duplicates under other names."""
    cuts = [at for at, _ in data.marks]
    chosen: dict[str, Points] = {}
    for name, points in data.scalars.items():
        if is_validation_loss(name) and not any(
            _is_same(points, other) for other in chosen.values()
        ):
            chosen[name] = points
    return {
        name: replace(bin_points(points, since, until, dots, cuts), max_gap=dots)
        for name, points in itertools.islice(chosen.items(), len(VALIDATIONS))
    }


def _is_same(one: Points, other: Points) -> bool:
    """Whether two scalars have the same values, such as one that is both reported and printed."""
    return len(one.mean) == len(other.mean) and all(
        a is not None and b is not None and math.isclose(a, b, rel_tol=_SAME_RATIO)
        for a, b in zip(one.mean, other.mean, strict=True)
    )


def make_plot(data: ChartData, since: float, until: float, dots: int) -> LossPlot:
    """Reduce the samples between two places on the axis to columns."""
    cuts = [at for at, _ in data.marks]
    ranks = {
        rank: bin_points(points, since, until, dots, cuts)
        for rank, points in sorted(data.series.items())
    }
    breaks = break_columns(data.marks, since, until, dots)
    validations = _validations(data, since, until, dots)
    if data.middle is not None:
        middle = bin_points(data.middle, since, until, dots, cuts)
        number = data.number if data.number is not None else len(ranks)
        return LossPlot(ranks, dict(data.apart), middle, number, breaks, validations)
    apart = ratios(ranks, data.odd, dots)
    healthy = [columns for rank, columns in ranks.items() if rank not in apart]
    return LossPlot(ranks, apart, across(healthy, dots), len(ranks), breaks, validations)


Plotter = Callable[[ChartData, float, float, int], LossPlot]
"""The type of `make_plot`."""


class LastPlot:
    """Caches the last plot, which stays the same for another height or cursor."""

    def __init__(self) -> None:
        self._known: tuple[ChartData, tuple[float, float, int], LossPlot] | None = None

    def __call__(self, data: ChartData, since: float, until: float, dots: int) -> LossPlot:
        """See `make_plot`."""
        part = since, until, dots
        if self._known is None or self._known[0] is not data or self._known[1] != part:
            self._known = data, part, make_plot(data, *part)
        return self._known[2]


def _smoothed(plot: LossPlot, options: ChartOptions) -> LossPlot:
    """The plot with the curves that may be drawn as moving averages.

    The spread of the ranks is averaged too; the range of one rank's own values stays as measured,
    and becomes the shade behind its line.
    """
    if options.smoothing <= 0:
        return plot

    def average(columns: Columns) -> Columns:
        return smoothed_columns(
            columns, options.smoothing, plot.breaks, logarithmic=options.logarithmic
        )

    def line_only(columns: Columns) -> Columns:
        return replace(columns, mean=average(columns).mean)

    drawn = plot.ranks if options.mode == "ranks" else {options.rank, *plot.apart}
    return replace(
        plot,
        middle=average(plot.middle) if plot.number > 1 else line_only(plot.middle),
        ranks={
            rank: line_only(columns) if rank in drawn else columns
            for rank, columns in plot.ranks.items()
        },
    )


def _shown(plot: LossPlot, options: ChartOptions, first: int = 0) -> list[float]:
    """Every value that will be drawn from dot column `first` on."""
    drawn: list[Columns] = [plot.middle]
    if options.mode == "rank" and options.rank in plot.ranks:
        drawn.append(plot.ranks[options.rank])
    drawn += plot.validations.values()
    values = [v for columns in drawn for part in (columns.low, columns.high) for v in part[first:]]
    lines = plot.ranks if options.mode == "ranks" else plot.apart
    values += [
        value for rank in lines if rank in plot.ranks for value in plot.ranks[rank].mean[first:]
    ]
    return [value for value in values if value is not None]


def _apart_only(columns: Columns, middle: Columns) -> Columns:
    """The columns where a rank differs from the median, which it would hide elsewhere."""
    mean = [
        value
        if value is not None and (usual is None or abs(value - usual) > HIDES * abs(usual))
        else None
        for value, usual in zip(columns.mean, middle.mean, strict=True)
    ]
    return replace(columns, mean=mean)


def _draw(
    plane: Plane, overlay: Overlay, plot: LossPlot, raw: LossPlot, options: ChartOptions
) -> list[tuple[str, Columns, str]]:
    """Draw the curves; return those that are labeled at their end, with their names and styles.

    An evaluation is a marker, and the line between them stays behind the training loss.
    """
    named = _draw_ranks(plane, plot, raw, options)
    if plot.validations and not named:
        named.append(("training", plot.middle, "median"))
    for place, (name, columns) in enumerate(plot.validations.items()):
        if _is_rare(columns):
            plane.curve(columns, _BETWEEN)
            plane.mark(columns, overlay, VALIDATIONS[place])
        else:
            plane.curve(columns, _OFTEN + place)
        named.append((name, columns, VALIDATIONS[place]))
    return named


def _is_rare(evaluations: Columns) -> bool:
    """Whether markers leave enough of the training loss visible."""
    known = sum(value is not None for value in evaluations.mean)
    return _MARKED_EVERY * known <= len(evaluations.mean)


def _draw_ranks(
    plane: Plane, plot: LossPlot, raw: LossPlot, options: ChartOptions
) -> list[tuple[str, Columns, str]]:
    chosen = plot.ranks.get(options.rank)
    named: list[tuple[str, Columns, str]] = []
    if options.mode == "rank" and chosen is not None:
        plane.band(chosen, _BAND)
        named.append((f"rank {options.rank}", chosen, "chosen"))
        if plot.number > 1:
            plane.curve(plot.middle, _OTHER)
            named.append(("median", plot.middle, "dim"))
        plane.curve(chosen, _CHOSEN)
        return named
    if options.mode == "ranks":
        for rank, columns in plot.ranks.items():
            layer = _CHOSEN if rank == options.rank else _OTHER
            layer = _OUTLIER if rank in plot.apart else layer
            if layer != _OTHER:
                if plot is not raw:
                    plane.curve(raw.ranks[rank], _RAW)
                named.append((f"rank {rank}", columns, _STYLES[layer]))
            plane.curve(columns, layer)
        return named
    plane.band(plot.middle, _BAND)
    plane.curve(plot.middle, _MEDIAN)
    for rank in plot.apart:
        if rank in plot.ranks:
            drawn = _apart_only(plot.ranks[rank], plot.middle)
            if plot is not raw:
                plane.curve(_apart_only(raw.ranks[rank], raw.middle), _RAW)
            plane.curve(drawn, _OUTLIER)
            named.append((f"rank {rank}", drawn, "warn"))
    if named:
        named.append(("median", plot.middle, "median"))
    return named


def _names(data: ChartData, options: ChartOptions) -> list[str]:
    """Names of the curves that may be labeled at their end."""
    names = [name for name in data.scalars if is_validation_loss(name)]
    names += ["training"] if names else []
    if options.mode == "rank":
        return [*names, f"rank {options.rank}", "median"]
    apart = [f"rank {rank}" for rank in (*data.apart, *data.odd)]
    if options.mode == "ranks":
        return [*names, f"rank {options.rank}", *apart]
    return [*names, *apart, "median"] if apart else names


def draw_chart(
    data: ChartData,
    options: ChartOptions,
    width: int,
    height: int,
    plotted: Plotter = make_plot,
) -> Chart:
    """Draw the chart in exactly `height` lines of `width` cells.

    `plotted` makes the plot, or returns a cached one.
    """

    def paint(sheet: Sheet) -> Painted:
        plot = plotted(data, sheet.since, sheet.until, sheet.dots)
        return _paint(sheet, plot, options, data.name)

    known = data.middle is not None or any(points.t for points in data.series.values())
    return draw(
        data,
        options.view,
        width,
        height,
        paint,
        empty=None if known else data.empty,
        names=cells_of_names(width, _names(data, options)),
    )


def _paint(sheet: Sheet, plot: LossPlot, options: ChartOptions, name: str) -> Painted:
    form = rate if name == "throughput" else form_of(unit_of(name))
    canvas = Canvas(sheet.cells, sheet.rows)
    values = _shown(plot, options)
    logarithmic = options.logarithmic and any(value > 0 for value in values)
    late = _late(plot, options) if options.fitted and not logarithmic else None
    if late is not None:
        logarithmic = min(values) > 0 and not _flat([math.log(value) for _, value in late])
    options = replace(options, logarithmic=logarithmic)
    scaling = "log scale" if logarithmic else "fit to last half" if late is not None else ""
    smooth = drawn = _smoothed(plot, options)
    raw = plot
    fits_half = late is not None and not logarithmic
    values = _shown(smooth, options, late[len(late) // 2][0] if late and fits_half else 0)
    low, high = value_range(values, logarithmic)
    if fits_half:
        raw = _below(plot, high)
        drawn = raw if smooth is plot else _below(smooth, high)
    if name == "throughput" and not logarithmic:
        low = 0.0
    plane = Plane(canvas, Scale(low, high, canvas.dots_y, logarithmic), plot.breaks)
    overlay = Overlay()
    named = _draw(plane, overlay, drawn, raw, options)
    ends = name_ends(plane, named) if sheet.names else {}
    overlay.cross(canvas, plot.middle, *plot.ranks.values())
    peak = form(max(_shown(plot, options))) if values and max(values) > high else None
    return Painted(
        [Plot(canvas, tick_rows(plane.axis, sheet.rows), _STYLES, overlay, ends)],
        [_note(plot, options, peak), _note(plot, options, peak, legend=False)],
        lambda found: _read(found, smooth, plot, options, name, form),
        scaling,
    )


def _late(plot: LossPlot, options: ChartOptions) -> list[tuple[int, float]] | None:
    """The main curve's values by dot column if its start flattens the rest; else None."""
    main = plot.ranks.get(options.rank) if options.mode == "rank" else None
    found = [(x, v) for x, v in enumerate((main or plot.middle).mean) if v is not None]
    return found if _flat([value for _, value in found]) else None


def _flat(values: Sequence[float]) -> bool:
    """Whether the first tenth spans so much more than the last half that the latter looks flat."""
    if len(values) < _LEAST_FITTED:
        return False
    start, rest = values[: len(values) // 10], values[len(values) // 2 :]
    return max(start) - min(start) > _FLATTENS * (max(rest) - min(rest)) > 0


def _below(plot: LossPlot, high: float) -> LossPlot:
    """The plot without values above the axis, which would be a line along the upper edge."""

    def cut(columns: Columns) -> Columns:
        return replace(
            columns,
            mean=[None if v is not None and v > high else v for v in columns.mean],
            low=[None if v is not None and v > high else v for v in columns.low],
        )

    return replace(
        plot,
        middle=cut(plot.middle),
        ranks={rank: cut(one) for rank, one in plot.ranks.items()},
        validations={name: cut(one) for name, one in plot.validations.items()},
    )


def _read(
    found: Reading,
    plot: LossPlot,
    raw: LossPlot,
    options: ChartOptions,
    name: str,
    form: Callable[[float], str],
) -> None:
    """Add the values under the cursor."""

    def rank(number: int, style: str) -> None:
        found.value(f"rank {number}", raw.ranks[number], plot.ranks[number], style, form)

    is_chosen = options.rank in plot.ranks
    if options.mode == "rank" and is_chosen:
        rank(options.rank, "chosen")
    if plot.number > 1 or options.mode != "rank":
        found.value("median" if plot.number > 1 else name, raw.middle, plot.middle, "median", form)
        found.spread(plot.middle, form)
    for number, _ in sorted(plot.apart.items(), key=lambda item: -abs(item[1]))[:3]:
        if number in plot.ranks and not (options.mode == "rank" and number == options.rank):
            rank(number, "warn")
    if options.mode == "ranks" and is_chosen and options.rank not in plot.apart:
        rank(options.rank, "chosen")
    for style, (title, columns) in zip(VALIDATIONS, plot.validations.items(), strict=False):
        found.value(title, columns, columns, style, form)
    bad = [r for r, columns in plot.ranks.items() if found.bad(columns)]
    if bad:
        found.note(f"{name_ranks(bad, compact=True)} ✕ NaN", "bad")


def _note(plot: LossPlot, options: ChartOptions, peak: str | None, *, legend: bool = True) -> Line:
    """Problems with ranks, and which curve is which."""
    spans: list[tuple[str, str]] = []
    bad = [rank for rank, found in plot.ranks.items() if found.not_finite]
    if bad:
        spans += [(f"{name_ranks(bad, compact=True)} ✕ NaN", "bad"), ("  ", "")]
    for rank, ratio in sorted(plot.apart.items(), key=lambda item: -abs(item[1]))[:3]:
        if rank not in bad:
            spans += [(f"rank {rank} {deviation(ratio)}", "warn"), ("  ", "")]
    if peak is not None:
        spans += [(f"peak {peak} clipped", "dim"), ("  ", "")]
    if not legend:
        return (*spans[:-1],)
    if options.mode == "rank":
        spans += [("━ ", "chosen"), (f"rank {options.rank}", "dim")]
        if plot.number > 1:
            spans += [("  ━ median", "dim")]
    elif options.mode == "ranks":
        spans += [("━ ", "chosen"), (f"rank {options.rank}", "dim"), ("  ━ others", "dim")]
    elif plot.number > 1:
        spans += [("━ ", "median"), ("median", "dim"), ("  ░ ", "band"), ("min to max", "dim")]
    elif plot.validations:
        spans += [("━ ", "median"), ("training", "dim")]
    for style, (name, columns) in zip(VALIDATIONS, plot.validations.items(), strict=False):
        spans += [(f"  {MARKER if _is_rare(columns) else '━'} ", style), (name, "dim")]
    return tuple(spans)


LOSS, THROUGHPUT = "loss", "throughput"
OVER_S = 10.0
"""Time over which steps are counted; over one second, a single step would matter too much."""
_SOON = 3
"""Number of samples after which a younger attempt has a rate."""


def names_of(data: ChartData) -> tuple[str, ...]:
    """Names of everything that the chart can show, the loss first."""
    return (LOSS, THROUGHPUT, *data.scalars)


def shown_as(data: ChartData, name: str) -> ChartData:
    """The chart with the curve of that name instead of losses."""
    if name == LOSS:
        return data
    if data.stepped is not None:
        data = replace(data, stepped=shown_as(data.stepped, name))
    if name == THROUGHPUT:
        return throughput(data)
    points = data.scalars.get(name)
    return replace(
        data,
        name=name,
        series={} if points is None else {0: points},
        scalars={},
        middle=None,
        odd=(),
        apart={},
        empty=f"no {name} yet",
    )


def throughput(data: ChartData) -> ChartData:
    """The chart with steps per second instead of losses."""
    return replace(
        data,
        scalars={},
        name=THROUGHPUT,
        series={rank: rates(points) for rank, points in data.series.items()},
        middle=None if data.middle is None else rates(data.middle),
        odd=(),
        apart={},
        empty="no throughput yet; it needs a loss with step numbers",
    )


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
    return Points(
        t=[points.t[place] for place in kept],
        low=found,
        mean=found,
        high=found,
        step=[points.step[place] for place in kept],
        attempt=[points.attempt[place] for place in kept] if points.attempt else (),
        bucket_s=points.bucket_s,
    )
