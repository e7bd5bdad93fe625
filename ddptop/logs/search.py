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
SLOW_S = 0.2
"""Python cannot interrupt a regex, and nothing is drawn meanwhile: one that needs more CPU time
than this for a line is given up."""
MAX_OPTIONAL = 8
MAX_CHARS = (MAX_MARKED_CHARS, 2000, 500, 200)
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
    needle: str | None = None
    """Plain text to search for, in lowercase if case is ignored; None for a regex."""
    max_chars: int = MAX_MARKED_CHARS
    """How much of a line a regex searches."""
    is_slow: bool = False
    """Whether it was given up."""

    def finds(self, text: str) -> bool:
        """Whether it matches in a line."""
        if self.needle is not None:
            return self.needle in (text.lower() if self.regex.flags & re.IGNORECASE else text)
        return bool(self._spans(text, 1))

    def places(self, text: str) -> list[tuple[int, int]]:
        """The matches in a line, as (start, end)."""
        return [span for span in self._spans(text, MAX_MARKS) if span[0] < span[1]]

    def _spans(self, text: str, most: int) -> list[tuple[int, int]]:
        if self.is_slow:
            return []
        began_s = time.thread_time()
        matches = islice(self.regex.finditer(text, 0, self.max_chars), most)
        found = [match.span() for match in matches]
        self.is_slow = time.thread_time() - began_s > SLOW_S
        return found

    def may_be_in(self, data: bytes) -> bool:
        """Whether it may match in any of many lines; fast."""
        text = _SEQUENCE.sub("", data.decode("utf-8", "replace")).replace("\r", "\n")
        if "\b" in text:
            return True
        lines = [text] if self.needle is not None else text.split("\n")
        return any(map(self.finds, lines))


def pattern_of(text: str) -> LogPattern:
    """Compile what the user typed.

    Case matters if there is an uppercase letter. An invalid regex, or one that could take forever,
    is searched for as plain text.
    """
    is_cased = any(char.isupper() for char in _ESCAPED.sub("", text))
    flags = 0 if is_cased else re.IGNORECASE
    case = ["case-sensitive"] if is_cased else []
    plain = re.compile(re.escape(text), flags)
    needle = text if is_cased else text.lower()
    if not _SPECIAL.search(text):
        return LogPattern(plain, ", ".join(case), needle)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            regex = re.compile(text, flags)
    except (re.error, RecursionError, OverflowError, Warning):
        note = "invalid regex; matching literally"
        return LogPattern(plain, ", ".join((note, *case)), needle)
    atoms = _SOMETHING.sub("x", _ANYTHING.sub(".", text))
    if _ENDLESS.search(atoms) or atoms.count("?") > MAX_OPTIONAL:
        note = "regex is too slow; matching literally"
        return LogPattern(plain, ", ".join((note, *case)), needle)
    repeated = len(_REPEATED.findall(atoms))
    max_chars = MAX_CHARS[min(repeated, len(MAX_CHARS) - 1)]
    part = [f"only the first {max_chars} characters of each line"] if repeated else []
    return LogPattern(regex, ", ".join(("regex", *part, *case)), None, max_chars)
