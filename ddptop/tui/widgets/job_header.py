"""State, pace, progress and attempt of one job."""

from __future__ import annotations

import datetime as dt

from ddptop.tui.render import foreign, panels
from ddptop.tui.render.text import Line
from ddptop.tui.widgets.lines import LinesView
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.registry import AnyJob


class JobHeader(LinesView):
    """Three rows that answer: is it well, how far, how fast."""

    DEFAULT_CSS = """
    JobHeader { height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._view: AnyJob | None = None
        self._now = dt.datetime.min

    def show(self, view: AnyJob, now: dt.datetime) -> None:
        """Take a new look at the job."""
        self._view, self._now = view, now
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        if isinstance(self._view, ForeignView):
            return foreign.header_lines(self._view, self._now, width)
        return [] if self._view is None else panels.header_lines(self._view, self._now, width)
