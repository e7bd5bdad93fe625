"""Says what state a job is in, why it needs attention, and how it ended. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec

from ddptop.job.keys import key, with_keys
from ddptop.job.progress import assigned_devices, elapsed_s
from ddptop.job.ranks import lasting_phase
from ddptop.job.record import Job
from ddptop.job.urgency import (
    Judged,
    Need,
    Seen,
    alarms,
    alerts_of,
    is_stale,
    is_stopping,
    judge,
    order_of,
)
from ddptop.style import Line, Span
from ddptop_runner.base import units
from ddptop_runner.base.units import duration, duration_in_words, name_ranks
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.contract import loss_state
from ddptop_runner.launch.slurm import SlurmJob
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Cause, Event, NodeSnapshot, Pause, RankSample
from ddptop_runner.model.words import PauseState, Phase, RankState

_JOB_STATES: dict[str, tuple[str, str]] = {
    "queued": ("○", "dim"),
    "starting": ("◔", "busy"),
    "running": ("●", "ok"),
    "restarting": ("↻", "busy"),
    "hung": ("‖", "bad"),
    "stopping": ("◌", "dim"),
    "finished": ("✓", "ok"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "dim"),
    "lost": ("?", "bad"),
}

_RANK_STATES: dict[str, tuple[str, str]] = {
    "starting": ("◔", "busy"),
    "running": ("●", "ok"),
    "paused": ("‖", "warn"),
    "quiet": ("◌", "busy"),
    "hung": ("‖", "bad"),
    "exited": ("✓", "dim"),
    "failed": ("✗", "bad"),
    "stopped": ("■", "dim"),
    "unknown": ("?", "dim"),
    "blocked": ("◌", "warn"),
    "zombie": ("✗", "bad"),
}

_PHASES: dict[Phase, str] = {
    "compile": "compile",
    "evaluation": "eval",
    "checkpoint": "ckpt",
    "data": "no batch",
    "end": "exiting",
}
"""What a healthy rank does instead of taking steps; short, because the column is narrow."""

_STANDING_STILL: tuple[RankState, ...] = ("zombie", "paused", "blocked")
"""Rank states shown as a foreign job's state, worst first."""

_SEVERITIES: dict[str, tuple[str, str]] = {
    "info": ("i", "dim"),
    "warning": ("▲", "warn"),
    "error": ("✗", "bad"),
}

_EVENT_STYLES: dict[str, str] = {
    "rank_exited": "warn",
    "launcher_exited": "warn",
    "hang_suspected": "warn",
    "hang": "bad",
    "failure": "bad",
    "failed": "bad",
    "group_restart": "busy",
    "lost": "bad",
    "gpu_lost": "bad",
    "node": "warn",
    "alert": "warn",
    "training": "ok",
    "finished": "ok",
}


def job_state(state: str) -> Span:
    """`● running` and its style; an unknown state from a newer ddptop is shown verbatim."""
    symbol, style = _JOB_STATES.get(state, ("?", "dim"))
    return f"{symbol} {state}", style


_PAUSES: dict[PauseState, tuple[str, str]] = {
    "no_step": ("◌", "busy"),
    "stalled": ("▲", "warn"),
}


def pause_state(pause: Pause, now: dt.datetime, *, brief: bool = False) -> Span:
    """`◌ no step for 25 s`, which is not a warning, or `▲ stalled for 2 min`."""
    symbol, style = _PAUSES.get(pause.state, _JOB_STATES["hung"])
    text = pause_brief(pause, now) if brief else pause_in_words(pause, now)
    return f"{symbol} {text}", style


