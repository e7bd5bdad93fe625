"""Search patterns for logs: text or a regex; lowercase ignores case."""

from __future__ import annotations

import re
import time
import warnings
from itertools import islice

import msgspec

MAX_MARKS = 200
"""Maximum number of matches highlighted in one line."""
MAX_MARKED_CHARS = 4000
"""Matches beyond this position in a line are found but not highlighted."""
SLOW_S = 0.5
"""Python cannot interrupt a regex, and nothing is drawn meanwhile: one that needs longer than this
for a line is given up."""
MAX_OPTIONAL = 8
MAX_CHARS = (2000, 500, 200)
"""How much of a line to search, by the number of repetitions in the regex."""

_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_ESCAPED = re.compile(r"\\.")
_SEQUENCE = re.compile("\x1b\\[[ -?]*[@-~]")
_ANYTHING = re.compile(r"\\[wWSD]|\[\^\]?(?:\\.|[^\]])*\]")
_SOMETHING = re.compile(r"\\[^1-9]|\[\]?(?:\\.|[^\]])*\]")
_REPEATED = re.compile(r"[*+]|\{\d*,?\d*\}")
_ENDLESS = re.compile(r"\)[*+{]|\\[1-9]|\(\?\(|(?:.[*+][?+]?){3}")
"""A repeated group, a backreference, a condition, or three repetitions in a row."""


class LogPattern(msgspec.Struct):
    """A compiled search pattern."""

    regex: re.Pattern[str]
    note: str = ""
    """How it was interpreted, unless that is obvious."""
    ignores_case: bool = False
    """Whether to search lowercase text, which is much faster than `re.IGNORECASE`."""
    max_chars: int | None = None
    """How much of a line to search; None for all, as nothing is repeated."""
    needle: str | None = None
    """The text to search for, if it is no regex."""
    is_slow: bool = False
    """Whether it was given up."""

    def finds(self, text: str) -> bool:
        """Whether it matches in a line."""
        if self.needle is not None:
            return self.needle in (text.lower() if self.ignores_case else text)
        return bool(self._spans(text, self.max_chars, 1))

    def places(self, text: str) -> list[tuple[int, int]]:
        """The matches in a line, as (start, end)."""
        spans = self._spans(text, self.max_chars or MAX_MARKED_CHARS, MAX_MARKS)
        return [(start, end) for start, end in spans if start < end]

    def _spans(self, text: str, max_chars: int | None, most: int) -> list[tuple[int, int]]:
        if self.is_slow:
            return []
        text = (text.lower() if self.ignores_case else text)[:max_chars]
        began_s = time.thread_time()
        first = self.regex.search(text)
        if first is None or most == 1:
            found = [] if first is None else [first.span()]
        else:
            found = [match.span() for match in islice(self.regex.finditer(text), most)]
        self.is_slow = time.thread_time() - began_s > SLOW_S
        return found

    def may_be_in(self, data: bytes) -> bool:
        """Whether it may match in any of many lines; fast."""
        text = _SEQUENCE.sub("", data.decode("utf-8", "replace")).replace("\r", "\n")
        if "\b" in text:
            return True
        lines = [text] if self.max_chars is None else text.split("\n")
        return any(map(self.finds, lines))


def pattern_of(text: str) -> LogPattern:
    """Compile what the user typed.

    Case matters if there is an uppercase letter. An invalid regex, or one that could take forever,
    is searched for as plain text.
    """
    is_cased = any(char.isupper() for char in _ESCAPED.sub("", text))
    note = ["case-sensitive"] if is_cased else []
    max_chars = None
    needle = text if is_cased else text.lower()
    regex = re.compile(re.escape(needle))
    if _SPECIAL.search(text):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = re.compile(text, re.MULTILINE)
        except (re.error, RecursionError, OverflowError, Warning):
            note.insert(0, "invalid regex; matching literally")
        else:
            atoms = _SOMETHING.sub("x", _ANYTHING.sub(".", text))
            repeated = len(_REPEATED.findall(atoms))
            if _ENDLESS.search(atoms) or atoms.count("?") > MAX_OPTIONAL:
                note.insert(0, "regex is too slow; matching literally")
            else:
                note.insert(0, "regex")
                regex = found
                max_chars = MAX_CHARS[min(repeated, len(MAX_CHARS)) - 1] if repeated else None
    is_regex = note[:1] == ["regex"]
    return LogPattern(regex, ", ".join(note), not is_cased, max_chars, None if is_regex else needle)
