"""The rows at the top and bottom of screens: title, pages, keys, and a typed filter."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from ddptop.draw.panels import title_line
from ddptop.job.keys import HELP, LEAVE, QUIT, Key, key
from ddptop.style import Line, Span, line, spread, width
from ddptop.tui.widgets.lines import LinesView, Panel


class TitleBar(Panel):
    """One row with a name on the left and facts on the right."""

    DEFAULT_CSS = """
    TitleBar { height: 1; background: $panel; }
    """

    def __init__(self, name: str = "", *, readonly: bool = False) -> None:
        super().__init__()
        self._readonly = readonly
        self.show(name, ())

    def show(self, name: str, right: Line, about: str = "") -> None:
        """Show the name, the facts, and `about`, the most important fact, after the name."""
        title = functools.partial(title_line, name, right, about=about, readonly=self._readonly)
        self.paint(lambda cells, _: [title(cells)])


PAGES = (
    ("main", "ranks and loss"),
    ("devices", "devices"),
    ("events", "events"),
    ("log", "log"),
)
"""Name and title of each page."""


class Pages(LinesView):
    """The page names, with the current one marked; a click opens a page."""

    DEFAULT_CSS = """
    Pages { height: 1; }
    """

    class Picked(Message):
        """A page was clicked."""

        def __init__(self, page: str) -> None:
            super().__init__()
            self.page = page

    def __init__(self, pages: Sequence[tuple[str, str]] = PAGES) -> None:
        super().__init__(id="pages")
        self._names = pages
        self._page = "main"

    @property
    def names(self) -> list[str]:
        """The names of all pages."""
        return [name for name, _ in self._names]

    def show(self, page: str) -> None:
        """Mark a page as current."""
        self._page = page
        self.redraw()

    def _labels(self) -> list[tuple[str, Line]]:
        labels: list[tuple[str, Line]] = []
        for name, text in self._names:
            current = name == self._page
            head: Line = (("▸" if current else " ", "busy"), (f"{key(f'page.{name}')} ", "busy"))
            labels.append((name, (*head, (text, "strong" if current else "dim"), ("  ", ""))))
        return labels

    def build(self, width: int, height: int) -> list[Line]:
        """Build the row."""
        return [tuple(span for _, label in self._labels() for span in label)]

    def on_click(self, event: events.Click) -> None:
        """Open the page under the mouse."""
        x = 0
        for name, label in self._labels():
            x += width(label)
            if event.x < x:
                self.post_message(self.Picked(name))
                return


ALWAYS = (LEAVE, QUIT, HELP)
"""Actions always shown: those that leave, and the help."""

_Label: TypeAlias = tuple[Key, Line]


class KeyBar(LinesView):
    """As many keys as fit, in the table's order; on the right, how to leave and the help.

    Textual's own footer keeps every key it ever showed in memory; this one only draws a line.
    """

    DEFAULT_CSS = """
    KeyBar { height: 1; dock: bottom; background: $panel; }
    """

    def __init__(self, actions: Sequence[Key]) -> None:
        super().__init__()
        self._last = [one for one in ALWAYS if one in actions]
        self._actions = [one for one in actions if one.bar and one not in ALWAYS]
        self._live: bool | None = None
        self._foreign = self._readonly = False

    def show(
        self,
        live: bool | None,
        *,
        foreign: bool = False,
        readonly: bool = False,
    ) -> None:
        """Show the keys for a live job, an ended one, or (None) no job.

        Args:
            live: whether the job is live; None without a job.
            foreign: whether ddptop did not launch it.
            readonly: whether to hide actions that change a job.
        """
        if (live, foreign, readonly) != (self._live, self._foreign, self._readonly):
            self._live, self._foreign, self._readonly = live, foreign, readonly
            self.redraw()

    def offers(self, action: Key) -> bool:
        """Whether an action applies now to the item under the cursor."""
        return action.is_offered(self._live, foreign=self._foreign, readonly=self._readonly)

    def _labels(self, cells: int) -> tuple[list[_Label], list[_Label]]:
        """The labels on the left, as many as fit, and those on the right."""
        last = [self._label(action) for action in self._last]
        offered = [action for action in self._actions if self.offers(action)]
        first: list[_Label] = []
        used = 1 + sum(width(label) for _, label in last)
        for label in (self._label(one) for one in offered if one.keys):
            used += width(label[1])
            if used > cells + 1:  # the last label needs one cell less
                break
            first.append(label)
        return first, last

    def _label(self, action: Key) -> _Label:
        quits = action.id == LEAVE.id and getattr(self.screen, "is_first", False)
        name = QUIT.name if quits else action.name
        return action, line((f"{action.short} " if action.keys else "", "busy"), f"{name}  ")

    def build(self, cells: int, height: int) -> list[Line]:
        """Build the row."""
        first, last = ([span for _, label in end for span in label] for end in self._labels(cells))
        keys, right = _trimmed(line(" ", *first), ""), _trimmed(last, " ")
        return [spread(keys, right, cells)]

    def action_at(self, x: int) -> Key | None:
        """The action whose key is at cell `x`."""
        first, last = self._labels(self.size.width)
        end = 1
        for action, label in first:
            end += width(label)
            if x < end:
                return action
        start = self.size.width + 1
        for action, label in reversed(last):
            start -= width(label)
            if x >= start:
                return action
        return None

    async def on_click(self, event: events.Click) -> None:
        """Run the action that was clicked."""
        if (action := self.action_at(event.x)) is not None:
            await self.app.run_action(action.action, default_namespace=self.screen)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show a tooltip for the key under the pointer."""
        action = self.action_at(event.x)
        self.tooltip = None if action is None else Content(action.help)