def state_of(view: Job, now: dt.datetime | None = None) -> Span:
    """A job's state; a foreign job can also be stuck, stopping, or gone."""
    if not view.is_foreign:
        pause = view.pause
        if pause is not None and view.state != "hung":
            return pause_state(pause, view.read_at if now is None else now, brief=True)
        return job_state(view.state)
    if view.state == "lost":
        return "■ gone", "dim"
    if is_stopping(view):
        return job_state("stopping")
    ranks = () if view.snapshot is None else view.snapshot.ranks
    states = [rank.state for rank in ranks]
    for state in _STANDING_STILL:
        if number := states.count(state):
            symbol, style = _RANK_STATES[state]
            return f"{symbol} {number} {state}", style
    return job_state(view.state)


def rank_state(
    state: str,
    exit_code: int | None = None,
    signal: str | None = None,
    phase: Phase | None = None,
) -> Span:
    """How a rank ended, or its state: `✗ SIGKILL`, `✗ exit 1`, `● running`.

    Args:
        state: the rank's state.
        exit_code: its exit status.
        signal: the signal that killed it.
        phase: what it has been doing for a while instead of taking steps, if anything.
    """
    symbol, style = _RANK_STATES.get(state, ("?", "dim"))
    if state in ("running", "starting") and phase in _PHASES:
        return f"◍ {_PHASES[phase]}", "busy"
    if state == "failed":
        if signal:
            return f"{symbol} {signal}", style
        if exit_code is not None:
            return f"{symbol} exit {exit_code}", style
    return f"{symbol} {state}", style


def severity(of: str) -> Span:
    """An alert's symbol and style."""
    return _SEVERITIES.get(of, ("▲", "warn"))


def event_style(event: Event) -> str:
    """The style of an event; exits with status 0 or caused by ddptop are dimmed."""
    is_exit = event.type in ("rank_exited", "launcher_exited")
    expected = event.exit_code == 0 or (event.data or {}).get("by_us", False)
    return "dim" if is_exit and expected else _EVENT_STYLES.get(event.type, "dim")


def event_words(kind: str) -> str:
    """`group_restart` as `group restart`."""
    return kind.replace("_", " ")


def age_words(view: Job) -> str | None:
    """The age of a live job's metrics; None while they are fresh."""
    if not is_stale(view):
        return None
    return f"last update {units.duration_in_words(view.snapshot_age_s or 0.0)} ago"


def guard_words(guarded: bool | None, live: bool) -> Line:
    """Whether the guardian is running."""
    if not live:
        return ()
    if guarded is None:
        return (("guardian on another host", "dim"),)
    if guarded:
        return (("guarded", "dim"),)
    return ((f"▲ {UNGUARDED}", "warn"),)


UNGUARDED = "unguarded: its guardian is gone"


GONE = "its processes have exited; exit status unknown (not started by ddptop)"


_PAUSE = {"no_step": "no step for", "stalled": "stalled for", "hung": "hung for"}
_PAUSE_BRIEF = {"no_step": "no step", "stalled": "stalled", "hung": "hung"}


def _paused(pause: Pause, now: dt.datetime) -> str:
    return duration_in_words((now - pause.since).total_seconds())


def pause_in_words(pause: Pause, now: dt.datetime) -> str:
    """`no step for 25 s`."""
    return f"{_PAUSE[pause.state]} {_paused(pause, now)}"


def pause_brief(pause: Pause, now: dt.datetime) -> str:
    """`no step 25 s`, for a narrow column."""
    return f"{_PAUSE_BRIEF[pause.state]} {_paused(pause, now)}"


def pause_sentence(pause: Pause, now: dt.datetime) -> str:
    """`no step for 25 s: rank 0 is evaluating`."""
    why = pause_why(pause, now)
    return f"{pause_in_words(pause, now)}{f': {why}' if why else ''}"


def pause_why(pause: Pause, now: dt.datetime) -> str:
    """`waiting for rank 1; restart in 89 s`; empty if nothing is known."""
    parts = [] if pause.reason is None else [pause.reason]
    if pause.verdict_at is not None:
        left_s = max(0.0, (pause.verdict_at - now).total_seconds())
        parts.append(f"{pause.verdict} in {duration_in_words(left_s)}")
    return "; ".join(parts)


