"""Lines of logs in terminal cells: sanitized, cut, wrapped, labeled, and with matches marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from rich.cells import chop_cells, get_character_cell_size

from ddptop.job.keys import key, with_keys
from ddptop.logs.messages import Level, LogRow
from ddptop.style import ELLIPSIS, Line, Span, cells_of, fill, line, pad, rule, width
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER

if TYPE_CHECKING:
    from ddptop.logs.search import LogPattern


TAB_CELLS = 8
MAX_MARKS_PER_CHAR = 3
"""Maximum number of combining marks per character; more would run into the lines above."""

_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
# Characters without a width, or that change the width of others or the direction of text.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    """Replace tabs with spaces and remove everything that a terminal would interpret.

    Each remaining character takes one cell, two, or, as a combining mark, none.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _UNSEEN.sub("", _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text))
    if text.isascii():
        return text.expandtabs(TAB_CELLS)
    out: list[str] = []
    cells = marks = 0
    for char in text:
        if char == "\t":
            space = TAB_CELLS - cells % TAB_CELLS
            out.append(" " * space)
            cells, marks = cells + space, 0
            continue
        size = get_character_cell_size(char)
        if size == 0:
            marks += 1
            if not cells or marks > MAX_MARKS_PER_CHAR:
                continue
        else:
            cells, marks = cells + size, 0
        out.append(char)
    return "".join(out)


def chars_within(text: str, cells: int) -> int:
    """How many characters of a safe text fit in so many cells."""
    if text.isascii():
        return min(cells, len(text))
    used = 0
    for index, char in enumerate(text):
        used += get_character_cell_size(char)
        if used > cells:
            return index
    return len(text)


def wrapped(text: str, cells: int) -> list[tuple[int, int]]:
    """Split a safe text into (start, end) parts of at most `cells`; at least one part."""
    if cells < 2:
        return [(0, len(text))]
    ends = accumulate(map(len, chop_cells(text, cells)))
    return [*pairwise([0, *ends])] or [(0, 0)]


def marked(text: str, start: int, end: int, style: str, found: Sequence[tuple[int, int]]) -> Line:
    """`text[start:end]` in `style`, with matches highlighted."""
    spans: list[Span] = []
    at = start
    for first, last in found:
        first, last = max(first, at), min(last, end)
        if first >= last:
            continue
        if first > at:
            spans.append((text[at:first], style))
        spans.append((text[first:last], "match"))
        at = last
    if at < end:
        spans.append((text[at:end], style))
    return tuple(spans)


MARK_CELLS = 2
MOST_LABEL_CELLS = 16
_MARKS: dict[Level, Span] = {"": ("  ", ""), "warn": ("▲ ", "warn"), "error": ("✗ ", "bad")}
_INSIDE: dict[Level, Span] = {"": ("  ", ""), "warn": ("┆ ", "warn"), "error": ("┆ ", "bad")}
_STYLES: dict[Level, str] = {"": "", "warn": "warn", "error": "bad"}


class Shape(msgspec.Struct, frozen=True):
    """The safe text of a line and its division into screen rows."""

    text: str
    parts: tuple[tuple[int, int], ...]


def shape_of(row: LogRow, cells: int, *, wrap: bool) -> Shape:
    """The layout of a line with `cells` for its text."""
    text = safe(row.text)
    return Shape(text, tuple(wrapped(text, cells)) if wrap else ((0, len(text)),))


def text_cells(width: int, label_cells: int) -> int:
    """Cells that remain for the text next to mark and label."""
    return max(1, width - MARK_CELLS - (label_cells + 3 if label_cells else 0))


def row_line(
    row: LogRow,
    shape: Shape,
    part: int,
    width: int,
    label_cells: int,
    *,
    shift: int | None = None,
    pattern: LogPattern | None = None,
    is_open: bool = False,
) -> Line:
    """One row of the screen.

    Args:
        row: the line.
        shape: its layout.
        part: index of its part.
        width: width of the row, in cells.
        label_cells: width of the label; 0 for none.
        shift: the first cell to show; None if lines are wrapped.
        pattern: what to highlight.
        is_open: whether the line is unfinished.
    """
    start, end = shape.parts[part]
    found = pattern.places(shape.text) if pattern is not None and not row.is_note else []
    style = "dim" if row.is_note or is_open else "" if row.inside else _STYLES[row.level]
    mark = (_INSIDE if row.inside or part else _MARKS)[row.level]
    spans: list[Span] = [("▸ ", "busy") if is_open and not part else mark]
    if label_cells:
        label = row.label if part == 0 else ""
        spans += [(pad(label, label_cells, ">"), "dim"), (" │ ", "faint")]
    if shift is None:
        return (*spans, *marked(shape.text, start, end, style, found))
    cells = text_cells(width, label_cells)
    start = chars_within(shape.text, shift)
    end = start + chars_within(shape.text[start:], cells)
    if end == len(shape.text):
        return (*spans, *marked(shape.text, start, end, style, found))
    end = start + chars_within(shape.text[start:], cells - 1)
    return (*spans, *marked(shape.text, start, end, style, found), (ELLIPSIS, "busy"))


