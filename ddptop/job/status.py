"""Says what state a job is in, how urgent it is, and why. Pure.

The order of jobs, by `Need`: failed and not viewed yet, hung, lost and not viewed yet, errors,
warnings, a rank that is an outlier, and then healthy jobs: running, starting, queued, ended. Among
equals, the newest comes first.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from ddptop.job.groups import best_in_words, counts, short_name
from ddptop.job.keys import key, with_keys
from ddptop.job.ranks import PHASES, lasting_phase
from ddptop.job.record import Job
from ddptop.style import Span
from ddptop_runner.base import units
from ddptop_runner.base.units import duration, duration_in_words, name_ranks
from ddptop_runner.job.registry import RECENT_S, JobView
from ddptop_runner.jobs.contract import loss_state
from ddptop_runner.launch.slurm import SlurmJob
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import Alert, Cause, Event, NodeSnapshot, Pause
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
    "no_step": ("◌ no step", "busy"),
    "stalled": ("▲ stalled", "warn"),
}


def state_of(job: Job) -> Span:
    """A job's state; a live job can also pause, and a foreign one be stuck, stopping, or gone."""
    if job.pause is not None and job.state != "hung":
        return _PAUSES.get(job.pause.state, _JOB_STATES["hung"])
    if is_stopping(job):
        return job_state("stopping")
    if not job.is_foreign:
        return job_state(job.state)
    if job.state == "lost":
        return "■ gone", "dim"
    states = [rank.state for rank in job.snapshot.ranks]
    for state in _STANDING_STILL:
        if number := states.count(state):
            symbol, style = _RANK_STATES[state]
            return f"{symbol} {number} {state}", style
    return job_state(job.state)


def rank_state(
    state: str, exit_code: int | None = None, signal: str | None = None, phase: Phase | None = None
) -> Span:
    """How a rank ended, or its state: `✗ SIGKILL`, `✗ exit 1`, `● running`.

    Args:
        state: the rank's state.
        exit_code: its exit status.
        signal: the signal that killed it.
        phase: what it has been doing for a while instead of taking steps, if anything.
    """
    symbol, style = _RANK_STATES.get(state, ("?", "dim"))
    if state in ("running", "starting") and phase in PHASES and PHASES[phase].brief:
        return f"◍ {PHASES[phase].brief}", "busy"
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


STALE_S = 5.0
"""Metrics of a live job older than this are marked stale."""


def age_words(job: Job) -> str:
    """The age of a live job's metrics; empty while they are fresh."""
    age_s = job.snapshot_age_s or 0.0
    if not job.is_live or job.in_slurm_queue or age_s <= STALE_S:
        return ""
    return f"last update {duration_in_words(age_s)} ago"


def guard_words(job: Job) -> Span:
    """Whether the guardian of a live job is running; empty if that does not matter."""
    if not job.is_live or (job.guarded is None and not job.on_other_host):
        return "", ""
    if job.guarded is None:
        return "guardian on another host", "dim"
    return ("guarded", "dim") if job.guarded else (f"▲ {UNGUARDED}", "warn")


UNGUARDED = "unguarded: its guardian is gone"
GONE = "its processes have exited; exit status unknown (not started by ddptop)"


def pause_words(pause: Pause, now: dt.datetime) -> str:
    """`no step for 25 s`."""
    what = pause.state.replace("_", " ")
    return f"{what} for {duration_in_words((now - pause.since).total_seconds())}"


def pause_why(pause: Pause, now: dt.datetime) -> str:
    """`waiting for rank 1; restart in 89 s`; empty if nothing is known."""
    parts = [] if pause.reason is None else [pause.reason]
    if pause.verdict_at is not None:
        left_s = max(0.0, (pause.verdict_at - now).total_seconds())
        parts.append(f"{pause.verdict} in {duration_in_words(left_s)}")
    return "; ".join(parts)


def pause_sentence(pause: Pause, now: dt.datetime) -> str:
    """`no step for 25 s: rank 0 is evaluating`."""
    return ": ".join(filter(None, (pause_words(pause, now), pause_why(pause, now))))


