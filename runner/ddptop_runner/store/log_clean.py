"""Turns the output of a rank into plain lines.

Printed as it is, a log could clear the screen or change the window title, and a progress bar would
be one endless line.
"""

from __future__ import annotations

import codecs
import re

MAX_LINE_CHARS = 32_768
"""Maximum length of a line; the rest is dropped."""
LINE_CHARS = 300
"""Length of `one_line`."""
PIECE_CHARS = 512
"""Length of the pieces of a line, which bounds how much a backspace copies."""

_UNSEEN = (
    "\x7f-\x9f"  # DEL and C1
    "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
"""Invisible characters: they control a terminal, change the direction of text, break lines, or
make two names look alike. These are ranges for a character class."""

UNSAFE = f"[\x00-\x08\x0b-\x1f{_UNSEEN}\ud800-\udfff]"
"""Never printed as they are: the above, the rest of C0 except tab and newline, and surrogates,
which stand for bytes that are not UTF-8. A regular expression, which takes 1 ms to compile."""

# What a cleaner processes at once. A tab counts as a printing character. A control sequence without
# its proper end stops before whatever does not belong to it, and at the latest with the line.
_STEP = (
    f"(?P<run>[^\x00-\x08\x0a-\x1f{_UNSEEN}]+)"
    "|(?P<back>\x08+)"
    "|(?P<csi>(?:\x1b\\[|\x9b)(?P<parameters>[ -?]*)(?P<final>[@-~]?))"
    # DCS, SOS, OSC, PM, and APC continue up to a terminator; ESC \ is one, but also its own step
    "|(?P<string>(?:\x1b[PX\\]^_]|[\x90\x98\x9d\x9e\x9f])"
    "[^\n\x07\x18\x1a\x1b\x9c]*(?P<end>[\x07\x18\x1a\x9c]?))"
    "|(?P<escape>\x1b[ -/]*(?P<last>[0-~]?))"
    "|(?P<other>.|\n)"
)
_MOST_REST = 18
"""How much of an unfinished control sequence is kept, of which only the start matters."""


class LineCleaner:
    r"""Converts a program's output, in chunks of any size, to plain lines.

    Drops control sequences, invisible characters, and control characters except `\n` and tab. `\r`
    and backspace move the cursor left; writing there discards the text to its right, so that the
    last state of a progress bar remains. "Erase line" works as on a terminal. A line drawn after
    the cursor moved up, as by bars of several lines, is omitted if it equals the line before.
    Bytes that are not UTF-8 become U+FFFD.
    Memory is bounded: only the first 32,768 characters of a line are kept.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        """The start of a control sequence that the input so far does not end."""
        self._pieces: list[str] = []
        """The present line."""
        self._length = 0
        self._cursor = 0
        self._cut = 0
        """Number of characters of the line that were dropped."""
        self._redrawn = False
        self._went_up = False
        self._last = ""

    @property
    def partial(self) -> str:
        """The present state of the unfinished line."""
        text = "".join(self._pieces)
        if self._redrawn:
            text = text.rstrip(" ")
        return f"{text} … [{self._cut} more characters]" if self._cut else text

    def feed(self, data: bytes) -> list[str]:
        """Process the next bytes; returns the lines that they complete, without newlines."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> list[str]:
        """End the input; returns the last line if it has text. The cleaner can then be reused."""
        lines = self._take(self._decoder.decode(b"", final=True))
        if self.partial:
            lines.append(self.partial)
        self.__init__()  # type: ignore[misc]  # every attribute belongs to the input that ended
        return lines

    def _take(self, text: str) -> list[str]:
        lines: list[str] = []
        text, self._rest = self._rest + text, ""
        for step in re.compile(_STEP).finditer(text):
            kind, found = step.lastgroup, step.group()
            if kind == "run":
                self._write(found)
            elif kind == "back":
                self._cursor = max(0, self._cursor - len(found))
                self._redrawn = True
            elif found == "\n":
                lines += self._end_line()
            elif found == "\r":
                self._cursor, self._redrawn = 0, True
            elif step["final"] == "K":
                self._erase(step["parameters"])
            elif step["final"] == "A":
                self._went_up = True
            elif kind != "other" and not (step["final"] or step["end"] or step["last"]):
                self._rest = found[:_MOST_REST] if step.end() == len(text) else ""
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

    def _end_line(self) -> list[str]:
        line = self.partial
        is_repeated = self._went_up and line.split() == self._last.split()
        self._last, self._went_up = line, False
        self._pieces, self._length, self._cursor = [], 0, 0
        self._cut, self._redrawn = 0, False
        return [] if is_repeated else [line]

    def _erase(self, parameters: str) -> None:
        if parameters in ("", "0"):
            self._cut_at_cursor()
        elif parameters in ("1", "2"):
            self._pieces, self._length, self._cursor = [], 0, 0
        else:
            return
        self._cut, self._redrawn = 0, True


def is_safe(text: str) -> bool:
    """Whether it holds nothing that is `UNSAFE`."""
    plain = text.replace("\n", "").replace("\t", "").isprintable()  # found much faster
    return plain or not re.search(UNSAFE, text)


def sanitize(data: bytes | str) -> str:
    """Make any bytes or text safe to print; see `LineCleaner`."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    cleaner = LineCleaner()
    lines = cleaner.feed(raw)
    if rest := cleaner.finish():
        return "\n".join([*lines, *rest])
    return "".join(f"{line}\n" for line in lines)


def sanitized_line(text: str) -> str:
    """`sanitize`, all on one line."""
    return " ".join(sanitize(text).split())


def one_line(text: str) -> str:
    """The start of another program's or machine's output, as one line that is safe to print."""
    return re.sub(UNSAFE, "\N{REPLACEMENT CHARACTER}", " ".join(text.split()))[:LINE_CHARS]
