"""Search patterns for logs: text or a regex; lowercase ignores case."""

from __future__ import annotations

import re
import warnings

import msgspec

from ddptop.logs import risk as log_risk

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
    reach = log_risk.reach(text)
    if reach == log_risk.REFUSED:
        return _literal(text, flags, ", ".join(("regex is too slow; matching literally", case)))
    part = "" if reach is None else f"only the first {reach} characters of each line"
    note = ", ".join(part for part in ("regex", part, case) if part)
    return LogPattern(text, regex, note=note, small=small, reach=reach)


def _literal(text: str, flags: int, note: str) -> LogPattern:
    needle = text.lower() if flags & re.IGNORECASE else text
    return LogPattern(text, re.compile(re.escape(text), flags), note.removesuffix(", "), needle)
