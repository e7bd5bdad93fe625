"""Why an attempt ended, what was done about it, and its last words."""

from __future__ import annotations

import datetime as dt

from ddptop.draw.story import why_lines
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.attempts import Attempt
from ddptop.view.shown import Tail
from ddptop.view.text import Line, rule
from ddptop_runner.model.words import JobState


class WhyPanel(LinesView):
    """The chosen attempt in words."""

    DEFAULT_CSS = """
    WhyPanel { background: $background; }
    """

    def __init__(self) -> None:
        super().__init__(id="why")
        self._attempt: Attempt | None = None
        self._state: JobState = "running"
        self._tail: Tail | None = None
        self._now = dt.datetime.min
        self._is_last = True

    def show(
        self,
        attempt: Attempt | None,
        state: JobState,
        tail: Tail | None,
        now: dt.datetime,
        *,
        is_last: bool,
    ) -> None:
        """Tell of an attempt; `is_last`: no other followed it."""
        self._attempt, self._state, self._tail = attempt, state, tail
        self._now, self._is_last = now, is_last
        self.redraw()

    def lines_of(self, width: int, most: int) -> list[Line]:
        """As many rows as there is to tell, and no more than `most`."""
        head = "why" if self._attempt is None else f"attempt {self._attempt.number}"
        lines = [rule(head, width)]
        if self._attempt is not None:
            lines += why_lines(
                *(self._attempt, self._state, self._tail, self._now, width, most - 1),
                is_last=self._is_last,
            )
        return lines

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        return self.lines_of(width, height)
