"""The help: the item under the cursor, then keys, then terms."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen

from ddptop.job.help import about
from ddptop.job.help import sections as term_sections
from ddptop.job.keys import HELP, ON_EVERY_SCREEN, PALETTE, SCREENS, Key
from ddptop.style import Line, Span, line, pad, rule, wrap
from ddptop.tui.keymap import bindings
from ddptop.tui.screens.base import MonitorScreen
from ddptop.tui.screens.dialogs import PagerScreen
from ddptop.tui.widgets.lines import LinesView

UNDER_CURSOR = "under the cursor"
IN_DIALOG = "this dialog"

KEY_CELLS, NAME_CELLS, WORD_CELLS = 10, 16, 15
ROOMY_CELLS = 60
"""From this width on, action names have their own column."""


def help_lines(
    cells: int,
    explained: Sequence[tuple[str, str]] = (),
    here: str | None = None,
    what: str = UNDER_CURSOR,
) -> list[Line]:
    """The help text.

    Args:
        cells: the width of a line.
        explained: (heading, text) pairs on the item under the cursor.
        here: the title of the screen below, whose keys come first.
        what: the heading above `explained`.
    """
    lines: list[Line] = []
    others = [title for title in SCREENS if title != here]
    if here is not None:
        lines = _table(f"keys on this screen: {here}", SCREENS[here], cells)
    if explained:
        lines += [(), rule(what, cells)]
        for heading, text in explained:
            lines.append(line(" ", (heading, "strong")))
            lines += [line("   ", part) for part in wrap(text, cells - 4, 99)]
    lines += _table("keys on every screen", ON_EVERY_SCREEN, cells)
    lines += [(), rule("mouse and panels", cells)]
    for head, text in about("mouse"):
        lines += _entry([(head, "busy", KEY_CELLS)], text, cells)
    for title in others:
        lines += _table(f"keys: {title}" if here is not None else title, SCREENS[title], cells)
    for heading, words in term_sections().items():
        lines += [(), rule(f"terms: {heading}", cells)]
        for word, meaning in words:
            lines += _entry([(word, "strong", WORD_CELLS)], meaning, cells)
    return lines[1:]


def _table(title: str, actions: Sequence[Key], cells: int) -> list[Line]:
    """A section with a line per action."""
    lines: list[Line] = [(), rule(title, cells)]
    for action in actions:
        heads, text = [(action.text or "unbound", "busy", KEY_CELLS)], action.help
        if cells >= ROOMY_CELLS:
            heads.append((action.name, "strong", NAME_CELLS))
        else:
            text = f"{action.name}: {text}"
        lines += _entry(heads, text, cells)
    return lines


def _entry(heads: Sequence[tuple[str, str, int]], text: str, cells: int) -> list[Line]:
    """An entry: (text, style, cells) of each head, and the wrapped text after them."""
    lines: list[Line] = []
    (first, style, room), *others = heads
    if len(first) > room:
        lines.append(line(" ", (first, style)))
        heads = [("", style, room), *others]
    for part in wrap(text, cells - sum(room + 1 for *_, room in heads) - 1, 99):
        spans: list[Span] = [(" ", "")]
        for head, style, room in heads:
            spans += [(pad(head, room), style), (" ", "")]
        lines.append(line(*spans, part))
        heads = [("", style, room) for _, style, room in heads]
    return lines


class _HelpText(LinesView):
    """The text at full height, in a scrolling container."""

    def __init__(self, explained: list[tuple[str, str]], here: str | None, what: str) -> None:
        super().__init__()
        self._help_parts = explained, here, what

    def build(self, width: int, height: int) -> list[Line]:
        lines = help_lines(width, *self._help_parts)
        self.styles.height = len(lines)
        return lines

    def on_mount(self) -> None:
        self.styles.height = len(help_lines(72, *self._help_parts))


class HelpScreen(PagerScreen):
    """Help: the keys, the item under the cursor, and the terms."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll {
        width: 84; max-width: 96%; height: 90%; background: $surface;
        border: round $panel; border-title-color: $secondary; border-subtitle-color: $secondary;
        padding: 0 2; scrollbar-size: 1 1;
    }
    """

    BINDINGS = [
        Binding("q,escape", "dismiss", "Close", id="help.close"),
        *bindings([HELP], {HELP.id: "dismiss"}),
    ]

    def __init__(
        self,
        explained: list[tuple[str, str]] | None = None,
        here: str | None = None,
        what: str = UNDER_CURSOR,
    ) -> None:
        """Show the help.

        Args:
            explained: (heading, text) pairs on the item under the cursor.
            here: the title of the screen below.
            what: the heading above `explained`.
        """
        super().__init__()
        self._text = _HelpText(explained or [], here, what)

    @classmethod
    def of(cls, screen: Screen[object]) -> HelpScreen:
        """The help for the current state of a screen or dialog."""
        explained = screen.explain() if hasattr(screen, "explain") else []
        if isinstance(screen, MonitorScreen):
            return cls(explained, screen.KEYS)
        return cls(explained, what=IN_DIALOG)

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with VerticalScroll(can_focus=False) as scroll:
            scroll.border_title = "ddptop: keys and terms"
            scroll.border_subtitle = f"{PALETTE.short} finds commands; esc closes"
            yield self._text
