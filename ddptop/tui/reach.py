"""The app below the app: keys, colours, glyphs and memory, as a person set them.

Without a `Reach` nothing is read or written, and everything is as it is by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace
from rich.segment import Segment
from textual._styles_cache import StylesCache
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import ANSIToTruecolor, LineFilter, Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme

from ddptop.tui.actions import EVERYWHERE, HELP, PALETTE, bindings
from ddptop.tui.garbage import give_back
from ddptop.tui.prefs.ascii import Translator, drawable
from ddptop.tui.prefs.keymap import KeyedApp, KeyMap, check_keys
from ddptop.tui.prefs.memory import Memory
from ddptop.tui.prefs.settings import Interface, Settings
from ddptop.tui.prefs.theme import DARK, OWN, STRONG, chosen_theme, own_themes
from ddptop.view.keys import key, use

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


class ReachApp(KeyedApp):
    """Keys, themes, glyphs, the first hint and what is wrong in the settings."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(
            [replace(action, action=action.action.removeprefix("app.")) for action in EVERYWHERE]
        ),
        Binding("ctrl+z", "refuse_suspending", show=False, id="app.suspend"),
    ]

    def __init__(self, reach: Reach | None = None) -> None:
        super().__init__()
        self.reach = reach or Reach()
        """The user's interface settings."""
        self.keys = self.reach.keys
        use(self.keys.named())
        self._glyphs = _Glyphs(self.reach.letters) if self.reach.letters is not None else None
        self._no_colour = NoColor()
        self._tame = _Tame()
        self.animation_level = "none"
        for theme in (*OWN, *self.reach.themes):
            self.register_theme(theme)
        self.theme = self.reach.theme
        self.set_class(STRONG in self.current_theme.variables, "-strong-contrast")
        if chosen := self.keys.for_textual():
            self.set_keymap(chosen)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's; where NO_COLOR is set, no colours rather than shades of grey; then glyphs."""
        filters = [self._tame, *super().get_line_filters()]
        if self.no_color:
            kept = (one for one in filters if not isinstance(one, (Monochrome, ANSIToTruecolor)))
            filters = [*kept, self._no_colour]
        return filters if self._glyphs is None else [*filters, self._glyphs]

    def pop_screen(self) -> AwaitComplete:
        """Forget what the screen's widgets drew."""
        self._forget_closed()
        return super().pop_screen()

    def _forget_closed(self) -> None:
        """A cache of Textual's keeps all that a thousand widgets drew."""
        self._forget_drawn()
        self.set_timer(1.0, self._forget_drawn)  # once the screen is gone

    def _forget_drawn(self) -> None:
        StylesCache.get_inner_outer.cache_clear()
        give_back()

    def greet(self) -> None:
        """Report errors in the settings and, on the first start, show where help is."""
        self.theme_changed_signal.subscribe(self, self._colours_changed)
        if self.reach.problems:
            first, *others = self.reach.problems
            more = f"\nand {len(others)} more; run ddptop keys to list them" if others else ""
            self.notify(
                f"{first}{more}", title="settings", severity="warning", timeout=12, markup=False
            )
        if self.reach.remember is not None and not self.reach.memory.greeted:
            help_key, palette_key = self.keys.short(HELP), self.keys.short(PALETTE)
            self.notify(f"{help_key} help · {palette_key} commands", markup=False, timeout=12)
            self._keep(greeted=True)

    def _keep(self, **changes: str | bool | None) -> None:
        memory = msgspec.structs.replace(self.reach.memory, **changes)
        self.reach = replace(self.reach, memory=memory)
        if self.reach.remember is not None:
            self.reach.remember(memory)

    def _colours_changed(self, theme: Theme) -> None:
        """A theme chosen in the palette is there at the next start."""
        self.set_class(STRONG in theme.variables, "-strong-contrast")
        if theme.name != self.reach.theme:
            self.reach = replace(self.reach, theme=theme.name)
            asked = self.reach.interface.theme
            self._keep(theme=theme.name, asked=asked)

    def action_refuse_suspending(self) -> None:
        """A suspended program would leave the terminal raw."""
        self.notify(
            f"ddptop cannot be suspended; press {key('app.detach')} to quit (jobs keep running)"
        )
