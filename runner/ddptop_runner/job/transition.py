"""Folds a job's state over its events. Pure.

The live supervisor, its successor, the replay of a moment, and the repair of a damaged snapshot all
get a job's state from here. An event that does not fit the state (a second exit of a rank, an exit
in an earlier attempt, anything after the end) changes nothing.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from ddptop_runner.job.event_text import text
from ddptop_runner.job.state import (
    Budget,
    JobState,
    NodeLife,
    PendingRestart,
    RankLife,
    ShownAlert,
)
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert
from ddptop_runner.model.words import HERE

NOTICE_S = 600.0
"""How long to show an alert that has no end."""


def apply(state: JobState, event: ev.JobEvent, at: dt.datetime) -> JobState:
    """The state after one more event.

    Args:
        state: the state before.
        event: what happened.
        at: when it happened.
    """
    if state.is_over and not _is_relaunch(state, event):
        return state
    kind = type(event)
    is_current = event.attempt is None or state.attempt in (None, event.attempt)
    change = _CHANGES.get(kind) or (_OF_ATTEMPT.get(kind) if is_current else None)
    return state if change is None else change(state, event, at)


def fold(events: Iterable[tuple[dt.datetime, ev.JobEvent]]) -> JobState:
    """The state after all these events."""
    state = JobState()
    for at, event in events:
        state = apply(state, event, at)
    return state


def _is_relaunch(state: JobState, event: ev.JobEvent) -> bool:
    if isinstance(event, ev.AttemptStarted):  # its launch is missing from the log
        return event.attempt is not None and event.attempt > (state.attempt or 0)
    return isinstance(event, ev.Launched | ev.Queued)


# -- the job and its attempts ----------------------------------------------------------------------


def _launched(state: JobState, event: ev.Launched, at: dt.datetime) -> JobState:
    """The job has its devices and begins a new life; the checkpoint remains from the last one."""
    if state.in_queue and state.phase == "stopping":
        return state
    attempt = state.attempt if event.attempt is None else event.attempt
    return JobState(
        attempt=attempt,
        attempt_started_at=at,
        attempt_started_s=event.at_s,
        checkpoint=state.checkpoint,
    )


def _queued(state: JobState, event: ev.Queued, at: dt.datetime) -> JobState:
    if event.waits_for is not None and state.in_queue and not state.is_over:
        return state
    attempt = state.attempt if event.attempt is None else event.attempt
    return JobState(phase="queued", in_queue=True, attempt=attempt, checkpoint=state.checkpoint)


def _attempt_opened(state: JobState, event: ev.AttemptOpened, at: dt.datetime) -> JobState:
    """Set what is known about an attempt before its ranks start."""
    is_next = event.attempt != state.attempt
    is_same_start = event.at_s is not None and event.at_s == state.attempt_started_s
    return replace(
        state,
        in_queue=False,
        attempt=event.attempt,
        attempt_started_at=state.attempt_started_at if is_same_start and not is_next else at,
        attempt_started_s=event.at_s,
        first_step_after_s=None,
        world=None,
        ranks={},
        launcher=None,
        restart=None,
        nodes=_nodes_of_next(state),
        nodes_before=_nodes_before(state) if is_next else state.nodes_before,
        previous_cause=state.cause if is_next else state.previous_cause,
        resume=None if is_next else state.resume,
        suspected=None,
        suspected_at=None,
        trouble=None,
        set_aside_before=state.set_aside,
        alerts=_lasting(state),
        ended_at=None,
        exit_code=None,
    )


def _nodes_of_next(state: JobState) -> dict[str, NodeLife]:
    """The nodes as an attempt begins; their links are as before."""
    chosen = None if state.restart is None or not state.restart.nodes else state.restart.nodes
    nodes = {
        name: NodeLife(
            takes_part=life.takes_part if chosen is None else name in chosen,
            begun=life.begun,
            unknown_since=life.unknown_since,
            unknown_since_s=life.unknown_since_s,
            why=life.why,
            lost=life.lost,
            refused=life.refused,
        )
        for name, life in state.nodes.items()
    }
    return nodes | {n: NodeLife(takes_part=True) for n in chosen or () if n not in nodes}


def _nodes_before(state: JobState) -> dict[int, list[str]]:
    members = [name for name, life in state.nodes.items() if life.takes_part and name != HERE]
    if state.attempt is None or not members:
        return state.nodes_before
    return {**state.nodes_before, state.attempt: members}


def _attempt_started(state: JobState, event: ev.AttemptStarted, at: dt.datetime) -> JobState:
    phase = "starting" if event.probed else "running"
    launcher = None if event.launcher_pid is None else RankLife(pid=event.launcher_pid)
    opened = _attempt_opened(state, ev.AttemptOpened(attempt=event.attempt, at_s=event.at_s), at)
    return replace(
        opened,
        nodes={name: replace(life, begun=None) for name, life in opened.nodes.items()},
        phase="stopping" if state.phase == "stopping" else phase,
        world=event.world,
        ranks=state.ranks if event.attempt == state.attempt else {},  # exits, if reported before
        first_rank=event.first_rank,
        launcher=launcher,
        cause=None,
        ending=state.ending if state.phase == "stopping" else None,
    )


def _lasting(state: JobState) -> dict[str, ShownAlert]:
    """The alerts that carry over to the next attempt."""
    return {} if state.is_over else {i: one for i, one in state.alerts.items() if one.until is None}


def _rank_started(state: JobState, event: ev.RankStarted, at: dt.datetime) -> JobState:
    known = state.ranks.get(event.rank)
    if known is not None and known.pid == event.pid:
        return state
    life = RankLife(pid=event.pid, node=event.node)
    return replace(state, ranks={**state.ranks, event.rank: life})


def _running_assumed(state: JobState, event: ev.RunningAssumed, at: dt.datetime) -> JobState:
    return replace(state, phase="running") if state.phase == "starting" else state


def _training(state: JobState, event: ev.TrainingStarted, at: dt.datetime) -> JobState:
    phase = "running" if state.phase in ("starting", "running") else state.phase
    return replace(state, phase=phase, first_step_after_s=event.after_s)


def _resumed(state: JobState, event: ev.Resumed, at: dt.datetime) -> JobState:
    return replace(state, resume=event.resume)


def _checkpoint(state: JobState, event: ev.CheckpointSaved, at: dt.datetime) -> JobState:
    return replace(state, checkpoint=event.checkpoint)


# -- ends and failures -----------------------------------------------------------------------------


def _rank_exited(state: JobState, event: ev.RankExited, at: dt.datetime) -> JobState:
    if event.rank is None:
        return replace(state, launcher=_exited(state.launcher or RankLife(), event))
    life = _exited(state.ranks.get(event.rank) or RankLife(node=event.node), event)
    return replace(state, ranks={**state.ranks, event.rank: life})


def _exited(life: RankLife, event: ev.RankExited) -> RankLife:
    if None not in (life.pid, event.pid) and life.pid != event.pid:
        return life  # the exit of a process that has been replaced
    if life.exited and life.status is not None:
        return life
    return replace(
        life,
        pid=life.pid if event.pid is None else event.pid,
        exited=True,
        status=event.status,
        at_s=event.at_s,
        by_us=event.by_us,
    )


def _suspected(state: JobState, event: ev.HangSuspected, at: dt.datetime) -> JobState:
    return replace(state, suspected=event, suspected_at=at)


def _trouble(state: JobState, event: ev.TroubleFound, at: dt.datetime) -> JobState:
    if state.phase not in ("starting", "running"):
        return state
    ranks = {
        rank: replace(life, hung=True) if rank in event.ranks else life
        for rank, life in state.ranks.items()
    }
    phase = "stopping" if event.stops else "hung"
    return replace(state, phase=phase, ranks=ranks, trouble=event.reason)


def _trouble_dropped(state: JobState, event: ev.TroubleDropped, at: dt.datetime) -> JobState:
    if state.phase != "hung":
        return state
    ranks = {rank: replace(life, hung=False) for rank, life in state.ranks.items()}
    return replace(state, phase="running", ranks=ranks, trouble=None)


def _ranks_ending(state: JobState, event: ev.RanksEnding, at: dt.datetime) -> JobState:
    """The first such event counts: exits after it were caused by us."""
    names = [event.node] if event.node is not None else list(state.nodes) or [HERE]
    for name in names:
        life = state.node(name)
        since_s = event.at_s if life.ending_ranks_at_s is None else life.ending_ranks_at_s
        failed = event.failed or life.failed_before
        state = _of_node(state, name, ending_ranks_at_s=since_s, failed_before=failed)
    return state


def _failed(state: JobState, event: ev.FailureJudged, at: dt.datetime) -> JobState:
    return replace(state, cause=event.cause, history=state.history_with(event.outcome))


def _hung(state: JobState, event: ev.HangJudged, at: dt.datetime) -> JobState:
    ranks = {
        rank: replace(life, hung=event.cause.rank in (None, rank))
        for rank, life in state.ranks.items()
    }
    phase = state.phase if state.phase == "stopping" else "hung"
    history = state.history_with(event.outcome)
    return replace(state, cause=event.cause, phase=phase, ranks=ranks, history=history)


def _restart_decided(state: JobState, event: ev.RestartDecided, at: dt.datetime) -> JobState:
    restart = PendingRestart(
        at=at + dt.timedelta(seconds=event.delay_s),
        at_s=event.at_s,
        counted=True,
        next_attempt=state.next_attempt,
    )
    return replace(
        state,
        phase="stopping" if state.phase == "stopping" else "restarting",
        restart=restart,
        nodes=_not_sent(state.nodes),
        budget=Budget(used=event.used, limit=event.limit),
        history=dataclasses.replace(state.history, used=event.used),
        policy=event.reason,
    )


def _not_sent(nodes: Mapping[str, NodeLife]) -> dict[str, NodeLife]:
    """The nodes, where no agent has orders for a restart that has just been decided."""
    return {name: replace(life, sent=False) for name, life in nodes.items()}


def _nodes_chosen(state: JobState, event: ev.NodesChosen, at: dt.datetime) -> JobState:
    """The first nodes of a job take part at once; others do when the attempt begins."""
    next_attempt = event.attempt or 0
    restart = state.restart or PendingRestart(at=at)
    restart = replace(restart, next_attempt=next_attempt, nodes=event.nodes, chosen_s=event.at_s)
    new = {
        name: NodeLife(takes_part=not state.nodes)
        for name in event.nodes
        if name not in state.nodes
    }
    nodes = _not_sent(state.nodes) | new
    return replace(state, restart=restart, nodes=nodes, last_begun=next_attempt)


def _of_node(state: JobState, name: str, **changes: Any) -> JobState:
    life = replace(state.node(name), **changes)
    return replace(state, nodes={**state.nodes, name: life})


def _node_failed(state: JobState, event: ev.NodeFailed, at: dt.datetime) -> JobState:
    return _of_node(state, event.node, failed=True, cause=event.cause, outcome=event.outcome)


def _node_ended(state: JobState, event: ev.NodeEnded, at: dt.datetime) -> JobState:
    return _of_node(state, event.node, ended=event.well)


def _node_unreachable(state: JobState, event: ev.NodeUnreachable, at: dt.datetime) -> JobState:
    life = state.node(event.node)
    why = life.why if life.refused else event.why
    return _of_node(state, event.node, unknown_since=at, unknown_since_s=event.at_s, why=why)


def _node_reachable(state: JobState, event: ev.NodeReachable, at: dt.datetime) -> JobState:
    life = state.node(event.node)
    why = life.why if life.refused else None
    back: dict[str, Any] = {"unknown_since": None, "unknown_since_s": None, "why": why}
    return _of_node(state, event.node, lost=life.refused, **back)


def _node_lost(state: JobState, event: ev.NodeLost, at: dt.datetime) -> JobState:
    return _of_node(state, event.node, lost=True, why=event.why, refused=event.refused)


def _restart_asked(state: JobState, event: ev.RestartRequested, at: dt.datetime) -> JobState:
    """Restart now and for free: the cost of a pending restart is refunded."""
    restart, nodes = state.restart, state.nodes
    if event.at_s is None or restart is None:
        restart = PendingRestart(at=at, next_attempt=state.next_attempt)
        nodes = _not_sent(nodes)
    if not (event.node or event.without):
        nodes = {  # the user may have repaired them
            name: replace(life, refused=False, lost=False, why=None) if life.refused else life
            for name, life in nodes.items()
        }
    return replace(
        state,
        nodes=nodes,
        phase="stopping" if state.phase == "stopping" else "restarting",
        budget=Budget(used=event.used, limit=event.limit),
        history=dataclasses.replace(state.history, failed=(), used=event.used),
        set_aside=[one for one in state.set_aside if one.device not in event.devices_back],
        restart=replace(restart, at=at, at_s=event.at_s, counted=False),
    )


def _restart_prepared(state: JobState, event: ev.RestartPrepared, at: dt.datetime) -> JobState:
    if state.restart is None:
        return state
    begun, sent = state.restart.next_attempt, state.node(event.node).sent or event.sent
    state = replace(state, set_aside=[*state.set_aside, *event.aside])
    return _of_node(state, event.node, begun=begun, sent=sent, wanted_agent=event.wanted)


def _agent_connected(state: JobState, event: ev.AgentConnected, at: dt.datetime) -> JobState:
    wanted = state.node(event.node).wanted_agent
    if wanted is None:
        return state
    return _of_node(state, event.node, wanted_agent=replace(wanted, connected=True))


def _end_decided(state: JobState, event: ev.EndDecided, at: dt.datetime) -> JobState:
    """The first decision counts, except that nothing revokes a stop."""
    if state.ending is not None:
        return state
    ending = event.ending
    return replace(
        state,
        ending=ending,
        restart=None,
        cause=ending.cause or state.cause,
        policy=ending.reason if ending.state == "failed" else state.policy,
    )


def _stopping(state: JobState, event: ev.StopRequested, at: dt.datetime) -> JobState:
    return replace(
        state,
        phase="stopping",
        kill_at_s=event.kill_at_s,
        ending=ev.Ending(state="stopped"),
    )


def _ended(state: JobState, event: ev.JobEnded, at: dt.datetime) -> JobState:
    exit_code = None
    if event.state == "finished":
        exit_code = 0
    elif event.state == "failed":
        exit_code = (None if event.cause is None else event.cause.exit_code) or 1
    return replace(
        state,
        phase=event.state,
        restart=None,
        kill_at_s=None,
        nodes={name: replace(life, wanted_agent=None) for name, life in state.nodes.items()},
        ending=ev.Ending(
            state=event.state, cause=event.cause, reason=event.reason, requeue=event.requeue
        ),
        cause=event.cause,
        policy=event.reason if event.state == "failed" else state.policy,
        alerts={},
        ended_at=at,
        exit_code=exit_code,
    )


def _lost(state: JobState, event: ev.JobLost, at: dt.datetime) -> JobState:
    return replace(state, phase="lost", restart=None, kill_at_s=None, alerts={}, ended_at=at)


# -- what deserves attention -----------------------------------------------------------------------


def _alert_raised(state: JobState, event: ev.AlertRaised, at: dt.datetime) -> JobState:
    until = None if event.lasts_s is None else at + dt.timedelta(seconds=event.lasts_s)
    shown = {i: one for i, one in state.alerts.items() if one.until is None or one.until >= at}
    shown[event.alert.id] = ShownAlert(alert=event.alert, until=until)
    return replace(state, alerts=shown)


def _alerts_cleared(state: JobState, event: ev.AlertsCleared, at: dt.datetime) -> JobState:
    left = {id_: one for id_, one in state.alerts.items() if id_ not in event.messages}
    return replace(state, alerts=left)


def _noticed(state: JobState, event: ev.JobEvent, at: dt.datetime) -> JobState:
    """Show an alert without an end for a while."""
    alert = Alert(
        id=f"event-{at.timestamp():.3f}", severity="warning", message=text(event), since=at
    )
    return _alert_raised(state, ev.AlertRaised(alert=alert, lasts_s=NOTICE_S), at)


def _memory_awaited(state: JobState, event: ev.GpuMemoryAwaited, at: dt.datetime) -> JobState:
    return _noticed(state, event, at) if event.is_problem else state


_Change: TypeAlias = Callable[[JobState, Any, dt.datetime], JobState]
_CHANGES: dict[type[ev.EventBase], _Change] = {
    ev.Launched: _launched,
    ev.Queued: _queued,
    ev.AttemptOpened: _attempt_opened,
    ev.AttemptStarted: _attempt_started,
    ev.TroubleDropped: _trouble_dropped,
    ev.AgentConnected: _agent_connected,
    ev.CheckpointSaved: _checkpoint,
    ev.NodesChosen: _nodes_chosen,
    ev.NodeUnreachable: _node_unreachable,
    ev.NodeReachable: _node_reachable,
    ev.NodeLost: _node_lost,
    ev.StopRequested: _stopping,
    ev.JobEnded: _ended,
    ev.JobLost: _lost,
    ev.AlertRaised: _alert_raised,
    ev.AlertsCleared: _alerts_cleared,
    ev.GpuMemoryAwaited: _memory_awaited,
    ev.AgentLost: _noticed,
    ev.Noticed: _noticed,
}
_OF_ATTEMPT: dict[type[ev.EventBase], _Change] = {
    ev.RunningAssumed: _running_assumed,
    ev.TroubleFound: _trouble,
    ev.RanksEnding: _ranks_ending,
    ev.RestartPrepared: _restart_prepared,
    ev.EndDecided: _end_decided,
    ev.RankStarted: _rank_started,
    ev.TrainingStarted: _training,
    ev.Resumed: _resumed,
    ev.RankExited: _rank_exited,
    ev.HangSuspected: _suspected,
    ev.FailureJudged: _failed,
    ev.HangJudged: _hung,
    ev.RestartDecided: _restart_decided,
    ev.NodeFailed: _node_failed,
    ev.NodeEnded: _node_ended,
    ev.RestartRequested: _restart_asked,
}
"""Changes by events of the current attempt; those of another one change nothing."""
