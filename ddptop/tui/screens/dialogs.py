"""Dialogs: questions before actions that cannot be undone, and scrolling text."""

from __future__ import annotations

import itertools

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from ddptop.job.keys import EVIDENCE, EXIT, FINDINGS, MOVING, PROFILE, STACKS, UNSEEN, with_keys
from ddptop.style import cells_of
from ddptop.tui.keymap import bindings


class PagerScreen(ModalScreen[None]):
    """A dialog whose VerticalScroll scrolls by the usual movement keys."""

    BINDINGS = bindings((*MOVING, EXIT))

    def action_move(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=3 * lines, animate=False)

    def action_half(self, pages: int) -> None:
        """Scroll by half of what is visible."""
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=pages * max(1, scroll.size.height // 2), animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by what is visible."""
        self.action_half(2 * pages)

    def action_choose(self) -> None:
        """Do nothing: there is nothing to choose."""


SCROLLING = "; {move.down} and {move.up} scroll"
OPENERS = (STACKS, FINDINGS, UNSEEN, EVIDENCE, PROFILE)
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
    ]

    def __init__(
        self,
        title: str,
        hint: str,
        sections: list[tuple[str, str]] | None = None,
    ) -> None:
        """Show sections; None: they arrive later."""
        super().__init__()
        self._title, self._sections = title, sections
        self._hint = hint + with_keys(SCROLLING)

    def compose(self) -> ComposeResult:
        """Title, hint, and an area for the sections."""
        with Vertical():
            yield Static(self._title, classes="title", markup=False)
            yield Static(classes="hint", markup=False)
            yield VerticalScroll(can_focus=False)

    def on_mount(self) -> None:
        """Show the sections that are known."""
        self._fill(self._sections or [])

    def show(self, sections: list[tuple[str, str]], hint: str | None = None) -> None:
        """Set the sections; may be called before the screen is drawn or after it is closed."""
        self._sections = sections
        if hint is not None:
            self._hint = hint + with_keys(SCROLLING)
        if self.is_mounted and self.is_attached:
            self._fill(sections)

    def _fill(self, sections: list[tuple[str, str]]) -> None:
        """Show the sections in the widgets of the previous ones, so that none flickers."""
        self.query_one(".hint", Static).update(self._hint)
        scroll = self.query_one(VerticalScroll)
        shown = list(scroll.query(Static))
        for widget in shown[2 * len(sections) :]:
            widget.remove()
        for place, text in enumerate(itertools.chain.from_iterable(sections)):
            if place >= len(shown):
                shown.append(Static(markup=False))
                scroll.mount(shown[-1])
            style = f"head {_STYLES.get(text[:1], '')}" if place % 2 == 0 else "text"
            shown[place].set_classes(style)
            shown[place].update(text)
        self._fit()

    def on_resize(self) -> None:
        """Fit the dialog to the new size."""
        self._fit()

    def _fit(self) -> None:
        """Fit the dialog to its text."""
        lines = [self._title, self._hint]
        for heading, text in self._sections or []:
            lines += [heading, *(f"  {line}" for line in text.splitlines())]
        box = self.query_one(Vertical)
        needed = max(map(cells_of, lines)) + AROUND_COLUMNS
        box.styles.width = max(LEAST_CELLS, min(needed, MOST_CELLS, self.size.width * 92 // 100))
        scroll = self.query_one(VerticalScroll)
        scroll.styles.max_height = max(1, self.size.height * 9 // 10 - AROUND_ROWS)


class ConfirmScreen(ModalScreen[bool]):
    """States the effect; the harmless answer has the focus."""

    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; background: $background 60%; }
    ConfirmScreen > Vertical {
        width: 64; max-width: 90%; height: auto; padding: 1 2;
        background: $surface; border: round $warning;
    }
    ConfirmScreen .question { text-style: bold; margin-bottom: 1; }
    ConfirmScreen .effect { color: $foreground 80%; margin-bottom: 1; }
    ConfirmScreen Horizontal { height: auto; align-horizontal: right; }
    ConfirmScreen Button { margin-left: 2; }
    """

    BINDINGS = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("n,escape,q", "answer(False)", "No", id="confirm.no"),
        Binding("left,right", "app.focus_next", show=False),
        *bindings([EXIT]),
    ]

    def __init__(self, question: str, effect: str, verb: str) -> None:
        """Ask `question`, explain with `effect`; `verb` names the button that does it."""
        super().__init__()
        self._question, self._effect, self._verb = question, effect, verb

    def compose(self) -> ComposeResult:
        """Question, effect and two buttons."""
        with Vertical():
            yield Static(self._question, classes="question", markup=False)
            yield Static(self._effect, classes="effect", markup=False)
            with Horizontal():
                yield Button("No  (n)", id="no", compact=True)
                yield Button(f"{self._verb}  (y)", id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        """Focus the harmless answer: pressing enter must not end a training run."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Dismiss with the answer."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Dismiss with the answer of a key."""
        self.dismiss(yes)
