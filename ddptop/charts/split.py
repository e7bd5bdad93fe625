"""Charts where the time of a step goes, as a stack over time. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ddptop.charts.axis import Reading, Scale
from ddptop.charts.braille import DOTS_Y
from ddptop.charts.curves import ChartOptions
from ddptop.charts.frame import Chart, Painted, Plot, Sheet, draw, tick_rows
from ddptop.job.series import Frame
from ddptop.style import Line, join, line
from ddptop_runner.base.units import NOT_AVAILABLE, step_time


class SplitData(Frame, frozen=True):
    """The parts of a rank's or a job's step time, as parallel lists, oldest first.

    A part that was not measured is None; the rest of the step is then shown as not split.
    """

    t: Sequence[float] = ()
    """Unix seconds."""
    step_time_s: Sequence[float | None] = ()
    data_wait_s: Sequence[float | None] = ()
    compute_s: Sequence[float | None] = ()
    sync_s: Sequence[float | None] = ()
    empty: str = "no steps timed yet"
    """Text shown instead of the stack."""


PARTS = (
    ("data wait", "▒", "chosen"),
    ("compute", "█", "median"),
    ("sync", "▓", "title"),
    ("other", "░", "dim"),
)
"""Name, fill, and style of each part, from the bottom of the stack to the top."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Stack:
    """The mean step in one cell of the plot."""

    parts: tuple[float | None, float | None, float | None, float]
    """Seconds of each part in PARTS; None if not measured. The last is the rest."""

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return sum(part for part in self.parts if part is not None)


def stack_of(
    step_time_s: float | None,
    data_wait_s: float | None,
    compute_s: float | None,
    sync_s: float | None,
) -> Stack | None:
    """The stack of one step; None if nothing about the step is known.

    Without a step time, the step is the sum of the known parts. Parts that add up to more than the
    step are kept, and nothing is left over.
    """
    known = [part for part in (data_wait_s, compute_s, sync_s) if part is not None]
    if step_time_s is None and not known:
        return None
    rest = max(0.0, step_time_s - sum(known)) if step_time_s is not None else 0.0
    return Stack((data_wait_s, compute_s, sync_s, rest))


def stacks(data: SplitData, since: float, until: float, cells: int) -> list[Stack | None]:
    """By cell, the mean of each part over the cell's samples."""
    columns = (data.step_time_s, data.data_wait_s, data.compute_s, data.sync_s)
    sums = [[[0.0, 0] for _ in columns] for _ in range(cells)]
    factor = cells / max(1e-9, until - since)
    for place, t in enumerate(data.t):
        if not since <= t <= until:
            continue
        cell = sums[min(cells - 1, int((t - since) * factor))]
        for column, one in zip(columns, cell, strict=True):
            value = column[place] if place < len(column) else None
            if value is not None and value >= 0 and value - value == 0:
                one[0] += value
                one[1] += 1
    return [stack_of(*[total / n if n else None for total, n in cell]) for cell in sums]


def _bridged(found: list[Stack | None], times: Sequence[float], apart: float) -> list[Stack | None]:
    """Fill cells between two samples without a gap with the earlier sample."""
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    max_gap = max(1, round(3 * usual / max(1e-9, apart)))
    filled, last, age = list(found), None, 0
    ahead = [place for place, one in enumerate(found) if one is not None]
    for place, one in enumerate(found):
        if one is not None:
            last, age = one, 0
            continue
        age += 1
        if last is not None and age < max_gap and ahead and place < ahead[-1]:
            filled[place] = last
    return filled


def _column(stack: Stack, axis: Scale, rows: int) -> list[tuple[str, int]]:
    """One column's stack from the bottom up; each cell shows the part that fills most of it."""
    per_row = (axis.high - axis.low) / rows
    bounds: list[tuple[float, float, int]] = []
    height = 0.0
    for place, part in enumerate(stack.parts):
        if part:
            bounds.append((height, height + part / per_row, place))
            height = bounds[-1][1]
    cells: list[tuple[str, int]] = []
    for row in range(min(rows, int(height + 0.999))):
        shown = [
            (min(end, row + 1) - max(start, row), place)
            for start, end, place in bounds
            if end > row and start < row + 1
        ]
        if not shown:
            break
        _, place = max(shown)
        filled = sum(share for share, _ in shown)
        _, fill_with, _ = PARTS[place]
        if fill_with == "█" and row + 1 > height:
            fill_with = _EIGHTHS[max(1, round(filled * 8))]
        elif filled < 0.4:
            break
        cells.append((fill_with, place))
    return cells


