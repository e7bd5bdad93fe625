"""The row above the keys for typing a filter or a search."""

from __future__ import annotations

import functools

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from ddptop.style import Line, clip, line, width
from ddptop.tui.widgets.lines import LinesView


class _Status(LinesView):
    """Shown next to the text: the number of matches, or the error."""

    DEFAULT_CSS = "_Status { height: 1; width: auto; }"

    def __init__(self, most_share: float = 1.0) -> None:
        super().__init__()
        self._line: Line = ()
        self._most_share = most_share

    def show(self, line: Line) -> None:
        """Show a line in as much room as it needs, up to its share."""
        most = int(self.screen.size.width * self._most_share)
        cells = min(width(line), most)
        if width(line) > most and line:
            line = (*line[:-1], (clip(line[-1][0], most - width(line[:-1])), line[-1][1]))
        if line == self._line:
            return
        self._line = line
        self.styles.width = cells
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        return [self._line]


class _Typed(Input):
    """The text field, without a border."""

    BINDINGS = [
        Binding("escape", "drop", "Clear", show=False, id="filter.clear"),
        Binding("down", "keep", "Keep", show=False, id="filter.keep"),
    ]

    def action_drop(self) -> None:
        """Clear the text and close."""
        if isinstance(self.parent, FilterBar):
            self.parent.drop()

    async def action_submit(self) -> None:
        """Keep the text, after all earlier keys are handled."""
        self.call_later(super().action_submit)

    def action_keep(self) -> None:
        """Keep the text and close."""
        if isinstance(self.parent, FilterBar):
            self.parent.keep()


class FilterBar(Horizontal):
    """Hidden until `open`; enter keeps the text, esc clears it.

    Its place in the layout is just above the keys.
    """

    DEFAULT_CSS = """
    FilterBar { height: 1; display: none; background: $panel; }
    FilterBar > _Typed {
        width: 1fr; height: 1; border: none; padding: 0; background: $panel;
        &:focus { border: none; background-tint: $foreground 0%; }
    }
    FilterBar > _Status { background: $panel; }
    """

    class Changed(Message):
        """The text changed."""

        def __init__(self, bar: FilterBar, text: str) -> None:
            super().__init__()
            self.bar, self.text = bar, text

    class Closed(Message):
        """The bar gave the focus back; `text` is what was kept, "" after esc."""

        def __init__(self, bar: FilterBar, text: str) -> None:
            super().__init__()
            self.bar, self.text = bar, text

    def __init__(self, example: str = "", *, sign: str = "/", id: str | None = None) -> None:
        """`example` is the placeholder; `sign` is shown before the text."""
        super().__init__(id=id)
        self._sign = sign
        self._before = _Status()
        self._example = example
        self._after = _Status(0.6)
        self._focused_before: Widget | None = None

    @functools.cached_property
    def _typed(self) -> _Typed:
        typed = _Typed(placeholder=self._example, compact=True)
        typed.cursor_blink = False
        return typed

    def compose(self) -> ComposeResult:
        """The sign and the status; the costly text field is mounted on first use."""
        yield from (self._before, self._after)

    @property
    def text(self) -> str:
        """The current or kept text."""
        return self._typed.value if self.display else ""

    @property
    def is_typing(self) -> bool:
        """Whether the text field has the focus."""
        return self.screen.focused is self._typed

    def open(self) -> None:
        """Show the bar and focus its text field."""
        if not self.is_typing:
            self._focused_before = self.screen.focused
            if not self._typed.is_attached:
                self.mount(self._typed, after=self._before)
        self.display = True
        self._before.show(line((f" {self._sign} ", "busy")))
        self.screen.set_focus(self._typed)  # immediately: more keys may be in the queue

    def show_status(self, text: str, *, trouble: bool = False) -> None:
        """Show the number of matches, or the error, on the right."""
        if self.display:
            keys = "" if trouble else "   enter applies, esc clears " if self.is_typing else ""
            mark = "▲ " if trouble else ""
            self._after.show(
                line("  ", (f"{mark}{text}{keys} ", "warn" if trouble else "dim")) if text else ()
            )

    def keep(self) -> None:
        """Keep the text and give the focus back; hides if there is no text."""
        self.display = bool(self._typed.value)
        self._give_back()

    def drop(self) -> bool:
        """Clear the text and hide; returns whether there was any."""
        if not self.display:
            return False
        had_keys = self.is_typing
        with self._typed.prevent(Input.Changed):
            self._typed.value = ""
        self.display = False
        self._after.show(())
        self.post_message(self.Changed(self, ""))
        if had_keys:
            self._give_back()
        return True

    def _give_back(self) -> None:
        if self._focused_before is not None and self._focused_before.is_attached:
            self.screen.set_focus(self._focused_before)
        self.post_message(self.Closed(self, self.text))

    @on(Input.Changed)
    def _typing(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(self, event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.keep()
