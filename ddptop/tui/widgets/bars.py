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
from ddptop.job.filter import Filter
from ddptop.job.keys import HELP, LEAVE, QUIT, Key, key
from ddptop.job.record import Job
from ddptop.style import Line, Span, line, part_at, spread, width
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

    def __init__(self, pages: Sequence[tuple[str, str]] = PAGES) -> None:
        super().__init__(id="pages")
        self.names = dict(pages)
        """The title of each page."""
        self._page = "main"

    def show(self, page: str) -> None:
        """Mark a page as current."""
        self._page = page
        self.redraw()

    def _labels(self) -> list[tuple[str, Line]]:
        labels: list[tuple[str, Line]] = []
        for name, text in self.names.items():
            current = name == self._page
            head: Line = (("▸" if current else " ", "busy"), (f"{key(f'page.{name}')} ", "busy"))
            labels.append((name, (*head, (text, "strong" if current else "dim"), ("  ", ""))))
        return labels

    def build(self, width: int, height: int) -> list[Line]:
        """Build the row."""
        return [tuple(span for _, label in self._labels() for span in label)]

    async def on_click(self, event: events.Click) -> None:
        """Act as the key of the page under the mouse."""
        if (page := part_at(self._labels(), event.x)) is not None:
            await self.app.run_action(f"page('{page}')", default_namespace=self.screen)


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

    def __init__(self, actions: Sequence[Key], *, readonly: bool = False) -> None:
        """`readonly` hides actions that change a job."""
        super().__init__()
        self._last = [one for one in ALWAYS if one in actions]
        self._actions = [one for one in actions if one.bar and one not in ALWAYS]
        self._live: bool | None = None
        self._foreign, self._readonly = False, readonly

    def show(self, job: Job | None, *, foreign: bool = False) -> None:
        """Show the keys for a job, or (None) without one; `foreign`: ddptop did not launch it."""
        live = None if job is None else job.is_live
        foreign = foreign or (job is not None and job.is_foreign)
        if (live, foreign) != (self._live, self._foreign):
            self._live, self._foreign = live, foreign
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
        return part_at(first, x - 1) or part_at(reversed(last), self.size.width - x)

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

    class Typed(Message):
        """The present text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Changed(Typed):
        """The text changed."""

    class Closed(Typed):
        """The bar gave the focus back; the text is what was kept, "" after esc."""

    def __init__(self, example: str) -> None:
        """`example` is the placeholder."""
        super().__init__()
        self._sign = Static(" / ", classes="sign", markup=False)
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

    def show_matches(self, filtered: Filter, count: str) -> None:
        """Show what is wrong with the typed filter, or `count`, how much matches it."""
        self.show_status(filtered.trouble or count, trouble=filtered.trouble is not None)

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
        self.post_message(self.Changed(""))
        if had_keys:
            self._give_back()
        return True

    def action_drop(self) -> None:
        """Clear the text and hide."""
        self.drop()

    def _give_back(self) -> None:
        if self._focused_before is not None and self._focused_before.is_attached:
            self.screen.set_focus(self._focused_before)
        self.post_message(self.Closed(self.text))

    @on(Input.Changed)
    def _typing(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(event.value))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_keep()
