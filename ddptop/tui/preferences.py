"""The user's keys, colors, glyphs, and remembered choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from rich.segment import Segment
from textual.color import Color
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme

from ddptop.tui.ascii import Translator, drawable
from ddptop.tui.keymap import check_keys
from ddptop.tui.settings import Interface, Memory, Settings
from ddptop.tui.themes import DARK, OWN, chosen_theme, own_themes

NOTHING = Memory()

PLAIN = Interface()


class Preferences(msgspec.Struct, frozen=True):
    """One user's interface settings on one terminal."""

    interface: Interface = PLAIN
    keys: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The user's keys by action."""
    themes: Sequence[Theme] = ()
    """User-defined themes."""
    theme: str = DARK.name
    """The theme at startup."""
    letters: str | None = None
    """If set, draw with ASCII only and keep the letters that this encoding can write."""
    problems: Sequence[str] = ()
    """Errors in the settings, one line each."""
    memory: Memory = NOTHING
    """What earlier runs remembered."""
    remember: Callable[[Memory], None] | None = None
    """Saves the memory; None: it is not saved."""


def preferences_of(
    settings: Settings,
    *,
    memory: Memory = NOTHING,
    remember: Callable[[Memory], None] | None = None,
    letters: str | None = None,
) -> Preferences:
    """Check the keys and themes of the settings.

    Args:
        settings: the settings file.
        memory: what earlier runs remembered.
        remember: saves a new memory.
        letters: if set, only ASCII is drawn, and letters that this encoding can write.
    """
    keys, wrong_keys = check_keys(settings.keys, settings.file)
    themes, wrong_themes = own_themes(settings.themes, settings.file)
    asked = settings.interface.theme
    known = [*BUILTIN_THEMES, *[theme.name for theme in (*OWN, *themes)]]
    where = f"{settings.file}, [interface]"
    theme, wrong_theme = chosen_theme(asked, memory.remembered_theme(asked), known, where)
    return Preferences(
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


class _Harmless(LineFilter):
    """Keeps control characters from the terminal, whichever widget drew them."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Replace unprintable characters."""
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(drawable(text), style, control) for text, style, control in segments]


class _Glyphs(LineFilter):
    """Translates every glyph to ASCII, whichever widget drew it."""

    def __init__(self, letters: str) -> None:
        super().__init__()
        self._translate = Translator(letters)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Translate the text of the segments."""
        translate = self._translate
        return [
            segment if segment.text.isascii() else Segment(translate(segment.text), *segment[1:])
            for segment in segments
        ]


class Filters:
    """Filters everything on its way to the terminal."""

    def __init__(self, preferences: Preferences) -> None:
        self._harmless = _Harmless()
        self._no_color = NoColor()
        self._glyphs = None if preferences.letters is None else _Glyphs(preferences.letters)

    def around(self, textuals: Sequence[LineFilter], *, no_color: bool) -> Sequence[LineFilter]:
        """Textual's filters and ours; with NO_COLOR, no colors instead of shades of gray."""
        filters = [self._harmless, *textuals]
        if no_color:
            kept = (one for one in filters if not isinstance(one, (Monochrome, ANSIToTruecolor)))
            filters = [*kept, self._no_color]
        return filters if self._glyphs is None else [*filters, self._glyphs]


def greeting(preferences: Preferences) -> tuple[str, str] | None:
    """The text and title of the notification at startup; None unless the settings have errors."""
    if preferences.problems:
        first, *others = preferences.problems
        more = f"\nand {len(others)} more; run ddptop keys to list them" if others else ""
        return f"{first}{more}", "settings"
    return None


def kept(preferences: Preferences, **changes: str | bool | None) -> Preferences:
    """The preferences with changes to the memory, which are also saved for the next start."""
    memory = replace(preferences.memory, **changes)
    if preferences.remember is not None:
        preferences.remember(memory)
    return replace(preferences, memory=memory)
