"""Shows states and causes as a symbol, a word, and a style; color is never the only sign."""

from __future__ import annotations

import datetime as dt

from ddptop.view.need import is_stale, is_stopping
from ddptop.view.text import Line, Span
from ddptop_runner.base import units
from ddptop_runner.base.units import duration_in_words
from ddptop_runner.job.registry import AnyJob, JobView, pause_of
from ddptop_runner.model.snapshot import Event, Pause
from ddptop_runner.model.words import PauseState, Phase, RankState

__all__ = [
    "UNGUARDED",
    "age_words",
    "event_style",
    "event_words",
    "guard_words",
    "job_state",
    "pause_state",
    "rank_state",
    "severity",
    "state_of",
]

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


def state_of(view: AnyJob, now: dt.datetime | None = None) -> Span:
    """A job's state; a foreign job can also be stuck, stopping, or gone."""
    if isinstance(view, JobView):
        pause = pause_of(view)
        if pause is not None and view.state != "hung":
            return pause_state(pause, view.read_at if now is None else now, brief=True)
        return job_state(view.state)
    if view.state == "lost":
        return "■ gone", "dim"
    if is_stopping(view):
        return job_state("stopping")
    states = [rank.state for rank in view.snapshot.ranks]
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


def age_words(view: AnyJob) -> str | None:
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