def how_it_ended(job: Job, now: dt.datetime) -> str:
    """An ended job in one sentence: why it failed, or how far it came and how long it ran."""
    snapshot, state, ended = job.snapshot, job.state, job.ended_at
    ago_s = None if ended is None else max(0.0, (now - ended).total_seconds())
    ago = "" if ago_s is None else f"{units.brief_duration(ago_s)} ago"
    if job.is_foreign:
        return ": ".join(filter(None, (ago, gone_words(job))))
    if state == "failed":
        if snapshot.cause is not None:
            return short_cause(snapshot.cause)
        status = snapshot.exit_code
        return "cause unknown" if status is None else f"exit status {status}"
    if job.left_in_queue:
        return f"left the queue when its processes ended; {ago}"
    if state == "lost":
        text = "its processes exited without leaving an exit status"
        return f"{text}; last seen {ago}" if ago else text
    parts = [loss_remark(job), ago]
    if (run := run_step.of_snapshot(snapshot)) is not None:
        last = " in the last attempt" if run.counts == "attempt" else ""
        parts.append(f"after {units.plural(run.step, 'step')}{last}")
    lasted = units.duration(job.elapsed_s(now))
    parts.append(f"{'in' if state == 'finished' else 'ran'} {lasted}")
    return ", ".join(filter(None, parts))


def gone_words(job: Job) -> str:
    """How a foreign job ended."""
    return f"exited after ddptop sent {job.ended_by}" if job.ended_by else GONE


def loss_remark(job: Job) -> str:
    """That an ended job's last loss was not finite; empty if it was, or if it failed."""
    if job.state not in ("finished", "stopped"):
        return ""
    state = loss_state(job.snapshot.ranks)
    return f"the loss was {units.loss(None, state)} at the end" if state in ("nan", "inf") else ""


def short_cause(cause: Cause) -> str:
    """A cause on one row: `rank 1: ValueError: bad at train.py:10`."""
    text = " ".join((cause.headline or cause.summary).split())
    return text if cause.headline is None or cause.host is None else f"{cause.host}: {text}"


_KINDS = {
    "cuda_oom": "out of GPU memory",
    "host_oom": "out of memory",
    "hang": "hung",
    "nan": "non-finite loss",
    "gpu": "GPU failed",
    "launch": "did not start",
    "early_exit": "a rank exited early",
}
"""Names of failures whose kind is more informative than an exception or signal."""


def failure_name(cause: Cause) -> str:
    """A failure in two or three words: `ValueError`, `SIGKILL`, `out of GPU memory`."""
    if (name := _KINDS.get(cause.kind)) is not None:
        return name
    if cause.exception is not None:
        return cause.exception
    if cause.signal is not None:
        return cause.signal
    return "failed" if cause.exit_code is None else f"exit {cause.exit_code}"


def brief_place(place: str) -> str:
    """`/home/a/train.py:81 in step` as `train.py:81`."""
    return place.partition(" in ")[0].rpartition("/")[2]


SET_BACK = ("restarting", "starting")
"""Job states right after an attempt failed."""
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


Seen: TypeAlias = Collection[tuple[str, dt.datetime | None]]
"""Jobs that the user has viewed since they ended, with the time they ended."""


def seen_key(job: Job) -> tuple[str, dt.datetime | None]:
    """What to remember about an ended job that was viewed; a later failure has another key."""
    return job.name, job.ended_at


class Attention(msgspec.Struct, frozen=True):
    """How urgent a job is, and the sentence that says why."""

    job: Job
    need: Need
    sentence: str
    style: str = "dim"

    @property
    def is_calm(self) -> bool:
        """Whether the job needs none."""
        return self.need >= Need.RUNNING


def attention(job: Job, now: dt.datetime, seen: Seen = ()) -> Attention:
    """The most urgent thing to know about a job, or about the jobs of a sweep.

    Args:
        job: the job.
        now: the current time, for durations.
        seen: ended jobs that the user has viewed.
    """
    if job.members:
        return _of_group(job, now, seen)
    if not job.is_live:
        need = _need_of_ended(job, now, seen)
        style = "dim" if need == Need.ENDED else "bad"
        return Attention(job, need, how_it_ended(job, now), style)
    if job.state == "hung":
        return Attention(job, Need.HUNG, _hung(job.snapshot, now), "bad")
    if job.state == "queued":
        return Attention(job, Need.QUEUED, waits_in_words(job))
    if found := alarms(job.snapshot.alerts):
        return Attention(job, _need_of_alarm(found[0]), *_alarm(job, found, now))
    if age := age_words(job):
        return Attention(job, Need.WARNING, f"▲ {age}: the job is not reporting", "warn")
    if job.guarded is False:
        text = f"▲ {UNGUARDED}; nothing will restart the supervisor"
        return Attention(job, Need.WARNING, text, "warn")
    if setback := _setback(job, now):
        return Attention(job, Need.RUNNING, setback)
    if is_stopping(job):
        return Attention(job, Need.RUNNING, job.stopping or "stopping")
    if job.state == "starting":
        return Attention(job, Need.STARTING, _starting(job))
    return Attention(job, Need.RUNNING, _running(job, now))


