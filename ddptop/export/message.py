"""Writes a message: what happened to which job, how far it is, and what to do. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from ddptop.charts.braille import spark
from ddptop.draw.header import loss_fields, progress_fields
from ddptop.draw.story import what_now
from ddptop.export.incidents import Kind, Notice
from ddptop.job.attempts import Attempt
from ddptop.job.progress import median_loss, progress_of
from ddptop.job.record import Job
from ddptop.style import listed
from ddptop_runner.base import units
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import SCHEMA
from ddptop_runner.store.log_clean import sanitized_line

_TITLES: dict[Kind, str] = {
    "failed": "failed",
    "lost": "is lost",
    "hung": "hangs",
    "restarted": "restarted",
    "finished": "finished",
    "preempted": "was preempted",
    "disk": "has no disk space",
    "nan": "has a loss that is not finite",
    "finding": "needs attention",
}
_OVER: dict[Kind, str] = {
    "hung": "trains again",
    "restarted": "trains again",
    "disk": "has disk space again",
    "nan": "has a finite loss again",
    "finding": "no longer needs attention",
}
CURVE_POINTS = 64
MOST_TEXT = 500
"""Characters of one notice."""


def title(job: Job, notices: Sequence[Notice]) -> str:
    """The subject: `bert failed on gpu-box`; the end of the job, or the latest notice."""
    last = next((one for one in notices if one.is_end), notices[-1])
    words = _OVER.get(last.kind) if last.is_over else None
    more = f" ({len(notices) - 1} more)" if len(notices) > 1 else ""
    return f"{job.name} {words or _TITLES[last.kind]} on {job.host}{more}"


def body(
    job: Job,
    notices: Sequence[Notice],
    attempts: Sequence[Attempt],
    losses: Sequence[float | None],
    *,
    dropped: int = 0,
) -> str:
    """The text.

    Args:
        job: the job now.
        notices: what happened, oldest first.
        attempts: latest first; what to do depends on how the latest ended.
        losses: the job's loss in the last hours, at equal intervals.
        dropped: older notices that could not be sent in time.
    """
    lines = [f"{_local(one.at)}  {_clean(one.text)}" for one in notices]
    if dropped:
        lines.insert(0, f"{units.plural(dropped, 'older message')} could not be sent in time")
    progress = progress_fields(job, progress_of(job), job.read_at)
    lines += ["", listed([*progress, *loss_fields(job, None)])]
    known = [loss for loss in losses if loss is not None]
    if len(known) > 1:
        lines.append(f"loss of the last hours: {spark(losses, min(known), max(known))}")
    last = attempts[0] if attempts else None
    todo = "" if last is None else what_now(last.cause, job.state, is_last=True, job=job.name)
    if todo and any(one.is_end for one in notices):
        lines.append(f"next step: {todo}")
    lines.append(f"on {job.host}: ddptop attach {job.name}")
    return "\n".join(lines)


def data(job: Job, notices: Sequence[Notice], report: str | None = None) -> dict[str, Any]:
    """What webhooks and commands get: the job, each notice, and at its end a report."""
    progress, run = progress_of(job), run_step.of_snapshot(job.snapshot)
    return {
        "schema": SCHEMA,
        "job": job.name,
        "job_id": job.job_id,
        "host": job.host,
        "state": job.state,
        "step": None if run is None else run.step,
        "loss": median_loss(job.snapshot)[0],
        "eta_s": None if progress is None else progress.eta_s,
        "command": f"ddptop attach {job.name}",
        "report": report,
        "notices": [
            {
                "kind": one.kind,
                "at": one.at,
                "text": _clean(one.text),
                "attempt": one.attempt,
                "rank": one.rank,
                "is_over": one.is_over,
            }
            for one in notices
        ],
    }


def _local(at: dt.datetime) -> str:
    return f"{at.astimezone():%H:%M}"


def _clean(text: str) -> str:
    """One line without control characters: an event may quote output of the job."""
    return sanitized_line(text)[:MOST_TEXT]
