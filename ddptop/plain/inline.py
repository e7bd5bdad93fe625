"""Lines updated in place without Textual, for `ddptop status --watch`.

If stdout is not a terminal, or one that cannot move its cursor, each change is a new line.
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
    """Lines at the bottom of the terminal, or one line per change."""

    def __init__(self, out: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        terminal = out.isatty() and environ.get("TERM", "") not in ("", "dumb")
        self.redraws = terminal
        """Whether lines are drawn in place."""
        self._colors = terminal and not environ.get("NO_COLOR")
        self._out = out
        self._drawn: list[int] = []
        """Width in cells of each line on the screen."""
        self._last_line = ""

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        try:
            found = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def show(self, lines: Sequence[Sequence[Part]]) -> None:
        """Replace the previous lines."""
        clean = [[(_plain(text), color) for text, color in parts] for parts in lines]
        if not self.redraws:
            self._print_line(
                " | ".join(GAP.join(text for text, _ in parts if text) for parts in clean)
            )
            return
        columns, rows = self.size()
        # after a line as wide as the terminal, the cursor position differs between terminals
        fitted = [fit(parts, columns - 1, GAP) for parts in clean[: max(1, rows - 1)]]
        drawn = "".join(f"{self._painted(parts)}{_TO_END}\n" for parts in fitted)
        self._write(f"{self._to_first(columns, rows)}{drawn}{_BELOW}")
        self._drawn = [cells(GAP.join(text for text, _ in parts)) for parts in fitted]

    def _to_first(self, columns: int, rows: int) -> str:
        """Move to the first line; if the terminal became narrower, it has wrapped the lines."""
        high = sum(max(1, -(-width // columns)) for width in self._drawn)
        return f"\r{_UP.format(min(high, rows - 1))}" if high else "\r"

    def _painted(self, parts: Sequence[Part]) -> str:
        return GAP.join(
            f"\x1b[{_SGR[color]}m{text}\x1b[0m" if self._colors and color in _SGR else text
            for text, color in parts
        )

    def _print_line(self, text: str) -> None:
        if text != self._last_line:
            self._last_line = text
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _plain(text: str) -> str:
    """The text on one line, without control characters."""
    return _SPACES.sub(" ", sanitize(text)).strip()


@contextmanager
def quiet_keys(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Turn off echo, so that typed keys do not garble the lines; ctrl+c still works."""
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
