"""Decides, for the head of a job on several nodes, what follows from a fact. Pure.

Each node judges its own ranks and then waits; this module finds one cause over all nodes and
decides on the next attempt. Whatever is the same on one machine (a stop, a verdict, the restart
policy, the end) is left to `decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job import decide as single
from ddptop_runner.job.decide import Decision
from ddptop_runner.job.event_text import text
from ddptop_runner.job.state import JobState, NodeLife, RankLife
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.spec import JobSpec, NodeSpec, Placement, Rendezvous

SHRINK_AFTER_S = 15.0
"""How long to wait for a node if there are enough others, as its link may come back."""
ENDS_WITHIN_S = 30.0
"""A node ends by itself within this time once all ranks of all nodes have exited with 0."""
NOTICES = (
    ev.AgentLost,
    ev.GpuMemoryAwaited,
    ev.GuardianRestarted,
    ev.InternalError,
    ev.Noticed,
    ev.ProcessesStuck,
    ev.SocketsFailed,
    ev.SupervisorRestarted,
)
"""Events of a node that are recorded with its name and change nothing else."""


def decide_nodes(state: JobState, fact: pt.Fact, now_s: float, spec: JobSpec) -> Decision:
    """The events and orders that follow from a fact; see `decide`."""
    rule = _RULES.get(type(fact))
    if rule is None:
        return single.decide(state, fact, now_s, spec)
    return rule(state, fact, now_s, spec)


def _placement(spec: JobSpec) -> Placement:
    assert spec.placement is not None  # this is the head of several nodes
    return spec.placement


def _part(state: JobState, node: str) -> NodeLife:
    return state.nodes.get(node, NodeLife())


def _taking_part(state: JobState) -> list[NodeLife]:
    return [life for life in state.nodes.values() if life.takes_part]


def hosts_of_ranks(state: JobState, spec: JobSpec, attempt: int | None = None) -> dict[int, str]:
    """The host of each rank in an attempt, by default the current one."""
    if attempt is None or attempt == state.attempt:
        members = [name for name, life in state.nodes.items() if life.takes_part]
    else:
        members = state.nodes_before.get(attempt, [])
    nodes = [one for one in _placement(spec).nodes if one.host in members]
    return dict(enumerate(one.host for one in nodes for _ in range(one.nproc)))


def _over(state: JobState, spec: JobSpec) -> set[str]:
    """Nodes of the attempt that have ended or whose ranks have all exited with 0.

    Such a node's agent may still keep the store for the others.
    """
    at_work = set()
    for rank, host in hosts_of_ranks(state, spec).items():
        life = state.ranks.get(rank)
        if life is None or not life.exited or life.status != 0:
            at_work.add(host)
    return {
        name
        for name, life in state.nodes.items()
        if life.takes_part and (life.ended is not None or name not in at_work)
    }


def away_for_long(state: JobState, now_s: float, spec: JobSpec) -> list[str]:
    """Nodes of the attempt that have been unreachable for longer than the node timeout."""
    timeout_s = _placement(spec).node_timeout_s
    lives = state.nodes.items()
    return [name for name, life in lives if life.takes_part and life.away_s(now_s) > timeout_s]


# -- nodes' reports --------------------------------------------------------------------------------


def _node_reported(state: JobState, fact: pt.NodeReported, now_s: float, spec: JobSpec) -> Decision:
    event, node = fact.event, fact.node
    if state.is_over:
        return []
    if isinstance(event, NOTICES):
        return [ev.Noticed(attempt=state.attempt, text=f"{node}: {text(event)}")]
    if event.attempt != state.attempt or not _part(state, node).takes_part:
        return []
    if isinstance(event, ev.AttemptStarted):
        return _part_started(state, node, event, spec)
    if isinstance(event, ev.RankStarted | ev.CheckpointSaved):
        return [event]
    if isinstance(event, ev.TrainingStarted):
        return [] if state.first_step_after_s is not None else [event]
    if isinstance(event, ev.RankExited):
        return _rank_exited(state, node, event, spec)
    if isinstance(event, ev.FailureJudged):
        if _part(state, node).failed:
            return []
        failed = ev.NodeFailed(
            attempt=state.attempt, node=node, cause=event.cause, outcome=event.outcome
        )
        if not state.has_failed and not any(life.failed for life in _taking_part(state)):
            return [failed, pt.KeepEvidenceOnNodes()]  # it failed before it had a rank
        return [failed, *_once_settled(state, node, spec)]
    if isinstance(event, ev.JobEnded):
        return _part_ended(state, node, event, spec)
    return []


def _part_started(state: JobState, node: str, event: ev.AttemptStarted, spec: JobSpec) -> Decision:
    if _part(state, node).started:
        return []
    begun: Decision = [ev.NodeStarted(attempt=state.attempt, node=node)]
    if state.world is None and state.ending is None and state.restart is None:  # the first of them
        taking_part = [one for one in _placement(spec).nodes if _part(state, one.host).takes_part]
        begun.append(
            ev.AttemptStarted(
                attempt=state.attempt,
                world=sum(one.nproc for one in taking_part),
                probed=event.probed,
                at_s=state.attempt_started_s,
            )
        )
    return begun


def _rank_exited(state: JobState, node: str, event: ev.RankExited, spec: JobSpec) -> Decision:
    known = state.ranks.get(event.rank)
    if known is not None and known.exited and known.status is not None:
        return []
    is_first = event.status != 0 and not event.by_us and not state.has_failed
    if is_first and not state.is_decided and state.restart is None:
        return [event, pt.KeepEvidenceOnNodes()]
    if event.status == 0 and not state.is_decided and state.restart is None:
        lives = {**state.ranks, event.rank: RankLife(exited=True, status=0)}
        after = replace(state, ranks=lives)
        if node in _over(after, spec):
            return [event, *_once_settled(after, node, spec)]
    return [event]


def _part_ended(state: JobState, node: str, event: ev.JobEnded, spec: JobSpec) -> Decision:
    if _part(state, node).ended is not None:
        return []
    well = event.state == "finished"
    ended = ev.NodeEnded(attempt=state.attempt, node=node, well=well)
    if state.ending is not None or state.restart is not None:
        return [ended]
    if well:
        others = [life for name, life in state.nodes.items() if life.takes_part and name != node]
        if all(life.ended for life in others):
            return [ended, *_finished(state)]
        return [ended, *_once_settled(state, node, spec)]
    failed = ev.NodeFailed(attempt=state.attempt, node=node, cause=event.cause)
    if any(life.failed for life in _taking_part(state)):
        return [failed, ended, *_once_settled(state, node, spec)]
    return [failed, ended, pt.KeepEvidenceOnNodes()]


def _finished(state: JobState) -> Decision:
    """All nodes have ended well; from here on, no restart is possible."""
    return [ev.EndDecided(attempt=state.attempt, state="finished"), pt.Conclude()]


def _once_settled(state: JobState, node: str, spec: JobSpec) -> Decision:
    """Once every node has a verdict, has ended, or is away, decide for all of them.

    If all reachable nodes have finished, the others get some time to finish too.
    """
    others = {name: life for name, life in state.nodes.items() if life.takes_part and name != node}
    over = _over(state, spec)
    if not all(life.is_settled or name in over for name, life in others.items()):
        return []
    if state.has_failed or any(life.failed for life in others.values()):
        return [pt.JudgeAttempt()]
    is_done = over >= {node, *others}
    return [pt.AwaitNodes(seconds=ENDS_WITHIN_S if is_done else _placement(spec).node_timeout_s)]


def _verdicts_due(state: JobState, fact: pt.VerdictsDue, now_s: float, spec: JobSpec) -> Decision:
    is_late = fact.attempt != state.attempt or state.is_decided or state.restart is not None
    is_failing = state.has_failed or any(life.failed for life in _taking_part(state))
    return [] if is_late or state.is_over or not is_failing else [pt.JudgeAttempt()]


def _attempt_judged(
    state: JobState, fact: pt.AttemptJudged, now_s: float, spec: JobSpec
) -> Decision:
    if (
        state.restart is not None and state.ending is None
    ):  # a restart was requested in the meantime
        return []
    decision = single.decide(state, fact, now_s, spec)
    if not any(isinstance(one, ev.EndDecided | pt.Conclude) for one in decision):
        return decision
    left = [one for one in decision if not isinstance(one, pt.Conclude)]
    return [*left, pt.EndRanks(grace_s=single.BAD_END_GRACE_S)]


def _part_refused(state: JobState, fact: pt.PartRefused, now_s: float, spec: JobSpec) -> Decision:
    is_late = fact.attempt != state.attempt or state.is_over or state.ending is not None
    if is_late or _part(state, fact.node).failed or state.restart is not None:
        return []
    cause = Cause(
        kind="node" if state.attempt else "launch",
        summary=f"Attempt {fact.attempt} could not start on {fact.node}: {fact.error}.",
        host=fact.node,
    )
    failed: Decision = [
        ev.NodeFailed(attempt=state.attempt, node=fact.node, cause=cause),
        ev.NodeEnded(attempt=state.attempt, node=fact.node, well=False),
    ]
    again: Decision = [
        ev.RestartRequested(
            attempt=state.attempt,
            used=state.budget.used,
            limit=spec.max_restarts,
            without=fact.node,
        ),
        pt.WaitForRestart(at_s=None),
    ]
    if not fact.answered:
        # it went away before the attempt, which already cost a restart: now wait for it
        is_away = bool(state.attempt) and _part(state, fact.node).unknown_since is not None
        return again if is_away else [*failed, pt.JudgeAttempt()]
    refused = [name for name, life in state.nodes.items() if life.refused]
    if _is_enough([*refused, fact.node], spec):
        lost = ev.NodeLost(attempt=state.attempt, node=fact.node, why=fact.error, refused=True)
        return [lost, *again]
    return [*failed, *_end_for_nodes(state, cause, spec)]


# -- links -----------------------------------------------------------------------------------------


def _link_broken(state: JobState, fact: pt.LinkBroken, now_s: float, spec: JobSpec) -> Decision:
    """An unreachable node may train on, so nothing is restarted."""
    if state.is_over or _part(state, fact.node).unknown_since is not None:
        return []
    broken = ev.NodeUnreachable(attempt=state.attempt, node=fact.node, why=fact.why, at_s=now_s)
    if state.ending is not None or state.restart is not None:
        return [broken]
    return [broken, *_once_settled(state, fact.node, spec)]


def _link_made(state: JobState, fact: pt.LinkMade, now_s: float, spec: JobSpec) -> Decision:
    life, node = _part(state, fact.node), fact.node
    if state.is_over:
        return []
    events: Decision = []
    if life.unknown_since is not None or life.lost:
        events = [ev.NodeReachable(attempt=state.attempt, node=node)]
    if state.ending is not None:
        end = pt.EndOn(node=node, grace_s=_grace_left_s(state, now_s))
        # a new head may have ended its wait for a node that was never recorded as unreachable
        return [*events, end] if events or fact.is_there else []
    if not life.takes_part and (life.refused or state.restart is None):
        # it runs an earlier attempt
        end = pt.EndOn(node=node, grace_s=0.0)
        return [*events, end, *_take_back(state, now_s, spec, but=node)]
    if state.restart is not None:
        missing = _missing(state, spec)
        left = [host for host in missing if host != node]
        is_last = all(_part(state, host).refused for host in left)
        makes_enough = _is_enough(left, spec) and not _is_enough(missing, spec)
        if events and (is_last or makes_enough):
            events.append(
                pt.WaitForRestart(at_s=state.restart.at_s)
            )  # the restart was waiting for it
        return events
    if fact.is_there:
        return [*events, *_take_back(state, now_s, spec, but=node)]
    if life.failed or life.ended is not None:
        return events
    cause = Cause(
        kind="node",
        summary=f"All processes of the job on {node} are gone: it was rebooted, or they were"
        " killed together.",
        host=node,
    )
    return [
        *events,
        ev.NodeFailed(attempt=state.attempt, node=node, cause=cause),
        ev.NodeEnded(attempt=state.attempt, node=node, well=False),
        pt.KeepEvidenceOnNodes(),
    ]


def _grace_left_s(state: JobState, now_s: float) -> float:
    """The rest of the ranks' time to save, once the job is ending."""
    if state.stop is None or state.stop.kill_at_s is None:
        return single.BAD_END_GRACE_S
    return max(0.0, state.stop.kill_at_s - now_s)


