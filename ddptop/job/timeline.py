"""Describes a job's history for replay: its span, its events, and where to begin. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddptop_runner.model.snapshot import Event

MarkKind = Literal["attempt", "failure", "hang", "end", "alert", "checkpoint"]


GLYPHS: dict[MarkKind, tuple[str, str]] = {
    "failure": ("F", "bad"),
    "hang": ("H", "bad"),
    "attempt": ("", "title"),
    "end": ("E", "strong"),
    "alert": ("!", "warn"),
    "checkpoint": ("c", "ok"),
}
"""Letter and style by kind, in order of precedence; an attempt shows its number."""


MEANINGS: dict[MarkKind, str] = {
    "attempt": "the start of the attempt with that number",
    "failure": "a failure",
    "hang": "a hang",
    "end": "the job's end",
    "alert": "an alert",
    "checkpoint": "a checkpoint",
}


_KINDS: dict[str, MarkKind] = {
    "attempt_started": "attempt",
    "failure": "failure",
    "hang": "hang",
    "finished": "end",
    "failed": "end",
    "stopped": "end",
    "lost": "end",
    "alert": "alert",
    "hang_suspected": "alert",
    "gpu_lost": "alert",
    "checkpoint": "checkpoint",
}


@dataclass(frozen=True)
class Mark:
    """An event on the timeline."""

    at: float
    """Unix seconds."""
    kind: MarkKind
    text: str
    attempt: int | None = None

    @property
    def letter(self) -> str:
        """Its letter on the timeline."""
        if self.kind == "attempt":
            return str(self.attempt if self.attempt is not None else "0")
        return GLYPHS[self.kind][0]


@dataclass(frozen=True)
class Course:
    """A job's history as the timeline shows it."""

    first: float
    """Unix seconds of the first record."""
    last: float
    recorded: tuple[tuple[int, int], ...] = ()
    """Spans with samples, in order; nothing is known between them."""
    marks: tuple[Mark, ...] = ()
    """In order."""
    live: bool = False
    """Whether the job is still running."""

    @property
    def span_s(self) -> float:
        """Length of the history; never 0."""
        return max(1.0, self.last - self.first)

    def is_recorded(self, since: float, until: float) -> bool:
        """Whether there are samples between two times."""
        return any(begin < until and end > since for begin, end in self.recorded)


def marks_of(events: Sequence[Event]) -> tuple[Mark, ...]:
    """Marks for a job's events."""
    return tuple(
        Mark(event.ts.timestamp(), _KINDS[event.type], event.message, event.attempt)
        for event in events
        if event.type in _KINDS
    )


def neighbor(
    marks: Sequence[Mark], at: float, direction: int, kinds: Sequence[MarkKind] = tuple(GLYPHS)
) -> Mark | None:
    """The next (1) or previous (-1) mark of these kinds, at least a second away."""
    wanted = [mark for mark in marks if mark.kind in kinds]
    if direction > 0:
        return next((mark for mark in wanted if int(mark.at) > int(at)), None)
    return next((mark for mark in reversed(wanted) if int(mark.at) < int(at)), None)


def opening(course: Course) -> float:
    """Where a replay begins: shortly before the last problem, or else at the end."""
    trouble = neighbor(course.marks, course.last + 1, -1, ("failure", "hang"))
    return course.last if trouble is None else max(course.first, trouble.at - 5)
