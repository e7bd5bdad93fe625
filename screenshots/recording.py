"""Makes one animated SVG of several pictures of a terminal.

Most of a terminal stays as it is from one picture to the next. So each run of text, and each
background, is written once, and a style rule says during which pictures it is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_RULE = re.compile(r"\.terminal-\d+-(r\d+) { ([^}]*) }")
_ID = re.compile(r"terminal-\d+-")
_INSIDE = re.compile(r"<g transform=\"[^\"]*\" clip-path=[^>]*>")
_RECT = re.compile(r"<rect fill=\"[^>]*shape-rendering[^>]*/>")
_TEXT = re.compile(r"<text class=\"terminal-\d+-r\d+\"[^>]*>[^<]*</text>")
_CLASS = re.compile(r'class="terminal-\d+-(r\d+)"')
_CLIP = re.compile(r' clip-path="url\(#terminal-\d+-line-\d+\)"')


@dataclass(frozen=True)
class Frame:
    """One picture and how long it is seen."""

    svg: str
    """As Textual exports it, of the same size as all others."""
    lasts_s: float


def animate(frames: Sequence[Frame]) -> str:
    """One picture that shows all of them in turn, and begins again.

    Raises:
        ValueError: when there is no frame, or one is not such a picture.
    """
    if not frames:
        raise ValueError("a recording needs at least one picture")
    styles: dict[str, str] = {}
    parts: dict[tuple[bool, str], list[int]] = {}
    for number, frame in enumerate(frames):
        rules = dict(_RULE.findall(frame.svg))
        for part in _RECT.findall(frame.svg):
            parts.setdefault((False, part), []).append(number)
        for part in _TEXT.findall(frame.svg):
            drawn = _CLASS.sub(
                lambda found, rules=rules: f'class="{_name(rules[found[1]], styles)}"', part
            )
            parts.setdefault((True, _CLIP.sub("", drawn)), []).append(number)
    times = _Times(frames)
    grounds, texts = (
        "\n".join(times.shown(part, seen) for (kind, part), seen in parts.items() if kind is of)
        for of in (False, True)
    )
    rules = "\n".join(f".{name} {{ {rule} }}" for rule, name in styles.items())
    window = _window(frames[0].svg).replace("</style>", f"{rules}\n{times.rules()}\n</style>", 1)
    return f'{window}\n{grounds}\n<g class="terminal-matrix">\n{texts}\n</g>\n</g>\n</svg>\n'


def _name(rule: str, styles: dict[str, str]) -> str:
    """The same name for the same look, in whichever picture."""
    return styles.setdefault(rule, f"s{len(styles)}")


def _window(svg: str) -> str:
    """All that is before the first background: the window, and the group that holds its inside."""
    inside = _INSIDE.search(svg)
    if inside is None:
        raise ValueError("a picture has no terminal in it")
    head = _ID.sub("terminal-", _RULE.sub("", svg[: inside.end()]))
    return re.sub(r'<clipPath id="terminal-line-\d+">.*?</clipPath>\s*', "", head, flags=re.DOTALL)


class _Times:
    """When each picture is seen, as the style rules of an endless animation."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._total_s = sum(frame.lasts_s for frame in frames)
        self._ends = [0.0]
        for frame in frames:
            self._ends.append(self._ends[-1] + frame.lasts_s)
        self._number = len(frames)
        self._names: dict[tuple[int, ...], str] = {}

    def shown(self, part: str, seen: Iterable[int]) -> str:
        """The part, seen in those pictures only."""
        numbers = tuple(dict.fromkeys(seen))
        if len(numbers) == self._number:
            return part
        name = self._names.setdefault(numbers, f"f{len(self._names)}")
        if 'class="' in part:
            return part.replace('class="', f'class="{name} ', 1)
        return part.replace("<rect ", f'<rect class="{name}" ', 1)

    def rules(self) -> str:
        """One animation for each set of pictures."""
        return "\n".join(
            f"@keyframes {name} {{ {self._steps(numbers)} }}\n"
            f".{name} {{ animation: {name} {self._total_s:g}s step-end infinite }}"
            for numbers, name in self._names.items()
        )

    def _steps(self, numbers: tuple[int, ...]) -> str:
        inside = set(numbers)
        steps, before = [], None
        for number in range(self._number):
            now = number in inside
            if now != before:
                share = 100 * self._ends[number] / self._total_s
                steps.append(f"{share:.3f}% {{ visibility: {'visible' if now else 'hidden'} }}")
            before = now
        return " ".join(steps)
