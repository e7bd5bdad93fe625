"""State, pace, progress and attempt of one job."""

from __future__ import annotations

import datetime as dt

from ddptop.tui.render.panels import header_lines
from ddptop.tui.render.text import Line
from ddptop.tui.widgets.lines import LinesView
from ddptop_runner.registry import JobView


class JobHeader(LinesView):
    """Three rows that answer: is it well, how far, how fast."""

    DEFAULT_CSS = """
    JobHeader { height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._view: JobView | None = None
        self._now = dt.datetime.min

    def show(self, view: JobView, now: dt.datetime) -> None:
        """Take a new look at the job."""
        self._view, self._now = view, now
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        return [] if self._view is None else header_lines(self._view, self._now, width)
