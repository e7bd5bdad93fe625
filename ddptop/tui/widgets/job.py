"""Panels of a job: header, alerts, cause, and events; and the head of a rank."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.draw.events import FoldedEvents, folded_row
from ddptop.draw.header import header_lines
from ddptop.draw.panels import alert_lines
from ddptop.job.help import explain_state
from ddptop.job.record import Job
from ddptop.job.series import LossTrend
from ddptop.style import Column, Line, Span, fill, line, wrap
from ddptop.tui.widgets.lines import Panel
from ddptop.tui.widgets.table import Table
from ddptop_runner.model.snapshot import Alert, Event
from ddptop_runner.model.words import JobState

SHORT = 28
"""On screens with fewer rows, the header has three rows."""


class JobHeader(Panel):
    """One row per topic; only topics with facts take a row."""

    DEFAULT_CSS = """
    JobHeader { height: 3; }
    """

    _state: JobState | None = None

    def show(self, view: Job, now: dt.datetime, trend: LossTrend | None = None) -> None:
        """Show the job; `trend` is the trend of its loss."""
        self._state = view.state
        most = 3 if self.screen.size.height < SHORT else 6
        self.fit(lambda cells: header_lines(view, now, cells, trend, most))

    def explain(self) -> list[tuple[str, str]]:
        """Help on the job's state."""
        return [] if self._state is None else explain_state(self._state)


class AlertsPanel(Panel):
    """The worst alerts; hidden if there are none."""

    def show(self, alerts: Sequence[Alert], now: dt.datetime, most: int) -> None:
        """Show at most `most` rows."""
        self.fit((lambda cells: alert_lines(alerts, now, cells, most)) if alerts else None)


class CausePanel(Panel):
    """Why the job failed, with the last log lines of the first failed rank."""

    DEFAULT_CSS = """
    CausePanel { background: $surface; }
    """


COLUMNS = (
    Column("day", "date", 6, drop=3),
    Column("time", "time", 8),
    Column("type", "event", 15, drop=1),
    Column("rank", "rank", 4, ">", drop=2),
    Column("message", "what happened", 34, flex=True),
)


class EventsTable(Table[Event]):
    """One row per event."""

    wrapped = "message"

    def __init__(self) -> None:
        super().__init__("events", COLUMNS, empty="no events yet", id="events")
        self._follows_first = True

    def show(self, events: Sequence[Event]) -> None:
        """Show the events, latest first."""
        if events == self.items:
            return
        self.items = events
        of_each = [FoldedEvents((event,)) for event in events]
        self.set_rows([(one.key, folded_row(one)) for one in of_each])


SENTENCE_ROWS = 2


class RankHead(Panel):
    """A sentence on the rank, and rows of figures below."""

    DEFAULT_CSS = """
    RankHead { height: 4; }
    """

    _about: Sequence[tuple[str, str]] = ()

    def show(self, sentence: Span, facts: list[list[Line]], about: list[tuple[str, str]]) -> None:
        """Show the sentence and rows of facts; `about` explains them."""
        self._about = about
        self.fit(lambda cells: _rank_lines(sentence, facts, cells))

    def explain(self) -> list[tuple[str, str]]:
        """Help on the sentence and the figures."""
        return [*self._about]


def _rank_lines(sentence: Span, facts: list[list[Line]], cells: int) -> list[Line]:
    text, style = sentence
    symbol = {"bad": "✗", "warn": "▲", "ok": "●", "busy": "◍"}.get(style, "·")
    first, *more = wrap(text, cells - 6, SENTENCE_ROWS)
    strong = style if style in ("bad", "warn") else "strong"
    head = line(" ", (f"{symbol} ", style), (first, strong))
    lines = [head, *(line("   ", (one, strong)) for one in more)] if text else []
    gap = "   " if cells >= 100 else "  "
    return [*lines, *((*parts[0], *fill(parts[1:], cells - 11, gap)) for parts in facts)]
