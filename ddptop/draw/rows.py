"""Events as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping

from ddptop.view import words
from ddptop.view.text import Span
from ddptop_runner.model.snapshot import Event


def event_row(event: Event) -> dict[str, Span]:
    """One event, by column; times in this machine's zone."""
    style = words.event_style(event)
    local = event.ts.astimezone()
    return {
        "time": (f"{local:%H:%M:%S}", "dim"),
        "day": (f"{local:%b %d}", "dim"),
        "type": (words.event_words(event.type), style),
        "rank": ("" if event.rank is None else str(event.rank), ""),
        "message": (event.message, style),
    }


def same(row: Mapping[str, Span], other: Mapping[str, Span] | None) -> bool:
    """Whether two rows look the same."""
    return other is not None and dict(row) == dict(other)