def how_it_ended(view: Job, now: dt.datetime) -> str:
    """An ended job in one sentence: why it failed, or how far it came and how long it ran."""
    snapshot, state, ended = view.snapshot, view.state, view.ended_at
    ago_s = None if ended is None else max(0.0, (now - ended).total_seconds())
    ago = "" if ago_s is None else f"{units.brief_duration(ago_s)} ago"
    if view.is_foreign:
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


def loss_remark(view: Job) -> str:
    """That an ended job's last loss was not finite; empty if it was, or if it failed."""
    if view.snapshot is None or view.state not in ("finished", "stopped"):
        return ""
    state = loss_state(view.snapshot.ranks)
    return f"the loss was {units.loss(None, state)} at the end" if state in ("nan", "inf") else ""


def plain_status(view: Job, now: dt.datetime) -> str:
    """How a job ended, why it pauses, or where its head is; empty for other live jobs."""
    if not view.is_live:
        return " ".join(how_it_ended(view, now).split())
    if (member := view.spec.membership) is not None:
        return f"part of a job on {member.head or 'another machine'}"
    if (pause := view.pause) is None:
        return ""

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


class Attention(msgspec.Struct, frozen=True):
    """How urgent a job is, and the sentence that says why."""

    need: Need
    sentence: str
    style: str = "dim"

    @property
    def is_calm(self) -> bool:
        """Whether the job needs none."""
        return self.need >= Need.RUNNING


def attention(view: Job, now: dt.datetime, seen: Seen = ()) -> Attention:
    """The most urgent thing to know about a job.

    Args:
        view: the job.
        now: the current time, for durations.
        seen: ended jobs that the user has viewed.
    """
    judged, snapshot = judge(view, now, seen), view.snapshot
    if judged.why == "ended":
        style = "dim" if judged.need == Need.ENDED else "bad"
        return Attention(judged.need, how_it_ended(view, now), style)
    if judged.why == "hung":
        return Attention(judged.need, _hung(snapshot, now), "bad")
    if snapshot is None:
        return Attention(judged.need, "starting: launching processes")
    if judged.why == "alarm":
        return Attention(judged.need, *_alarm(view, now))
    if judged.need < Need.RUNNING:
        return Attention(judged.need, _trouble(view, snapshot, judged, now), "warn")
    return Attention(judged.need, _well(view, snapshot, judged, now), "dim")


NO_PROBLEMS, NONE_DETECTED = "no problems", "no problems detected"


def next_step(view: Job, needs: Attention, *, readonly: bool = False) -> str:
    """The keys that help now; empty if there is nothing to do."""
    return with_keys(_next_step(view, needs, readonly=readonly))


def _next_step(view: Job, needs: Attention, *, readonly: bool) -> str:
    if view.is_foreign:
        steps = "{job.open}: details" + ("; {job.findings}: findings" if alerts_of(view) else "")
        return steps if readonly or not view.is_live else f"{steps}; {{job.stop}}: stop"
    again = "" if readonly else "; {job.again}: relaunch"
    if needs.need == Need.HUNG:
        return "{job.open}, then {job.stacks}: stacks for all ranks; {view.story}: story"
    if needs.need in (Need.ERROR, Need.WARNING, Need.UNEVEN) and alerts_of(view):
        return "{job.findings}: findings and remedies; {job.open}: ranks"
    if needs.need in (Need.WARNING, Need.UNEVEN):
        return "{job.open}: ranks; {view.story}: story"
    if view.is_live:
        return ""
    if view.state == "finished":
        return "{job.open}: details; {view.compare}: compare"
    why = "story" if view.state == "stopped" else "cause and evidence"
    return f"{{view.story}}: {why}; {{view.logs}}: logs{again}"


# --- problems -------------------------------------------------------------------------------------