def _checkpoint_waited(
    state: JobState, fact: pt.CheckpointWaited, now_s: float, spec: JobSpec
) -> Decision:
    is_late = fact.attempt != state.attempt or state.restart is not None
    if is_late or state.is_over or state.ending is not None:
        return []
    return _take_back(state, now_s, spec, has_saved=True)


def _take_back(
    state: JobState, now_s: float, spec: JobSpec, *, but: str = "", has_saved: bool = False
) -> Decision:
    """Start another attempt that includes the missing nodes, if that harms no one.

    While only some nodes of the attempt are unreachable, they may train on with the others. If
    all are, the attempt is abandoned after the time to wait for a node.

    Args:
        state: the job.
        now_s: CLOCK_BOOTTIME.
        spec: the job.
        but: the node that has just been reached.
        has_saved: whether the ranks have already been asked to save.
    """
    lives = {name: life for name, life in state.nodes.items() if life.takes_part}
    back = [
        name
        for name, life in state.nodes.items()
        if not (life.takes_part or life.refused) and (name == but or not life.unknown_since)
    ]
    over = _over(state, spec)
    is_ending = any(life.failed or name in over for name, life in lives.items())
    if not back or is_ending or state.phase not in ("starting", "running"):
        return []
    away = [name for name, life in lives.items() if life.unknown_since and name != but]
    if away and len(away) < len(lives):
        return []
    if away and (left_s := _left_s(state, away, now_s, spec)) > 0:
        return [pt.AwaitNodes(seconds=left_s)]
    if state.phase == "running" and not away and not has_saved:
        return [pt.AskCheckpoint()]
    asked = ev.RestartRequested(
        attempt=state.attempt, used=state.budget.used, limit=spec.max_restarts, node=back[0]
    )
    return [asked, pt.WaitForRestart(at_s=None)]


