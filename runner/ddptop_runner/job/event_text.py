"""Renders the sentence of each event from its data; no other module words events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.exit_status import status_in_words
from ddptop_runner.base.units import duration_in_words, size
from ddptop_runner.devices.words import names_of
from ddptop_runner.job.resume_text import resumed
from ddptop_runner.model import events as ev
from ddptop_runner.model.protocol import ways_to_ask
from ddptop_runner.model.run_step import at_step
from ddptop_runner.model.snapshot import SILENT
from ddptop_runner.model.spec import Device


def text(event: ev.JobEvent) -> str:
    """The event in one clause; empty for an event that only changes the state."""
    return "" if event.type == SILENT else _TEXTS[type(event)](event)


def _launched(event: ev.Launched) -> str:
    devices = names_of(event.devices) if event.devices else "CPU"
    if event.nproc is None:
        return f"launched {event.target} on {devices}"
    ranks = f"{event.nproc} rank{'s' if event.nproc > 1 else ''}"
    return f"launched {event.target} with {ranks} on {devices}"


def _attempt_started(event: ev.AttemptStarted) -> str:
    started = f"{event.world} rank{'s' if event.world > 1 else ''} started"
    if event.launcher_pid is not None:
        started = f"the command started (pid {event.launcher_pid})"
    return f"attempt {event.attempt}: {started}"


def _checkpoint_saved(event: ev.CheckpointSaved) -> str:
    saved = event.checkpoint
    who = f"rank {saved.rank}" if event.ranks < 2 else f"{event.ranks} ranks"
    more = saved.files - 1
    what = saved.name + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")
    step = at_step(saved, has_run_steps=saved.global_step is None)
    figures = [] if saved.size_bytes is None else [size(saved.size_bytes)]
    if saved.took_s is not None:
        figures.append(f"in {duration_in_words(saved.took_s)}")
    aside = f" ({' '.join(figures)})" if figures else ""
    before = f"; {event.more_before} more since the last report" if event.more_before else ""
    return f"{who} saved {what}{step}{aside}{before}"


def _restart_decided(event: ev.RestartDecided) -> str:
    because = f"; {event.reason}" if event.reason else ""
    return (
        f"restarting all ranks as attempt {_next(event)} "
        f"(restart {event.used} of {event.limit}){because}"
    )


def _nodes_awaited(event: ev.NodesAwaited) -> str:
    names = ", ".join(event.nodes)
    return f"waiting up to {event.seconds:.0f} s for {names} before attempt {_next(event)}"


def _restart_requested(event: ev.RestartRequested) -> str:
    back = _back_in_use(event.devices_back)
    if event.at_s is not None:
        return f"starting attempt {_next(event)} now, as requested{back}"
    if event.node is not None:
        return f"restarting all ranks as attempt {_next(event)}, with {event.node} back"
    if event.without is not None:
        return f"restarting all ranks as attempt {_next(event)}: {event.without} could not start"
    return f"restarting all ranks as attempt {_next(event)}, as requested{back}"


def _next(event: ev.EventBase) -> int:
    return 1 + (event.attempt or 0)


def _back_in_use(devices: Sequence[Device]) -> str:
    return f", with {names_of(devices)} back in use" if devices else ""


def _stop_requested(event: ev.StopRequested) -> str:
    if event.by == ev.CANCELLED_BY:
        return "cancelled with scancel"
    by = f" by {event.by}" if event.by else ""
    if event.grace_s is None:
        return f"stop requested{by}"
    if event.grace_s <= 0:
        return f"kill requested{by}"
    return f"stop requested{by} (grace period {event.grace_s:g} s)"


def _ended(event: ev.JobEnded) -> str:
    life = "the queue" if event.in_queue else f"attempt {event.attempt}"
    if event.state == "finished":
        who = "the command" if event.is_command else "all ranks"
        return f"finished in {life}: {who} exited with status 0"
    if event.state == "stopped":
        return f"stopped in {life}"
    return f"failed in {life}: {event.reason}"


def _lost(event: ev.JobLost) -> str:
    if event.requeued:
        return f"Slurm ended attempt {event.attempt} and requeued the job"
    why = "the machine rebooted" if event.rebooted else "all its processes had exited"
    seen = ""
    if event.last_seen is not None:
        local = event.last_seen.astimezone()
        is_today = local.date() == utc_now().astimezone().date()
        seen = f"; last seen {local:%H:%M:%S}" if is_today else f"; last seen {local:%F %H:%M:%S}"
    return f"attempt {event.attempt} was lost: {why}{seen}"


def _agent_lost(event: ev.AgentLost) -> str:
    continues = "1 rank continues" if event.ranks == 1 else f"{event.ranks} ranks continue"
    if event.is_command:
        continues = "the command continues"
    return f"{_on(event)}the agent {status_in_words(event.status)}; {continues} without it"


def _on(event: ev.AgentLost | ev.GpuMemoryAwaited) -> str:
    """The node, in a job on several."""
    return f"{event.node}: " if event.node else ""


def _alerts_cleared(event: ev.AlertsCleared) -> str:
    messages = "; ".join(event.messages.values())
    return (
        f"still active when the job ended: {messages}"
        if event.with_job
        else f"resolved: {messages}"
    )


def _rank_exited(event: ev.RankExited) -> str:
    who = "the command" if event.rank is None else f"rank {event.rank}"
    return f"{who} {status_in_words(event.status)}"


_TEXTS: dict[type[ev.EventBase], Callable[[Any], str]] = {
    ev.Launched: _launched,
    ev.Queued: lambda event: f"queued: {event.waits_for}",
    ev.AttemptStarted: _attempt_started,
    ev.RankStarted: lambda event: f"rank {event.rank} started (pid {event.pid})",
    ev.TrainingStarted: lambda event: f"first step after {event.after_s:.1f} s",
    ev.Resumed: lambda event: resumed(event.resume),
    ev.CheckpointRequested: lambda event: (
        f"checkpoint requested by {ways_to_ask(event.signals, flag_file=event.flag_file)}"
    ),
    ev.CheckpointSaved: _checkpoint_saved,
    ev.RankExited: _rank_exited,
    ev.HangSuspected: lambda event: event.found,
    ev.FailureJudged: lambda event: event.cause.summary,
    ev.HangJudged: lambda event: event.cause.summary,
    ev.RestartDecided: _restart_decided,
    ev.RestartRequested: _restart_requested,
    ev.NodeUnreachable: lambda event: (
        f"{event.node} cannot be reached: {event.why}; its ranks may still be training"
    ),
    ev.NodeReachable: lambda event: f"{event.node} can be reached again",
    ev.NodesAwaited: _nodes_awaited,
    ev.NodeLost: lambda event: f"gave up on {event.node}: {event.why}",
    ev.StopRequested: _stop_requested,
    ev.JobEnded: _ended,
    ev.JobLost: _lost,
    ev.AgentLost: _agent_lost,
    ev.SupervisorRestarted: lambda event: (
        f"the supervisor restarted; {event.damage or 'nothing was lost'}"
    ),
    ev.GuardianRestarted: lambda event: (
        f"the guardian had exited; {event.damage or 'a new one adopted the job'}"
    ),
    ev.AlertRaised: lambda event: event.alert.message,
    ev.AlertsCleared: _alerts_cleared,
    ev.GpuMemoryAwaited: lambda event: f"{_on(event)}{event.found}",
    ev.Noticed: lambda event: event.text,
    ev.Untyped: lambda event: event.text,
}
