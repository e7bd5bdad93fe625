"""The confirmation dialog for actions that cannot be undone."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from ddptop.job.keys import EXIT, HELP
from ddptop.tui.keymap import bindings, help_hint


class ConfirmScreen(ModalScreen[bool]):
    """States the effect; the harmless answer has the focus."""

    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; background: $background 60%; }
    ConfirmScreen > Vertical {
        width: 64; max-width: 90%; height: auto; padding: 1 2;
        background: $surface; border: round $warning;
        border-subtitle-color: $secondary;
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
        *bindings((HELP, EXIT)),
    ]

    def __init__(self, question: str, effect: str, verb: str) -> None:
        """Ask `question`, explain with `effect`; `verb` names the button that does it."""
        super().__init__()
        self._question, self._effect, self._verb = question, effect, verb

    def compose(self) -> ComposeResult:
        """Question, effect and two buttons."""
        with Vertical() as box:
            box.border_subtitle = help_hint()
            yield Static(self._question, classes="question", markup=False)
            yield Static(self._effect, classes="effect", markup=False)
            with Horizontal():
                yield Button("No  (n)", id="no", compact=True)
                yield Button(f"{self._verb}  (y)", id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        """Focus the harmless answer: pressing enter must not end a training run."""
        self.query_one("#no", Button).focus()

    def explain(self) -> list[tuple[str, str]]:
        """Help on each answer."""
        return [
            (self._question, self._effect),
            (f"{self._verb}  (y)", "performs the action; a message reports the result"),
            ("No  (n, esc, q)", "changes nothing; enter selects this by default"),
        ]

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Dismiss with the answer."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Dismiss with the answer of a key."""
        self.dismiss(yes)
