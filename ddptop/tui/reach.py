"""Keys, colors, glyphs and memory, as a person set them.

Without a `Reach` nothing is read or written, and everything is as it is by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace
from rich.segment import Segment
from textual.color import Color
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme

from ddptop.tui.prefs.ascii import Translator, drawable
from ddptop.tui.prefs.keymap import KeyMap, check_keys
from ddptop.tui.prefs.memory import Memory
from ddptop.tui.prefs.settings import Interface, Settings
from ddptop.tui.prefs.theme import DARK, OWN, chosen_theme, own_themes

NOTHING = Memory()
PLAIN = Interface()
DEFAULT_KEYS = KeyMap()


class Reach(msgspec.Struct, frozen=True):
    """One user's interface settings on one terminal."""

    interface: Interface = PLAIN
    keys: KeyMap = DEFAULT_KEYS
    themes: Sequence[Theme] = ()
    """User-defined themes."""
    theme: str = DARK.name
    """The theme at startup."""
    letters: str | None = None
    """Draw with ASCII only, and write a person's names in this encoding; None draws everything."""
    problems: Sequence[str] = ()
    """What is wrong in the settings, one line each."""
    memory: Memory = NOTHING
    """What was remembered."""
    remember: Callable[[Memory], None] | None = None
    """Keeps it; None forgets."""


def reach_of(
    settings: Settings,
    *,
    memory: Memory = NOTHING,
    remember: Callable[[Memory], None] | None = None,
    letters: str | None = None,
) -> Reach:
    """Check what the settings say of keys and colours.

    Args:
        settings: as read.
        memory: of earlier starts.
        remember: keeps a new one.
        letters: the encoding of names when only ASCII is drawn; None draws everything.
    """
    keys, wrong_keys = check_keys(settings.keys, settings.file)
    themes, wrong_themes = own_themes(settings.themes, settings.file)
    asked = settings.interface.theme
    known = [*BUILTIN_THEMES, *[theme.name for theme in (*OWN, *themes)]]
    where = f"{settings.file}, [interface]"
    theme, wrong_theme = chosen_theme(asked, memory.theme_beside(asked), known, where)
    return Reach(
        interface=settings.interface,
        keys=keys,
        themes=themes,
        theme=theme,
        letters=letters,
        problems=(
            *settings.problems,
            *wrong_keys,
            *wrong_themes,
            *([wrong_theme] if wrong_theme else []),
        ),
        memory=memory,
        remember=remember,
    )


class _Tame(LineFilter):
    """No character on its way to the terminal steers it, whichever widget drew it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments; mostly as they are."""
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(drawable(text), style, control) for text, style, control in segments]


class _Glyphs(LineFilter):
    """Every glyph on its way to the terminal as ASCII, whichever widget drew it."""

    def __init__(self, letters: str) -> None:
        super().__init__()
        self._translate = Translator(letters)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The segments, their text translated."""
        translate = self._translate
        return [
            segment if segment.text.isascii() else Segment(translate(segment.text), *segment[1:])
            for segment in segments
        ]


class Filters:
    """What becomes of everything on its way to the terminal."""

    def __init__(self, reach: Reach) -> None:
        self._tame = _Tame()
        self._no_colour = NoColor()
        self._glyphs = None if reach.letters is None else _Glyphs(reach.letters)

    def around(self, textuals: Sequence[LineFilter], *, no_color: bool) -> Sequence[LineFilter]:
        """Textual's; where NO_COLOR is set, no colors rather than shades of gray; then glyphs."""
        filters = [self._tame, *textuals]
        if no_color:
            kept = (one for one in filters if not isinstance(one, (Monochrome, ANSIToTruecolor)))
            filters = [*kept, self._no_colour]
        return filters if self._glyphs is None else [*filters, self._glyphs]


def greeting(reach: Reach) -> tuple[str, str] | None:
    """What to tell at the start, and its title: errors in the settings, else where help is."""
    if reach.problems:
        first, *others = reach.problems
        more = f"\nand {len(others)} more; run ddptop keys to list them" if others else ""
        return f"{first}{more}", "settings"
    return None


def kept(reach: Reach, **changes: str | bool | None) -> Reach:
    """The settings with something else remembered, which is kept for the next start."""
    memory = replace(reach.memory, **changes)
    if reach.remember is not None:
        reach.remember(memory)
    return replace(reach, memory=memory)
