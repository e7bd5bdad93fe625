"""Text about a log: its title, the other logs, why it is empty, and details of one line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddptop.job.keys import key, with_keys
from ddptop.logs.messages import Level, LogRow
from ddptop.style import Line, Span, line, rule, width
from ddptop_runner.base import units
from ddptop_runner.base.paths import LAUNCHER

MOST_NAMED = 24
"""Maximum number of ranks to name individually."""

LEVEL_WORDS: dict[Level, str] = {
    "": "all lines",
    "warn": "warnings and errors",
    "error": "errors",
}


class HeadFacts(msgspec.Struct, frozen=True):
    """Facts about the log on display."""

    whose: int | None = None
    ranks: tuple[int, ...] = ()
    has_launcher: bool = False
    launcher: str = "the launcher"
    is_merged: bool = False
    attempts: tuple[int, ...] = ()
    attempt: int | None = None
    least: Level = ""
    alike: bool = False
    each: bool = False
    limit: int = 0
    """For merged lines, how many last lines of each rank were read."""
    size_bytes: int | None = None
    following: bool = True
    held: bool = False
    is_live: bool = True
    output: str | None = None
    """For a foreign job, where its output goes."""


def whose_words(facts: HeadFacts, *, brief: bool = False) -> str:
    """The ranks of these lines; if brief, without how lines of many ranks are merged."""
    if facts.whose == LAUNCHER or (facts.whose is None and not facts.is_merged):
        return (
            f"everything {facts.launcher} printed" if facts.has_launcher else "everything printed"
        )
    if facts.whose is not None:
        return f"rank {facts.whose}"
    if brief:
        return units.plural(len(facts.ranks), "rank") if facts.ranks else "all ranks"
    how = (
        "every line"
        if facts.each
        else "similar lines collapsed"
        if facts.alike
        else "identical lines collapsed"
    )
    return (
        f"{units.plural(len(facts.ranks), 'rank')}, {how}" if facts.ranks else f"all ranks, {how}"
    )


def state_words(facts: HeadFacts) -> Span:
    """Whether new lines are shown as they arrive."""
    if facts.following:
        return ("following", "ok") if facts.is_live else ("end", "dim")
    end = key("move.last")
    return (f"not following ({end}: end)" if facts.is_live else f"press {end} for the end", "dim")


def head_rule(facts: HeadFacts, cells: int) -> Line:
    """The title's row."""
    parts: list[tuple[int, Span]] = []  # with the order in which they give way
    if facts.output is not None:
        parts.append((3, (facts.output, "dim")))
    elif len(facts.attempts) > 1:
        latest = facts.attempts[-1]
        is_latest = facts.attempt == latest
        words = f"attempt {facts.attempt} ({'latest' if is_latest else f'latest: {latest}'})"
        parts.append((2, (words, "" if is_latest else "busy")))
    elif facts.attempt is not None:
        parts.append((2, (f"attempt {facts.attempt}", "dim")))
    if facts.is_merged and facts.limit:
        parts.append((4, (f"last {facts.limit:,} lines per rank", "dim")))
    if facts.least:
        parts.append((0, (f"{LEVEL_WORDS[facts.least]} only", "busy")))
    if facts.size_bytes is not None:
        parts.append((5, (units.size(facts.size_bytes), "dim")))
    parts.append((1, state_words(facts)))
    what = "log:" if facts.output is None else "output:"
    title = f"{what} {whose_words(facts)}"
    needed = width(_joined([span for place, span in parts if place <= 1]))
    if needed > cells - len(title) - 12:
        title = f"{what} {whose_words(facts, brief=True)}"
    room = cells - len(title) - 12
    while len(parts) > 1 and width(_joined([span for _, span in parts])) > room:
        parts.remove(max(parts))
    return rule(title, cells, _joined([span for _, span in parts]))


def _joined(parts: Sequence[Span]) -> Line:
    spans: list[Span] = []
    for part in parts:
        if spans:
            spans.append((" · ", "faint"))
        spans.append(part)
    return tuple(spans)


class Choice(msgspec.Struct, frozen=True):
    """A clickable span in the row of choices."""

    action: str
    spans: Line