def _of_group(group: Job, now: dt.datetime, seen: Seen) -> Attention:
    worst = min((attention(one, now, seen) for one in group.members), key=lambda one: one.need)
    trouble = "" if worst.is_calm else f"{short_name(worst.job)}: {worst.sentence}"
    sentence = "; ".join(filter(None, [counts(group), trouble, best_in_words(group)]))
    return Attention(group, worst.need, sentence, "dim" if worst.is_calm else worst.style)


def waits_in_words(job: Job) -> str:
    """What a queued job waits for."""
    alert = queue_alert(job)
    return "waiting in the queue" if alert is None else alert.message


def queue_alert(job: Job) -> Alert | None:
    """What the supervisor of a queued job says about its turn."""
    return next((alert for alert in job.snapshot.alerts if alert.id == "queued"), None)


def is_stopping(job: Job) -> bool:
    """Whether the job was asked to exit; for a foreign job, whether ddptop asked it to."""
    return job.state == "stopping" or bool(job.stopping)


def alarms(alerts: Iterable[Alert]) -> list[Alert]:
    """Errors and warnings, worst first; a slow rank is the least of the warnings."""
    return sorted(
        (one for one in alerts if one.severity in ("error", "warning")),
        key=lambda one: (one.severity != "error", one.id == "straggler", one.since),
    )


_ORDER = {"error": 0, "warning": 1, "info": 2}


def alerts_of(job: Job) -> list[Alert]:
    """Alerts of a live job, worst first; for a foreign job, also what could not be inspected."""
    alerts = list(job.snapshot.alerts) if job.is_live else []
    notes = () if job.foreign is None else job.foreign.notes
    alerts += [
        Alert(id=f"note-{place}", severity="info", message=note, since=job.created_at)
        for place, note in enumerate(notes)
    ]
    return worst_first(alerts)


def worst_first(alerts: Iterable[Alert]) -> list[Alert]:
    """Errors, then warnings, then notes, each from the oldest."""
    return sorted(alerts, key=lambda alert: (_ORDER.get(alert.severity, 1), alert.since))


def _need_of_ended(job: Job, now: dt.datetime, seen: Seen) -> Need:
    is_new = job.ended_at is not None and (now - job.ended_at).total_seconds() < RECENT_S
    if job.is_foreign or not is_new or seen_key(job) in seen:
        return Need.ENDED
    return {"failed": Need.FAILED, "lost": Need.LOST}.get(job.state, Need.ENDED)


def _need_of_alarm(worst: Alert) -> Need:
    if worst.id == "straggler":
        return Need.UNEVEN
    return Need.ERROR if worst.severity == "error" else Need.WARNING


NO_PROBLEMS, NONE_DETECTED = "no problems", "no problems detected"


def next_step(needs: Attention, *, readonly: bool = False) -> str:
    """The keys that help now; empty if there is nothing to do."""
    return with_keys(_next_step(needs.job, needs.need, readonly=readonly))


def _next_step(view: Job, need: Need, *, readonly: bool) -> str:
    if view.members:
        return "{job.open}: its jobs; {view.compare}: compare them"
    if view.is_foreign:
        steps = "{job.open}: details" + ("; {job.findings}: findings" if alerts_of(view) else "")
        return steps if readonly or not view.is_live else f"{steps}; {{job.stop}}: stop"
    again = "" if readonly else "; {job.again}: relaunch"
    if need == Need.HUNG:
        return "{job.open}, then {job.stacks}: stacks for all ranks; {view.story}: story"
    if need in (Need.ERROR, Need.WARNING, Need.UNEVEN) and alerts_of(view):
        return "{job.findings}: findings and remedies; {job.open}: ranks"
    if need in (Need.WARNING, Need.UNEVEN):
        return "{job.open}: ranks; {view.story}: story"
    if view.is_live:
        return ""
    if view.state == "finished":
        return "{job.open}: details; {view.compare}: compare"
    if view.left_in_queue:
        restore = "{queue.again}: queue it again; ddptop queue restore: all of them"
        return "" if readonly else restore
    why = "story" if view.state == "stopped" else "cause and evidence"
    return f"{{view.story}}: {why}; {{view.logs}}: logs{again}"


# --- problems -------------------------------------------------------------------------------------


def _hung(snapshot: NodeSnapshot, now: dt.datetime) -> str:
    hung = [rank for rank in snapshot.ranks if rank.state == "hung"]
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


