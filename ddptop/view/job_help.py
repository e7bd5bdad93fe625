"""Explain a job's row of the overview, figure by figure."""

from __future__ import annotations

import datetime as dt

from ddptop.view import words
from ddptop.view.findings import explain
from ddptop.view.jobs import elapsed_s, median_loss
from ddptop.view.keys import with_keys
from ddptop.view.learning import LossTrend
from ddptop.view.listed import Listed
from ddptop.view.need import Need
from ddptop.view.odd import uneven
from ddptop.view.progress import percent_text, progress_of
from ddptop.view.progress_words import step_text
from ddptop_runner.base import units
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import pause_of
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot

_STATES = {
    "queued": "It is waiting for free GPUs, or for Slurm to start it again.",
    "starting": "Its processes are starting; no rank has taken a step yet.",
    "running": "Its ranks are training. Problems are shown under status.",
    "restarting": "An attempt failed, and all ranks are restarting together.",
    "hung": "Its ranks are running but have not taken a step within its hang timeout.",
    "stopping": "It was asked to exit; remaining processes are killed after the grace period.",
    "finished": "Every rank exited with status 0.",
    "failed": "A rank failed, and the job did not restart. Press {view.story} to show its story.",
    "stopped": "Someone stopped it.",
    "lost": "Its processes exited without leaving an exit status (for example, because of a "
    "reboot).",
}
_PAUSES = {
    "no_step": "Its ranks are running, but have gone longer than usual without a step, which "
    "can happen during evaluation.",
    "stalled": "It has gone longer without a step than ever before, or is waiting for an "
    "idle rank.",
}
_NEEDS = {
    Need.FAILED: "It is listed first because it failed and has not been opened since; press "
    "{job.open} to open it.",
    Need.HUNG: "It is listed first because it is not making progress.",
    Need.LOST: "It is listed first because its result is unknown.",
    Need.ERROR: "It is listed near the top because of an error; press {job.findings} to "
    "show the error and what to do.",
    Need.WARNING: "It is listed near the top because of a warning; press {job.findings} to "
    "show the warning and what to do.",
    Need.UNEVEN: "It is listed near the top because one rank is lagging and the others are "
    "waiting for it.",
}
_TRENDS = {
    "falling": "↘: falling",
    "flat": "→: flat (within noise)",
    "rising": "↗: rising",
}


def explain_job(one: Listed, trend: LossTrend | None, now: dt.datetime) -> list[tuple[str, str]]:
    """Return headings and texts for the job's state, status, and figures."""
    view, snapshot = one.view, one.view.snapshot
    state, _ = words.state_of(view, now)
    pause = pause_of(view)
    meaning = _STATES.get(view.state, "This version of ddptop does not recognize this state.")
    if pause is not None and pause.state in _PAUSES:
        meaning, trend = _PAUSES[pause.state], None
    if isinstance(view, ForeignView):
        meaning = "ddptop did not start it and can see only its processes and devices."
    found = [
        (
            f"{view.job}: {state}",
            with_keys(f"{meaning} {_NEEDS.get(one.attention.need, '')}".strip()),
        ),
        ("status", one.attention.sentence),
    ]
    if snapshot is None:
        return found
    found += [
        (f"alert: {alert.id}", text)
        for alert in snapshot.alerts
        if view.is_live and (text := explain(alert.id))
    ]
    progress = progress_of(view)
    done, eta_s = percent_text(progress), progress.eta_s if progress else None
    how_far = f"step {step_text(run_step.of_snapshot(snapshot), progress, view.is_live)}"
    how_far += f", {done} of the run" if done else "; the total is unknown"
    if view.is_live:
        how_far += (
            f", {units.duration(eta_s)} left at the current pace" if eta_s is not None else ""
        )
    found.append(("progress", f"{how_far}. Elapsed: {units.duration(elapsed_s(view, now))}."))
    found.append(("loss", _loss(snapshot, trend)))
    if view.is_live:
        found.append(("uneven", _uneven(snapshot)))
    return found


def _loss(snapshot: NodeSnapshot, trend: LossTrend | None) -> str:
    value, state = median_loss(snapshot)
    if value is None and state is None:
        return "n/a: no loss found in probe reports or rank output."
    text = f"{units.loss(value, state)}, the median across ranks."
    if trend is not None:
        span = units.brief_duration(trend.span_s)
        text += f" {_TRENDS[trend.way]} over the last {span}."
    return text


def _uneven(snapshot: NodeSnapshot) -> str:
    known = uneven(snapshot.imbalance, ())
    if not known:
        return "n/a: needs values from at least two ranks or devices."
    parts = ", ".join(f"{one.name} {one.text}" for one in known)
    return f"{parts}: largest deviation from the median of all ranks; 0% is even."
