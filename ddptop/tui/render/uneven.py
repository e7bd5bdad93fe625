"""How uneven a job is, worst figure first, and whether that is worth a warning."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ddptop.tui.render import units
from ddptop.tui.render.text import Line, Span, fill, line
from ddptop_runner.balance.imbalance import Figure, deviations
from ddptop_runner.model import Imbalance, NodeSnapshot

UNEVEN = 0.2
"""Below this an imbalance is never drawn as a warning."""


@dataclass(frozen=True)
class Uneven:
    """One kind of figure."""

    figure: Figure
    ratio: float
    """max / median - 1."""
    name: str
    brief: str
    warns: bool
    """Whether a rank lies far off: 2 % of CPU against 1 % is twice as much, and nothing."""

    @property
    def style(self) -> str:
        """Of its words."""
        return "warn" if self.warns else "dim"


_NAMES: tuple[tuple[Figure, str, str], ...] = (
    ("step_time", "step time", "step"),
    ("memory", "memory", "mem"),
    ("utilization", "util", "util"),
    ("power", "power", "watt"),
)


def uneven(imbalance: Imbalance, far_off: Collection[Figure]) -> list[Uneven]:
    """What is known, the worst first; `far_off` are the figures in which a rank is an outlier."""
    found = []
    for figure, name, brief in _NAMES:
        ratio: float | None = getattr(imbalance, figure)
        if ratio is not None:
            warns = ratio >= UNEVEN and figure in far_off
            found.append(Uneven(figure, ratio, name, brief, warns))
    return sorted(found, key=lambda one: (not one.warns, -one.ratio))


def imbalance_note(imbalance: Imbalance, far_off: Collection[Figure], cells: int) -> Line:
    """`imbalance  memory +34 %  util +2 %`, the worst first, as many as fit."""
    parts: list[Line] = [
        ((f"{one.name} {units.deviation(one.ratio)}", one.style),)
        for one in uneven(imbalance, far_off)
    ]
    shown = fill(parts, cells - 11, "  ")
    return line(("imbalance  ", "dim"), *shown) if shown else ()


def worst_figure(snapshot: NodeSnapshot) -> Span:
    """The worst imbalance and of what: `mem +27 %`."""
    of = snapshot.imbalance
    ratios = (of.memory, of.utilization, of.power, of.step_time)
    far_off: set[Figure] = set()
    if any(ratio is not None and ratio >= UNEVEN for ratio in ratios):
        for rank in deviations(snapshot.ranks, snapshot.gpus).values():
            far_off |= rank.outliers
    known = uneven(of, far_off)
    if not known:
        return units.NOT_KNOWN, "dim"
    return f"{known[0].brief} {units.deviation(known[0].ratio)}", known[0].style
