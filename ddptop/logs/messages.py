"""Log lines, and the messages from reading threads to screens.

A dataclass takes a millisecond to create, which the first frame would wait for.
"""

from __future__ import annotations

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


class PageRead(Message):
    """Lines of the present log, in place of those shown."""

    def __init__(self, generation: int, page: Page, at: int | None = None) -> None:
        """`generation` is the number of the request; later requests supersede it.

        `at` is the line to go to; None keeps the position.
        """
        super().__init__()
        self.generation, self.page, self.at = generation, page, at


class PlacesRead(Message):
    """The list of logs is known."""

    def __init__(self, generation: int, places: Places) -> None:
        super().__init__()
        self.generation, self.places = generation, places


class LogMissing(Message):
    """There is no such log, or it cannot be read."""

    def __init__(self, generation: int, words: str, remedy: str) -> None:
        super().__init__()
        self.generation, self.words, self.remedy = generation, words, remedy


class CollectorFailed(Message):
    """The collector crashed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class LogRead(Message):
    """Lines of a foreign job's output, clean of control sequences."""

    def __init__(
        self, viewer: int, rank: int | None, lines: list[str], restarted: bool, partial: str = ""
    ) -> None:
        """`viewer` identifies the screen that they are for; `rank` is None for all output.

        `partial` is the unfinished line, such as a progress bar. `restarted` is whether these are
        the first lines of a different log, which replace those shown.
        """
        super().__init__()
        self.viewer, self.rank = viewer, rank
        self.lines, self.restarted, self.partial = lines, restarted, partial
