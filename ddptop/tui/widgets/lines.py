"""Base classes of widgets made of lines; only changed lines are built again."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from ddptop.style import STYLES, Line, fit
from ddptop.tui.textual_gaps import attach


class LinesView(Widget):
    """Shows the lines that `build` returns, one per terminal row.

    Subclasses hold the data, override `build`, and call `redraw` when the data changes.
    """

    DEFAULT_CSS = """
    LinesView {
        height: auto;
        .line--strong { color: $foreground; text-style: bold; }
        .line--dim { color: $foreground 68%; }
        .line--faint { color: $foreground 22%; }
        .line--title { color: $secondary; text-style: bold; }
        .line--ok { color: $success; }
        .line--busy { color: $primary; }
        .line--warn { color: $warning; }
        .line--bad { color: $error; text-style: bold; }
        .line--median { color: $primary; }
        .line--band { color: $primary 38%; }
        .line--chosen { color: $accent; }
        .line--match { text-style: bold reverse; }
        .line--cursor { background: $panel; }
        &:nocolor .line--cursor { text-style: reverse; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._cursor_line: int | None = None
        self._strips: dict[int, Strip] = {}
        self._palette: dict[tuple[str, bool], Style] = {}
        self._built_for: Size | None = None

    def build(self, width: int, height: int) -> list[Line]:
        """The lines for a view of this size."""
        raise NotImplementedError

    def cursor_line(self) -> int | None:
        """The index of the line drawn with the cursor's background."""
        return None

    def explain(self) -> list[tuple[str, str]]:
        """Help on the item under the cursor: (heading, text) pairs."""
        return []

    def redraw(self) -> None:
        """Rebuild, and draw the lines from the first that changed to the last.

        One region takes Textual less time than one per line, and is hardly more output.
        """
        width, height = self._built_for = self.size
        if width <= 0 or height <= 0:
            return
        before, self._lines = self._lines, self.build(width, height)[:height]
        cursor_before, self._cursor_line = self._cursor_line, self.cursor_line()
        moved = {cursor_before, self._cursor_line} if cursor_before != self._cursor_line else set()
        pairs = enumerate(itertools.zip_longest(before, self._lines))
        changed = [y for y, (old, new) in pairs if old != new or y in moved]
        for y in changed:
            self._strips.pop(y, None)
        if changed:
            self.refresh(Region(0, changed[0], width, changed[-1] - changed[0] + 1))

    def on_resize(self, _: events.Resize) -> None:
        """Rebuild for the new size."""
        self._strips.clear()
        self.redraw()

    def on_focus(self) -> None:
        """Show that the keys are here."""
        self.redraw()

    def on_blur(self) -> None:
        """Show that the keys are elsewhere."""
        self.redraw()

    def notify_style_update(self) -> None:
        """Clear the cache: the colors changed."""
        super().notify_style_update()
        self._palette = {}
        self._strips.clear()

    def _style(self, name: str, on_cursor: bool) -> Style:
        """A span's style on this widget's background, or on the cursor's background."""
        style = self._palette.get((name, on_cursor))
        if style is None:
            style = self.rich_style
            for part in ("cursor" if on_cursor else "", name if name in STYLES else ""):
                style += self._resolve(part) if part else Style.null()
            self._palette[name, on_cursor] = style
        return style

    def _resolve(self, name: str) -> Style:
        """A component's style with its transparency blended into this widget's background."""
        styles = self._part_styles(name)
        background = self.background_colors[1]
        style = styles.text_style
        if styles.has_rule("color"):
            style += Style(color=(background + styles.color).rich_color)
        if styles.has_rule("background"):
            style += Style(bgcolor=(background + styles.background).rich_color)
        return style

    def _part_styles(self, name: str) -> RenderStyles:
        """The stylesheet's styles for `.line--name`, looked up on first use.

        With COMPONENT_CLASSES, Textual would look up all names for every widget at each change,
        which takes a quarter of the time to the first frame.
        """
        part = DOMNode(classes=f"line--{name}")
        attach(part, self)
        self.app.stylesheet.apply(part)
        return part.styles

    def render_line(self, y: int) -> Strip:
        """Render a row, from the cache if it has not changed."""
        size = self.size
        if self._built_for != size:
            # a layout that was queried before it was drawn sends widgets no Resize
            self._strips.clear()
            self.redraw()
        strip = self._strips.get(y)
        if strip is None or strip.cell_length != size.width:
            on_cursor = y == self._cursor_line
            spans = fit(self._lines[y] if y < len(self._lines) else (), size.width)
            strip = Strip(
                [Segment(text, self._style(name, on_cursor)) for text, name in spans], size.width
            )
            self._strips[y] = strip
        return strip


class Panel(LinesView):
    """A view of what it was given last."""

    _painter: Callable[[int, int], list[Line]] = staticmethod(lambda _cells, _rows: [])

    def paint(self, painter: Callable[[int, int], list[Line]]) -> None:
        """Show the lines that `painter` returns for so many cells and rows."""
        self._painter = painter
        self.redraw()

    def fit(self, painter: Callable[[int], list[Line]] | None) -> None:
        """Show the lines that `painter` returns, in as many rows as they need; None: hide."""
        self.display = painter is not None
        if painter is not None:
            self.styles.height = len(painter(max(20, self.screen.size.width)))
            self.paint(lambda cells, _: painter(cells))

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows."""
        return self._painter(width, height)


class DraggedView(LinesView):
    """A view that follows the pointer while a button is pressed."""

    is_dragged = False
    """Whether a button pressed here is still held."""

    def takes_drag(self, x: int) -> bool:
        """Whether something can be dragged at this cell of the widget."""
        return True

    def dragged_to(self, x: int) -> None:
        """Handle the pointer at a cell, which may lie beyond either edge."""
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Go to the pointer and start following it."""
        if self.takes_drag(event.x):
            self.is_dragged = True
            self.capture_mouse()
            self.dragged_to(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the pointer."""
        if self.is_dragged:
            self.dragged_to(event.x)

    def on_mouse_up(self) -> None:
        """Release the pointer."""
        if self.is_dragged:
            self.is_dragged = False
            self.release_mouse()
