"""Draws the launcher's row, and rank details, for jobs that run another launcher or a command."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.view import words
from ddptop.view.figures.columns import GAP, Column
from ddptop.view.rank_words import (
    parts_in_words,
    parts_text,
    replicas_in_words,
    source_in_words,
)
from ddptop.view.text import (
    Line,
    Span,
    cells_of,
    clip,
    field,
    fill,
    fit,
    join,
    line,
    pad,
    spread,
    width,
)
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import LauncherSample, RankSample

LONGEST_NAME = 20
"""Maximum width of a launcher's name, in cells."""


def common_parts(ranks: Sequence[RankSample]) -> str:
    """The parts of the loss (such as ` Σ4`) if equal for all ranks; else empty."""
    found = {parts_text(rank) for rank in ranks if rank.loss is not None}
    return found.pop() if len(found) == 1 else ""


def launcher_line(
    name: str,
    launcher: LauncherSample,
    state: Span,
    layout: Sequence[tuple[Column, int]],
    cells: int,
) -> Line:
    """The launcher's row above those of ranks, with CPU and RSS of the whole tree in their columns.

    If these columns do not fit, the values follow the state.
    """
    starts, at = {}, 1
    for column, size in layout:
        starts[column.key] = at
        at += size + GAP
    widths = {column.key: size for column, size in layout}
    name = f" {clip(name, LONGEST_NAME)} "
    head = line((pad(name, max(starts["state"], cells_of(name))), "strong"), state, "   ")
    pid = field("pid", units.NOT_AVAILABLE if launcher.pid is None else str(launcher.pid), "")
    cpu, rss = units.percent(launcher.cpu_percent), units.size(launcher.rss_bytes)
    if "rss" not in starts or "cpu" not in starts or starts["rss"] < starts["cpu"]:
        return fit((*head, *_of_the_tree(cpu, rss), ("   ", ""), *pid), cells)
    whose = line(("whole tree ", "dim"))
    between = fit(spread((*head, *pid), whose, starts["cpu"]), starts["cpu"])
    figures = pad(f"{cpu} ", widths["cpu"], ">"), pad(f"{rss} ", widths["rss"], ">")
    return fit((*between, (" ".join(figures), "")), cells)


def _of_the_tree(cpu: str, rss: str) -> Line:
    return line(("whole tree CPU ", "dim"), cpu, ("  RSS ", "dim"), rss)


def launcher_summary(name: str, launcher: LauncherSample, *, chosen: bool = False) -> Line:
    """The launcher's row without a table below it; `chosen` if it has the cursor."""
    pid = units.NOT_AVAILABLE if launcher.pid is None else str(launcher.pid)
    tree = _of_the_tree(units.percent(launcher.cpu_percent), units.size(launcher.rss_bytes))
    mark = ("▸" if chosen else " ", "chosen")
    head = line(mark, (clip(name, LONGEST_NAME), "strong"))
    return join([head, line(launcher_state(launcher)), tree, field("pid", pid, "")])


def launcher_state(launcher: LauncherSample) -> tuple[str, str]:
    """The launcher's state as a symbol and words, and a style."""
    return words.rank_state(launcher.state, launcher.exit_code, launcher.signal)


def rank_detail(rank: RankSample, launcher: LauncherSample | None, cells: int) -> Line:
    """What the columns do not show about a rank; empty if nothing."""
    parts = [
        _losses(rank),
        _part(replicas_in_words(rank, launcher), ""),
        field("imports", ", ".join(rank.frameworks), "") if rank.frameworks else (),
        _part(source_in_words(rank)),
        _part(f"loss: {parts}") if (parts := parts_in_words(rank)) else (),
    ]
    if launcher is not None and rank.pid is not None:
        parts.append(field("pid", str(rank.pid), ""))
    head = line((f" rank {rank.rank}  ", "strong"))
    known = [part for part in parts if part]
    room = cells - width(head)
    return (*head, *(fill(known, room) or fit(known[0], room))) if known else ()


def _part(text: str, style: str = "dim") -> Line:
    return line((text, style)) if text else ()


def _losses(rank: RankSample) -> Line:
    if len(rank.losses) < 2:
        return ()
    spans: list[tuple[str, str]] = []
    for name, value in rank.losses.items():
        spans += [(" · " if spans else "", "dim"), (f"{name} ", "dim"), (units.loss(value), "")]
    return tuple(spans)
