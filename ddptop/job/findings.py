"""Explains what is wrong with a job, why, and what to do: its alerts and other findings. Pure."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from ddptop.job.help import explain_alert
from ddptop.job.keys import with_keys
from ddptop.job.record import Job
from ddptop.job.status import alerts_of, brief_place, job_state, severity
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import Alert

SET_BACK = ("restarting", "starting")
"""Job states right after an attempt failed."""


class Guilty(NamedTuple):
    """The rank whose log shows why a job hangs or failed."""

    rank: int
    attempt: int | None
    """The attempt in which it failed; None for the latest."""
    why: str
    """A few words, such as `killed by SIGKILL`."""


def guilty(view: Job) -> Guilty | None:
    """The rank that the others wait for, or that failed first; None if no rank is to blame."""
    state = view.snapshot
    pause = view.pause
    if pause is not None and pause.ranks:
        place = next((one.stands_at for one in state.ranks if one.rank == pause.ranks[0]), None)
        where = "" if place is None else f", last seen at {brief_place(place)}"
        return Guilty(pause.ranks[0], None, f"the other ranks wait for it{where}")
    attempt, cause = None, state.cause
    if cause is None and view.is_live and view.state in SET_BACK and state.attempt:
        attempt, cause = state.attempt - 1, state.previous_cause
    if cause is None or cause.rank is None:
        return None
    if cause.kind == "hang":
        why = "stuck"
    elif cause.signal is not None:
        why = f"killed by {cause.signal}"
    elif cause.exception is not None:
        why = cause.exception
    else:
        why = "failed first"
    place = "" if cause.place is None else brief_place(cause.place)
    return Guilty(cause.rank, attempt, f"{why} at {place}" if place else why)


def findings(view: Job | None, now: dt.datetime) -> tuple[str, list[tuple[str, str]]]:
    """A brief summary of the current findings, and a heading and text for each."""
    if view is None:
        return "the job no longer exists; esc closes", []
    if not view.is_live and not view.is_foreign:
        return _ended(view)
    sections = [(_heading(alert, now), _text(alert)) for alert in alerts_of(view)]
    return f"{'worst first' if sections else 'no problems found'}; esc closes", sections


def _ended(view: Job) -> tuple[str, list[tuple[str, str]]]:
    """For an ended job: why it failed, if it did, and the keys that show more."""
    state, _ = job_state(view.state)
    cause = view.snapshot.cause
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
    return "\n\n".join(filter(None, [alert.message, explain_alert(alert.id)]))


def _heading(alert: Alert, now: dt.datetime) -> str:
    symbol, _ = severity(alert.severity)
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
