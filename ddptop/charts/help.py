"""Explains the chart under the cursor for the help. Pure."""

from __future__ import annotations

from ddptop.charts.curves import ChartOptions, Curves
from ddptop.charts.loss import LOSS, THROUGHPUT
from ddptop.job.keys import key, with_keys

_MARKS = (
    "┊",
    "the start of an attempt, when all ranks restarted together; curves break here",
)
_GAPS = ("gaps", "no data was recorded; gaps are never filled in")


def _reading() -> list[tuple[str, str]]:
    cursor = (
        "{chart.left} and {chart.right} move a cursor that shows the value of each curve; "
        "{chart.first} and {chart.last} move it to the edges, a click or drag moves it anywhere, "
        "and {view.back} hides it"
    )
    zoom = (
        "{chart.in} and {chart.out} zoom at the cursor, or at the right edge if there is no "
        "cursor; the mouse wheel zooms at the pointer; {chart.pan_left} and {chart.pan_right} pan; "
        "{chart.whole} shows the whole run"
    )
    return [("read values", with_keys(cursor)), ("zoom", with_keys(zoom))]


def explain_loss(name: str, options: ChartOptions, *, by_step: bool) -> list[tuple[str, str]]:
    """Explain the loss chart."""
    curves = {
        "median": "the line is the median of all ranks, and the band spans the lowest to "
        "highest rank. A rank that holds up the others "
        f"({key('job.findings')}: findings) has its own labeled line outside the band",
        "ranks": "each line is a rank; the selected rank and outliers are labeled",
        "rank": f"the solid line is rank {options.rank}, the band spans its lowest to highest "
        "loss in each column, and the dim line is the median of all ranks",
    }
    is_scalar = name not in (LOSS, THROUGHPUT)
    found = [
        (
            name,
            "the value reported by the script, printed by it, or logged to TensorBoard: the mean "
            "of the ranks that have one, and a band from the lowest to the highest rank"
            if is_scalar
            else f"{curves[options.mode]}. Press {key('chart.mode')} to switch between median, all "
            "ranks, and one rank",
        ),
        (
            "metrics",
            f"press {key('chart.figure')} for the next one: loss, throughput, then whatever the "
            "job reports, such as a learning rate or validation loss. Up to three validation "
            "losses are also drawn on the loss chart; one with several names is drawn once",
        ),
        ("✕", "a loss was NaN or infinite; shown at the bottom edge"),
        _MARKS,
        _GAPS,
    ]
    if options.smoothing:
        found.append(
            (
                f"smoothing {options.smoothing:g}",
                "each line is a moving average with this weight, as in TensorBoard, and so is the "
                "band from the lowest to the highest rank; one rank's line keeps its measured "
                f"values behind it. Press {key('chart.smooth')} to change the weight",
            )
        )
    if options.logarithmic:
        found.append(
            (
                "log scale",
                f"equal distances represent equal ratios; press {key('chart.log')} to turn it off",
            )
        )
    elif name == LOSS:
        found.append(
            (
                "peak",
                "if the highest tenth of the losses would flatten the rest, it is cut off. Press "
                f"{key('chart.log')} for a logarithmic axis, which shows all",
            )
        )
    if by_step:
        found.append(
            (
                "by step",
                "optimizer steps of the run; where attempts overlap, the later attempt's losses "
                f"are shown. Press {key('chart.axis')} to switch to time",
            )
        )
    return [*found, *_reading()]


def explain_figures(data: Curves) -> list[tuple[str, str]]:
    """Explain a chart of several figures."""
    names = ", ".join(dict.fromkeys(curve.name for curve in data.curves)) or "no data yet"
    return [
        (
            "metrics",
            f"{names}. Metrics with the same unit share a plot; if the plots do not all fit, "
            f"press {key('chart.mode')} to move the next unit to the top. Curves are labeled at "
            "their right ends",
        ),
        _MARKS,
        _GAPS,
        *_reading(),
    ]
