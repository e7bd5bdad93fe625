"""Search patterns for logs: text or a regex; lowercase ignores case.

Some patterns practically never finish on text without a match. Python cannot interrupt a match, and
nothing is drawn meanwhile. `max_chars` therefore checks a pattern in advance: patterns that can
branch at each character repeatedly are refused, and each repetition of arbitrary characters reduces
the part of a line that is searched.
"""

from __future__ import annotations

import re
import warnings

import msgspec

MAX_MARKS = 200
"""Maximum number of matches highlighted in one line."""
MAX_MARKED_CHARS = 4000
"""Matches beyond this position in a line are found but not highlighted."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_ESCAPED = re.compile(r"\\.")
_SEQUENCE = re.compile("\x1b\\[[ -?]*[@-~]")
_REDRAWN = re.compile("[^\n]*\r(?=[^\n])")


class LogPattern(msgspec.Struct, frozen=True):
    """A compiled search pattern."""

    text: str
    regex: re.Pattern[str]
    note: str = ""
    """How it was interpreted, unless that is obvious."""
    needle: str | None = None
    """Plain text to search for, in lowercase if case is ignored; None for a regex."""

    small: re.Pattern[str] | None = None
    """The regex for lowercase text, if case is ignored; faster than `regex`."""

    max_chars: int | None = None
    """Number of characters of a line to search; None for all, and many lines at once."""

    @property
    def ignores_case(self) -> bool:
        """Whether case is ignored."""
        return bool(self.regex.flags & re.IGNORECASE)

    def finds(self, text: str) -> bool:
        """Whether it matches in a line."""
        if self.needle is not None:
            return self.needle in (text.lower() if self.ignores_case else text)
        text = text[: self.max_chars]
        if self.small is not None:
            return self.small.search(text.lower()) is not None
        return self.regex.search(text) is not None

    def places(self, text: str) -> list[tuple[int, int]]:
        """The matches in a line, as (start, end)."""
        found: list[tuple[int, int]] = []
        for match in self.regex.finditer(
            text, 0, min(MAX_MARKED_CHARS, self.max_chars or len(text))
        ):
            if match.end() > match.start():
                found.append(match.span())
            if len(found) >= MAX_MARKS:
                break
        return found

    def may_be_in(self, data: bytes) -> bool:
        """Whether it may match in any of many lines; fast."""
        text = data.decode("utf-8", "replace")
        if "\x1b" in text:
            text = _SEQUENCE.sub("", text)
        if "\b" in text:
            return True
        if "\r" in text:
            text = _REDRAWN.sub("", text.replace("\r\n", "\n"))
        if self.max_chars is None:
            return self.finds(text)
        return any(map(self.finds, text.split("\n")))


def pattern_of(text: str) -> LogPattern:
    """Compile what the user typed.

    Case matters if there is an uppercase letter. An invalid pattern, or one that could take
    forever, is searched for as plain text.
    """
    letters = _ESCAPED.sub("", text)
    flags = re.MULTILINE | (0 if any(char.isupper() for char in letters) else re.IGNORECASE)
    case = "" if flags & re.IGNORECASE else "case-sensitive"
    if not _SPECIAL.search(text):
        return _literal(text, flags, case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            regex = re.compile(text, flags)
            quick = flags & re.IGNORECASE and text.isascii() and text == text.lower()
            small = re.compile(text, re.MULTILINE) if quick else None
    except (re.error, RecursionError, OverflowError, Warning):
        return _literal(text, flags, ", ".join(("invalid regex; matching literally", case)))
    tried = max_chars(text)
    if tried == REFUSED:
        return _literal(text, flags, ", ".join(("regex is too slow; matching literally", case)))
    part = "" if tried is None else f"only the first {tried} characters of each line"
    note = ", ".join(part for part in ("regex", part, case) if part)
    return LogPattern(text, regex, note=note, small=small, max_chars=tried)


def _literal(text: str, flags: int, note: str) -> LogPattern:
    needle = text.lower() if flags & re.IGNORECASE else text
    return LogPattern(text, re.compile(re.escape(text), flags), note.removesuffix(", "), needle)


REFUSED = 0
_MAX_CHARS = (4000, 1000, 300)
"""Number of characters to search, by the number of repetitions of almost any character in a
pattern; repetitions of certain characters, such as digits, count as one in total."""
_MOST_BRANCHES = 8
"""Maximum number of optional parts and groups of alternatives."""
_MOST_IN_A_ROW = 2
"""Maximum number of repetitions without anything fixed between them."""
_ENDLESS = 10
"""A repetition with a count from here on is treated as unbounded."""

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\((?:\?(?:[:=!]|<[=!]|P<\w+>))?|\)|\||"
    r"[*+?][?+]?|\{\d*,?\d*\}[?+]?|.",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?[aimsux]+\)")
_UNUSUAL = re.compile(r"\(\?(?![:=!]|<[=!]|P<)|\\[1-9]")
"""Conditionals, backreferences, and flags in the middle."""
_WIDE = (".", r"\w", r"\W", r"\S", r"\D")


class _Part(msgspec.Struct):
    """Properties of an atom or a group."""

    text: str = ""
    repeats: bool = False
    chooses: bool = False


def max_chars(text: str) -> int | None:
    """How many characters of a line a valid pattern may search.

    Returns:
        None for whole lines, if nothing is repeated; REFUSED if it could take forever.
    """
    if flags := _FLAGS.match(text):
        text = text[flags.end() :]
    if _UNUSUAL.search(text):
        return REFUSED
    groups, last = [_Part()], _Part()
    run: list[str] = []
    """The repetitions directly before the next part."""
    wide, narrow, branches = 0, 0, 0
    for token in _TOKEN.findall(text):
        if token[0] == "(":
            groups.append(_Part())
        elif token == ")" and len(groups) > 1:
            last = groups.pop()
            branches += last.chooses
            groups[-1].repeats |= last.repeats
            groups[-1].chooses |= last.chooses
            run = []
        elif token == "|":
            groups[-1].chooses, run = len(groups) > 1, []
        elif (most := _most(token)) is None:
            run = run if last.repeats else []
            last = _Part(token)
        elif most <= 1:
            branches += 1
            groups[-1].repeats = last.repeats = True
        elif last.repeats or last.chooses or last.text in run or len(run) >= _MOST_IN_A_ROW:
            return REFUSED
        else:
            run.append(last.text)
            groups[-1].repeats = last.repeats = True
            is_wide = not last.text or last.text in _WIDE or last.text.startswith("[^")
            wide += is_wide and most >= _ENDLESS
            narrow += not is_wide and most >= _ENDLESS
    if branches > _MOST_BRANCHES or wide >= len(_MAX_CHARS):
        return REFUSED
    return _MAX_CHARS[max(wide, min(narrow - 1, 2))] if wide + narrow else None


def _most(token: str) -> float | None:
    """The maximum of a quantifier; None if it is not one."""
    if token[0] in "*+":
        return float("inf")
    if token[0] == "?":
        return 1
    if token[0] != "{" or len(token) == 1:
        return None
    _, comma, most = token.rstrip("?+")[1:-1].rpartition(",")
    return float(most) if most else float("inf") if comma else 0
