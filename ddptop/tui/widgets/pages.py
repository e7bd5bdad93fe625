"""The row that says which page of a job is shown, where one page does not hold everything."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from ddptop.tui.widgets.lines import LinesView
from ddptop.view.keys import key
from ddptop.view.text import Line, width

PAGES = (
    ("main", "ranks and loss"),
    ("devices", "devices"),
    ("events", "events"),
    ("log", "log"),
)
"""Name and words of each page."""


class Pages(LinesView):
    """Names of the pages, the current one marked; a click goes there."""

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
        """Of all pages."""
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
        """The row."""
        return [tuple(span for _, label in self._labels() for span in label)]

    def on_click(self, event: events.Click) -> None:
        """Go to the page under the mouse."""
        x = 0
        for name, label in self._labels():
            x += width(label)
            if event.x < x:
                self.post_message(self.Picked(name))
                return
