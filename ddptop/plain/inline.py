"""A few lines that are drawn again in place, without Textual: for `ddptop status --watch`.

Where stdout is no terminal, or one that cannot move its cursor, each change is a new line.
"""

from __future__ import annotations

import os
import re
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from ddptop.plain.status_lines import Part, cells, fit
from ddptop_runner.store.log_clean import sanitize

GAP = "  "
_SGR = {"ok": "32", "warn": "33", "bad": "31", "strong": "1"}
_UP, _TO_END, _BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"
_SPACES = re.compile(r"\s+")


class Inline:
    """Lines at the bottom of what a terminal shows, or one line per change."""

    def __init__(self, out: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        terminal = out.isatty() and environ.get("TERM", "") not in ("", "dumb")
        self.redraws = terminal
        """Whether lines are drawn in place."""
        self._colours = terminal and not environ.get("NO_COLOR")
        self._out = out
        self._drawn: list[int] = []
        """Width in cells of each line on the screen."""
        self._said = ""

    def size(self) -> tuple[int, int]:
        """Columns and rows that there are."""
        try:
            found = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def show(self, lines: Sequence[Sequence[Part]]) -> None:
        """Put these lines in place of those before."""
        clean = [[(_plain(text), colour) for text, colour in parts] for parts in lines]
        if not self.redraws:
            self._say(" | ".join(GAP.join(text for text, _ in parts if text) for parts in clean))
            return
        columns, rows = self.size()
        # a line as wide as the terminal leaves the cursor where no two terminals agree
        fitted = [fit(parts, columns - 1, GAP) for parts in clean[: max(1, rows - 1)]]
        drawn = "".join(f"{self._painted(parts)}{_TO_END}\n" for parts in fitted)
        self._write(f"{self._to_first(columns, rows)}{drawn}{_BELOW}")
        self._drawn = [cells(GAP.join(text for text, _ in parts)) for parts in fitted]

    def _to_first(self, columns: int, rows: int) -> str:
        """A terminal that became narrower has folded what stood there into more rows."""
        high = sum(max(1, -(-width // columns)) for width in self._drawn)
        return f"\r{_UP.format(min(high, rows - 1))}" if high else "\r"

    def _painted(self, parts: Sequence[Part]) -> str:
        return GAP.join(
            f"\x1b[{_SGR[colour]}m{text}\x1b[0m" if self._colours and colour in _SGR else text
            for text, colour in parts
        )

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _plain(text: str) -> str:
    """On one line, and without what steers a terminal."""
    return _SPACES.sub(" ", sanitize(text)).strip()


@contextmanager
def quiet_keys(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Keys that are typed meanwhile are not echoed into the lines; ctrl+c works as ever."""
    try:
        fd = sys.stdin.fileno()
        mine = os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
        before = termios.tcgetattr(fd) if mine else None
    except (OSError, ValueError, termios.error):
        before = None
    if before is None:
        yield
        return
    silent = list(before)
    silent[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, silent)
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
