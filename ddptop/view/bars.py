"""Horizontal bars with a resolution of half a cell."""

from __future__ import annotations

from ddptop.view.text import Line


def bar(share: float | None, cells: int, style: str = "busy") -> Line:
    """A thin bar filled by `share` (0 to 1) on a thin track; unknown is a dotted track."""
    return _filled(share, cells, style, ("━", "╸", "─"))


def blocks(share: float | None, cells: int, style: str) -> Line:
    """The same in squares, on a dotted track; unknown is empty."""
    if share is None:
        return ((" " * max(0, cells), ""),)
    return _filled(share, cells, style, ("■", "▪", "·"))


def _filled(share: float | None, cells: int, style: str, glyphs: tuple[str, str, str]) -> Line:
    if cells <= 0:
        return ()
    if share is None:
        return (("·" * cells, "faint"),)
    whole, part, empty = glyphs
    full, half = divmod(round(min(1.0, max(0.0, share)) * cells * 2), 2)
    filled = whole * full + part * half
    track = empty * (cells - len(filled))
    return tuple(span for span in ((filled, style), (track, "faint")) if span[0])
