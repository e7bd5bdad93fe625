"""Search patterns for logs: text or a regex; lowercase ignores case.

Some patterns never finish where they do not match. Python cannot be interrupted in the middle of a
match, and nothing is drawn meanwhile. So `reach` looks at a pattern before it is tried: what can
branch at each character again and again is refused, and each repetition of any character makes the
part of a line that is tried shorter.
"""

from __future__ import annotations

import re
import warnings

import msgspec

MAX_MARKS = 200
"""Places marked in one line."""
MAX_MARKED_CHARS = 4000
"""In one line; matches after these are found but not highlighted."""
_SPECIAL = re.compile(r"[\\.^$*+?{}\[\]|()]")
_ESCAPED = re.compile(r"\\.")
_SEQUENCE = re.compile("\x1b\\[[ -?]*[@-~]")
_REDRAWN = re.compile("[^\n]*\r(?=[^\n])")


class LogPattern(msgspec.Struct, frozen=True):
    """What a person typed, made ready."""

    text: str
    regex: re.Pattern[str]
    note: str = ""
    """How it was understood, where that is not plain."""
    needle: str | None = None
    """What to look for in a text, in small letters where case does not matter; None: a pattern."""

    small: re.Pattern[str] | None = None
    """For texts in small letters, where case does not matter; quicker than `regex`."""

    reach: int | None = None
    """Characters of a line that it is tried on; None: of all, and on many lines at once."""

    @property
    def ignores_case(self) -> bool:
        """Whether small letters find capitals too."""
        return bool(self.regex.flags & re.IGNORECASE)

    def finds(self, text: str) -> bool:
        """Whether it is in a line."""
        if self.needle is not None:
            return self.needle in (text.lower() if self.ignores_case else text)
        text = text[: self.reach]
        if self.small is not None:
            return self.small.search(text.lower()) is not None
        return self.regex.search(text) is not None

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where it is in a line."""
        found: list[tuple[int, int]] = []
        for match in self.regex.finditer(text, 0, min(MAX_MARKED_CHARS, self.reach or len(text))):
            if match.end() > match.start():
                found.append(match.span())
            if len(found) >= MAX_MARKS:
                break
        return found

    def may_be_in(self, data: bytes) -> bool:
        """Whether it may be in one of many lines; quick."""
        text = data.decode("utf-8", "replace")
        if "\x1b" in text:
            text = _SEQUENCE.sub("", text)
        if "\b" in text:
            return True
        if "\r" in text:
            text = _REDRAWN.sub("", text.replace("\r\n", "\n"))
        if self.reach is None:
            return self.finds(text)
        return any(map(self.finds, text.split("\n")))


def pattern_of(text: str) -> LogPattern:
    """A person's words as a pattern.

    Case matters where there is a capital. What is no valid pattern, or could take for ever, is
    looked for as it is written.
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
    tried = reach(text)
    if tried == REFUSED:
        return _literal(text, flags, ", ".join(("regex is too slow; matching literally", case)))
    part = "" if tried is None else f"only the first {tried} characters of each line"
    note = ", ".join(part for part in ("regex", part, case) if part)
    return LogPattern(text, regex, note=note, small=small, reach=tried)


def _literal(text: str, flags: int, note: str) -> LogPattern:
    needle = text.lower() if flags & re.IGNORECASE else text
    return LogPattern(text, re.compile(re.escape(text), flags), note.removesuffix(", "), needle)


REFUSED = 0
_REACH = (4000, 1000, 300)
"""Characters of a line, by how many repetitions of (nearly) any character a pattern has; one more
of certain characters, such as digits, counts as much."""
_MOST_BRANCHES = 8
"""Optional parts, and groups of alternatives."""
_MOST_IN_A_ROW = 2
"""Repetitions with nothing fixed between them."""
_ENDLESS = 10
"""A count from which a repetition is taken as one without end."""

_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\((?:\?(?:[:=!]|<[=!]|P<\w+>))?|\)|\||"
    r"[*+?][?+]?|\{\d*,?\d*\}[?+]?|.",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?[aimsux]+\)")
_UNUSUAL = re.compile(r"\(\?(?![:=!]|<[=!]|P<)|\\[1-9]")
"""Conditions, references to what a group found, flags in the middle."""
_WIDE = (".", r"\w", r"\W", r"\S", r"\D")


class _Part(msgspec.Struct):
    """What an atom or a group holds."""

    text: str = ""
    repeats: bool = False
    chooses: bool = False


def reach(text: str) -> int | None:
    """How many characters of a line a valid pattern may be tried on.

    Returns:
        None: whole lines, for nothing in it is repeated; REFUSED: none, it could take for ever.
    """
    if flags := _FLAGS.match(text):
        text = text[flags.end() :]
    if _UNUSUAL.search(text):
        return REFUSED
    groups, last = [_Part()], _Part()
    run: list[str] = []
    """What is repeated right before the next part."""
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
    if branches > _MOST_BRANCHES or wide >= len(_REACH):
        return REFUSED
    return _REACH[max(wide, min(narrow - 1, 2))] if wide + narrow else None


def _most(token: str) -> float | None:
    """How often a quantifier repeats at most; None for what is no quantifier."""
    if token[0] in "*+":
        return float("inf")
    if token[0] == "?":
        return 1
    if token[0] != "{" or len(token) == 1:
        return None
    _, comma, most = token.rstrip("?+")[1:-1].rpartition(",")
    return float(most) if most else float("inf") if comma else 0
