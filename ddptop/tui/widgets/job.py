"""Panels of a job: header, alerts, cause, and events; and the head of a rank."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from ddptop.draw import header
from ddptop.draw.events import FoldedEvents, folded_row
from ddptop.draw.panels import alert_lines, cause_lines, setback_lines
from ddptop.job.help import explain_state
from ddptop.job.record import Job
from ddptop.job.series import LossTrend
from ddptop.style import Column, Line, Span, fill, fit, line, wrap
from ddptop.tui.widgets.lines import LinesView
from ddptop.tui.widgets.table import Table
from ddptop_runner.model.snapshot import Alert, Cause, Event

SHORT = 28
"""On screens with fewer rows, the header has three rows."""
MOST_ROWS = 99


class FittedView(LinesView):
    """A view as high as its lines need."""

    def fit_height(self) -> None:
        """Take as many rows as there are lines, and draw them."""
        self.styles.height = len(self.build(max(20, self.screen.size.width), MOST_ROWS))
        self.redraw()


class JobHeader(FittedView):
    """One row per topic; only topics with facts take a row."""

    DEFAULT_CSS = """
    JobHeader { height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._view: Job | None = None
        self._now = dt.datetime.min
        self._trend: LossTrend | None = None

    def show(self, view: Job, now: dt.datetime, trend: LossTrend | None = None) -> None:
        """Show the job; `trend` is the trend of its loss."""
        self._view, self._now, self._trend = view, now, trend
        self.fit_height()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows."""
        if self._view is None:
            return []
        most = 3 if self.screen.size.height < SHORT else 6
        return header.header_lines(self._view, self._now, width, self._trend, most)

    def explain(self) -> list[tuple[str, str]]:
        """Help on the job's state."""
        return [] if self._view is None else explain_state(self._view.state)


class AlertsPanel(FittedView):
    """The worst alerts; hidden if there are none."""

    def __init__(self) -> None:
        super().__init__()
        self._alerts: Sequence[Alert] = ()
        self._now = dt.datetime.min
        self._most = 0

    def show(self, alerts: Sequence[Alert], now: dt.datetime, most: int) -> None:
        """Show at most `most` rows."""
        self._alerts, self._now, self._most = alerts, now, most
        self.display = bool(alerts) and most > 0
        self.fit_height()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows."""
        return alert_lines(self._alerts, self._now, width, self._most)


class CausePanel(FittedView):
    """Why the job failed, with the last log lines of the first failed rank."""

    DEFAULT_CSS = """
    CausePanel { background: $surface; margin: 0 0 0 0; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._panel: Callable[[int], list[Line]] | None = None

    def hide(self) -> None:
        """Hide the panel."""
        self._draw(None)

    def show(self, state: str, cause: Cause, tail: Sequence[str], rows: int, now: str = "") -> None:
        """Show why a job ended and what to do now, in at most `rows` rows."""
        self._draw(lambda cells: cause_lines(state, cause, tail, cells, rows, now))

    def show_setback(self, attempt: int | None, cause: Cause, rows: int) -> None:
        """Show why an earlier attempt of a running job failed, in at most `rows` rows."""
        self._draw(lambda cells: setback_lines(attempt, cause, cells, rows))

    def _draw(self, panel: Callable[[int], list[Line]] | None) -> None:
        self._panel = panel
        self.display = panel is not None
        if panel is not None:
            self.fit_height()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows."""
        return [] if self._panel is None else self._panel(width)


COLUMNS = (
    Column("day", "date", 6, drop=3),
    Column("time", "time", 8),
    Column("type", "event", 15, drop=1),
    Column("rank", "rank", 4, ">", drop=2),
    Column("message", "what happened", 34, flex=True),
)


class EventsTable(Table):
    """One row per event."""

    def __init__(self) -> None:
        super().__init__("events", COLUMNS, empty="no events yet", id="events")
        self._shown: Sequence[Event] = ()
        self._follows_first = True

    def show(self, events: Sequence[Event]) -> None:
        """Show the events, latest first."""
        if events == self._shown:
            return
        self._shown = events
        of_each = [FoldedEvents((event,)) for event in events]
        self.set_rows([(one.key, folded_row(one)) for one in of_each])


SENTENCE_ROWS = 2


class RankHead(FittedView):
    """A sentence on the rank, and rows of figures below."""

    DEFAULT_CSS = """
    RankHead { height: 4; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._sentence: Span = ("", "")
        self._facts: list[list[Line]] = []
        self._about: list[tuple[str, str]] = []

    def show(self, sentence: Span, facts: list[list[Line]], about: list[tuple[str, str]]) -> None:
        """Show the sentence and as many rows of facts as fit; `about` explains them."""
        self._sentence, self._facts, self._about = sentence, facts, about
        self.fit_height()

    def build(self, width: int, height: int) -> list[Line]:
        """Build the rows."""
        text, style = self._sentence
        symbol = {"bad": "✗", "warn": "▲", "ok": "●", "busy": "◍"}.get(style, "·")
        first, *more = wrap(text, width - 6, SENTENCE_ROWS)
        strong = style if style in ("bad", "warn") else "strong"
        head = line(" ", (f"{symbol} ", style), (first, strong))
        lines = [head, *(line("   ", (one, strong)) for one in more)] if text else []
        gap = "   " if width >= 100 else "  "
        rows = [(*parts[0], *fill(parts[1:], width - 11, gap)) for parts in self._facts]
        return [fit(one, width) for one in (*lines, *rows)]

    def explain(self) -> list[tuple[str, str]]:
        """Help on the sentence and the figures."""
        return self._about