def label_width(rows: list[LogRow]) -> int:
    """Width of the labels of these lines, in cells."""
    return min(MOST_LABEL_CELLS, max((cells_of(row.label) for row in rows), default=0))


def thumb(height: int, share_before: float, share_shown: float) -> tuple[int, int]:
    """(start, end) of a scroll bar's thumb, in cells."""
    size = max(1, min(height, round(height * share_shown)))
    start = round((height - size) * max(0.0, min(1.0, share_before / max(1e-9, 1 - share_shown))))
    return start, start + size


MOST_NAMED = 24
"""Maximum number of ranks to name individually."""
MOST_ATTEMPTS = 9

LEVEL_WORDS: dict[Level, str] = {"": "all lines", "warn": "warnings and errors", "error": "errors"}


class LogHeading(msgspec.Struct, frozen=True):
    """What the heading names."""

    kind: str = "log"
    whose: int | None = None
    """A rank, or None for all."""
    ranks: tuple[int, ...] = ()
    launcher: str | None = None
    """The program whose whole output is shown."""
    attempts: tuple[int, ...] = ()
    attempt: int = 0
    notes: tuple[Span, ...] = ()
    """The most important first."""


def title_line(heading: LogHeading, cells: int) -> Line:
    """Whose log it is, and as many notes as fit."""
    if heading.launcher is not None:
        whose = f"everything {heading.launcher} printed"
    elif heading.whose is not None:
        whose = f"rank {heading.whose}"
    else:
        whose = units.plural(len(heading.ranks), "rank") if heading.ranks else "all ranks"
    title = f"{heading.kind}: {whose}"
    notes = fill([(note,) for note in heading.notes], cells - len(title) - 12, " · ")
    return rule(title, cells, notes)


Choice: TypeAlias = tuple[str, Line]
"""An action, if any, and the text to click."""


def choices(heading: LogHeading, cells: int) -> list[Choice]:
    """The row of available logs, as many as fit, with the present one marked."""
    whose, ranks = heading.whose, heading.ranks
    found = [("", line((" ranks ", "dim"))), _choice("all", "show('all')", whose is None)]
    if len(ranks) <= MOST_NAMED:
        found += [_choice(str(rank), f"show('{rank}')", whose == rank) for rank in ranks]
    else:
        found.append(("", line((f" {units.ranks(list(ranks))} ", "dim"))))
    if len(heading.attempts) > 1:
        found.append(("", line(("   attempt ", "dim"))))
        found += [
            _choice(str(attempt), f"show_attempt({attempt})", heading.attempt == attempt)
            for attempt in heading.attempts[-MOST_ATTEMPTS:]
        ]
    kept: list[Choice] = []
    used = 0
    for one in found:
        used += width(one[1])
        if used <= cells:
            kept.append(one)
    return kept


def _choice(text: str, action: str, chosen: bool) -> Choice:
    mark = ("▸", "busy") if chosen else (" ", "")
    return action, line(mark, (text, "strong" if chosen else "dim"), " ")


def empty_lines(words: str, remedy: str) -> list[Line]:
    """The text in place of lines if there are none, and what to do."""
    return [line("  ", (words, "strong")), line("  ", (remedy, "dim"))]


def other_logs(*, attempts: bool) -> str:
    """How to switch to other logs of the job and, with `attempts`, of other attempts."""
    ranks = with_keys("press {rank.previous} or {rank.next} for another rank")
    more = with_keys(", {log.older} or {log.newer} for another attempt")
    return ranks + more if attempts else ranks


def line_help(row: LogRow, whose: int | None, attempt: int | None) -> list[tuple[str, str]]:
    """Headings and texts about a line in the log of a rank, of the launcher, or of all (None)."""
    if row.is_note:
        return [("this line", "a placeholder for missing lines; not part of the output")]
    if row.label:
        who = f"rank {row.label}" if row.label.isdigit() else f"ranks {row.label.rstrip('~')}"
    elif whose == LAUNCHER:
        who = "the launcher, or a rank whose output it forwards"
    else:
        who = "one of the job's processes" if whose is None else f"rank {whose}"
    place = "" if attempt is None else f", attempt {attempt}"
    level = {"": "", "warn": "; looks like a warning", "error": "; looks like an error"}[row.level]
    texts = [("this line", f"printed by {who}{place}{level}")]
    if row.label.endswith("~"):
        words = "lines that differ only in rank numbers or times are shown as one"
        texts.append(("~", f"{words}; {key('log.alike')} shows each"))
    return texts
