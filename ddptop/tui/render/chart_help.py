"""Explain the chart under the cursor for the help. Pure."""

from __future__ import annotations

from ddptop.tui.render.chart import ChartOptions
from ddptop.tui.render.chart_figures import FiguresData
from ddptop.tui.render.chart_split import SplitData
from ddptop.tui.render.series import ChartData

_KEYS = (
    "read values",
    "← and → move a cursor that reads the value of each curve; home and end move it to the edges,"
    " a click or drag moves it anywhere, esc hides it",
)
_ZOOM = (
    "zoom",
    "+ and - zoom at the cursor, or at the right edge without one; the wheel zooms at the pointer;"
    " shift+← and shift+→ pan; 0 shows the whole run",
)
_MARKS = (
    "┊",
    "start of an attempt: all ranks restarted together. No curve crosses it",
)
_GAPS = ("gaps", "nothing was recorded there; gaps are never bridged")


def explain_loss(data: ChartData, options: ChartOptions) -> list[tuple[str, str]]:
    """The loss chart."""
    curves = {
        "median": "the line is the median of all ranks, and the band spans the lowest to highest"
        " rank. A rank whose loss has moved away from the others (f: findings) has its own labeled"
        " line outside the band",
        "ranks": "each rank is a line; the selected one and outliers are labeled",
        "rank": f"the line is rank {options.rank}, the band its lowest and highest loss in each"
        " column, the dashed line the median of all ranks",
    }
    found = [
        ("loss", f"{curves[options.mode]}. a switches between median, all ranks, and one rank"),
        ("✕", "at the lower edge: a loss was NaN or infinite"),
        _MARKS,
        _GAPS,
    ]
    if options.smoothing:
        found.append(
            (
                f"smoothed {options.smoothing:g}",
                "each line is a moving average with this weight, as in TensorBoard; the band still"
                " shows what was measured. w changes it",
            )
        )
    if options.logarithmic:
        found.append(("log axis", "equal distances are equal ratios; y changes it"))
    if data.by_step:
        found.append(
            (
                "by step",
                "optimizer steps since the job started. Each attempt follows the one before it,"
                " whatever step it resumed from, so nothing overlaps. b changes it",
            )
        )
    return [*found, _KEYS, _ZOOM]


def explain_figures(data: FiguresData) -> list[tuple[str, str]]:
    """A chart of several figures."""
    names = ", ".join(dict.fromkeys(curve.name for curve in data.curves)) or "nothing yet"
    return [
        (
            "figures",
            f"{names}. Figures with the same unit share a plot; if not all plots fit, a shows"
            " the next unit first. Labels are at the right end of each curve",
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
            "how long a step took: ▒ waiting for data, █ compute, ▓ waiting for other ranks."
            " a switches between seconds and shares",
        ),
        ("░ not split", "step time that could not be attributed"),
        _MARKS,
        _GAPS,
        _KEYS,
        _ZOOM,
    ]