# -- the next attempt ------------------------------------------------------------------------------


def _restart_asked(state: JobState, fact: pt.RestartAsked, now_s: float, spec: JobSpec) -> Decision:
    if state.ending is not None:
        raise ControlError("the job is ending", "wait until it has ended")
    if single.is_waiting(state):
        return single.decide(state, fact, now_s, spec)
    if state.phase not in ("starting", "running", "hung"):
        raise ControlError(f"the job is {state.phase}", "wait until it is running")
    asked = ev.RestartRequested(
        attempt=state.attempt, used=state.budget.used, limit=spec.max_restarts
    )
    return [asked, pt.WaitForRestart(at_s=None)]


def _restart_due(state: JobState, fact: pt.RestartDue, now_s: float, spec: JobSpec) -> Decision:
    if state.ending is not None or state.is_over:
        return []
    if fact.attempt != state.attempt or state.restart is None:
        return []
    missing = _missing(state, spec)
    away = [host for host in missing if not _part(state, host).refused]
    if not away:
        return _go_on(state, missing, now_s, spec)
    timeout_s, waits_s = _placement(spec).node_timeout_s, SHRINK_AFTER_S
    if not _is_enough(missing, spec):
        waits_s = max(waits_s, _left_s(state, away, now_s, spec))
    waits_s = min(waits_s, timeout_s)
    awaited = ev.NodesAwaited(attempt=state.attempt, nodes=away, seconds=waits_s)
    return [awaited, pt.AwaitNodes(seconds=waits_s)]


