"""Describes events, folds repeated ones into one line, and makes table rows of them. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec

from ddptop.job.status import event_style, event_words
from ddptop.style import Span
from ddptop_runner.base import units
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Event

REPEATED = ("hang_suspected", "checkpoint_asked")
"""Event types that count as repeated, whatever they say."""


class FoldedEvents(msgspec.Struct, frozen=True):
    """One or more events that share a line."""

    events: tuple[Event, ...]
    """The events, in order; never empty."""

    @property
    def key(self) -> str:
        """A key that is unique among the lines."""
        return str(self.events[0].seq)

    @property
    def type(self) -> str:
        """The type of the events."""
        return self.events[0].type

    @property
    def style(self) -> str:
        """The style of its most urgent event."""
        styles = [event_style(event) for event in self.events]
        return next((style for style in styles if style != "dim"), "dim")

    @property
    def at(self) -> dt.datetime:
        """When the first of the events occurred."""
        return self.events[0].ts

    @property
    def ranks(self) -> list[int]:
        """The ranks of the events."""
        return sorted({event.rank for event in self.events if event.rank is not None})

    @property
    def message(self) -> str:
        """What happened, in one sentence for all of the events."""
        first, last, number = self.events[0], self.events[-1], len(self.events)
        if number == 1:
            return first.message
        took = units.duration((last.ts - first.ts).total_seconds())
        if first.type == "rank_started":
            return f"ranks {units.ranks(self.ranks)} started"
        if first.type == "rank_exited" and len(self.ranks) > 1:
            how = f"exited with status {first.exit_code}"
            if first.signal is not None:
                how = f"were killed by {first.signal}"
            return f"ranks {units.ranks(self.ranks)} {how}"
        if first.type == "checkpoint":
            return f"{number} checkpoints in {took}; last: {last.message}"
        return f"{last.message}  ({number} times in {took})"


def fold(events: Sequence[Event]) -> list[FoldedEvents]:
    """Fold events into lines, in order of their first events."""
    lines: list[list[Event]] = []
    by_words: dict[tuple[object, ...], list[Event]] = {}
    for event in events:
        last = lines[-1] if lines else None
        words_ = _same_as(event, last)
        mine = by_words.get(words_)
        if mine is None:
            mine = by_words[words_] = []
            lines.append(mine)
        mine.append(event)
    return [FoldedEvents(tuple(line)) for line in lines]


def _same_as(event: Event, last: Sequence[Event] | None) -> tuple[object, ...]:
    """The key that events on the same line share."""
    kind = event.type
    if kind in ("rank_started", "checkpoint"):
        # consecutive events share a line
        run = last[0] if last is not None and last[0].type == kind else event
        return kind, run.seq, run.ts
    if kind == "rank_exited":
        return kind, event.attempt, event.exit_code, event.signal
    if kind in REPEATED:
        return kind, event.attempt
    raised = ev.of_row(event) if kind == "alert" else None
    if isinstance(raised, ev.AlertRaised):
        return kind, event.attempt, raised.alert.id
    return kind, event.attempt, event.rank, event.message


_MARKS = {
    "bad": "✗",
    "warn": "▲",
    "ok": "●",
}
_OWN_MARKS = {"finished": "✓", "group_restart": "↻", "checkpoint": "◆", "stopped": "■"}


def offset(at: dt.datetime, start: dt.datetime | None) -> str:
    """`+12m 04s` after the attempt's start, `-3s` before it."""
    if start is None:
        return units.NOT_AVAILABLE
    seconds = (at - start).total_seconds()
    # the event of the start is recorded slightly after the start time
    return f"-{units.duration(-seconds)}" if seconds <= -1 else f"+{units.duration(seconds)}"


def folded_row(folded: FoldedEvents, start: dt.datetime | None = None) -> Mapping[str, Span]:
    """Cells of a line by column; times count from the attempt's start."""
    style = folded.style
    mark = _OWN_MARKS.get(folded.type) or _MARKS.get(style, "○")
    local = folded.at.astimezone()
    return {
        "offset": (offset(folded.at, start), "dim"),
        "mark": (mark, style),
        "day": (f"{local:%b %d}", "dim"),
        "time": (f"{local:%H:%M:%S}", "dim"),
        "type": (event_words(folded.type), style),
        "rank": (units.ranks(folded.ranks) if folded.ranks else "", ""),
        "message": (" ".join(folded.message.split()), style if style in ("bad", "warn") else ""),
    }


def folded_sections(folded: FoldedEvents, start: dt.datetime | None) -> list[tuple[str, str]]:
    """Headings and texts with every detail of a line's events."""
    return [
        (
            f"{event.ts.astimezone():%a %Y-%m-%d %H:%M:%S}  {offset(event.ts, start)}  "
            f"{event_words(event.type)}",
            _details(event),
        )
        for event in folded.events
    ]


def _details(event: Event) -> str:
    facts = [
        f"attempt {event.attempt}" if event.attempt is not None else "",
        f"rank {event.rank}" if event.rank is not None else "",
        f"pid {event.pid}" if event.pid is not None else "",
        event.signal or ("" if event.exit_code is None else f"exit {event.exit_code}"),
    ]
    lines = [event.message, ", ".join(filter(None, facts))]
    if event.evidence:
        lines.append(f"evidence: {event.evidence}")
    return "\n".join(filter(None, lines))
