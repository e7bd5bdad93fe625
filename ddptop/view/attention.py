"""Says in one sentence why a job needs attention. Pure."""

from __future__ import annotations

import datetime as dt

import msgspec

from ddptop.view import words
from ddptop.view.ending import brief_place, how_it_ended, short_cause
from ddptop.view.findings import alerts_of
from ddptop.view.keys import key, with_keys
from ddptop.view.need import Judged, Need, Seen, alarms, judge
from ddptop.view.rank_words import lasting_phase
from ddptop.view.text import (
    Span,
)
from ddptop_runner.base import units
from ddptop_runner.base.units import name_ranks
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import AnyJob, pause_of
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample


class Attention(msgspec.Struct, frozen=True):
    """How urgent a job is, and the sentence that says why."""

    need: Need
    sentence: str
    style: str = "dim"

    @property
    def is_calm(self) -> bool:
        """Whether the job needs none."""
        return self.need >= Need.RUNNING


def attention(view: AnyJob, now: dt.datetime, seen: Seen = ()) -> Attention:
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


def next_step(view: AnyJob, needs: Attention, *, readonly: bool = False) -> str:
    """The keys that help now; empty if there is nothing to do."""
    return with_keys(_next_step(view, needs, readonly=readonly))


def _next_step(view: AnyJob, needs: Attention, *, readonly: bool) -> str:
    if isinstance(view, ForeignView):
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


def _alarm(view: AnyJob, now: dt.datetime) -> Span:
    """The worst alert, and how many others there are."""
    first, *others = alarms(view)
    symbol, style = words.severity(first.severity)
    if first.id == "stalled" and (pause := pause_of(view)) is not None:
        more = f" ({len(others)} more)" if others else ""
        return f"{symbol} {words.pause_sentence(pause, now)}{more}", style
    for_ = units.brief_duration((now - first.since).total_seconds())
    more = f"; {len(others)} more" if others else ""
    return f"{symbol} {first.message} (for {for_}{more})", style


def _trouble(view: AnyJob, snapshot: NodeSnapshot, judged: Judged, now: dt.datetime) -> str:
    """Describes problems without an alert: stale values, a dead guardian."""
    if judged.why == "stale":
        return f"▲ {words.age_words(view)}: the job is not reporting"
    if judged.why == "unguarded":
        return f"▲ {words.UNGUARDED}; nothing will restart the supervisor"
    return ""


# --- healthy jobs ---------------------------------------------------------------------------------

_DOES = {
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving",
    "data": "waiting for data",
    "end": "exiting",
}


def _well(view: AnyJob, snapshot: NodeSnapshot, judged: Judged, now: dt.datetime) -> str:
    if judged.why == "queued":
        waits = next((a.message for a in snapshot.alerts if a.id == "queued"), None)
        return waits or "waiting for free GPUs"
    if judged.why == "stopping":
        sent = view.stopping if isinstance(view, ForeignView) else None
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
    if (pause := pause_of(view)) is not None:
        return words.pause_sentence(pause, now)
    if isinstance(view, ForeignView):
        return NONE_DETECTED
    if snapshot.step is None:
        return "running; no steps yet"
    doing = {_doing(rank, now) for rank in snapshot.ranks if rank.state == "running"}
    does = doing.pop() if len(doing) == 1 else None
    return f"{NO_PROBLEMS}: {does}" if does else NO_PROBLEMS


def _doing(rank: RankSample, now: dt.datetime) -> str | None:
    phase = lasting_phase(rank, now)
    return None if phase is None else _DOES.get(phase)


def _starting(view: AnyJob, snapshot: NodeSnapshot) -> str:
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


def waiting_text(view: AnyJob, snapshot: NodeSnapshot) -> str:
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
