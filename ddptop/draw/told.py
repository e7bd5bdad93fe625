"""Events as lines: what happened, in words, and as rows of a table. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddptop.view import words
from ddptop.view.text import Span
from ddptop_runner.base import units
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


_WHO = re.compile(r"^rank \d+ ")
_DIGITS = re.compile(r"\d+(\.\d+)?")

REPEATED = ("alert", "alert_over", "hang_suspected", "checkpoint_asked")
"""Types of events that count as repeated if only their figures differ."""


@dataclass(frozen=True)
class Told:
    """One line of a timeline."""

    events: tuple[Event, ...]
    """Its events, in order; never empty."""

    @property
    def key(self) -> str:
        """Unique among the lines."""
        return str(self.events[0].seq)

    @property
    def type(self) -> str:
        """The events' type."""
        return self.events[0].type

    @property
    def style(self) -> str:
        """Of the most urgent of its events."""
        styles = [words.event_style(event) for event in self.events]
        return next((style for style in styles if style != "dim"), "dim")

    @property
    def at(self) -> dt.datetime:
        """When it happened first."""
        return self.events[0].ts

    @property
    def ranks(self) -> list[int]:
        """The ranks of its events."""
        return sorted({event.rank for event in self.events if event.rank is not None})

    @property
    def evidence(self) -> str | None:
        """Where the saved evidence is."""
        return next((event.evidence for event in self.events if event.evidence), None)

    @property
    def message(self) -> str:
        """What happened, in words, for all of its events."""
        first, last, number = self.events[0], self.events[-1], len(self.events)
        if number == 1:
            return first.message
        took = units.duration((last.ts - first.ts).total_seconds())
        if first.type == "rank_started":
            return f"ranks {units.ranks(self.ranks)} started"
        if first.type == "rank_exited" and len(self.ranks) > 1:
            return f"ranks {units.ranks(self.ranks)} {_how(first).replace('was ', 'were ', 1)}"
        if first.type == "checkpoint":
            return f"{number} checkpoints in {took}; last: {last.message}"
        return f"{last.message}  ({number} times in {took})"


def _how(event: Event) -> str:
    return _WHO.sub("", event.message)


def fold(events: Sequence[Event]) -> list[Told]:
    """The lines of a timeline, in order of their first events."""
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
    return [Told(tuple(line)) for line in lines]


def _same_as(event: Event, last: Sequence[Event] | None) -> tuple[object, ...]:
    """A key that events on one line share."""
    kind = event.type
    if kind in ("rank_started", "checkpoint"):
        # one line for those that follow each other
        run = last[0] if last is not None and last[0].type == kind else event
        return kind, run.seq, run.ts
    if kind == "rank_exited":
        return kind, event.attempt, _how(event), event.exit_code, event.signal
    if kind in REPEATED:
        return kind, event.attempt, _DIGITS.sub("#", event.message)
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
    # the start itself is told a moment after it was noted down
    return f"-{units.duration(-seconds)}" if seconds <= -1 else f"+{units.duration(seconds)}"


def told_row(told: Told, start: dt.datetime | None) -> Mapping[str, Span]:
    """A line of the timeline, by column."""
    style = told.style
    mark = _OWN_MARKS.get(told.type) or _MARKS.get(style, "○")
    local = told.at.astimezone()
    return {
        "offset": (offset(told.at, start), "dim"),
        "mark": (mark, style),
        "time": (f"{local:%H:%M:%S}", "dim"),
        "type": (words.event_words(told.type), style),
        "rank": (units.ranks(told.ranks) if told.ranks else "", ""),
        "message": (" ".join(told.message.split()), style if style in ("bad", "warn") else ""),
    }


def told_sections(told: Told, start: dt.datetime | None) -> list[tuple[str, str]]:
    """Every detail of a line, as headings and texts."""
    return [
        (
            f"{event.ts.astimezone():%a %Y-%m-%d %H:%M:%S}  {offset(event.ts, start)}  "
            f"{words.event_words(event.type)}",
            _details(event),
        )
        for event in told.events
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


EVENT_MEANINGS = {
    "launched": "someone launched or relaunched the job",
    "queued": "the job is waiting for the GPUs that it requested",
    "attempt_started": "all ranks in this attempt were started",
    "rank_started": "a rank's process started; its PID is the one that other tools show",
    "rank_exited": "a rank's process exited or was killed by a signal; if several ranks exit, "
    "the first exit caused the others",
    "launcher_exited": "the command that started the ranks exited",
    "training": "every rank took its first optimizer step",
    "checkpoint": "files that look like a complete checkpoint were written",
    "checkpoint_asked": "someone asked the script to save a checkpoint now",
    "hang_suspected": "no steps for longer than any earlier pause; not considered hung yet",
    "hang": "no progress within the time learned for this phase, and evidence that the ranks "
    "are out of sync",
    "failure": "why the attempt failed, based on exit statuses, logs, and the kernel log",
    "group_restart": "all ranks are restarting together, and why",
    "failed": "the job failed permanently, and why it will not restart",
    "finished": "every rank exited with status 0: the job is done",
    "stopping": "someone asked the job to stop",
    "stopped": "the job ended because someone asked it to stop",
    "alert": "something you should know about; press {job.findings} to list current problems",
    "alert_over": "an alert was resolved, or the job ended while it was active",
    "node": "a machine of the job became unreachable, came back, or was given up",
    "gpu_lost": "a device fell off the bus",
    "gpu_memory": "the next attempt waited until its devices had released their memory",
    "supervisor_restarted": "ddptop's supervisor died and was restarted; the ranks kept running",
    "guardian_restarted": "ddptop's guardian died and was restarted; the ranks kept running",
    "lost": "all of the job's processes exited without leaving an exit status",
}
"""What each type of event means."""
