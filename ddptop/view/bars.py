"""Horizontal bars of thin lines, with a resolution of half a cell."""

from __future__ import annotations

from ddptop.view.text import Line


def bar(share: float | None, cells: int, style: str = "busy") -> Line:
    """A bar filled by `share` (0 to 1) on a thin track; unknown is a dotted track."""
    if cells <= 0:
        return ()
    if share is None:
        return (("·" * cells, "faint"),)
    halves = round(min(1.0, max(0.0, share)) * cells * 2)
    full, half = divmod(halves, 2)
    filled = "━" * full + ("╸" if half else "")
    track = "─" * (cells - len(filled))
    return tuple(span for span in ((filled, style), (track, "faint")) if span[0])