def _hung(snapshot: NodeSnapshot | None, now: dt.datetime) -> str:
    hung = [] if snapshot is None else [rank for rank in snapshot.ranks if rank.state == "hung"]
    if not hung:
        return "no rank is making progress"
    last = [rank.last_progress_at for rank in hung if rank.last_progress_at is not None]
    places = {rank.stands_at for rank in hung if rank.stands_at is not None}
    where = f" at {brief_place(places.pop())}" if len(places) == 1 else ""
    if not where and all(rank.phase == "collective" for rank in hung):
        where = " in a collective"
    who, one = name_ranks([rank.rank for rank in hung]), len(hung) == 1
    if not last:
        return f"{who} {'is' if one else 'are'} hung{where}"
    since = units.brief_duration((now - max(last)).total_seconds())
    return f"{who} {'has' if one else 'have'} been hung{where} for {since}"


def _alarm(view: Job, now: dt.datetime) -> Span:
    """The worst alert, and how many others there are."""
    first, *others = alarms(view)
    symbol, style = severity(first.severity)
    if first.id == "stalled" and (pause := view.pause) is not None:
        more = f" ({len(others)} more)" if others else ""
        return f"{symbol} {pause_sentence(pause, now)}{more}", style
    for_ = units.brief_duration((now - first.since).total_seconds())
    more = f"; {len(others)} more" if others else ""
    return f"{symbol} {first.message} (for {for_}{more})", style


def _trouble(view: Job, snapshot: NodeSnapshot, judged: Judged, now: dt.datetime) -> str:
    """Describes problems without an alert: stale values, a dead guardian."""
    if judged.why == "stale":
        return f"▲ {age_words(view)}: the job is not reporting"
    if judged.why == "unguarded":
        return f"▲ {UNGUARDED}; nothing will restart the supervisor"
    return ""


# --- healthy jobs ---------------------------------------------------------------------------------

_DOES = {
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving",
    "data": "waiting for data",
    "end": "exiting",
}


def _well(view: Job, snapshot: NodeSnapshot, judged: Judged, now: dt.datetime) -> str:
    if judged.why == "queued":
        waits = next((a.message for a in snapshot.alerts if a.id == "queued"), None)
        return waits or "waiting for free GPUs"
    if judged.why == "stopping":
        sent = view.stopping if view.is_foreign else None
        return sent or "stopping"
    if judged.why == "starting":
        return _starting(view, snapshot)
    if judged.why == "restarting":
        cause = snapshot.cause or snapshot.previous_cause
        return "restarting" + ("" if cause is None else f": {short_cause(cause)}")
    began, cause = snapshot.attempt_started_at, snapshot.previous_cause
    if judged.why == "setback" and cause is not None and began is not None:
        ago = units.brief_duration((now - began).total_seconds())
        return f"restarted {ago} ago: {short_cause(cause)}"
    if view.on_other_host:
        return f"running on {view.host}: not monitored from here"
    if waiting := waiting_text(view, snapshot):
        return waiting
    if (pause := view.pause) is not None:
        return pause_sentence(pause, now)
    if view.is_foreign:
        return NONE_DETECTED
    if snapshot.step is None:
        return "running; no steps yet"
    doing = {_doing(rank, now) for rank in snapshot.ranks if rank.state == "running"}
    does = doing.pop() if len(doing) == 1 else None
    return f"{NO_PROBLEMS}: {does}" if does else NO_PROBLEMS


def _doing(rank: RankSample, now: dt.datetime) -> str | None:
    phase = lasting_phase(rank, now)
    return None if phase is None else _DOES.get(phase)


def _starting(view: Job, snapshot: NodeSnapshot) -> str:
    if waiting := waiting_text(view, snapshot):
        return waiting
    up = sum(rank.pid is not None for rank in snapshot.ranks)
    world = snapshot.world_size or view.world_size
    if not up or world is None:
        return "starting: no ranks are up yet"
    if up < world:
        return f"starting: {up} of {world} ranks are up"
    compiles = sum(rank.phase == "compile" for rank in snapshot.ranks)
    return "starting: compiling" if compiles else "starting: all ranks are up, no steps yet"


