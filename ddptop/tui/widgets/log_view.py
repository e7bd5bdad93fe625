"""The log of one rank, followed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Log

from ddptop.tui.messages import LogRead
from ddptop.tui.render.text import Line, line, rule
from ddptop.tui.widgets.lines import LinesView

MAX_LINES = 10_000


class _LogTitle(LinesView):
    DEFAULT_CSS = "_LogTitle { height: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.title = "log"
        self.note: Line = ()

    def build(self, width: int, height: int) -> list[Line]:
        return [rule(self.title, width, self.note)]


class _Partial(LinesView):
    DEFAULT_CSS = "_Partial { height: 1; display: none; }"

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def build(self, width: int, height: int) -> list[Line]:
        return [line((" ▸ ", "busy"), (self.text, "dim"))]


class _Lines(Log):
    """Textual's log with the keys of a pager."""

    DEFAULT_CSS = """
    _Lines {
        background: transparent; padding: 0 1;
        scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0;
    }
    _Lines:focus { background-tint: $foreground 2%; }
    """
    BINDINGS = [
        Binding("k", "scroll_up", show=False, id="log.up"),
        Binding("j", "scroll_down", show=False, id="log.down"),
        Binding("g", "scroll_home", show=False, id="log.first"),
        Binding("G", "scroll_end", show=False, id="log.last"),
    ]

    following = True
    """Whether the end is shown; only scrolling changes that, not a new size."""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Note whether the person went away from the end."""
        super().watch_scroll_y(old_value, new_value)
        self.following = self.is_vertical_scroll_end

    def on_resize(self) -> None:
        """Stay at the end."""
        if self.following:
            self.scroll_end(animate=False)


class LogView(Vertical):
    """The last lines, and every new one while the view is at its end."""

    def __init__(self) -> None:
        super().__init__(id="log")
        self._whole = False
        self._pager = _Lines(max_lines=MAX_LINES, highlight=False)
        self._title = _LogTitle()
        self._partial = _Partial()

    def compose(self) -> ComposeResult:
        """Title and lines."""
        yield self._title
        yield self._pager
        yield self._partial

    @property
    def lines(self) -> Log:
        """The widget that scrolls."""
        return self._pager

    def show_title(
        self,
        rank: int | None,
        attempt: int | None,
        following: bool,
        output: str | None = None,
        launcher: str | None = None,
    ) -> None:
        """Say whose log it is; `output` says where a foreign job writes.

        Of a command, whose launcher is named, a rank has no log but perhaps lines of the one log.
        """
        kind = "log" if output is None else "output"
        whose = "" if rank is None else f" of rank {rank}"
        if launcher is not None and (rank is None or self._whole):
            whose = f" of {launcher}" if rank is None else f" of {launcher}, all ranks"
        self._title.title = f"{kind}{whose}"
        text = output or ("" if attempt is None else f"attempt {attempt}")
        if following and not self._pager.following:
            text += ", not following: G goes to the end"
        self._title.note = line((text, "dim")) if text else ()
        self._title.redraw()

    def take(self, message: LogRead) -> None:
        """Add lines, or begin anew."""
        self._whole = message.whole
        if message.restarted:
            self._pager.clear()
        self._partial.text = message.partial
        self._partial.display = bool(message.partial)
        self._partial.redraw()
        self._pager.write_lines(message.lines, scroll_end=False)
        if message.restarted or self._pager.following:
            self._pager.following = True
            self._pager.scroll_end(animate=False, immediate=True)
