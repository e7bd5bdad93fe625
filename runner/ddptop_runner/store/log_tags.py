"""Attributes lines of a shared log to ranks: launchers put the rank before each line.

Known are `[0]<stdout>:` of horovodrun, `[1,0]<stderr>:` of mpirun -tag-output and `[default0]:` of
torchrun --tee.
"""

from __future__ import annotations

import re

MAX_TAG_BYTES = 40

_ANYWHERE = rb"\[(?:\d{1,9},)?(?P<out>\d{1,9})\]<std(?:out|err)>:"
_AT_START = rb"^\[default(?P<role>\d{1,9})\]:"
_TAG = re.compile(_ANYWHERE + rb"|" + _AT_START)
_PART_OF_TAG = re.compile(rb"\[(?:\d*,?\d*(?:\](?:<[a-z]{0,6}>?)?)?|[a-z]{0,7}\d*\]?)\Z")
_LINE_TAG = re.compile(rb"^(?:" + _ANYWHERE + rb")|" + _AT_START, re.MULTILINE)


def has_tag(data: bytes) -> bool:
    """Whether a line of those bytes says whose it is."""
    return _LINE_TAG.search(data) is not None


class RankFilter:
    """Keeps the lines of one rank out of the bytes of a shared log, fed in pieces of any size.

    mpirun tags what it passes on, be it a line or a part of one: bytes belong to the last tag
    before them in their line. A line without a tag is the launcher's own.

    Args:
        rank: whose lines.
        is_tagged: whether the log is known to have tags; until one is seen, all is kept otherwise.
    """

    def __init__(self, rank: int, *, is_tagged: bool = False) -> None:
        self.rank = rank
        self.is_tagged = is_tagged
        """Whether a tag was seen, or there are known to be some."""
        self._held = b""
        """The end of a piece that may be the beginning of a tag."""
        self._at_start = True
        self._keeps = not is_tagged
        self._kept_some = False
        """Of the present line."""
        self.spoke = False
        """Whether the last line that has ended was the rank's, in part at least."""

    def feed(self, data: bytes) -> bytes:
        """What of the next bytes is the rank's."""
        *lines, rest = (self._held + data).split(b"\n")
        self._held = b""
        kept = [self._take(line, ended=True) for line in lines]
        bracket = rest.rfind(b"[", -MAX_TAG_BYTES)
        if bracket >= 0 and _PART_OF_TAG.match(rest, bracket):
            rest, self._held = rest[:bracket], rest[bracket:]
        if rest:
            kept.append(self._take(rest, ended=False))
        return b"".join(kept)

    def finish(self) -> bytes:
        """What was held back, once no more comes."""
        held, self._held = self._held, b""
        return self._take(held, ended=False) if held else b""

    def _take(self, line: bytes, *, ended: bool) -> bytes:
        kept = []
        at = 0
        for tag in _TAG.finditer(line):
            if tag["role"] is not None and not self._at_start:
                continue
            if self._keeps:
                kept.append(line[at : tag.start()])
            self.is_tagged = True
            self._keeps = int(tag["out"] or tag["role"]) == self.rank
            at = tag.start()
        if self._keeps:
            kept.append(line[at:])
        self._kept_some = self._kept_some or self._keeps or any(kept)
        self._at_start = ended
        if not ended:
            return b"".join(kept)
        self.spoke = self._kept_some
        newline = b"\n" if self._kept_some else b""
        self._keeps, self._kept_some = not self.is_tagged, False
        return b"".join(kept) + newline