def _nodes_due(state: JobState, fact: pt.NodesDue, now_s: float, spec: JobSpec) -> Decision:
    if state.ending is not None or state.is_over:
        return []
    if fact.attempt != state.attempt:
        return []
    if state.restart is None:
        again = _take_back(state, now_s, spec, but="")
        return again or _end_without(state, now_s, spec)
    if state.restart.at_s is not None and now_s < state.restart.at_s:
        return []
    missing = _missing(state, spec)
    away = [host for host in missing if not _part(state, host).refused]
    left_s = _left_s(state, away, now_s, spec)
    if away and not _is_enough(missing, spec) and left_s > 0:
        # others went away during the wait for dispensable nodes
        awaited = ev.NodesAwaited(attempt=state.attempt, nodes=away, seconds=left_s)
        return [awaited, pt.AwaitNodes(seconds=left_s)]
    lost: Decision = [
        ev.NodeLost(attempt=state.attempt, node=node, why=_part(state, node).why or "no response")
        for node in away
    ]
    return [*lost, *_go_on(state, missing, now_s, spec)]


def _go_on(state: JobState, missing: list[str], now_s: float, spec: JobSpec) -> Decision:
    """Continue without these nodes if there are enough others."""
    if _is_enough(missing, spec):
        nodes = [one for one in _placement(spec).nodes if one.host not in missing]
        return _begin(state, nodes, now_s)
    cause = Cause(kind="node", summary=f"{', '.join(missing)} did not come back.", host=missing[0])
    if state.cause is not None:
        cause = replace(cause, summary=f"{cause.summary} {state.cause.summary}")
    return _end_for_nodes(state, cause, spec)


