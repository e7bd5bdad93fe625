"""A job's row of the overview, explained figure by figure."""

from __future__ import annotations

import datetime as dt

from ddptop.need import Need
from ddptop.progress_words import step_text
from ddptop.tui.render import units, words
from ddptop.tui.render.job_rows import Listed
from ddptop.tui.render.learning import LossTrend
from ddptop.tui.render.panels import elapsed_s, median_loss
from ddptop.tui.render.progress import percent_text, progress_of
from ddptop.tui.render.uneven import uneven
from ddptop_runner import run_step
from ddptop_runner.balance.findings_help import explain
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.model import NodeSnapshot
from ddptop_runner.registry import pause_of

_STATES = {
    "queued": "It is not started yet: it waits until its GPUs are free.",
    "starting": "Its processes come up; no rank has taken a step.",
    "running": "Its ranks train. Whether all is well is said beside it.",
    "restarting": "An attempt has failed, and all ranks start again together.",
    "hung": "Its ranks live and take no step for longer than this job is allowed.",
    "stopping": "It was asked to end; what is left after a while is killed.",
    "finished": "Every rank ended with exit status 0.",
    "failed": "A rank failed, and it was not, or could not be, started again. e tells the story.",
    "stopped": "A person ended it.",
    "lost": "Its processes are gone without having said why, such as after a reboot.",
}
_PAUSES = {
    "no_step": "Its ranks live, and none took a step for longer than usual, as in an evaluation.",
    "stalled": "It stands longer than its own pauses last, or waits for an idle rank.",
}
_NEEDS = {
    Need.FAILED: "It stands on top because it failed and was not looked at since: enter opens it.",
    Need.HUNG: "It stands on top because it makes no progress.",
    Need.LOST: "It stands on top because nobody saw how it ended.",
    Need.ERROR: "It stands high because of an error: f tells it with what to do.",
    Need.WARNING: "It stands high because of a warning: f tells it with what to do.",
    Need.UNEVEN: "It stands high because one rank lies far from the others, who wait for it.",
}
_TRENDS = {
    "falling": "↘: it falls",
    "flat": "→: it changes by no more than it scatters",
    "rising": "↗: it rises",
}


def explain_job(one: Listed, trend: LossTrend | None, now: dt.datetime) -> list[tuple[str, str]]:
    """Headings and texts on the job's state, what is said of it, and its figures."""
    view, snapshot = one.view, one.view.snapshot
    state, _ = words.state_of(view, now)
    pause = pause_of(view)
    meaning = _STATES.get(view.state, "A state that this version does not know.")
    if pause is not None and pause.state in _PAUSES:
        meaning, trend = _PAUSES[pause.state], None
    if isinstance(view, ForeignView):
        meaning = "ddptop did not start it: it is seen from outside, by its processes and devices."
    found = [
        (f"{view.job}: {state}", f"{meaning} {_NEEDS.get(one.attention.need, '')}".strip()),
        ("what is to be said", one.attention.sentence),
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
    how_far += f", {done} of the run" if done else "; nothing said how many there will be"
    if view.is_live:
        how_far += f", {units.duration(eta_s)} left by its pace" if eta_s is not None else ""
    found.append(("progress", f"{how_far}. It has lasted {units.duration(elapsed_s(view, now))}."))
    found.append(("loss", _loss(snapshot, trend)))
    if view.is_live:
        found.append(("uneven", _uneven(snapshot)))
    return found


def _loss(snapshot: NodeSnapshot, trend: LossTrend | None) -> str:
    value, state = median_loss(snapshot)
    if value is None and state is None:
        return "n/a: no rank told a loss, neither by its probe nor by what it prints."
    text = f"{units.loss(value, state)}, the median of its ranks."
    if trend is not None:
        span = units.brief_duration(trend.span_s)
        text += f" {_TRENDS[trend.way]}, over the last {span}."
    return text


def _uneven(snapshot: NodeSnapshot) -> str:
    known = uneven(snapshot.imbalance, ())
    if not known:
        return "n/a: figures of two ranks or devices are needed."
    parts = ", ".join(f"{one.name} {one.text}" for one in known)
    return f"{parts}: the greatest rank against the median of all; 0 % is even."
