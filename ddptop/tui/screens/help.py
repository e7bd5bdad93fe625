"""Keys and words."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from ddptop.tui.actions import JOB, OVERVIEW, Action, keys_text
from ddptop.tui.render.text import Line, line, pad, rule, wrap
from ddptop.tui.render.words import GLOSSARY
from ddptop.tui.widgets.lines import LinesView

MOVING = (
    ("↑ ↓  j k", "choose a job or a rank"),
    ("[  ]", "choose a rank while a log is shown"),
    ("tab", "go to the next panel, such as events or log, to scroll it"),
    ("PgUp PgDn", "scroll; g and G go to the first and last line"),
    ("ctrl+p", "find any command by name; themes as well"),
)


def help_lines(cells: int) -> list[Line]:
    """The whole text, in lines."""
    lines: list[Line] = []
    key_cells, word_cells = 10, 15

    def section(title: str) -> None:
        if lines:
            lines.append(())
        lines.append(rule(title, cells))

    def entry(key: str, text: str, key_style: str, head_cells: int) -> None:
        for index, part in enumerate(wrap(text, cells - head_cells - 2, 9)):
            head = pad(key if index == 0 else "", head_cells)
            lines.append(line(" ", (head, key_style), " ", (part, "")))

    def keys(title: str, actions: tuple[Action, ...]) -> None:
        section(title)
        for action in actions:
            entry(keys_text(action), action.help, "busy", key_cells)

    keys("a job", JOB)
    keys("all jobs", OVERVIEW)
    section("moving")
    for key, text in MOVING:
        entry(key, text, "busy", key_cells)
    section("words")
    for word, meaning in GLOSSARY:
        entry(word, meaning, "strong", word_cells)
    return lines


class _HelpText(LinesView):
    """The text at its full height, inside of something that scrolls."""

    def build(self, width: int, height: int) -> list[Line]:
        return help_lines(width)

    def on_mount(self) -> None:
        self.styles.height = len(help_lines(72))


class HelpScreen(ModalScreen[None]):
    """What each key does, and what each word means."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll {
        width: 80; max-width: 96%; height: 90%; background: $surface;
        border: round $panel; border-title-color: $secondary; padding: 0 2; scrollbar-size: 1 1;
    }
    """

    BINDINGS = [
        Binding("q,escape,question_mark,f1", "dismiss", "Close", id="help.close"),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with VerticalScroll() as scroll:
            scroll.border_title = "ddptop: keys and words"
            scroll.border_subtitle = "q closes"
            yield _HelpText()

    def action_scroll(self, lines: int) -> None:
        """Scroll with the keys of a pager."""
        self.query_one(VerticalScroll).scroll_relative(y=lines * 3, animate=False)