def _trimmed(spans: Sequence[Span], end: str) -> Line:
    *first, (text, style) = spans
    return (*first, (text.rstrip() + end, style))


class _Typed(Input):
    """The text field, without a border."""

    async def action_submit(self) -> None:
        """Keep the text, after all earlier keys are handled."""
        self.call_later(super().action_submit)


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
    FilterBar > .sign { width: auto; color: $primary; }
    FilterBar > .status {
        width: auto; max-width: 60%; text-wrap: nowrap; text-overflow: ellipsis;
        color: $foreground 68%;
        &.-trouble { color: $warning; }
    }
    """

    BINDINGS = [
        Binding("escape", "drop", "Clear", show=False, id="filter.clear"),
        Binding("down", "keep", "Keep", show=False, id="filter.keep"),
    ]

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
        self._sign = Static(f" {sign} ", classes="sign", markup=False)
        self._example = example
        self._status = Static(classes="status", markup=False)
        self._focused_before: Widget | None = None

    @functools.cached_property
    def _typed(self) -> _Typed:
        typed = _Typed(placeholder=self._example, compact=True)
        typed.cursor_blink = False
        return typed

    def compose(self) -> ComposeResult:
        """The sign and the status; the costly text field is mounted on first use."""
        yield from (self._sign, self._status)

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
                self.mount(self._typed, after=self._sign)
        self.display = True
        self.screen.set_focus(self._typed)  # immediately: more keys may be in the queue

    def show_status(self, text: str, *, trouble: bool = False) -> None:
        """Show the number of matches, or the error, on the right."""
        if self.display:
            keys = "" if trouble else "   enter applies, esc clears " if self.is_typing else ""
            mark = "▲ " if trouble else ""
            self._status.set_class(trouble, "-trouble")
            self._status.update(f"  {mark}{text}{keys} " if text else "")

    def action_keep(self) -> None:
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
        self._status.update("")
        self.post_message(self.Changed(self, ""))
        if had_keys:
            self._give_back()
        return True

    def action_drop(self) -> None:
        """Clear the text and hide."""
        self.drop()

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
        self.action_keep()
