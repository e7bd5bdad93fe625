"""The problems of a job in full: each alert with its ranks and its remedy."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from ddptop.view import words
from ddptop.view.keys import with_keys
from ddptop_runner.base import units
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.model.snapshot import Alert

if TYPE_CHECKING:
    pass


from ddptop.view.alert_help import explain
from ddptop_runner.job.registry import AnyJob

_ORDER = {"error": 0, "warning": 1, "info": 2}


def alerts_of(view: AnyJob) -> list[Alert]:
    """The alerts of a live job, worst first; of a foreign one also what could not be seen."""
    alerts = list(view.snapshot.alerts) if view.snapshot is not None and view.is_live else []
    if isinstance(view, ForeignView):
        alerts += note_alerts(view)
    return sorted(alerts, key=lambda alert: (_ORDER.get(alert.severity, 1), alert.since))


def findings(view: AnyJob | None, now: dt.datetime) -> tuple[str, list[tuple[str, str]]]:
    """What is found at this moment, in a few words, and a heading and text of each alert."""
    if view is None:
        return "the job no longer exists; esc closes", []
    if not view.is_live and not isinstance(view, ForeignView):
        return _ended(view)
    sections = [(_heading(alert, now), _text(alert)) for alert in alerts_of(view)]
    return f"{'worst first' if sections else 'no problems found'}; esc closes", sections


def _ended(view: AnyJob) -> tuple[str, list[tuple[str, str]]]:
    """For an ended job: why it failed, if it did, and which keys show more."""
    state, _ = words.job_state(view.state)
    cause = None if view.snapshot is None else view.snapshot.cause
    if view.state == "failed" and cause is not None:
        rank = "" if cause.rank is None else f"   rank {cause.rank}"
        return (
            "why it failed; esc closes",
            [(f"{state}{rank}", f"{cause.summary}\n\n{with_keys(_MORE_OF_FAILED)}")],
        )
    return (
        "findings are available only while a job is running; esc closes",
        [(state, with_keys(_MORE))],
    )


_MORE = (
    "Press esc, then {view.story} for each attempt and why it ended, or {view.logs} for the logs."
)
_MORE_OF_FAILED = (
    "Press esc, then {view.story} for each attempt and its saved evidence, or {view.logs} for the "
    "logs."
)


def _text(alert: Alert) -> str:
    return f"{alert.message}\n\n{help_text}" if (help_text := explain(alert.id)) else alert.message


def _heading(alert: Alert, now: dt.datetime) -> str:
    symbol, _ = words.severity(alert.severity)
    parts = [f"{symbol} {alert.severity}"]
    if alert.ranks:
        parts.append(units.name_ranks(alert.ranks, compact=True))
    if alert.gpus:
        parts.append(f"{'GPU' if len(alert.gpus) == 1 else 'GPUs'} {units.ranks(alert.gpus)}")
    if alert.host is not None:
        parts.append(f"host {alert.host}")
    if alert.severity != "info":
        parts.append(f"for {units.duration((now - alert.since).total_seconds())}")
    return "   ".join(parts)


def note_alerts(view: ForeignView) -> list[Alert]:
    """What could not be seen of a job, as the least of alerts."""
    return [
        Alert(id=f"note-{place}", severity="info", message=note, since=view.created_at)
        for place, note in enumerate(view.foreign.notes)
    ]