SEEN_BY_S = 60.0
"""A training command usually has a discovered rank by then."""


def waiting_text(view: Job, snapshot: NodeSnapshot) -> str:
    """What a command without ranks is waiting for, and what to do if no rank appears."""
    launcher = snapshot.launcher
    if launcher is None or snapshot.ranks:
        return ""
    logs = f"{key('view.logs')}: logs"
    if not view.is_live:
        return f"no ranks discovered; {logs}"
    began = snapshot.attempt_started_at or snapshot.started_at
    waited_s = (view.read_at - began).total_seconds()
    if waited_s < SEEN_BY_S:
        return f"waiting for ranks; each appears once it is training; {logs}"
    waited = units.brief_duration(waited_s)
    return f"no ranks discovered in {waited}: nothing is training; {logs}"


ORDERS: Mapping[str, str] = {
    "need": "attention",
    "name": "name",
    "started": "start",
    "gpus": "GPUs",
}
"""The table's sort orders, in words."""


class Listed(msgspec.Struct, frozen=True):
    """A job and why it needs attention."""

    view: Job
    attention: Attention


def listed(views: Sequence[Job], now: dt.datetime, seen: Seen, order: str) -> list[Listed]:
    """All jobs in this order; among equals, the more urgent job comes first."""
    found = [Listed(view, attention(view, now, seen)) for view in views]
    found.sort(key=lambda one: order_of(one.view, one.attention.need))
    if order == "name":
        found.sort(key=lambda one: one.view.name.casefold())
    elif order == "started":
        found.sort(key=lambda one: -one.view.created_at.timestamp())
    elif order == "gpus":
        found.sort(key=lambda one: _first_gpu(one.view))
    return found


def _first_gpu(view: Job) -> tuple[int, int]:
    """Sorts live jobs by their first device, then those without a device, then ended jobs."""
    if not view.is_live or view.snapshot is None:
        return 2, 0
    held = assigned_devices(view.snapshot)
    return (0, min(index for _, index in held)) if held else (1, 0)


def sorted_jobs(views: Sequence[Job]) -> list[Job]:
    """Live jobs first, then newest first; the order in which readers return them."""
    return sorted(views, key=lambda v: (not v.is_live, -(v.ended_at or v.created_at).timestamp()))


def others(queue: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Slurm jobs that are not shown as ddptop jobs, pending ones last."""
    return sorted((one for one in queue if one.job is None), key=lambda one: one.state == "PENDING")


def brief(one: SlurmJob, now: dt.datetime) -> str:
    """`12 bert: pending (Resources), starts in about 2h 05m, 2 nodes, partition gpu`."""
    words = [one.state.lower()]
    if one.reason:
        words[0] += f" ({one.reason})"
    if one.start_estimate is not None:
        words.append(f"starts in about {duration((one.start_estimate - now).total_seconds())}")
    elif one.time_left_s is not None and one.started_at is not None:
        words.append(f"{duration(one.time_left_s)} left")
    if one.nodes:
        words.append(f"{one.nodes} node{'s' if one.nodes > 1 else ''}")
    if one.partition:
        words.append(f"partition {one.partition}")
    return f"{one.id} {one.name}: {', '.join(words)}"


def exit_status(view: JobView) -> int:
    """0 finished, 1 failed, 4 stopped, 5 lost, 93 failed and not worth requeueing."""
    if view.state == "failed" and view.snapshot is not None:
        requeue = view.snapshot.requeue
        if requeue is False or (requeue is None and view.spec.slurm_job is not None):
            return NOT_WORTH_REQUEUEING
    return {"finished": 0, "stopped": STOPPED, "lost": LOST}.get(view.state, 1)


STOPPED = 4

LOST = 5

NOT_WORTH_REQUEUEING = 93
