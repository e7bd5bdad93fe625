"""Dialogs with scrolling text: stacks, findings, unreadable processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ddptop.job.keys import EVIDENCE, EXIT, FINDINGS, HELP, MOVING, STACKS, UNSEEN, with_keys
from ddptop.sources.query import Look
from ddptop.style import cells_of
from ddptop.tui.keymap import bindings, help_hint


class PagerScreen(ModalScreen[None]):
    """A dialog whose VerticalScroll scrolls by the usual movement keys."""

    BINDINGS = [
        *bindings(
            MOVING,
            {
                "move.up": "scroll(-3)",
                "move.down": "scroll(3)",
                "move.half_up": "half(-1)",
                "move.half_down": "half(1)",
                "move.page_up": "half(-2)",
                "move.page_down": "half(2)",
                "move.first": "scroll(-1000000)",
                "move.last": "scroll(1000000)",
            },
        ),
        *bindings([EXIT]),
    ]

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_half(self, pages: int) -> None:
        """Scroll by half of what is visible."""
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=pages * max(1, scroll.size.height // 2), animate=False)


READING = (
    "{move.down}, {move.up}, {move.page_down}, {move.page_up}, {move.first}, and {move.last} "
    "scroll; esc, q, or the key that opened the dialog closes it"
)

MORE = "; {move.down} and {move.up} scroll"
OPENERS = (STACKS, FINDINGS, UNSEEN, EVIDENCE)
"""Actions that open such a dialog; their keys also close it."""

LEAST_CELLS, MOST_CELLS = 40, 112
AROUND_COLUMNS, AROUND_ROWS = 5, 5
"""Cells around the widest line, and rows around the text: border, padding, title, and hint."""
_STYLES = {"▲": "warn", "✗": "bad"}
"""Style of a heading, by its first character."""


class SectionsScreen(PagerScreen):
    """Sections with headings, some of which may arrive later."""

    DEFAULT_CSS = """
    SectionsScreen { align: center middle; background: $background 60%; }
    SectionsScreen > Vertical {
        height: auto; background: $surface; border: round $panel; padding: 0 1;
        border-subtitle-color: $secondary;
    }
    SectionsScreen .title { text-style: bold; }
    SectionsScreen .hint { color: $foreground 62%; margin-bottom: 1; }
    SectionsScreen .head { color: $secondary; text-style: bold; }
    SectionsScreen .head.warn { color: $warning; }
    SectionsScreen .head.bad { color: $error; }
    SectionsScreen .text { margin: 0 0 1 2; }
    SectionsScreen VerticalScroll { height: auto; scrollbar-size: 1 1; }
    """

    BINDINGS = [
        Binding("q,escape", "dismiss", "Close", id="sections.close"),
        *bindings(OPENERS, {one.id: "dismiss" for one in OPENERS}),
        *bindings([HELP]),
    ]

    def __init__(
        self,
        title: str,
        hint: str,
        sections: list[tuple[str, str]] | None = None,
        look: Callable[[Look], tuple[str, list[tuple[str, str]]]] | None = None,
    ) -> None:
        """Show sections; None: they arrive later. `look` rebuilds them after each poll."""
        super().__init__()
        self._look = look
        self._title, self._hint, self._sections = title, hint, sections

    def compose(self) -> ComposeResult:
        """Title, hint, and an area for the sections."""
        with Vertical() as box:
            box.border_subtitle = help_hint()
            yield Static(self._title, classes="title", markup=False)
            yield Static(self._hint, classes="hint", markup=False)
            yield VerticalScroll(can_focus=False)

    def on_mount(self) -> None:
        """Show the sections, if they are known."""
        if self._sections is not None:
            self._fill(self._sections)

    def look_again(self, look: Look) -> None:
        """Update hint and sections; keeps the scroll position."""
        if self._look is None or not self.is_mounted:
            return
        self._hint, sections = self._look(look)
        self._hint_at_more()
        if [text for _, text in sections] != [text for _, text in self._sections or []]:
            self.show(sections)
        elif sections != self._sections:
            for head, (heading, _) in zip(self.query(".head"), sections, strict=False):
                cast(Static, head).update(heading)
        self._sections = sections

    def explain(self) -> list[tuple[str, str]]:
        """Help on the text, and on how to scroll it."""
        return [(self._title, self._hint), ("keys", with_keys(READING))]

    def fail(self, message: str, hint: str | None) -> None:
        """Show why there are no sections."""
        self.show([(message, hint or "")])

    def show(self, sections: list[tuple[str, str]]) -> None:
        """Set the sections; may be called before the screen is drawn or after it is closed."""
        self._sections = sections
        if self.is_mounted and self.is_attached:
            self._fill(sections)

    def _fill(self, sections: list[tuple[str, str]]) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.remove_children()
        for heading, text in sections:
            style = _STYLES.get(heading[:1], "")
            scroll.mount(Static(heading, classes=f"head {style}", markup=False))
            scroll.mount(Static(text, classes="text", markup=False))
        self._fit()

    def on_resize(self) -> None:
        """Fit the dialog to the new size."""
        self._fit()

    def _fit(self) -> None:
        """Fit the dialog to its text, and show whether there is more below."""
        lines = [self._title, self._hint + with_keys(MORE)]
        for heading, text in self._sections or []:
            lines += [heading, *(f"  {line}" for line in text.splitlines())]
        box = self.query_one(Vertical)
        needed = max(map(cells_of, lines)) + AROUND_COLUMNS
        box.styles.width = max(LEAST_CELLS, min(needed, MOST_CELLS, self.size.width * 92 // 100))
        scroll = self.query_one(VerticalScroll)
        scroll.styles.max_height = max(1, self.size.height * 9 // 10 - AROUND_ROWS)
        self.call_after_refresh(self._hint_at_more)

    def _hint_at_more(self) -> None:
        if not self.is_mounted or not self.is_attached:
            return
        more = self.query_one(VerticalScroll).max_scroll_y > 0
        self.query_one(".hint", Static).update(f"{self._hint}{with_keys(MORE) if more else ''}")
