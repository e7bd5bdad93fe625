"""Lines of logs, and what the reading threads send to the screens that show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
from textual.message import Message

Level = Literal["", "warn", "error"]
"""The level of a line, judging by its text."""

GRAVITY: dict[Level, int] = {"": 0, "warn": 1, "error": 2}
"""Levels in order: a filter shows those that are at least as grave as its own."""


class LogRow(msgspec.Struct, frozen=True):
    """A line that can be shown; clean of control sequences."""

    at: int
    """Its first byte in the log; of merged lines, a number that is its own."""
    to: int
    """The first byte after it."""
    text: str
    level: Level = ""
    inside: bool = False
    """Whether it continues an earlier line, as in a traceback."""
    label: str = ""
    """Its ranks, where lines of several ranks are merged: `0-7`."""
    is_note: bool = False
    """Whether it is a placeholder for missing lines, not output."""

    def passes(self, least: Level) -> bool:
        """Whether a filter for `least` shows it."""
        return not least or self.is_note or GRAVITY[self.level] >= GRAVITY[least]


Placement = Literal["anew", "before", "behind", "all"]
"""Where a page's lines stand: in place of all lines, before or behind those that are there, or in
place of them and in the same place, as nothing but them exists."""


@dataclass(frozen=True)
class Places:
    """Which logs of a job there are."""

    attempts: tuple[int, ...] = ()
    attempt: int = 0
    """The one that is read."""
    ranks: tuple[int, ...] = ()
    """With lines of their own in it."""
    has_launcher: bool = False
    is_tagged: bool = False
    """Whether the launcher's lines say whose they are."""


@dataclass
class PageRead(Message):
    """Lines of the log that is read."""

    generation: int
    """Number of the request that it answers; later requests supersede it."""
    placement: Placement
    rows: tuple[LogRow, ...]
    low: int = 0
    high: int = 0
    partial: LogRow | None = None
    first: int = 0
    end: int = 0
    """The log's bounds in bytes."""
    at: int | None = None
    """The line to be shown in the middle; None: the end."""
    limit: int = 0
    """For merged lines: how many of the last lines of each rank were read."""


@dataclass
class LogGrew(Message):
    """The log that is read has new bounds."""

    generation: int
    first: int
    end: int

    def can_replace(self, message: Message) -> bool:
        """Only the latest bounds count."""
        return isinstance(message, LogGrew) and message.generation == self.generation


@dataclass
class PlacesRead(Message):
    """The list of logs is known."""

    generation: int
    places: Places


@dataclass
class SearchMoved(Message):
    """A search has come some way, or has ended."""

    generation: int
    number: int
    """Number of the search."""
    share: float
    """Share of the log that has been searched."""
    is_over: bool = False
    found: LogRow | None = None


@dataclass
class LogMissing(Message):
    """There is no such log, or it cannot be read."""

    generation: int
    words: str
    remedy: str


@dataclass
class CollectorFailed(Message):
    """The collector crashed."""

    error: Exception


class LogKey(msgspec.Struct, frozen=True):
    """One rank's log, over all attempts."""

    job: str
    job_id: str
    rank: int | None
    """None is the output of a foreign job or of a command as a whole."""
    viewer: int
    """The `Wish.viewer` that it is read for."""


@dataclass
class LogRead(Message):
    """Lines of a rank's log, clean of control sequences."""

    key: LogKey
    lines: list[str]
    restarted: bool
    """Whether these are the first lines of another log, replacing the lines shown."""
    partial: str = ""
    """The line that has not ended yet, such as a progress bar."""
    whole: bool = False
    """Whether these are lines of all ranks of a command, which do not say whose they are."""
