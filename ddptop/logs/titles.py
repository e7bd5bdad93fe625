"""Text about a log: its title, the other logs, why it is empty, and details of one line."""

from __future__ import annotations

import msgspec

from ddptop.job.keys import key, with_keys
from ddptop.logs.messages import Level, LogRow
from ddptop.style import Line, Span, fill, line, rule, width
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER

MOST_NAMED = 24
"""Maximum number of ranks to name individually."""
MOST_ATTEMPTS = 9

LEVEL_WORDS: dict[Level, str] = {
    "": "all lines",
    "warn": "warnings and errors",
    "error": "errors",
}


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


class Choice(msgspec.Struct, frozen=True):
    """A clickable span in the row of choices."""

    action: str
    spans: Line


def choices(heading: LogHeading, cells: int) -> list[Choice]:
    """The available logs, as many as fit, with the present one marked."""
    whose, ranks = heading.whose, heading.ranks
    found = [Choice("", line((" ranks ", "dim"))), _choice("all", "show('all')", whose is None)]
    if len(ranks) <= MOST_NAMED:
        found += [_choice(str(rank), f"show('{rank}')", whose == rank) for rank in ranks]
    else:
        found.append(Choice("", line((f" {units.ranks(list(ranks))} ", "dim"))))
    if len(heading.attempts) > 1:
        found.append(Choice("", line(("   attempt ", "dim"))))
        found += [
            _choice(str(attempt), f"show_attempt({attempt})", heading.attempt == attempt)
            for attempt in heading.attempts[-MOST_ATTEMPTS:]
        ]
    kept: list[Choice] = []
    used = 0
    for one in found:
        used += width(one.spans)
        if used <= cells:
            kept.append(one)
    return kept


def _choice(text: str, action: str, chosen: bool) -> Choice:
    mark = ("▸", "busy") if chosen else (" ", "")
    return Choice(action, line(mark, (text, "strong" if chosen else "dim"), " "))


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
