"""Decides which job is most urgent: one order for every list of jobs. Pure.

The order, by `Need`: failed and not viewed yet, hung, lost and not viewed yet, errors, warnings, a
rank that is an outlier, and then healthy jobs: running, starting, queued, ended. Among equals,
ddptop's own jobs come first, then the newest.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Collection, Iterable
from typing import Literal, TypeAlias

import msgspec

from ddptop.job.record import Job
from ddptop_runner.job.registry import RECENT_S
from ddptop_runner.model.snapshot import Alert, NodeSnapshot

STALE_S = 5.0
"""Metrics of a live job older than this are marked stale."""

SETBACK_S = 300.0
"""How long into an attempt to show why the previous one failed; later, only its event does."""


class Need(enum.IntEnum):
    """Urgency levels of a job, most urgent first."""

    FAILED = 0
    HUNG = 1
    LOST = 2
    ERROR = 3
    WARNING = 4
    UNEVEN = 5
    RUNNING = 6
    STARTING = 7
    QUEUED = 8
    ENDED = 9


Why: TypeAlias = Literal[
    "ended", "hung", "coming", "queued", "alarm", "restarting", "stale", "unguarded", "setback",
    "stopping", "starting", "well",
]  # fmt: skip
"""What a need follows from. `coming`: nothing is known about the job yet; `setback`: a new attempt
started recently after a failure."""


class Judged(msgspec.Struct, frozen=True):
    """How urgent a job is, and why."""

    need: Need
    why: Why


Seen: TypeAlias = Collection[tuple[str, dt.datetime | None]]
"""Jobs that the user has viewed since they ended, with the time they ended."""


def seen_key(view: Job) -> tuple[str, dt.datetime | None]:
    """What to remember about an ended job that was viewed; a later failure has another key."""
    return view.name, view.ended_at


def judge(view: Job, now: dt.datetime, seen: Seen = ()) -> Judged:
    """Return how urgent a job is, and why.

    Args:
        view: the job.
        now: the current time, for durations.
        seen: ended jobs that the user has viewed.
    """
    if not view.is_live:
        return Judged(_of_ended(view, now, seen), "ended")
    snapshot = view.snapshot
    if view.state == "hung":
        return Judged(Need.HUNG, "hung")
    if snapshot is None:
        return Judged(Need.STARTING, "coming")
    if view.state == "queued":
        return Judged(Need.QUEUED, "queued")
    if found := alarms(view):
        return Judged(_of_alarm(found[0]), "alarm")
    return _trouble(view, snapshot, now) or _well(view)


def order_of(view: Job, need: Need) -> tuple[Need, bool, float]:
    """The sort key: need, then ddptop's own jobs before others, then newest first."""
    is_foreign = view.is_foreign
    return need, is_foreign, -(view.ended_at or view.created_at).timestamp()


def by_need(views: Iterable[Job], now: dt.datetime) -> list[Job]:
    """Jobs in order of urgency."""
    return sorted(views, key=lambda view: order_of(view, judge(view, now).need))


def is_stopping(view: Job) -> bool:
    """Whether the job was asked to exit; for a foreign job, whether ddptop asked it to."""
    return view.state == "stopping" or (view.is_foreign and bool(view.stopping))


def alarms(view: Job) -> list[Alert]:
    """Errors and warnings of a live job, worst first."""
    if view.snapshot is None or not view.is_live:
        return []
    return worst_first(view.snapshot.alerts)


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Errors and warnings, worst first; a slow rank is the least of the warnings."""
    return sorted(
        (one for one in alerts if one.severity in ("error", "warning")),
        key=lambda one: (one.severity != "error", one.id == "straggler", one.since),
    )


def is_stale(view: Job) -> bool:
    """Whether the metrics of a live job are old."""
    if not view.is_foreign and view.in_slurm_queue:
        return False
    return view.is_live and (view.snapshot_age_s or 0.0) > STALE_S


def _of_ended(view: Job, now: dt.datetime, seen: Seen) -> Need:
    ended, own = view.ended_at, not view.is_foreign
    is_new = ended is not None and (now - ended).total_seconds() < RECENT_S
    if not own or not is_new or seen_key(view) in seen:
        return Need.ENDED
    return {"failed": Need.FAILED, "lost": Need.LOST}.get(view.state, Need.ENDED)


def _of_alarm(worst: Alert) -> Need:
    if worst.id == "straggler":
        return Need.UNEVEN
    return Need.ERROR if worst.severity == "error" else Need.WARNING


def _trouble(view: Job, snapshot: NodeSnapshot, now: dt.datetime) -> Judged | None:
    """Problems without an alert, and restarts, which need no one."""
    if is_stale(view):
        return Judged(Need.WARNING, "stale")
    if view.guarded is False:
        return Judged(Need.WARNING, "unguarded")
    if view.state == "restarting":
        return Judged(Need.RUNNING, "restarting")
    began = None if snapshot.previous_cause is None else snapshot.attempt_started_at
    if began is not None and (now - began).total_seconds() < SETBACK_S:
        return Judged(Need.RUNNING, "setback")
    return None


def _well(view: Job) -> Judged:
    if is_stopping(view):
        return Judged(Need.RUNNING, "stopping")
    if view.state == "starting":
        return Judged(Need.STARTING, "starting")
    return Judged(Need.RUNNING, "well")


_ORDER = {"error": 0, "warning": 1, "info": 2}


def alerts_of(view: Job) -> list[Alert]:
    """Alerts of a live job, worst first; for a foreign job, also what could not be inspected."""
    alerts = list(view.snapshot.alerts) if view.snapshot is not None and view.is_live else []
    notes = () if view.foreign is None else view.foreign.notes
    alerts += [
        Alert(id=f"note-{place}", severity="info", message=note, since=view.created_at)
        for place, note in enumerate(notes)
    ]
    return sorted(alerts, key=lambda alert: (_ORDER.get(alert.severity, 1), alert.since))