def _alarm(job: Job, found: Sequence[Alert], now: dt.datetime) -> Span:
    """The worst alert, and how many others there are."""
    first, *others = found
    symbol, style = severity(first.severity)
    if first.id == "stalled" and job.pause is not None:
        more = f" ({len(others)} more)" if others else ""
        return f"{symbol} {pause_sentence(job.pause, now)}{more}", style
    for_ = units.brief_duration((now - first.since).total_seconds())
    more = f"; {len(others)} more" if others else ""
    return f"{symbol} {first.message} (for {for_}{more})", style


# --- healthy jobs ---------------------------------------------------------------------------------


def setback(job: Job, now: dt.datetime) -> Cause | None:
    """Why the last attempt of a live job failed, until the next one has run for a while."""
    snapshot, began = job.snapshot, job.snapshot.attempt_started_at
    is_late = began is not None and (now - began).total_seconds() >= SETBACK_S
    if is_late and job.state not in SET_BACK:
        return None
    return snapshot.cause or snapshot.previous_cause


def _setback(job: Job, now: dt.datetime) -> str:
    """That a job is restarting, or has recently restarted, and why; empty if neither."""
    cause, began = setback(job, now), job.snapshot.attempt_started_at
    if job.state == "restarting":
        return "restarting" + ("" if cause is None else f": {short_cause(cause)}")
    if cause is None or began is None:
        return ""
    return (
        f"restarted {units.brief_duration((now - began).total_seconds())} ago: {short_cause(cause)}"
    )


def _running(job: Job, now: dt.datetime) -> str:
    if job.can_restart and (member := job.spec.membership) is not None:
        return f"part of a job on {member.head or 'another machine'}"
    if job.on_other_host:
        return f"running on {job.host}: not monitored from here"
    if waiting := waiting_text(job):
        return waiting
    if job.pause is not None:
        return pause_sentence(job.pause, now)
    if job.is_foreign:
        return NONE_DETECTED
    if job.snapshot.step is None:
        return "running; no steps yet"
    phases = {lasting_phase(rank, now) for rank in job.snapshot.ranks if rank.state == "running"}
    phase = phases.pop() if len(phases) == 1 else None
    doing = PHASES[phase].doing if phase in PHASES else ""
    return f"{NO_PROBLEMS}: {doing}" if doing else NO_PROBLEMS


def _starting(job: Job) -> str:
    if waiting := waiting_text(job):
        return waiting
    up = sum(rank.pid is not None for rank in job.snapshot.ranks)
    world = job.snapshot.world_size
    if not up or world is None:
        return "starting: no ranks are up yet"
    if up < world:
        return f"starting: {up} of {world} ranks are up"
    compiles = any(rank.phase == "compile" for rank in job.snapshot.ranks)
    if compiles:
        return "starting: compiling"
    has_steps = any(rank.step is not None for rank in job.snapshot.ranks)
    return f"starting: all ranks are up{'' if has_steps else ', no steps yet'}"


SEEN_BY_S = 60.0
"""A training command usually has a discovered rank by then."""


def waiting_text(job: Job) -> str:
    """What a command without ranks is waiting for, and what to do if no rank appears."""
    snapshot = job.snapshot
    if snapshot.launcher is None or snapshot.ranks:
        return ""
    logs = f"{key('view.logs')}: logs"
    if not job.is_live:
        return f"no ranks discovered; {logs}"
    waited_s = (job.read_at - (snapshot.attempt_started_at or snapshot.started_at)).total_seconds()
    if waited_s < SEEN_BY_S:
        return f"waiting for ranks; each appears once it is training; {logs}"
    waited = units.brief_duration(waited_s)
    return f"no ranks discovered in {waited}: nothing is training; {logs}"


ORDERS: Mapping[str, str] = {
    "need": "attention",
    "name": "name",
    "started": "start",
}
"""The table's sort orders, in words."""


def ranked(
    jobs: Iterable[Job], now: dt.datetime, seen: Seen = (), order: str = "need"
) -> list[Attention]:
    """All jobs in this order; among equals, the more urgent job comes first.

    By need, ddptop's own jobs come before foreign ones, and ended jobs last.
    """
    found = [attention(job, now, seen) for job in jobs]
    found.sort(key=lambda one: -(one.job.ended_at or one.job.created_at).timestamp())
    found.sort(key=lambda one: (one.need == Need.ENDED, one.job.is_foreign, one.need))
    if order == "name":
        found.sort(key=lambda one: one.job.name.casefold())
    elif order == "started":
        found.sort(key=lambda one: one.job.created_at, reverse=True)
    return found


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
