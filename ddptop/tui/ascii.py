"""Filters everything on its way to the terminal: control characters, colors, and glyphs.

For fonts and locales without Unicode, each glyph becomes an ASCII character that looks like it;
letters in the user's own names stay if the locale can encode them.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor

LOOKS_LIKE = {
    "*": "●◍◆▇•⚠",
    "o": "○◌◔◐◇",
    "#": "█■▪▉▊▋",
    "|": "│┃┆╎╵╷▌▍▎▏▐▕",
    "-": "─╌╴╶▄–—−",  # noqa: RUF001
    "=": "━╍╸╺═‖▅",
    ".": "·┈┊▃░",
    ":": "▒",
    "%": "▓",
    "_": "▁▂",
    "+": "✓✔▆",
    "x": "✗✕✘×",  # noqa: RUF001
    "^": "▲↑",
    "v": "▼▾↓",
    ">": "▶▸→↳≥",
    "<": "◀◂←≤",
    "/": "↗",
    "\\": "↘",
    "@": "↻",
    "~": "…±≈",
    "!": "≠",
    " ": "°\u00a0\u2007\u2009\u202f",
    "?": "�",
    "u": "µμ",
    "S": "Σ",
}
"""The glyphs for which each ASCII character stands."""
_ASCII = {glyph: ascii_ for ascii_, glyphs in LOOKS_LIKE.items() for glyph in glyphs}
_BRAILLE = 0x2800
_LOWER_DOTS = 0xE4


def glyph(character: str) -> str | None:
    """The ASCII character for a glyph of the interface; None for a letter."""
    if (own := _ASCII.get(character)) is not None:
        return own
    code = ord(character)
    if _BRAILLE <= code < _BRAILLE + 256:
        return braille(code - _BRAILLE)
    if 0x2500 <= code < 0x2580:  # corners and crossings of frames
        return "+"
    return "*" if unicodedata.category(character) in ("So", "Sm") else None


def braille(dots: int) -> str:
    """The ASCII character for a braille cell of a chart, by the number and height of its dots.

    Args:
        dots: eight bits, in Unicode's order.
    """
    if not dots:
        return " "
    if dots.bit_count() >= 6:
        return "#"
    if not dots & _LOWER_DOTS:
        return "'"
    return "." if dots & _LOWER_DOTS == dots else ":"


def translated(character: str, encoding: str) -> str:
    """A character in ASCII, or as it is if it is a letter that the encoding has; as wide."""
    if character.isascii():
        return character
    if (found := glyph(character)) is None:
        try:
            character.encode(encoding)
        except UnicodeEncodeError:
            found = "?"
        else:
            return character
    return found * cell_len(character)


def harmless(text: str) -> str:
    """Replace control characters and the like with `?`; every character keeps its width.

    Names of files, hosts, and users may contain anything, including escape sequences and lone
    surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _SPACES else "?" * cell_len(character)
        for character in text
    )


_SPACES = "\u00a0\u2007\u2009\u202f\u3000"
"""Spaces that Python considers unprintable; one or two cells wide."""


class _Harmless(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace unprintable characters, whichever widget drew them."""
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(harmless(text), style, control) for text, style, control in segments]


class _Glyphs(LineFilter):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._of = functools.lru_cache(4096)(
            functools.partial(translated, encoding=encoding),
        )

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Translate every glyph, whichever widget drew it."""
        return [
            segment
            if segment.text.isascii()
            else Segment("".join(map(self._of, segment.text)), *segment[1:])
            for segment in segments
        ]


def filters(
    textuals: Sequence[LineFilter], letters: str | None, *, no_color: bool
) -> Sequence[LineFilter]:
    """Textual's filters and ours; with NO_COLOR, no colors instead of shades of gray.

    Args:
        textuals: Textual's own filters.
        letters: if set, draw with ASCII only, and letters that this encoding can write.
        no_color: whether to use no colors.
    """
    if no_color:
        shades = (Monochrome, ANSIToTruecolor)
        textuals = [*(one for one in textuals if not isinstance(one, shades)), _NO_COLOR]
    return [_HARMLESS, *textuals, *([] if letters is None else [_glyphs_in(letters)])]


_HARMLESS, _NO_COLOR = _Harmless(), NoColor()
_glyphs_in = functools.cache(_Glyphs)