class _Blocks:
    """Stacks of blocks, one per column; the cursor's column shows its line instead."""

    def __init__(self, columns: Sequence[Sequence[tuple[str, int]]], rows: int) -> None:
        self.columns, self.rows = len(columns), rows
        self._stacks = columns

    def row(self, y: int) -> list[tuple[str, int]]:
        """The character and part of each cell in a row, counted from the top."""
        level = self.rows - 1 - y
        return [one[level] if level < len(one) else (" ", -1) for one in self._stacks]

    def owner(self, x: int, y: int) -> int:
        """The part in a cell; -1 if there is none."""
        stack = self._stacks[x]
        return stack[self.rows - 1 - y][1] if self.rows - 1 - y < len(stack) else -1


def draw_split(data: SplitData, options: ChartOptions, width: int, height: int) -> Chart:
    """Draw the stack in exactly `height` lines of `width` cells."""
    columns = (data.step_time_s, data.data_wait_s, data.compute_s, data.sync_s)
    known = data.t and any(value is not None for column in columns for value in column)
    return draw(
        data,
        options.view,
        width,
        height,
        lambda sheet: _paint(sheet, data),
        empty=None if known else data.empty,
    )


def _paint(sheet: Sheet, data: SplitData) -> Painted:
    found = stacks(data, sheet.since, sheet.until, sheet.cells)
    totals = sorted(one.total for one in found if one is not None) or [0.0]
    usual = totals[int(0.98 * (len(totals) - 1))]
    top = min(totals[-1], 3 * usual) if usual > 0 else totals[-1]
    rows = sheet.rows
    axis = Scale(0.0, max(top * 1.05, 1e-9), rows * DOTS_Y)
    bridged = _bridged(found, data.t, (sheet.until - sheet.since) / sheet.cells)
    columns = [[] if one is None else _column(one, axis, rows) for one in bridged]
    if sheet.cursor is not None:
        columns[sheet.cursor] = []
    last = next((one for one in reversed(found) if one is not None), None)
    labels = tick_rows(axis, rows, _time_label)
    return Painted(
        [Plot(_Blocks(columns, rows), labels, [style for _, _, style in PARTS])],
        [()] if last is None else _legends(last),
        lambda reading: _read(reading, None if sheet.cursor is None else bridged[sheet.cursor]),
    )


def _time_label(value: float, step: float) -> str:
    return step_time(value) if value else "0"


def _values(stack: Stack) -> list[tuple[str, str, str, float]]:
    """Name, fill, style, and seconds of the known parts of a stack."""
    return [
        (*kind, part)
        for kind, part in zip(PARTS, stack.parts, strict=True)
        if part is not None and (part > 0 or kind[0] != "other")
    ]


def _legends(stack: Stack) -> list[Line]:
    """Legends: the parts with their current values; if they do not fit, only the fills."""
    total = line(("step ", "dim"), (step_time(stack.total), "strong"))
    values = _values(stack)
    parts = [
        line((f"{fill_with} ", style), (f"{name} ", "dim"), step_time(part))
        for name, fill_with, style, part in values
    ]
    names = [line((f"{fill_with} ", style), (name, "dim")) for name, fill_with, style, _ in values]
    return [join([total, *parts], "  "), join(parts, "  "), join(names, " ")]


def _read(at: Reading, stack: Stack | None) -> None:
    """Add the stack under the cursor to a reading."""
    if stack is None:
        at.parts.append(line((f"step {NOT_AVAILABLE}", "dim")))
        return
    at.parts.append(line(("step ", "dim"), (step_time(stack.total), "strong")))
    for name, fill_with, style, part in _values(stack):
        share = f" {100 * part / stack.total:.0f}%" if stack.total > 0 else ""
        at.parts.append(
            line((f"{fill_with} ", style), (f"{name} ", "dim"), step_time(part), (share, "dim"))
        )
