"""What a person should look at, and why a job ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.tui.render.panels import alert_lines, cause_lines
from ddptop.tui.render.text import Line
from ddptop.tui.widgets.lines import LinesView
from ddptop_runner.model import Alert, Cause


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
        self._state = ""
        self._cause: Cause | None = None
        self._tail: Sequence[str] = ()

    def show(self, state: str, cause: Cause | None, tail: Sequence[str], rows: int) -> None:
        """Show the cause in at most `rows` rows; None hides the panel."""
        self._state, self._cause, self._tail = state, cause, tail
        self.display = cause is not None
        if cause is None:
            return
        needed = len(cause_lines(state, cause, tail, max(20, self.screen.size.width), rows))
        if self.styles.height is None or self.styles.height.value != needed:
            self.styles.height = needed
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """The rows."""
        if self._cause is None:
            return []
        return cause_lines(self._state, self._cause, self._tail, width, height)
