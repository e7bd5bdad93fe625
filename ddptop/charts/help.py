"""Explain the chart under the cursor for the help. Pure."""

from __future__ import annotations

from ddptop.charts.figures import FiguresData
from ddptop.charts.loss import ChartOptions
from ddptop.charts.split import SplitData
from ddptop.view.series import ChartData

_KEYS = (
    "read values",
    "← and → move a cursor that shows the value of each curve; home and end move it to the "
    "edges, a click or drag moves it anywhere, and esc hides it",
)
_ZOOM = (
    "zoom",
    "+ and - zoom at the cursor, or at the right edge if there is no cursor; the mouse wheel "
    "zooms at the pointer; shift+← and shift+→ pan; 0 shows the whole run",
)
_MARKS = (
    "┊",
    "the start of an attempt, when all ranks restarted together; curves break here",
)
_GAPS = ("gaps", "no data was recorded; gaps are never filled in")


def explain_loss(data: ChartData, options: ChartOptions) -> list[tuple[str, str]]:
    """The loss chart."""
    curves = {
        "median": "the line is the median of all ranks, and the band spans the lowest to "
        "highest rank. A rank whose loss has diverged from the others (f: findings) "
        "has its own labeled line outside the band",
        "ranks": "each line is a rank; the selected rank and outliers are labeled",
        "rank": f"the solid line is rank {options.rank}, the band spans its lowest to highest "
        "loss in each column, and the dim line is the median of all ranks",
    }
    found = [
        (
            data.name,
            f"{curves[options.mode]}. Press a to switch between median, all ranks, and one rank",
        ),
        ("✕", "a loss was NaN or infinite; shown at the bottom edge"),
        _MARKS,
        _GAPS,
    ]
    if options.smoothing:
        found.append(
            (
                f"smoothing {options.smoothing:g}",
                "each line is a moving average with this weight, as in TensorBoard; the band "
                "still shows measured values. Press w to change the weight",
            )
        )
    if options.logarithmic:
        found.append(
            ("log scale", "equal distances represent equal ratios; press y to turn it off")
        )
    if options.fitted:
        found.append(
            (
                "scale",
                "if the first losses would flatten the rest, the axis is logarithmic, or fits the "
                "last half; the title says which. Press y for a logarithmic or linear one",
            )
        )
    if data.by_step:
        found.append(
            (
                "by step",
                "optimizer steps since the job started. Attempts are shown end to end, "
                "regardless of the step that each resumed from, so curves never overlap. "
                "Press b to switch to time",
            )
        )
    return [*found, _KEYS, _ZOOM]


def explain_figures(data: FiguresData) -> list[tuple[str, str]]:
    """A chart of several figures."""
    names = ", ".join(dict.fromkeys(curve.name for curve in data.curves)) or "no data yet"
    return [
        (
            "metrics",
            f"{names}. Metrics with the same unit share a plot; if the plots do not all fit, "
            "press a to move the next unit to the top. Curves are labeled at their right ends",
        ),
        _MARKS,
        _GAPS,
        _KEYS,
        _ZOOM,
    ]


def explain_split(data: SplitData) -> list[tuple[str, str]]:
    """What a step's time went into."""
    return [
        (
            "step time",
            "how long a step took: ▒ waiting for data, █ compute, ▓ waiting for other ranks. "
            "Press a to switch between seconds and percentages",
        ),
        ("░ other", "step time that could not be attributed"),
        _MARKS,
        _GAPS,
        _KEYS,
        _ZOOM,
    ]
