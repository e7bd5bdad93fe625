"""Log lines, and the messages from reading threads to screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
from textual.message import Message

Level = Literal["", "warn", "error"]
"""The level of a line, according to its text."""

GRAVITY: dict[Level, int] = {"": 0, "warn": 1, "error": 2}
"""Levels in order; a filter shows those that are at least as severe as its own."""


class LogRow(msgspec.Struct, frozen=True):
    """A line for display, without control sequences."""

    at: int
    """Its offset in the log or, for merged lines, a unique number."""
    to: int
    """The offset of its end."""
    text: str
    level: Level = ""
    inside: bool = False
    """Whether it continues an earlier line, as in a traceback."""
    label: str = ""
    """Its ranks, if lines of several ranks are merged: `0-7`."""
    is_note: bool = False
    """Whether it is a placeholder for missing lines, not output."""

    def passes(self, least: Level) -> bool:
        """Whether a filter for `least` shows it."""
        return not least or self.is_note or GRAVITY[self.level] >= GRAVITY[least]


class Page(msgspec.Struct, frozen=True):
    """Consecutive lines of a log: all of one in memory, or those of a file around a position.

    Positions are offsets in the file; of a log in memory, all are 0.
    """

    rows: tuple[LogRow, ...] = ()
    partial: LogRow | None = None
    """The unfinished line after the others."""
    low: int = 0
    high: int = 0
    """Where the complete lines start and end."""
    first: int = 0
    end: int = 0
    """Where the log starts and ends."""
    limit: int = 0
    """For merged lines, how many last lines of each rank were read."""

    @property
    def before_bytes(self) -> int:
        """The part of the log before these lines."""
        return self.low - self.first

    @property
    def after_bytes(self) -> int:
        """The part of the log after these lines."""
        return self.end - max(self.high, self.partial.to if self.partial is not None else 0)


class Places(msgspec.Struct, frozen=True):
    """The available logs of a job."""

    attempts: tuple[int, ...] = ()
    attempt: int = 0
    """The present one."""
    ranks: tuple[int, ...] = ()
    """Ranks with their own lines in it."""
    has_launcher: bool = False
    """Whether they share the log of their launcher."""


@dataclass
class PageRead(Message):
    """Lines of the present log, in place of those shown."""

    generation: int
    """Number of the request that it answers; later requests supersede it."""
    page: Page
    at: int | None = None
    """The line to go to; None keeps the position."""


@dataclass
class PlacesRead(Message):
    """The list of logs is known."""

    generation: int
    places: Places


@dataclass
class SearchMoved(Message):
    """A search has progressed or ended."""

    generation: int
    number: int
    """Number of the search."""
    share: float = 1.0
    """Fraction of the log that has been searched."""
    is_over: bool = False
    found: LogRow | None = None
    has_wrapped: bool = False
    """Whether it continued from the other end of the log."""
    index: int | None = None
    """The number of this match, from 1; None if it is beyond those counted."""
    count: int = 0
    """How many lines match; at most `reader.MAX_COUNTED` are counted."""


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
    """One rank's log, across attempts."""

    job: str
    job_id: str
    rank: int | None
    """None for all output of a foreign job or a command."""
    viewer: int
    """The `Query.viewer` that it is read for."""


@dataclass
class LogRead(Message):
    """Lines of a rank's log, clean of control sequences."""

    key: LogKey
    lines: list[str]
    restarted: bool
    """Whether these are the first lines of a different log, which replace those shown."""
    partial: str = ""
    """The unfinished line, such as a progress bar."""
