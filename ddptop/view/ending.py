"""Says in one sentence how a job ended, and why. Pure."""

from __future__ import annotations

import datetime as dt

from ddptop.view.jobs import elapsed_s
from ddptop_runner.base import units
from ddptop_runner.job.registry import AnyJob, JobView, pause_of
from ddptop_runner.jobs.contract import loss_state
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Cause, NodeSnapshot


def how_it_ended(view: AnyJob, now: dt.datetime) -> str:
    """An ended job in one sentence: why it failed, or how far it came and how long it ran."""
    snapshot, state, ended = view.snapshot, view.state, view.ended_at
    ago_s = None if ended is None else max(0.0, (now - ended).total_seconds())
    ago = "" if ago_s is None else f"{units.brief_duration(ago_s)} ago"
    if not isinstance(view, JobView):
        from ddptop.view.words import GONE

        how = f"exited after ddptop sent {view.ended_by}" if view.ended_by else GONE
        return f"{ago}: {how}" if ago else how
    if state == "failed":
        cause = None if snapshot is None else snapshot.cause
        return short_cause(cause) if cause is not None else _exit(snapshot)
    if state == "lost":
        text = "its processes exited without leaving an exit status"
        return f"{text}; last seen {ago}" if ago else text
    parts = [ago] if ago else []
    if remark := loss_remark(view):
        parts.insert(0, remark)
    if (run := run_step.of_snapshot(snapshot)) is not None:
        last = " in the last attempt" if run.counts == "attempt" else ""
        parts.append(f"after {units.plural(run.step, 'step')}{last}")
    if (lasted_s := elapsed_s(view, now)) is not None:
        parts.append(f"{'in' if state == 'finished' else 'ran'} {units.duration(lasted_s)}")
    return ", ".join(parts) or state


def loss_remark(view: AnyJob) -> str:
    """That an ended job's last loss was not finite; empty if it was, or if it failed."""
    if view.snapshot is None or view.state not in ("finished", "stopped"):
        return ""
    state = loss_state(view.snapshot.ranks)
    return f"the loss was {units.loss(None, state)} at the end" if state in ("nan", "inf") else ""


def plain_status(view: JobView, now: dt.datetime) -> str:
    """How a job ended, why it pauses, or where its head is; empty for other live jobs."""
    if not view.is_live:
        return " ".join(how_it_ended(view, now).split())
    if (member := view.spec.membership) is not None:
        return f"part of a job on {member.head or 'another machine'}"
    if (pause := pause_of(view)) is None:
        return ""
    from ddptop.view.words import pause_why

    return pause_why(pause, now)


def _exit(snapshot: NodeSnapshot | None) -> str:
    status = None if snapshot is None else snapshot.exit_code
    return "cause unknown" if status is None else f"exit status {status}"


def short_cause(cause: Cause) -> str:
    """A cause on one row: `rank 1: ValueError: bad at train.py:10`."""
    text = " ".join((cause.headline or cause.summary).split())
    return text if cause.headline is None or cause.host is None else f"{cause.host}: {text}"


def brief_place(place: str) -> str:
    """`/home/a/train.py:81 in step` as `train.py:81`."""
    return place.partition(" in ")[0].rpartition("/")[2]
