"""Merge the lines of many ranks: identical ones become one, and each rank's order is kept."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddptop.logs.levels import WHOSE
from ddptop.logs.messages import GRAVITY, Level, LogRow

_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?|\b[IWEF]\d{3,4}\b"
)
_WHEN = re.compile(r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?")
_STEP = re.compile(r"(?i)\b(?:global[_ ]?)?(?:step|iter|iteration)\b[ :=#\[]{0,3}(\d{1,18})")
_RANKS = re.compile(
    r"(?i)\b((?:local[ _]?|global[ _]?)?rank|cuda|gpu|device|pid|worker)([ :=_]*)\d+"
)


def printed(text: str) -> str:
    """What a rank printed, without the prefix that names the rank."""
    if text[:1] != "[":
        return text
    found = WHOSE.match(text)
    return text[found.end() :] if found else text


def similar(text: str) -> str:
    """Normalize ranks, devices, pids, and times in a text."""
    return _RANKS.sub(r"\1\2#", _TIMES.sub("#", text))


def align(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Increasing pairs of indices of equal lines, like a diff.

    Lines that occur once in both are anchors; between them, each line is paired with the next equal
    one.
    """
    pairs: list[tuple[int, int]] = []
    edges = [(-1, -1), *_anchors(old, new), (len(old), len(new))]
    for (a, b), (a_end, b_end) in pairwise(edges):
        pairs += _forwards(old, new, (a + 1, a_end), (b + 1, b_end))
        pairs.append((a_end, b_end))
    return pairs[:-1]


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Lines that occur once in both, as the longest sequence that increases in both."""
    counts = Counter(new)
    shared = [(key, i) for i, key in enumerate(old) if key in counts]
    where, twice = dict(shared), Counter(key for key, _ in shared)
    found = [(where[key], j) for j, key in enumerate(new) if counts[key] == 1 and twice[key] == 1]
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (i, _) in enumerate(found):
        at = bisect_left(tails, i)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1], ends[at : at + 1] = [i], [index]
    chain: list[tuple[int, int]] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chain.append(found[index])
        index = before[index]
    return chain[::-1]


def _forwards(
    old: Sequence[str], new: Sequence[str], of_old: tuple[int, int], of_new: tuple[int, int]
) -> list[tuple[int, int]]:
    """Pairs of equal lines in these parts, each with the next one."""
    places: dict[str, list[int]] = {}
    wanted = set(new[slice(*of_new)])
    for i in range(*of_old) if wanted else ():
        if old[i] in wanted:
            places.setdefault(old[i], []).append(i)
    pairs: list[tuple[int, int]] = []
    a = of_old[0]
    for j in range(*of_new):
        known = places.get(new[j], [])
        at = bisect_left(known, a)
        if at < len(known):
            pairs.append((known[at], j))
            a = known[at] + 1
    return pairs


def when(text: str) -> str:
    """The time at the start of a line, in comparable form; empty without one."""
    found = _WHEN.match(text) if text[:1].isdigit() or text[:1] == "[" else None
    return "" if found is None else f"{found[1]} {found[2]}.{found[3] or ''}"


def step_of(text: str) -> str:
    """The step in a line, in comparable form; empty without one."""
    found = _STEP.search(text)
    return "" if found is None else found[1].zfill(18)


@dataclass(slots=True)
class MergedRow:
    """A line with the ranks that printed it."""

    number: int
    """Identifies the row while it is kept."""
    key: str
    text: str
    ranks: dict[int, str]
    """By rank, what it printed if that differs from `text`."""
    level: Level = ""
    inside: bool = False
    when: str = ""
    """The time at its start, if any, in comparable form."""
    step: str = ""
    """The step in it, if any, padded for comparison."""
    is_note: bool = False
    """Whether it is a placeholder for missing lines, not output."""
    shown: LogRow | None = None
    """Cached for drawing; None after each change."""


def woven(old: Sequence[MergedRow], new: Sequence[MergedRow]) -> list[MergedRow]:
    """Interleave both by their times, or else their steps, or else `new` after `old`."""
    if not old or not new or not (new[0].when or new[0].step):
        return [*old, *new]
    by_time = bool(new[0].when)
    places = [row.when if by_time else row.step for row in new]
    woven_rows: list[MergedRow] = []
    at = 0
    for row in old:
        place = row.when if by_time else row.step
        while place and at < len(new) and places[at] < place:
            woven_rows.append(new[at])
            at += 1
            while at < len(new) and not places[at]:  # continues the line before
                woven_rows.append(new[at])
                at += 1
        woven_rows.append(row)
    return [*woven_rows, *new[at:]]


class Merger:
    """Merges the lines of ranks as they arrive.

    Args:
        alike: whether to merge lines that differ only in ranks, devices, pids, and times.
        most: maximum number of rows; beyond that, the oldest are dropped.
    """

    def __init__(self, *, alike: bool = False, most: int = 64_000) -> None:
        self.rows: list[MergedRow] = []
        """In order, which for each rank is that of printing."""
        self.number = 0
        """The number of the latest row."""
        self._alike = alike
        self._most = most
        self._last: dict[int, int] = {}
        """By rank, the number of its last row."""

    def add(
        self, rank: int, lines: Sequence[LogRow], *, is_late: bool = False, old: int = 0
    ) -> None:
        """Add the next lines of a rank.

        Args:
            rank: the rank.
            lines: the lines.
            is_late: whether all other rows were printed before.
            old: rows up to this number were printed too long ago to merge with these lines.
        """
        texts = [printed(line.text) for line in lines]
        keys = [similar(text) for text in texts] if self._alike else texts
        start = self._after(rank, old)
        rest = self.rows[start:]
        matched = {j: i for i, j in align([row.key for row in rest], keys)}
        merged: list[MergedRow] = []
        tail: list[MergedRow] = []
        taken = 0
        for j, line in enumerate(lines):
            i = matched.get(j)
            if i is None:
                tail.append(self._row(keys[j], texts[j], rank, line))
                continue
            row = rest[i]
            merged += [*woven(rest[taken:i], tail), row]
            taken, tail = i + 1, []
            row.shown = None
            row.ranks[rank] = "" if row.text == texts[j] else texts[j]
            if GRAVITY[line.level] > GRAVITY[row.level]:
                row.level, row.inside = line.level, line.inside
            self._last[rank] = row.number
        if tail:
            has_order = any(row.when or row.step for row in tail)
            behind = len(rest) if is_late or has_order else taken
            merged += woven(rest[taken:behind], tail)
            taken = behind
            self._last[rank] = tail[-1].number
        self.rows[start:] = [*merged, *rest[taken:]]
        if len(self.rows) > self._most + self._most // 8:
            del self.rows[: len(self.rows) - self._most]

    def _row(self, key: str, text: str, rank: int, line: LogRow) -> MergedRow:
        self.number += 1
        level, inside = line.level, line.inside
        found = (level, inside, when(text), step_of(text), line.is_note)
        return MergedRow(self.number, key, text, {rank: ""}, *found)

    def _after(self, rank: int, old: int) -> int:
        """The index after the rank's last row and all old ones."""
        number = self._last.get(rank, 0)
        if number == 0 and old == 0:
            return 0
        for index in range(len(self.rows) - 1, -1, -1):
            if (found := self.rows[index].number) == number or found <= old:
                return index + 1
        return 0