def _end_for_nodes(state: JobState, cause: Cause, spec: JobSpec) -> Decision:
    """End the job because too few nodes are left."""
    ended = ev.EndDecided(
        attempt=state.attempt,
        state="failed",
        cause=cause,
        reason=f"fewer than {_placement(spec).min_nodes} nodes are left",
        requeue=cause.kind == "node",
    )
    return [ended, pt.EndRanks(grace_s=single.BAD_END_GRACE_S)]


def _end_without(state: JobState, now_s: float, spec: JobSpec) -> Decision:
    """End without nodes that are away for too long, after the others have finished."""
    over = _over(state, spec)
    away = [name for name, life in state.nodes.items() if life.takes_part and name not in over]
    if state.has_failed or any(life.failed for life in _taking_part(state)):
        return []  # wait for a verdict
    if over and not away:
        return _finished(state)  # an agent still waits for one that was killed
    is_waiting = all(_part(state, name).unknown_since for name in away)
    if not is_waiting or not 0 < len(away) < len(_taking_part(state)):
        return []
    left_s = _left_s(state, away, now_s, spec)
    if left_s > 0:
        return [pt.AwaitNodes(seconds=left_s)]
    cause = Cause(
        kind="node",
        summary=f"{', '.join(away)} cannot be reached, and the other nodes have finished.",
        host=away[0],
    )
    ended = ev.EndDecided(
        attempt=state.attempt,
        state="failed",
        cause=cause,
        reason="whether all ranks have finished is unknown",
        requeue=True,
    )
    return [ended, pt.EndRanks(grace_s=single.BAD_END_GRACE_S)]


def _missing(state: JobState, spec: JobSpec) -> list[str]:
    lives = {one.host: _part(state, one.host) for one in _placement(spec).nodes}
    return [host for host, life in lives.items() if life.unknown_since or life.refused]


