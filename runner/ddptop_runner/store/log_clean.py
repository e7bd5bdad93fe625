"""Turns the output of a rank into plain lines.

Shown as it is, a log can clear the person's screen or change the window's title, and a progress
bar is one endless line.
"""

from __future__ import annotations

import codecs
import re

MAX_LINE_CHARS = 32_768
"""What is kept of one line."""
PIECE_CHARS = 512
"""Of a line, as it is gathered: so much is copied at most where a backspace shortens it."""

_UNSEEN = (
    "\x7f-\x9f"  # DEL and C1
    "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
"""Characters without a look of their own: they steer a terminal, turn text round, break lines, or
make two names look alike. Ranges of a regular expression's class."""

UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSEEN}\ud800-\udfff]")
"""Never printed as it is: the above, the rest of C0 but tab and newline, and what stands for bytes
that are no UTF-8."""

# What stands whole in a chunk is taken at once: a run of printing characters, backspaces, or a CSI
# sequence; everything else character by character. A tab is a printing character here.
_STEP = re.compile(
    f"(?P<run>[^\x00-\x08\x0a-\x1f{_UNSEEN}]+)"
    "|(?P<back>\x08+)"
    "|\x1b\\[(?P<parameters>[ -?]*)(?P<final>[@-~])"
)
_STRING_STARTS = frozenset("PX]^_")
"""After ESC: DCS, SOS, OSC, PM and APC, which run up to a terminator."""
_C1_STRINGS = frozenset("\x90\x98\x9d\x9e\x9f")
_MAX_PARAMETERS = 16

# states of the cleaner
_TEXT, _ESCAPE, _CSI, _STRING, _STRING_ESCAPE = range(5)


class LineCleaner:
    r"""Makes plain lines of what a program wrote, in chunks of any size.

    Every control sequence, unseen character and control character but `\n` and tab is dropped.
    `\r` and backspace move the cursor left; writing there discards what stood to the right, so
    that of a progress bar its last state remains. "Erase line" does as it says. A line drawn after
    the cursor went up, as by bars of several lines, is left out where it says what the line before
    says. Bytes that are no UTF-8 become U+FFFD.
    Memory is bounded: of a longer line its first 32 768 characters are kept.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = _TEXT
        self._parameters = ""
        self._pieces: list[str] = []
        """The line."""
        self._length = 0
        self._cursor = 0
        self._cut = 0
        """Characters of the line that were not kept."""
        self._redrawn = False
        self._went_up = False
        self._last = ""

    @property
    def partial(self) -> str:
        """The present state of the line that has not ended yet."""
        text = "".join(self._pieces)
        if self._redrawn:
            text = text.rstrip(" ")
        return f"{text} … [{self._cut} more characters]" if self._cut else text

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; returns the lines that ended in them, without the newline."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> list[str]:
        """End the input: the last line, if it has any text. The cleaner can then start anew."""
        lines = self._take(self._decoder.decode(b"", final=True))
        if self.partial:
            lines.append(self.partial)
        self.__init__()  # type: ignore[misc]  # every attribute belongs to the input just ended
        return lines

    def _take(self, text: str) -> list[str]:
        lines: list[str] = []
        position, end = 0, len(text)
        while position < end:
            if self._state == _TEXT:
                if step := _STEP.match(text, position):
                    position = step.end()
                    if step.lastgroup == "run":
                        self._write(step.group())
                    elif step.lastgroup == "back":
                        self._cursor = max(0, self._cursor - len(step.group()))
                        self._redrawn = True
                    elif step["final"] == "K":
                        self._erase(step["parameters"])
                    elif step["final"] == "A":
                        self._went_up = True
                    continue
                self._control(text[position], lines)
            else:
                self._sequence(text[position], lines)
            position += 1
        return lines

    def _write(self, run: str) -> None:
        if self._cursor < self._length:
            self._cut_at_cursor()
            self._cut = 0
        kept = run[: MAX_LINE_CHARS - self._length]
        self._cut += len(run) - len(kept)
        if len(kept) <= PIECE_CHARS:
            self._pieces.append(kept)
        else:
            starts = range(0, len(kept), PIECE_CHARS)
            self._pieces += [kept[start : start + PIECE_CHARS] for start in starts]
        self._length += len(kept)
        self._cursor = self._length

    def _cut_at_cursor(self) -> None:
        while self._length > self._cursor:
            piece = self._pieces.pop()
            self._length -= len(piece)
            if self._length < self._cursor:
                self._pieces.append(piece[: self._cursor - self._length])
                self._length = self._cursor

    def _control(self, char: str, lines: list[str]) -> None:
        if char == "\n":
            line = self.partial
            if not self._went_up or line.split() != self._last.split():
                lines.append(line)
            self._last, self._went_up = line, False
            self._pieces, self._length, self._cursor = [], 0, 0
            self._cut, self._redrawn = 0, False
        elif char == "\r":
            self._cursor, self._redrawn = 0, True
        elif char == "\x1b":
            self._state = _ESCAPE
        elif char == "\x9b":
            self._state, self._parameters = _CSI, ""
        elif char in _C1_STRINGS:
            self._state = _STRING

    def _sequence(self, char: str, lines: list[str]) -> None:
        """One character inside a control sequence.

        A line's end ends every sequence: one that was cut off costs the rest of its line, not the
        rest of the log.
        """
        if char in "\n\x18\x1a":  # CAN and SUB cancel
            self._state = _TEXT
            if char == "\n":
                self._control(char, lines)
        elif self._state == _STRING:
            if char in "\x07\x9c":
                self._state = _TEXT
            elif char == "\x1b":
                self._state = _STRING_ESCAPE
        elif self._state == _STRING_ESCAPE and char == "\\":
            self._state = _TEXT
        elif char == "\x1b":
            self._state = _ESCAPE
        elif self._state in (_ESCAPE, _STRING_ESCAPE):
            self._state = _ESCAPE
            if char == "[":
                self._state, self._parameters = _CSI, ""
            elif char in _STRING_STARTS:
                self._state = _STRING
            elif not " " <= char <= "/":  # those are intermediates: ESC ( B
                self._state = _TEXT
                if not "0" <= char <= "~":  # no sequence after all
                    lines += self._take(char)
        elif "@" <= char <= "~":
            self._state = _TEXT
            if char == "K":
                self._erase(self._parameters)
            elif char == "A":
                self._went_up = True
        elif " " <= char <= "?":
            self._parameters = (self._parameters + char)[:_MAX_PARAMETERS]
        else:  # no sequence after all
            self._state = _TEXT
            lines += self._take(char)

    def _erase(self, parameters: str) -> None:
        if parameters in ("", "0"):
            self._cut_at_cursor()
        elif parameters in ("1", "2"):
            self._pieces, self._length, self._cursor = [], 0, 0
        else:
            return
        self._cut, self._redrawn = 0, True


def sanitize(data: bytes | str) -> str:
    """Text that is safe to print, of bytes or text that may hold anything; see `LineCleaner`."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    cleaner = LineCleaner()
    lines = cleaner.feed(raw)
    if rest := cleaner.finish():
        return "\n".join([*lines, *rest])
    return "".join(f"{line}\n" for line in lines)
