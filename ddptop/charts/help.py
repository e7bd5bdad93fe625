"""Explains the chart under the cursor; the prose is in job/help.toml. Pure."""

from __future__ import annotations

from ddptop.charts.curves import ChartOptions, Curves
from ddptop.charts.loss import LOSS, THROUGHPUT
from ddptop.job.help import texts
from ddptop.job.keys import with_keys

AXIS = ("┊", "gaps", "read values", "zoom")


def entries(*names: str) -> list[tuple[str, str]]:
    """Headings and texts on parts of a chart."""
    return [(name, with_keys(texts().charts[name])) for name in names]


def explain_loss(name: str, options: ChartOptions, *, by_step: bool) -> list[tuple[str, str]]:
    """Explain the loss chart."""
    lines = options.mode if name in (LOSS, THROUGHPUT) else "metric"
    extra = {
        "smoothing": bool(options.smoothing),
        "log scale": options.logarithmic,
        "peak": name == LOSS and not options.logarithmic,
        "by step": by_step,
    }
    return [
        (name, with_keys(texts().loss_lines[lines])),
        *entries("metrics", "✕", *(name for name, is_on in extra.items() if is_on), *AXIS),
    ]


def explain_figures(data: Curves) -> list[tuple[str, str]]:
    """Explain a chart of several figures."""
    names = ", ".join(dict.fromkeys(curve.name for curve in data.curves)) or "no data yet"
    return [("metrics", names), *entries("units", *AXIS)]
