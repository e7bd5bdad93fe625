"""The top row: program, what is shown, where."""

from __future__ import annotations

from ddptop.draw.panels import title_line
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.text import Line


class TitleBar(LinesView):
    """One row with the name of what is shown at the left, and facts at the right."""

    DEFAULT_CSS = """
    TitleBar { height: 1; background: $panel; }
    """

    def __init__(self, name: str = "", *, readonly: bool = False) -> None:
        super().__init__()
        self._readonly = readonly
        self._shown = name
        self._about = ""
        self._right: Line = ()

    def show(self, name: str, right: Line, about: str = "") -> None:
        """Say what is shown, and in `about` what is to be known of it first."""
        self._shown, self._right, self._about = name, right, about
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """The row."""
        return [title_line(self._shown, self._right, width, self._about, readonly=self._readonly)]
