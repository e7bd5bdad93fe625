"""What a chart shows, in words, for the help of what is under the cursor. Pure."""

from __future__ import annotations

from ddptop.tui.render.chart import ChartOptions
from ddptop.tui.render.chart_figures import FiguresData
from ddptop.tui.render.chart_split import SplitData
from ddptop.tui.render.series import ChartData

_KEYS = (
    "read values",
    "← and → move a line that reads the value of each curve, home and end take it to the edges,"
    " a click or a drag puts it anywhere, esc takes it away",
)
_ZOOM = (
    "see more or less",
    "+ and - zoom around that line, or at the right edge without it; the wheel zooms at the"
    " pointer; shift+← and shift+→ go along; 0 is the whole run again",
)
_MARKS = (
    "┊",
    "here an attempt begins: all ranks were started again together. No curve crosses it",
)
_GAPS = ("an empty place", "nothing was measured there: a gap is never bridged")


def explain_loss(data: ChartData, options: ChartOptions) -> list[tuple[str, str]]:
    """The loss chart."""
    curves = {
        "median": "the line is the median of all ranks, the shade around it reaches from the least"
        " to the greatest rank. A rank whose loss has left the others' (f: findings) has a line of"
        " its own, with its name at the end, and is no part of the shade",
        "ranks": "each rank is a line; the chosen one and those that lie apart carry their names",
        "rank": f"the line is rank {options.rank}, the shade the least and the greatest loss in"
        " each column, the broken line the median of all ranks",
    }
    found = [
        ("loss", f"{curves[options.mode]}. a changes between the median, all ranks and one rank"),
        ("✕", "at the lower edge: here a loss was NaN or infinite"),
        _MARKS,
        _GAPS,
    ]
    if options.smoothing:
        found.append(
            (
                f"smoothed {options.smoothing:g}",
                "each line is a moving average that keeps so much of what it was at each column,"
                " as in TensorBoard; what was measured stays as the shade. w changes it",
            )
        )
    if options.logarithmic:
        found.append(("log axis", "equal distances are equal ratios; y changes it"))
    if data.by_step:
        found.append(
            (
                "by step",
                "optimizer steps taken since the job's start. An attempt stands behind the one"
                " before it, whatever step it began with: nothing is drawn over. b changes it",
            )
        )
    return [*found, _KEYS, _ZOOM]


def explain_figures(data: FiguresData) -> list[tuple[str, str]]:
    """A chart of several figures."""
    names = ", ".join(dict.fromkeys(curve.name for curve in data.curves)) or "nothing yet"
    return [
        (
            "figures",
            f"{names}. Figures of one unit share a plot; where not all plots have room, a begins"
            " with the next unit. Names stand at the curves' right ends",
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
            "how long a step took, and of that ▒ the wait for data, █ computing, ▓ the wait for"
            " the other ranks. a shows shares in place of seconds",
        ),
        ("░ not split", "time of the step that nobody measured the use of"),
        _MARKS,
        _GAPS,
        _KEYS,
        _ZOOM,
    ]
