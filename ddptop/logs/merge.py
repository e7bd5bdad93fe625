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

    Lines that occur once in both are anchors, between which the same is repeated.
    """
    pairs: list[tuple[int, int]] = []
    work = [(0, len(old), 0, len(new))]
    while work:
        a, a_end, b, b_end = work.pop()
        while a < a_end and b < b_end and old[a] == new[b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
        while a < a_end and b < b_end and old[a_end - 1] == new[b_end - 1]:
            a_end, b_end = a_end - 1, b_end - 1
            pairs.append((a_end, b_end))
        if a == a_end or b == b_end:
            continue
        anchors = _anchors(old, new, a, a_end, b, b_end)
        if anchors is None:
            continue
        if anchors:
            pairs += anchors
            edges = [(a - 1, b - 1), *anchors, (a_end, b_end)]
            work += [
                (left[0] + 1, right[0], left[1] + 1, right[1]) for left, right in pairwise(edges)
            ]
        else:
            pairs += _forwards(old, new, a, a_end, b, b_end)
    return sorted(pairs)


def _anchors(
    old: Sequence[str], new: Sequence[str], a: int, a_end: int, b: int, b_end: int
) -> list[tuple[int, int]] | None:
    """Lines that occur once in both parts, as the longest sequence that increases in both.

    None if the parts have no line in common.
    """
    new_counts = Counter(new[b:b_end])
    where: dict[str, int] = {}
    twice: set[str] = set()
    for i in range(a, a_end):
        if (key := old[i]) in new_counts:
            if key in where:
                twice.add(key)
            where[key] = i
    if not where:
        return None
    found = [
        (where[key], j)
        for j in range(b, b_end)
        if (key := new[j]) in where and new_counts[key] == 1 and key not in twice
    ]
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (i, _) in enumerate(found):
        at = bisect_left(tails, i)
        before.append(ends[at - 1] if at else -1)
        if at == len(tails):
            tails.append(i)
            ends.append(index)
        else:
            tails[at], ends[at] = i, index
    chain: list[tuple[int, int]] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chain.append(found[index])
        index = before[index]
    return chain[::-1]


def _forwards(
    old: Sequence[str], new: Sequence[str], a: int, a_end: int, b: int, b_end: int
) -> list[tuple[int, int]]:
    places: dict[str, list[int]] = {}
    for i in range(a, a_end):
        places.setdefault(old[i], []).append(i)
    pairs: list[tuple[int, int]] = []
    for j in range(b, b_end):
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
