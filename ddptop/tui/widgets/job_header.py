"""Is it alive, how far is it, is it learning."""

from __future__ import annotations

import datetime as dt

from ddptop.draw import foreign, header
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.learning import LossTrend
from ddptop.view.rank_help import explain_state
from ddptop.view.text import Line
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import AnyJob

SHORT = 28
"""Screens of fewer rows get a header of three."""


class JobHeader(LinesView):
    """A row for each question, as high as it has something to say."""

    DEFAULT_CSS = """
    JobHeader { height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._view: AnyJob | None = None
        self._now = dt.datetime.min
        self._trend: LossTrend | None = None
        self._is_gone = False

    def show(self, view: AnyJob, now: dt.datetime, trend: LossTrend | None = None) -> None:
        """Take a new look at the job; `trend` is where its loss goes."""
        self._view, self._now, self._trend, self._is_gone = view, now, trend, False
        rows = max(1, len(self._rows(max(20, self.screen.size.width))))
        if self.styles.height is None or self.styles.height.value != rows:
            self.styles.height = rows
        self.redraw()

    def show_gone(self) -> None:
        """Say that the job is not there any more, instead of the state that it had."""
        self._is_gone = True
        self.redraw()

    def _rows(self, width: int) -> list[Line]:
        short = self.screen.size.height < SHORT
        if self._is_gone:
            return header.gone_lines(None if self._view is None else self._now, width)
        if isinstance(self._view, ForeignView):
            most = 4 if short else 6
            return foreign.header_lines(self._view, self._now, width, self._trend, most)
        if self._view is None:
            return []
        return header.header_lines(self._view, self._now, width, self._trend, 3 if short else 4)

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        return self._rows(width)

    def explain(self) -> list[tuple[str, str]]:
        """What the job's state means."""
        return [] if self._view is None else explain_state(self._view.state)