def _is_enough(missing: list[str], spec: JobSpec) -> bool:
    placement = _placement(spec)
    return len(placement.nodes) - len(missing) >= placement.min_nodes


def _left_s(state: JobState, missing: list[str], now_s: float, spec: JobSpec) -> float:
    """How much longer to wait for the last of these nodes to go away."""
    away_s = min((_part(state, host).away_s(now_s) for host in missing), default=0.0)
    return round(_placement(spec).node_timeout_s - away_s, 1)  # a timer may be early


def _begin(state: JobState, nodes: Iterable[NodeSpec], now_s: float) -> Decision:
    """Start another attempt on these nodes."""
    attempt = 0 if state.attempt is None else state.attempt + 1
    return begin(attempt, list(nodes), now_s)


def begin(attempt: int, nodes: list[NodeSpec], now_s: float) -> Decision:
    """The orders that begin an attempt with its own store on these nodes."""
    first = nodes[0]
    world = sum(one.nproc for one in nodes)
    orders: Decision = [
        ev.NodesChosen(attempt=attempt, nodes=[one.host for one in nodes], at_s=now_s)
    ]
    rank = 0
    for number, one in enumerate(nodes):
        rendezvous = Rendezvous(
            run_id=f"{attempt}@{now_s:.3f}",
            address=first.address,
            port=first.ports[attempt % len(first.ports)],
            node_rank=number,
            nodes=len(nodes),
            first_rank=rank,
            world=world,
        )
        orders.append(pt.BeginOn(node=one.host, attempt=attempt, rendezvous=rendezvous))
        rank += one.nproc
    return orders


# -- a new supervisor ------------------------------------------------------------------------------


def _supervisor_started(
    state: JobState, fact: pt.SupervisorStarted, now_s: float, spec: JobSpec
) -> Decision:
    """Continue what the previous head had begun."""
    if state.is_over:
        return []
    if state.phase == "stopping" or state.ending is not None:
        return [pt.EndRanks(grace_s=_grace_left_s(state, now_s))]
    if state.restart is not None:
        return [pt.WaitForRestart(at_s=state.restart.at_s)]
    if state.has_failed or any(life.failed for life in _taking_part(state)):
        return [pt.KeepEvidenceOnNodes()]
    if _taking_part(state) and all(life.ended for life in _taking_part(state)):
        return _finished(state)  # only its end was missing
    if _over(state, spec) >= {name for name, life in state.nodes.items() if life.takes_part}:
        return [pt.AwaitNodes(seconds=ENDS_WITHIN_S)]
    started = [life for life in _taking_part(state) if life.started]
    if len(started) < len(_taking_part(state)):
        # unknown which of them began: only another attempt is safe
        asked = ev.RestartRequested(
            attempt=state.attempt, used=state.budget.used, limit=spec.max_restarts
        )
        return [asked, pt.WaitForRestart(at_s=None)]
    if state.phase == "hung":
        return [ev.TroubleDropped(attempt=state.attempt)]
    if any(life.unknown_since for life in state.nodes.values()):  # a wait for them would be in vain
        return [pt.AwaitNodes(seconds=_placement(spec).node_timeout_s)]
    return []


_RULES: dict[type[pt.Message], Callable[[JobState, Any, float, JobSpec], Decision]] = {
    pt.NodeReported: _node_reported,
    pt.LinkBroken: _link_broken,
    pt.LinkMade: _link_made,
    pt.PartRefused: _part_refused,
    pt.VerdictsDue: _verdicts_due,
    pt.AttemptJudged: _attempt_judged,
    pt.RestartAsked: _restart_asked,
    pt.RestartDue: _restart_due,
    pt.NodesDue: _nodes_due,
    pt.CheckpointWaited: _checkpoint_waited,
    pt.SupervisorStarted: _supervisor_started,
}