def choices(facts: HeadFacts, cells: int) -> list[Choice]:
    """The available logs, as many as fit, with the present one marked."""
    found: list[Choice] = []

    def offer(text: str, action: str, chosen: bool) -> None:
        mark = ("▸", "busy") if chosen else (" ", "")
        found.append(Choice(action, line(mark, (text, "strong" if chosen else "dim"), " ")))

    found.append(Choice("", line((" ranks", "dim"))))
    is_all = facts.whose is None
    offer("all", "show('all')", is_all)
    if facts.has_launcher and facts.is_merged | (not is_all) and facts.ranks:
        offer("launcher", f"show('{LAUNCHER}')", facts.whose == LAUNCHER)
    if len(facts.ranks) <= MOST_NAMED:
        for rank in facts.ranks:
            offer(str(rank), f"show('{rank}')", facts.whose == rank)
    elif facts.whose is None or facts.whose == LAUNCHER:
        found.append(Choice("", line((f" {units.ranks(list(facts.ranks))} ", "dim"))))
    else:
        offer(f"{facts.whose} of {len(facts.ranks):,}", "", True)
    if len(facts.attempts) > 1:
        found.append(Choice("", line(("   attempt", "dim"))))
        for attempt in facts.attempts[-9:]:
            offer(str(attempt), f"show_attempt({attempt})", facts.attempt == attempt)
    kept: list[Choice] = []
    used = 0
    for one in found:
        used += width(one.spans)
        if used > cells:
            break
        kept.append(one)
    return kept


def empty_lines(
    least: Level,
    *,
    looked: float | None = None,
    size_bytes: int = 0,
    is_live: bool = True,
    output: str | None = None,
    others: str = "",
) -> list[Line]:
    """The text in place of lines if there are none, and what to do.

    Args:
        least: the filter.
        looked: the fraction searched so far; None for all.
        size_bytes: size of the log.
        is_live: whether there may be more.
        output: for a foreign job, where its output goes.
        others: from `other_logs`.
    """
    if looked is not None:
        text = f"searching for {LEVEL_WORDS[least]}: {looked:.0%} of {units.size(size_bytes)}"
        return _message(text, f"press {key('log.level')} to show all lines")
    if least:
        none = LEVEL_WORDS[least].replace(" and", " or")
        return _message(f"no {none} in this log", f"press {key('log.level')} to show all lines")
    if output is not None:
        return _message(
            f"no output read yet; the output goes to {output}",
            "ddptop can read files and terminals; ddptop launch saves a log for every rank",
        )
    if is_live:
        return _message("no output yet", "new lines appear here automatically")
    return _message("no output", others)


def other_logs(*, attempts: bool) -> str:
    """How to switch to other logs of the job and, with `attempts`, of other attempts."""
    ranks = with_keys("press {rank.previous} or {rank.next} for another rank")
    more = with_keys(", {log.older} or {log.newer} for another attempt")
    return ranks + more if attempts else ranks


def _message(words: str, remedy: str) -> list[Line]:
    return [line("  ", (words, "strong")), line("  ", (remedy, "dim"))]


_LEVELS = {
    "": "none: the text does not look like a warning or an error",
    "warn": "a warning, judging by its text",
    "error": "an error, judging by its text",
}


def about_line(
    row: LogRow, whose: int | None, attempt: int | None, bounds: tuple[int, int] | None
) -> list[tuple[str, str]]:
    """Headings and texts.

    Args:
        row: the line.
        whose: the rank of the log, `model.LAUNCHER`, or None for all.
        attempt: its number; None if unknown.
        bounds: offsets of the log's start and end; None for lines in memory.
    """
    if row.is_note:
        return [("this line", "a placeholder for missing lines; not part of the output")]
    if row.label == "launcher" or (whose == LAUNCHER and not row.label):
        who = "the launcher, or a rank whose output it forwards"
    elif row.label:
        ranks = row.label.rstrip("~")
        who = f"ranks {ranks}" if ranks != row.label or not ranks.isdigit() else f"rank {ranks}"
    else:
        who = "one of the job's processes" if whose is None else f"rank {whose}"
    place = "" if attempt is None else f", attempt {attempt}"
    if bounds is not None:
        size = units.size(bounds[1] - bounds[0])
        place += f", at byte {row.at:,} of {size}"
    level = _LEVELS[row.level]
    if row.inside:
        level = f"{level}; continues a message that starts above"
    texts = [("this line", f"printed by {who}{place}"), ("level", level)]
    if row.label.endswith("~"):
        texts.append(
            (
                "~",
                "these ranks printed similar lines that differ in rank numbers or "
                f"times; press {key('log.alike')} to show each separately",
            )
        )
    elif "-" in row.label or "," in row.label:
        texts.append(
            (
                row.label,
                f"these ranks printed identical lines; press {key('log.alike')} to show each "
                "separately",
            )
        )
    return texts
