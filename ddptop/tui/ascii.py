"""Translates the interface to ASCII, cell by cell, for fonts and locales without Unicode.

Output is translated on its way to the terminal, so no other module is concerned. Each glyph becomes
the ASCII character that looks most like it; letters in the user's own names stay if the locale can
encode them.
"""

from __future__ import annotations

import functools
import unicodedata

from rich.cells import cell_len

_BRAILLE = 0x2800
_ROWS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The two dots of each row of a braille cell, from the top."""

_OWN = {
    # states and severities, each shown next to its name
    "●": "*",
    "○": "o",
    "◌": "o",
    "◍": "*",
    "◔": "o",
    "◐": "o",
    "◆": "*",
    "◇": "o",
    "↻": "@",
    "↗": "/",
    "↘": "\\",
    "↙": "/",
    "↖": "\\",
    "‖": "=",
    "✓": "+",
    "✔": "+",
    "✗": "x",
    "✕": "x",
    "✘": "x",
    "■": "#",
    "□": "o",
    "▪": "#",
    "▲": "^",
    "▴": "^",
    "△": "^",
    "▼": "v",
    "▾": "v",
    "▽": "v",
    "▶": ">",
    "▸": ">",
    "▷": ">",
    "►": ">",
    "◀": "<",
    "◂": "<",
    "◁": "<",
    "★": "*",
    "☆": "*",
    # punctuation and figures
    "…": "~",
    "┈": ".",
    "·": ".",
    "•": "*",
    "–": "-",  # noqa: RUF001
    "—": "-",
    "‑": "-",  # noqa: RUF001
    "−": "-",  # noqa: RUF001
    "×": "x",  # noqa: RUF001
    "±": "~",
    "≈": "~",
    "≠": "!",
    "≤": "<",
    "≥": ">",
    "÷": "/",
    "°": " ",
    "µ": "u",
    "μ": "u",
    "Σ": "S",
    "σ": "s",  # noqa: RUF001
    "Δ": "d",
    "∞": "8",
    "∅": "0",
    "√": "V",
    "“": '"',
    "”": '"',
    "„": '"',
    "«": "<",
    "»": ">",
    "‘": "'",  # noqa: RUF001
    "’": "'",  # noqa: RUF001
    "‹": "<",  # noqa: RUF001
    "›": ">",  # noqa: RUF001
    "¹": "1",
    "²": "2",
    "³": "3",
    "½": "h",
    "⏎": "<",
    "⌫": "<",
    "␣": "_",
    "�": "?",
    "⏵": ">",
    "⏸": "=",
    "⏺": "o",
    "⏹": "#",
    "⎯": "-",
    "⎸": "|",
    "⎹": "|",
    "\u00a0": " ",
    "\u2007": " ",
    "\u2009": " ",
    "\u202f": " ",
    # blocks: a column's height, a bar's length, a shade's density
    "▁": "_",
    "▂": "_",
    "▃": ".",
    "▄": "-",
    "▅": "=",
    "▆": "+",
    "▇": "*",
    "█": "#",
    "▉": "#",
    "▊": "#",
    "▋": "#",
    "▌": "|",
    "▍": "|",
    "▎": "|",
    "▏": "|",
    "▐": "|",
    "▕": "|",
    "▔": "-",
    "▀": "-",
    "░": ".",
    "▒": ":",
    "▓": "%",
}

_ARROWS = (("LEFT RIGHT", "-"), ("UP DOWN", "|"), ("LEFT", "<"), ("RIGHT", ">"), ("UP", "^"))
_ARROWS_LAST = "v"


@functools.cache
def glyph(character: str) -> str | None:
    """The ASCII character for a glyph of the interface; None for a letter.

    Args:
        character: a non-ASCII character.
    """
    if (own := _OWN.get(character)) is not None:
        return own
    code = ord(character)
    if _BRAILLE <= code < _BRAILLE + 256:
        return braille(code - _BRAILLE)
    name = unicodedata.name(character, "")
    if 0x2500 <= code < 0x2580:
        return _box(name)
    if 0x2190 <= code < 0x2200 or "ARROW" in name:
        found = (sign for word, sign in _ARROWS if word in name)
        return next(found, _ARROWS_LAST if "DOWN" in name else "@")
    if 0x2580 <= code < 0x25A0 or 0x1FB00 <= code < 0x1FC00:  # blocks, legacy computing
        return "#"
    if 0x25A0 <= code < 0x2800 or 0x2900 <= code < 0x2C00:  # shapes and signs
        return "*"
    return None


def _box(name: str) -> str:
    """A box-drawing character, by the directions in its Unicode name."""
    if "DIAGONAL" in name:
        return "X" if "CROSS" in name else "\\" if "LEFT TO LOWER" in name else "/"
    words = set(name.replace("-", " ").split())
    lies = bool(words & {"HORIZONTAL", "LEFT", "RIGHT"})
    stands = bool(words & {"VERTICAL", "UP", "DOWN"})
    if lies and stands:
        return "+"
    return "|" if stands else "=" if words & {"HEAVY", "DOUBLE"} else "-"


def braille(dots: int) -> str:
    """The ASCII character for a braille cell of a chart, by the position of its dots.

    Args:
        dots: eight bits, in Unicode's order.
    """
    rows = [(bool(dots & left), bool(dots & right)) for left, right in _ROWS]
    filled = [index for index, row in enumerate(rows) if any(row)]
    if not filled:
        return " "
    number = sum(sum(row) for row in rows)
    top, bottom = filled[0], filled[-1]
    if top == bottom:
        return "'" if top == 0 else "_" if top == 3 else "-"
    if number >= 7:
        return "#"
    left = [index for index, row in enumerate(rows) if row[0]]
    right = [index for index, row in enumerate(rows) if row[1]]
    if not left or not right:
        return "|" if number >= 3 else ":"
    rise = sum(left) / len(left) - sum(right) / len(right)
    if number <= 5 and abs(rise) >= 1:
        return "/" if rise > 0 else "\\"
    return ":" if number <= 4 else "#"


class Translator:
    """Translates text for the terminal; every character keeps its width."""

    def __init__(self, encoding: str = "utf-8") -> None:
        """`encoding` is the locale's encoding."""
        self._encoding = encoding
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Replace all glyphs."""
        if text.isascii():
            return text
        known = self._known
        return "".join(
            character if character < "\x80" else known.get(character) or self._learn(character)
            for character in text
        )

    def _learn(self, character: str) -> str:
        if (found := glyph(character)) is None:
            found = character
            try:
                character.encode(self._encoding)
            except UnicodeEncodeError:
                found = "?"
        cells = cell_len(character)
        if found is not character:
            found = found * cells if cells != 1 else found
        if len(self._known) < 4096:
            self._known[character] = found
        return found


def harmless(text: str) -> str:
    """Replace control characters and the like with `?`.

    Names of files, hosts, and users may contain anything, including escape sequences and lone
    surrogates.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _SPACES else "?" for character in text
    )


def drawable(text: str) -> str:
    """Like `harmless`, for text that is laid out already: every character keeps its width."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in _SPACES
        else "?" * max(0, cell_len(character))
        for character in text
    )


_SPACES = "\u00a0\u2007\u2009\u202f\u3000"
"""Spaces that Python considers unprintable; one or two cells wide."""
