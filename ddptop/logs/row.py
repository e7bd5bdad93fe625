"""One line of a log as it is shown: its text, position, level, and rank."""

from __future__ import annotations

from typing import Literal

import msgspec

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
