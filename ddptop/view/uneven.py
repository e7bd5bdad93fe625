"""The imbalance of a job, worst figure first, and whether it deserves a warning."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ddptop.view.figures.ranks import COMPARED
from ddptop.view.text import Line, Span, fill, line
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import Figure, is_even_load, marked
from ddptop_runner.model.snapshot import Imbalance, NodeSnapshot

EVEN = 0.1
"""Below this, a ratio of small figures is not misleading."""


class Uneven(msgspec.Struct, frozen=True):
    """One kind of figure."""

    figure: Figure
    ratio: float
    """max / median - 1."""
    name: str
    brief: str
    warns: bool
    """Whether a rank is an outlier."""
    even: bool = False
    """Whether the ratio means nothing: 2% of CPU against 1% is twice as much."""

    @property
    def style(self) -> str:
        """Of its words."""
        return "warn" if self.warns else "dim"

    @property
    def text(self) -> str:
        """`+34%`, or that it is even."""
        return "even" if self.even else units.deviation(self.ratio)


def uneven(
    imbalance: Imbalance, far_off: Collection[Figure], even_load: bool = False
) -> list[Uneven]:
    """What is known, the worst first.

    Args:
        imbalance: of the job.
        far_off: the figures in which a rank is marked.
        even_load: whether utilization differs by a few percentage points only.
    """
    found = []
    for figure, one in COMPARED.items():
        ratio: float | None = getattr(imbalance, figure, None)
        if ratio is not None:
            warns = figure in far_off
            even = even_load and figure == "utilization" and ratio >= EVEN
            found.append(Uneven(figure, ratio, one.name, one.brief, warns and not even, even))
    return sorted(found, key=lambda one: (not one.warns, one.even, -one.ratio))


def imbalance_note(
    imbalance: Imbalance, far_off: Collection[Figure], cells: int, even_load: bool = False
) -> Line:
    """`imbalance  memory +34%  util +2%`, the worst first, as many as fit."""
    parts: list[Line] = [
        ((f"{one.name} {one.text}", one.style),) for one in uneven(imbalance, far_off, even_load)
    ]
    shown = fill(parts, cells - 11, "  ")
    return line(("imbalance  ", "dim"), *shown) if shown else ()


def worst_figure(snapshot: NodeSnapshot) -> Span:
    """The worst imbalance and of what: `mem +27%`."""
    of = snapshot.imbalance
    far_off = set[Figure]().union(*marked(snapshot.alerts).values())
    known = uneven(of, far_off, is_even_load(snapshot.ranks, snapshot.gpus))
    if not known:
        return units.NOT_AVAILABLE, "dim"
    return f"{known[0].brief} {known[0].text}", known[0].style
