"""Prints the output of verbs: data to stdout, messages to stderr; without Rich (55 ms)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from ddptop_runner.base.units import NOT_AVAILABLE
from ddptop_runner.model.snapshot import encode
from ddptop_runner.store.log_clean import UNSAFE, is_safe, sanitize

COMPLETE_VARIABLE = "_DDPTOP_COMPLETE"
"""Set by click's completion scripts; click derives the same name from the program name."""


def info(text: str) -> None:
    """Print a message to stderr."""
    sys.stderr.write(f"{_printable(text)}\n")
    sys.stderr.flush()


def put(text: str) -> None:
    """Print data to stdout."""
    sys.stdout.write(f"{_printable(text)}\n")


def _printable(text: str) -> str:
    """The text without control characters, which exceptions and arguments may contain."""
    return text if is_safe(text) else sanitize(text)


def put_folded(text: str, indent: int) -> None:
    """Print data; on a terminal, wrap long lines with `indent` spaces before continuations."""
    cells = columns()
    if cells is not None:
        import textwrap

        fold = textwrap.TextWrapper(
            max(cells, indent + 20),
            subsequent_indent=" " * indent,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines = (line if len(line) <= cells else fold.fill(line) for line in text.split("\n"))
        text = "\n".join(lines)
    put(text)


def put_clipped(text: str) -> None:
    """Print data; on a terminal, clip long lines with an ellipsis."""
    cells = columns()
    if cells is not None:
        lines = text.split("\n")
        text = "\n".join(x if len(x) <= cells else f"{x[: cells - 1]}…" for x in lines)
    put(text)


def columns() -> int | None:
    """The terminal's width; None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None


def put_json(value: object) -> None:
    """Print one JSON object on one line, with control characters escaped."""
    text = encode(value).decode()
    sys.stdout.write((text if is_safe(text) else re.sub(UNSAFE, _escaped, text)) + "\n")


def _escaped(unsafe: re.Match[str]) -> str:
    units = unsafe[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Align columns with spaces; those whose index is in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    lines = []
    for row in [headers, *rows]:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def count(value: int | None) -> str:
    """A whole number, or n/a."""
    return NOT_AVAILABLE if value is None else str(value)


def is_terminal() -> bool:
    """Whether all standard streams are terminals: Textual reads stdin and draws on stderr."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
