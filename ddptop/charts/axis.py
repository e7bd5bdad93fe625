"""Labels the lower axis of charts, by time or by step, with ticks that never touch. Pure."""

from __future__ import annotations

import datetime as dt
import math

import msgspec

from ddptop.charts import scale
from ddptop.charts.view import Area, View
from ddptop.view.series import AttemptSteps, Frame
from ddptop.view.text import Line, line
from ddptop_runner.base.units import duration

TICK_CELLS = 10
"""Cells that a tick takes, including the space next to it."""


class AxisWords(msgspec.Struct, frozen=True):
    """How places on the axis are labeled."""

    first: str = "start"
    last: str = "now"
    backwards: bool = False
    """Whether times count back from the right edge, which is the newest."""
    zero: float = 0.0
    """The time or step that the others count from."""
    by_step: bool = False
    attempts: tuple[AttemptSteps, ...] = ()
    """On a step axis: where each attempt begins."""
    clock: bool = True
    """Whether places are unix seconds and thus have a time of day."""


def axis_words(data: Frame, view: View) -> AxisWords:
    """How the axis of `data` is labeled in this view."""
    first, _ = data.extent
    if data.by_step:
        return AxisWords(by_step=True, attempts=data.attempts)
    span = view.span if view.span is not None else data.window_s
    return AxisWords(
        first="first seen" if data.watched else "start",
        last="end" if data.ended else "now",
        backwards=span is not None and view.right is None,
        zero=first,
        clock=first > 1e8,
    )


def step_label(step: float, apart: float) -> str:
    """`0`, `500`, `1,500`, `20k`, `1.5M`: a step on the axis, with ticks `apart` steps apart."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        digits = max(0, -math.floor(math.log10(apart / size) + 1e-9))
        if digits <= 1 and (step >= 10 * size or (step >= size and (size > 1e3 or not digits))):
            return f"{step / size:,.{digits}f}{unit}"
    return f"{step:,.0f}"


def exact_label(seconds: float, apart: float) -> str:
    """A time since the start, precise enough to differ from one `apart` seconds away."""
    whole = round(seconds)
    if whole >= 86400 and apart < 3600:
        return f"{whole // 86400}d{whole % 86400 // 3600:02}:{whole % 3600 // 60:02}"
    if whole >= 3600 and apart < 60:
        return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
    return scale.time_label(whole)


def ticks(area: Area, words: AxisWords) -> list[tuple[float, str]]:
    """Places on the axis with their labels, most important first."""
    most = max(1, area.cells // TICK_CELLS)
    if words.by_step:
        apart = max(1.0, scale.nice_step(area.width, most))
        start = math.ceil(area.since / apart - 1e-9)
        end = math.floor(area.until / apart + 1e-9)
        return [(i * apart, step_label(i * apart, apart)) for i in range(start, end + 1)]
    apart = float(scale.time_step_s(area.width, most))
    if words.backwards:
        back = [index * apart for index in range(1, int(area.width / apart + 1e-9) + 1)]
        labels = [(area.until - offset, scale.time_label(-offset)) for offset in back]
        return [(area.until, words.last), *labels]
    start = math.ceil((area.since - words.zero) / apart - 1e-6)
    end = math.floor((area.until - words.zero) / apart + 1e-6)
    return [
        (words.zero + i * apart, exact_label(i * apart, apart) if i else words.first)
        for i in range(start, end + 1)
    ]


def place_label(words: AxisWords, at: float) -> str:
    """A place on the axis in words: the time since the start, or the step and its attempt."""
    if words.by_step:
        begun = [one for one in words.attempts if one.before <= at]
        if len(words.attempts) < 2 or not begun:
            return f"step {max(0, round(at)):,}"
        one = begun[-1]
        return f"attempt {one.attempt} step {max(0, round(at - one.before + one.first)):,}"
    since = at - words.zero
    text = duration(since)
    return f"{text} in" if words.first == "start" else f"{text} after {words.first}"


def clock_label(words: AxisWords, at: float) -> str:
    """The time of day at a place on the axis; empty if the axis has none."""
    if words.by_step or not words.clock:
        return ""
    moment = dt.datetime.fromtimestamp(at, dt.timezone.utc).astimezone()
    return f"{moment:%H:%M:%S}"


def axis_line(area: Area, words: AxisWords, cursor: float | None = None, right: int = 0) -> Line:
    """The labels under a plot, each below its place; if two would touch, only the first is shown.

    Args:
        area: the plot.
        words: how places are labeled.
        cursor: a place that is always labeled, whatever it hides.
        right: empty cells to the right of the plot.
    """
    text = [" "] * area.cells
    if cursor is not None and (cell := area.cell(cursor)) is not None:
        text[cell] = "▲"
    for at, label in ticks(area, words):
        x = round((at - area.since) / area.width * (area.cells - 1))
        start = min(max(0, x - len(label) // 2), area.cells - len(label))
        around = text[max(0, start - 1) : start + len(label) + 1]
        if start < 0 or any(character != " " for character in around):
            continue
        text[start : start + len(label)] = label
    before, mark, after = "".join(text).partition("▲")
    spans = [(before, "dim"), (mark, "strong"), (after, "dim")]
    return line(" " * area.left, *[one for one in spans if one[0]], " " * right)
