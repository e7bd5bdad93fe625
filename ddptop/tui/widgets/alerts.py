"""Alerts, and why a job ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from ddptop.draw.panels import alert_lines, cause_lines, setback_lines
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.text import Line
from ddptop_runner.model.snapshot import Alert, Cause


class AlertsPanel(LinesView):
    """The worst alerts; takes no room without any."""

    def __init__(self) -> None:
        super().__init__()
        self._alerts: Sequence[Alert] = ()
        self._now = dt.datetime.min
        self._most = 0

    def show(self, alerts: Sequence[Alert], now: dt.datetime, most: int) -> None:
        """Show at most `most` rows."""
        self._alerts, self._now, self._most = alerts, now, most
        rows = len(alert_lines(alerts, now, max(20, self.screen.size.width), most))
        self.display = rows > 0
        if self.styles.height is None or self.styles.height.value != rows:
            self.styles.height = rows
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        return alert_lines(self._alerts, self._now, width, self._most)


class CausePanel(LinesView):
    """Why the job failed, with the last words of the rank that failed first."""

    DEFAULT_CSS = """
    CausePanel { background: $surface; margin: 0 0 0 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._panel: Callable[[int, int], list[Line]] | None = None

    def hide(self) -> None:
        """Take no room."""
        self._draw(None, 0)

    def show(self, state: str, cause: Cause, tail: Sequence[str], rows: int, now: str = "") -> None:
        """Show why a job ended, and what to do now, in at most `rows` rows."""
        self._draw(lambda cells, most: cause_lines(state, cause, tail, cells, most, now), rows)

    def show_setback(self, attempt: int | None, cause: Cause, rows: int) -> None:
        """Show why an attempt of a job that goes on failed, in at most `rows` rows."""
        self._draw(lambda cells, most: setback_lines(attempt, cause, cells, most), rows)

    def _draw(self, lines: Callable[[int, int], list[Line]] | None, rows: int) -> None:
        self._panel = lines
        self.display = lines is not None
        if lines is None:
            return
        needed = len(lines(max(20, self.screen.size.width), rows))
        if self.styles.height is None or self.styles.height.value != needed:
            self.styles.height = needed
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        return [] if self._panel is None else self._panel(width, height)
