"""Decides what follows from a fact in a given job state: events to record, and orders. Pure.

No IO, no clock, no waiting: the caller passes the time, records the events in order, and then has
the orders carried out. Their results come back as facts.

A job runs on one or several nodes; one machine is the node `HERE`. A rank that fails ends those of
its node through its agent, as in torch. Once all nodes of the attempt are settled or cannot be
reached, there is one verdict on all of them, and one decision on what follows: the end, or a wait,
after which the next attempt's nodes are chosen, each of them chooses its devices, and its agent
goes on or is replaced. `_is_several` marks what only links between nodes make different.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job.event_text import text
from ddptop_runner.job.state import (
    JobState,
    PendingRestart,
    hosts_of_ranks,
    nodes_named,
    placement_of,
)
from ddptop_runner.job.transition import apply
from ddptop_runner.judge.restarts import policy
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.spec import JobSpec, Rendezvous
from ddptop_runner.model.words import HERE

BAD_END_GRACE_S = 10.0
"""From SIGTERM to SIGKILL, for a group that hangs or trains on NaN, or if nothing else is known."""
SHRINK_AFTER_S = 15.0
"""How long to wait for a node if there are enough others, as its link may come back."""
ENDS_WITHIN_S = 30.0
"""A node's agent exits within this time once all ranks of all nodes have exited with 0."""
NOT_FINITE = "the loss was not finite (--on-nan stop)"
NOTICES = (ev.GuardianRestarted, ev.Noticed, ev.SupervisorRestarted)
"""Events of a node that are recorded with its name and change nothing else."""
AFTER_END = (pt.AgentListens, pt.AgentAsked, pt.EvidenceKept, pt.StopAsked, pt.RestartAsked)
"""Facts that have a consequence even once the job has ended: the others have none."""
_ANY_TIME = dt.datetime.fromtimestamp(0, dt.timezone.utc)

Decision: TypeAlias = "list[ev.JobEvent | pt.Order]"


class Given(NamedTuple):
    """What a decision needs besides the state and the fact."""

    now_s: float
    """CLOCK_BOOTTIME."""
    spec: JobSpec
    """The job, as requested."""


def decide(state: JobState, fact: pt.Fact, now_s: float, spec: JobSpec) -> Decision:
    """The events and orders that follow from a fact.

    Args:
        state: the job.
        fact: what happened.
        now_s: CLOCK_BOOTTIME.
        spec: the job, as requested.

    Raises:
        ControlError: a request cannot be carried out.
    """
    if state.is_over and not isinstance(fact, AFTER_END):
        return []
    return _DECISIONS[type(fact)](state, fact, Given(now_s, spec))


def _is_several(spec: JobSpec) -> bool:
    return spec.placement is not None


def _members(state: JobState) -> list[str]:
    """The nodes of the attempt."""
    return [name for name, life in state.nodes.items() if life.takes_part] or [HERE]


def _is_failing(state: JobState) -> bool:
    return state.has_failed or any(state.node(name).failed for name in _members(state))


# -- the agent and its ranks -----------------------------------------------------------------------


def _noticed(state: JobState, node: str, words: str) -> ev.Noticed:
    return ev.Noticed(attempt=state.attempt, text=f"{node}: {words}" if node else words)


def _agent_listens(state: JobState, fact: pt.AgentListens, given: Given) -> Decision:
    """Repeat orders that may have been lost with a supervisor."""
    life = state.node(fact.node)
    if state.ending is not None:
        return [pt.TellAgent(node=fact.node, order="stopping")]
    if life.wanted_agent is not None:  # it begins with that attempt
        return [ev.AgentConnected(attempt=state.attempt, pid=fact.pid, node=fact.node)]
    if state.restart is not None and life.sent:
        return [_restart_group(fact.node)]
    return []


def _group_started(state: JobState, fact: pt.GroupStarted, given: Given) -> Decision:
    is_beginning = _is_beginning(state, fact.node, fact.attempt)
    # of a node that is beginning, at most exits are known
    has_started = fact.attempt == state.attempt and bool(state.processes) and not is_beginning
    if has_started and state.node(fact.node).takes_part:
        return _ranks_started(state, fact, given.spec)
    world = len(fact.workers)
    if _is_several(given.spec):  # the first group shows that all nodes of the attempt have met
        if not is_beginning:
            return []
        world = sum(one.nproc for one in nodes_named(given.spec, _pending(state).nodes))
    started = ev.AttemptStarted(
        attempt=fact.attempt,
        world=world,
        launcher_pid=next((one.pid for one in fact.workers if one.rank is None), None),
        probed=given.spec.probe,
        at_s=given.now_s,
    )
    after = apply(state, started, _ANY_TIME)
    back = _take_back(after, given)  # came back after the nodes had been chosen
    return [started, *_ranks_started(after, fact, given.spec), *back]


def _ranks_started(state: JobState, fact: pt.GroupStarted, spec: JobSpec) -> Decision:
    """The new ranks of a group, unless they are not the node's."""
    hosts = hosts_of_ranks(state, spec) if _is_several(spec) else None
    return [
        ev.RankStarted(attempt=fact.attempt, rank=one.rank, pid=one.pid, node=fact.node)
        for one in fact.workers
        if one.rank is not None
        and one.rank not in state.ranks
        and (hosts is None or hosts.get(one.rank) == fact.node)
    ]


def _is_beginning(state: JobState, node: str, attempt: int | None) -> bool:
    """Whether a node begins that attempt: it was chosen for it, and the others may not be ready."""
    pending = state.restart
    if pending is None or state.ending is not None:
        return False
    return attempt == pending.next_attempt and node in pending.nodes


def _pending(state: JobState) -> PendingRestart:
    assert state.restart is not None  # checked by the callers
    return state.restart


def _process_exited(state: JobState, fact: pt.ProcessExited, given: Given) -> Decision:
    if fact.attempt != state.attempt:
        return []
    life = state.launcher if fact.rank is None else state.ranks.get(fact.rank)
    if life is not None and life.pid == fact.pid and life.exited and life.status is not None:
        return []
    if _is_several(given.spec) and (
        fact.rank is None or hosts_of_ranks(state, given.spec).get(fact.rank) != fact.node
    ):
        return []  # not a rank of that node
    exited = ev.RankExited(
        attempt=fact.attempt,
        rank=fact.rank,
        pid=fact.pid,
        status=fact.status,
        at_s=fact.at_s,
        by_us=_was_ended(state, fact),
        node=fact.node,
    )
    # on one machine, the agent and its exit show what follows
    if state.is_decided or not _is_several(given.spec) or fact.status is None:
        return [exited]
    if fact.status != 0 and not exited.by_us and not state.has_failed:
        return [exited, pt.JudgeAttempt()]
    after = apply(state, exited, _ANY_TIME)
    if fact.status == 0 and fact.node in _over(after, given.spec):
        return [exited, *_once_settled(after, fact.node, given.spec)]
    return [exited]


def _was_ended(state: JobState, fact: pt.ProcessExited) -> bool:
    """Whether ddptop or torch's agent had begun to end the process by then.

    The agent may find a rank dead before its time of death is known.
    """
    life = state.node(fact.node)
    since_s = life.ending_ranks_at_s
    return since_s is not None and fact.at_s >= since_s and fact.rank not in life.failed_before


def _orphan_exited(state: JobState, fact: pt.OrphanExited, given: Given) -> Decision:
    """Without an agent, a failed rank ends its group, as in torch."""
    node, life = fact.node, state.node(fact.node)
    if life.wanted_agent is not None:
        return []
    launcher_lives = state.launcher is not None and state.has_living
    ranks = [one for one in state.ranks.values() if one.node == node]
    ranks_live = any(one.pid is not None and not one.exited for one in ranks)
    if _has_failed_on(state, node) and state.ending is None and ranks_live and not launcher_lives:
        is_ending = life.ending_ranks_at_s is not None
        return [pt.EndLeftovers(node=node) if is_ending else pt.KeepEvidence(node=node)]
    return _after_the_ranks(state, node, given.spec)


def _has_failed_on(state: JobState, node: str) -> bool:
    return any(life.exited and life.status != 0 for life in state.processes_on(node))


def _after_the_ranks(state: JobState, node: str, spec: JobSpec) -> Decision:
    """What follows once no rank is alive on a node whose agent has exited."""
    if state.has_living_on(node) or state.node(node).wanted_agent is not None:
        return []
    if state.ending is not None:
        return []  # its ranks are being ended
    has_finished = bool(state.processes_on(node)) and not _has_failed_on(state, node)
    if state.restart is not None and not (has_finished and _members(state) == [node]):
        return []  # the next attempt begins with a new agent
    if has_finished and not state.node(node).failed:
        return _node_finished(state, node, spec)
    return _node_failed(state, node, spec)


def _agent_exited(state: JobState, fact: pt.AgentExited, given: Given) -> Decision:
    node, life, pending = fact.node, state.node(fact.node), state.restart
    wanted, processes = life.wanted_agent, state.processes_on(fact.node)
    if wanted is not None and fact.pid is not None and fact.pid == wanted.replaces:
        return []
    begins = fact.agent.attempt if wanted is None else wanted.attempt
    if _is_beginning(state, node, begins):
        return _start_failed(state, node, fact.agent, given, begins=True)
    is_prepared = pending is not None and life.begun == pending.next_attempt
    if state.ending is None and wanted is None and is_prepared:
        prepared = ev.RestartPrepared(attempt=state.attempt, node=node)
        return _go_to_next(state, prepared, pt.AgentState(), given)
    if state.has_living_on(node) and wanted is None:
        if state.ending is not None:
            return []  # they may be saving; their end is already under way
        lost = ev.AgentLost(
            attempt=state.attempt,
            status=fact.agent.status,
            ranks=sum(one.pid is not None and not one.exited for one in processes),
            is_command=state.launcher is not None,
            node=node,
        )
        return [lost, *_orphan_exited(state, pt.OrphanExited(node=node), given)]
    began = wanted is None and any(one.exited for one in processes)
    waits = wanted is None and pending is not None
    if state.ending is not None or began or waits:
        return _after_the_ranks(state, node, given.spec)
    if life.failed or not life.takes_part:
        return _node_failed(state, node, given.spec)
    return _start_failed(state, node, fact.agent, given)


def _agent_asked(state: JobState, fact: pt.AgentAsked, given: Given) -> Decision:
    node = fact.node
    if fact.kind == "failing":
        ranks = fact.ranks if fact.attempt == state.attempt else []
        return [pt.KeepEvidence(node=node, question=fact.question, ranks=ranks)]
    if fact.kind == "torn_down":
        if state.is_over or state.ending is not None:
            return [pt.AnswerAgent(node=node, question=fact.question, restart=False)]
        if state.restart is None:
            return _node_failed(state, node, given.spec)
        return _begin_on(state, [node], given.spec)
    if fact.kind == "group_stopped":
        follows = state.ending is None and not state.needs_new_agent
        leftovers = pt.EndLeftovers(
            node=node, question=fact.question, grace_s=BAD_END_GRACE_S, await_memory=follows
        )
        return [leftovers]
    return [pt.AnswerAgent(node=node, question=fact.question)]  # `ended`: it may exit


# -- a failure -------------------------------------------------------------------------------------


def _evidence_kept(state: JobState, fact: pt.EvidenceKept, given: Given) -> Decision:
    node = fact.node
    ending = ev.RanksEnding(attempt=state.attempt, at_s=given.now_s, failed=fact.ranks, node=node)
    is_late = state.is_over or fact.attempt != state.attempt
    if fact.question is not None:
        answer = pt.AnswerAgent(node=node, question=fact.question)
        return [answer] if is_late else [ending, pt.InterruptRanks(node=node), answer]
    if is_late or state.ending is not None or state.node(node).wanted_agent is not None:
        return []
    return [ending, pt.EndLeftovers(node=node)]


def _leftovers_ended(state: JobState, fact: pt.LeftoversEnded, given: Given) -> Decision:
    if fact.with_agent:
        return _agent_made_room(state, fact, given.spec)
    if fact.question is None:
        return _after_the_ranks(state, fact.node, given.spec)
    if state.kill_at_s is not None:
        return []  # the agent is being ended and starts nothing more
    meeting, life, pending = None, state.node(fact.node), state.restart
    if life.begun is not None:
        if pending is None or not _is_beginning(state, fact.node, life.begun):
            return []  # other nodes were chosen; its next order replaces the agent
        meeting = _rendezvous(pending, fact.node, given.spec)
    ran_out = state.cause is not None and state.cause.kind == "cuda_oom"
    answer = pt.AnswerAgent(
        node=fact.node,
        question=fact.question,
        rendezvous=meeting,
        memory_snapshot=ran_out or given.spec.memory_snapshot,
    )
    return [*_memory_awaited(state, fact), answer]


def _memory_awaited(state: JobState, fact: pt.LeftoversEnded) -> list[ev.JobEvent]:
    seen = fact.memory
    return [] if seen is None else [replace(seen, attempt=state.attempt, node=fact.node)]


def _node_failed(
    state: JobState,
    node: str,
    spec: JobSpec,
    cause: Cause | None = None,
    outcome: AttemptOutcome | None = None,
) -> Decision:
    """Once no rank is alive on a node and it has failed: wait for the others."""
    if not state.node(node).takes_part:
        return []
    if state.node(node).failed:  # an earlier supervisor may not have finished the verdict
        return _once_settled(state, node, spec)
    failed = ev.NodeFailed(attempt=state.attempt, node=node, cause=cause, outcome=outcome)
    if not _is_failing(state):
        return [failed, pt.JudgeAttempt()]  # it failed before it had a rank
    return [failed, *_once_settled(state, node, spec)]


def _once_settled(state: JobState, node: str, spec: JobSpec) -> Decision:
    """Once every node has failed, has ended, or is away, decide for all of them.

    If all reachable nodes have finished, the others get some time to finish too.
    """
    others = [name for name in _members(state) if name != node]
    over = _over(state, spec)
    if not all(state.node(name).is_settled or name in over for name in others):
        return []
    if _is_failing(state):
        return [pt.JudgeAttempt()]
    is_done = over >= {node, *others}
    return [pt.AwaitNodes(seconds=ENDS_WITHIN_S if is_done else placement_of(spec).node_timeout_s)]


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
        for name in _members(state)
        if state.node(name).ended is not None or name not in at_work
    }


def _attempt_judged(state: JobState, fact: pt.AttemptJudged, given: Given) -> Decision:
    """Judge, unless a rank exited while evidence was saved, or the user stopped or restarted."""
    is_late = fact.attempt != state.attempt or fact.trouble not in (None, state.trouble)
    if is_late or state.is_decided:
        return []
    judged = None
    if fact.cause is not None:
        kind = ev.HangJudged if fact.trouble == "hang" else ev.FailureJudged
        judged = kind(attempt=state.attempt, cause=fact.cause, outcome=fact.outcome)
    if state.phase == "stopping":  # the loss was not finite (--on-nan stop)
        ended = _end_for_loss(state, fact.cause)
        events: Decision = [] if judged is None else [judged]
        return [*events, ended, *_end(state, given.now_s)]
    return _restart_or_end(state, judged, given, jitter=fact.jitter)


def _start_failed(
    state: JobState, node: str, agent: pt.AgentState, given: Given, *, begins: bool = False
) -> Decision:
    """An agent exited before it had started a rank, of the next attempt if that begins."""
    unknown = Cause(kind="launch", summary="The agent exited before starting any rank.")
    cause = agent.cause or unknown
    was_killed = agent.status is None or agent.status < 0
    # on several nodes, an agent also exits by itself if others do not come to meet it
    if not (was_killed or _is_several(given.spec)):
        why = cause.headline  # of one that left the queue
        reason = why or "no rank could be started"
        ended = _end_decided(state, cause, reason, requeue=None if why else False)
        return [ended, pt.Conclude()]
    if begins:
        return _fails_at_start(state, node, cause, given, was_killed=was_killed)
    if state.restart is not None or state.has_living_on(node):
        return []
    since_s = given.now_s if state.attempt_started_s is None else state.attempt_started_s
    outcome = _killed_at_start(state, cause, given.now_s - since_s) if was_killed else None
    return _node_failed(state, node, given.spec, cause, outcome)


def _killed_at_start(state: JobState, cause: Cause, lived_s: float) -> AttemptOutcome:
    return AttemptOutcome(state.attempt or 0, lived_s, 0, None, cause.signal, None, kind="signal")


def _fails_at_start(
    state: JobState, node: str, cause: Cause, given: Given, *, was_killed: bool = False
) -> Decision:
    """The next attempt fails on a node before it has started a rank there."""
    opened = ev.AttemptOpened(attempt=_pending(state).next_attempt, at_s=given.now_s)
    after = apply(state, opened, _ANY_TIME)
    outcome = _killed_at_start(after, cause, 0.0) if was_killed else None
    return [opened, *_node_failed(after, node, given.spec, cause, outcome)]


def _restart_or_end(
    state: JobState, judged: ev.FailureJudged | ev.HangJudged | None, given: Given, *, jitter: float
) -> Decision:
    """The restart policy's decision on a failure.

    Args:
        state: the job.
        judged: the verdict; it has no outcome if ddptop failed to judge, and then only the budget
            counts.
        given: the time and the job.
        jitter: see `AttemptJudged`.
    """
    events: Decision = [] if judged is None else [judged]
    cause = state.cause if judged is None else judged.cause
    if judged is None or judged.outcome is None:
        used = state.budget.used
        may_restart = used < given.spec.max_restarts
        verdict = policy.Decision(restart=may_restart, reason="no restarts left")
    else:
        history = state.history_with(judged.outcome)
        used = history.used
        verdict = policy.decide(history, given.spec.max_restarts, jitter)
    if not verdict.restart:
        cause = cause or Cause(kind="unknown", summary="The attempt failed; see its evidence.")
        requeue = None if judged is None or judged.outcome is None else verdict.requeue
        ended = _end_decided(state, cause, verdict.reason, requeue=requeue)
        return [*events, ended, *_end(state, given.now_s)]
    at_s = given.now_s + verdict.delay_s
    decided = ev.RestartDecided(
        attempt=state.attempt,
        used=used + 1,
        limit=given.spec.max_restarts,
        delay_s=verdict.delay_s,
        at_s=at_s,
        reason=verdict.reason if judged is not None and judged.outcome is not None else None,
    )
    return [*events, decided, pt.WaitForRestart(at_s=at_s)]


def _end_decided(
    state: JobState, cause: Cause | None, reason: str, *, requeue: bool | None = None
) -> ev.EndDecided:
    ending = ev.Ending(state="failed", cause=cause, reason=reason, requeue=requeue)
    return ev.EndDecided(attempt=state.attempt, ending=ending)


def _end_for_loss(state: JobState, cause: Cause | None) -> ev.EndDecided:
    """The end that `--on-nan stop` decides; no cause is known if ddptop failed to judge."""
    cause = cause or Cause(kind="nan", summary="The loss was not finite.")
    return _end_decided(state, cause, NOT_FINITE, requeue=False)


def _end(state: JobState, now_s: float) -> Decision:
    """Without another attempt: end the ranks that are alive, and then the job."""
    return _end_ranks(state, BAD_END_GRACE_S, now_s) if state.has_living else [pt.Conclude()]


# -- ranks that are alive and have to be ended -----------------------------------------------------


def _trouble_found(state: JobState, fact: pt.TroubleFound, given: Given) -> Decision:
    phases = ("running",) if fact.reason == "nan" else ("starting", "running")
    if state.phase not in phases or state.is_decided or state.trouble is not None:
        return []
    stops = fact.reason == "nan" and given.spec.on_nan != "restart"
    found = ev.TroubleFound(
        attempt=state.attempt, ranks=fact.ranks, stops=stops, reason=fact.reason
    )
    return [found, pt.JudgeAttempt(trouble=fact.reason)]


# -- the next attempt ------------------------------------------------------------------------------


def _restart_due(state: JobState, fact: pt.RestartDue, given: Given) -> Decision:
    if state.ending is not None or fact.attempt != state.attempt or state.restart is None:
        return []
    if state.restart.nodes:
        return _begin_on(state, state.restart.nodes, given.spec)
    missing = _missing(state, given.spec)
    away = [host for host in missing if not state.node(host).refused]
    if not away:
        return _go_on(state, missing, given)
    waits_s = SHRINK_AFTER_S
    if not _is_enough(missing, given.spec):
        waits_s = max(waits_s, _left_s(state, away, given))
    return _await(state, away, min(waits_s, placement_of(given.spec).node_timeout_s))


def _await(state: JobState, nodes: list[str], seconds: float) -> Decision:
    awaited = ev.NodesAwaited(attempt=state.attempt, nodes=nodes, seconds=seconds)
    return [awaited, pt.AwaitNodes(seconds=seconds)]


def _devices_chosen(state: JobState, fact: pt.DevicesChosen, given: Given) -> Decision:
    node, agent, life, pending = fact.node, fact.agent, state.node(fact.node), state.restart
    if pending is None or not _is_beginning(state, node, pending.next_attempt):
        return []
    if agent.attempt == pending.next_attempt and agent.pid is not None:
        return []  # it has begun, and may wait for the others
    if agent.attempt == pending.next_attempt and agent.status is not None:
        return _start_failed(state, node, agent, given, begins=True)
    wanted = life.wanted_agent
    if wanted is not None and wanted.attempt == pending.next_attempt:
        is_unmet = not wanted.connected and agent.pid in (None, wanted.replaces)
        return [_replace_agent(node)] if is_unmet else []
    events: Decision = [_noticed(state, node, note) for note in fact.notes]
    if fact.refused is not None:
        if _is_several(given.spec):  # the others may go on without it
            refused = pt.NodeRefused(
                node=node, attempt=pending.next_attempt, error=fact.refused, answered=True
            )
            return [*events, *_node_refused(state, refused, given)]
        cause = state.cause
        if cause is not None:
            summary = f"{fact.refused}. {cause.summary}"
            cause = replace(cause, kind="gpu", summary=summary)
        ended = _end_decided(state, cause, fact.refused, requeue=True)
        return [*events, ended, *_end(state, given.now_s)]
    aside = [*state.set_aside, *fact.aside]
    needs_agent = aside != state.set_aside_before or not _can_go_on(state, pending, fact)
    has_begun = life.begun == pending.next_attempt and not needs_agent
    if has_begun and agent.question is None and agent.pid is not None:
        return []  # it is ending the last attempt
    is_sent = state.has_living_on(node) and agent.listens and not needs_agent
    prepared = ev.RestartPrepared(attempt=state.attempt, aside=fact.aside, sent=is_sent, node=node)
    if agent.question is not None:
        answer = pt.AnswerAgent(node=node, question=agent.question, restart=not needs_agent)
        return [*events, replace(prepared, sent=False), answer]
    return [*events, *_go_to_next(state, prepared, agent, given)]


def _can_go_on(state: JobState, pending: PendingRestart, fact: pt.DevicesChosen) -> bool:
    """Whether the agent can start the next attempt: it counts up by one."""
    number, begun = state.attempt or 0, state.node(fact.node).begun
    is_next = fact.agent.attempt == number and pending.next_attempt == number + 1
    return is_next and begun in (None, pending.next_attempt)


def _go_to_next(
    state: JobState, prepared: ev.RestartPrepared, agent: pt.AgentState, given: Given
) -> Decision:
    """End living ranks of a node: by its agent, if that goes on, or before another one starts."""
    node = prepared.node
    order: pt.Order = _restart_group(node)
    if not prepared.sent:
        wanted = ev.WantedAgent(attempt=_pending(state).next_attempt, replaces=agent.pid)
        prepared, order = replace(prepared, wanted=wanted), _replace_agent(node)
    if not state.has_living_on(node):
        return [prepared, order]
    ending = ev.RanksEnding(attempt=state.attempt, at_s=given.now_s, node=node)
    return [prepared, ending, pt.InterruptRanks(node=node), order]


def _restart_group(node: str) -> pt.TellAgent:
    return pt.TellAgent(node=node, order="restart_group")


def _replace_agent(node: str) -> pt.EndLeftovers:
    return pt.EndLeftovers(node=node, with_agent=True, await_memory=True)


def _agent_made_room(state: JobState, fact: pt.LeftoversEnded, spec: JobSpec) -> Decision:
    wanted = state.node(fact.node).wanted_agent
    if wanted is None or wanted.connected:
        return []
    if not _is_beginning(state, fact.node, wanted.attempt):
        return []  # other nodes were chosen
    start = pt.StartAgent(
        node=fact.node,
        attempt=wanted.attempt,
        rendezvous=_rendezvous(_pending(state), fact.node, spec),
    )
    return [*_memory_awaited(state, fact), start]


# -- the nodes of the next attempt -----------------------------------------------------------------


def begin_job(attempt: int, now_s: float, spec: JobSpec) -> Decision:
    """Begin the first attempt of a job on several nodes."""
    nodes = [one.host for one in placement_of(spec).nodes]
    return _begin(JobState(attempt=attempt), attempt, nodes, Given(now_s, spec))


def _begin(state: JobState, attempt: int, nodes: Collection[str], given: Given) -> Decision:
    """Begin an attempt on these nodes, with its own store."""
    chosen = ev.NodesChosen(attempt=attempt, nodes=list(nodes), at_s=given.now_s)
    return [chosen, *_begin_on(apply(state, chosen, _ANY_TIME), nodes, given.spec)]


def _begin_on(state: JobState, nodes: Collection[str], spec: JobSpec) -> Decision:
    pending, orders = _pending(state), list[pt.Order]()
    for name in pending.nodes:
        if name not in nodes:
            continue
        meeting = _rendezvous(pending, name, spec)
        if meeting is None:  # what supervises the attempt runs already
            orders.append(pt.ChooseDevices(node=name))
        else:
            orders.append(pt.BeginOn(node=name, attempt=pending.next_attempt, rendezvous=meeting))
    return [*orders]


def _rendezvous(pending: PendingRestart, node: str, spec: JobSpec) -> Rendezvous | None:
    """Where the nodes of a pending attempt meet, for one of them; None on one machine."""
    if not _is_several(spec):
        return None
    nodes = nodes_named(spec, pending.nodes)
    before = nodes[: [one.host for one in nodes].index(node)]
    return Rendezvous(
        run_id=f"{pending.next_attempt}@{pending.chosen_s:.3f}",
        address=nodes[0].address,
        port=nodes[0].ports[pending.next_attempt % len(nodes[0].ports)],
        node_rank=len(before),
        nodes=len(nodes),
        first_rank=sum(one.nproc for one in before),
    )


def _node_refused(state: JobState, fact: pt.NodeRefused, given: Given) -> Decision:
    pending, life = state.restart, state.node(fact.node)
    is_late = pending is None or not pending.nodes or fact.attempt != pending.next_attempt
    if is_late or state.ending is not None:
        return []
    cause = Cause(
        kind="node" if fact.attempt else "launch",
        summary=f"Attempt {fact.attempt} could not start on {fact.node}: {fact.error}.",
        host=fact.node,
    )
    again: Decision = [
        ev.RestartRequested(
            attempt=state.attempt,
            used=state.budget.used,
            limit=given.spec.max_restarts,
            without=fact.node,
        ),
        pt.WaitForRestart(at_s=None),
    ]
    if not fact.answered:
        # it went away before the attempt, which already cost a restart: now wait for it
        is_away = bool(fact.attempt) and life.unknown_since is not None
        return again if is_away else _fails_at_start(state, fact.node, cause, given)
    refused = [name for name, one in state.nodes.items() if one.refused]
    if _is_enough([*refused, fact.node], given.spec):
        lost = ev.NodeLost(attempt=state.attempt, node=fact.node, why=fact.error, refused=True)
        return [lost, pt.EndOn(node=fact.node, grace_s=0.0), *again]
    return _end_for_nodes(state, cause, given)


def _nodes_due(state: JobState, fact: pt.NodesDue, given: Given) -> Decision:
    pending = state.restart
    if state.ending is not None or fact.attempt != state.attempt:
        return []
    if pending is None:
        return _take_back(state, given) or _end_without(state, given)
    if pending.nodes or (pending.at_s is not None and given.now_s < pending.at_s):
        return []
    missing = _missing(state, given.spec)
    away = [host for host in missing if not state.node(host).refused]
    left_s = _left_s(state, away, given)
    if away and not _is_enough(missing, given.spec) and left_s > 0:
        return _await(state, away, left_s)  # gone during the wait for dispensable nodes
    lost: Decision = [
        ev.NodeLost(attempt=state.attempt, node=node, why=state.node(node).why or "no response")
        for node in away
    ]
    return [*lost, *_go_on(state, missing, given)]


def _go_on(state: JobState, missing: list[str], given: Given) -> Decision:
    """Continue without these nodes if there are enough others."""
    if _is_enough(missing, given.spec):
        nodes = [name for name in _nodes(given.spec) if name not in missing]
        return _begin(state, _pending(state).next_attempt, nodes, given)
    cause = Cause(kind="node", summary=f"{', '.join(missing)} did not come back.", host=missing[0])
    if state.cause is not None:
        cause = replace(cause, summary=f"{cause.summary} {state.cause.summary}")
    return _end_for_nodes(state, cause, given)


def _end_for_nodes(state: JobState, cause: Cause, given: Given) -> Decision:
    """End the job because too few nodes are left."""
    reason = f"fewer than {placement_of(given.spec).min_nodes} nodes are left"
    ended = _end_decided(state, cause, reason, requeue=cause.kind == "node")
    return [ended, *_end_ranks(state, BAD_END_GRACE_S, given.now_s)]


def _end_without(state: JobState, given: Given) -> Decision:
    """End without nodes that are away for too long, after the others have finished."""
    over = _over(state, given.spec)
    away = [name for name in _members(state) if name not in over]
    if _is_failing(state):
        return []  # wait for a verdict
    if over and not away:
        return _finished(state)  # an agent still waits for one that was killed
    is_waiting = all(state.node(name).unknown_since for name in away)
    if not is_waiting or not 0 < len(away) < len(_members(state)):
        return []
    left_s = _left_s(state, away, given)
    if left_s > 0:
        return [pt.AwaitNodes(seconds=left_s)]
    cause = Cause(
        kind="node",
        summary=f"{', '.join(away)} cannot be reached, and the other nodes have finished.",
        host=away[0],
    )
    unknown = "whether all ranks have finished is unknown"
    ended = _end_decided(state, cause, unknown, requeue=True)
    return [ended, *_end_ranks(state, BAD_END_GRACE_S, given.now_s)]


def _node_finished(state: JobState, node: str, spec: JobSpec) -> Decision:
    if state.node(node).ended is not None:
        return []
    ended = ev.NodeEnded(attempt=state.attempt, node=node, well=True)
    if all(state.node(name).ended for name in _members(state) if name != node):
        return [ended, *_finished(state)]
    return [ended, *_once_settled(state, node, spec)]


def _finished(state: JobState) -> Decision:
    """All nodes have ended well; from here on, no restart is possible."""
    finished = ev.EndDecided(attempt=state.attempt, ending=ev.Ending(state="finished"))
    return [finished, pt.Conclude()]


def _nodes(spec: JobSpec) -> list[str]:
    return [HERE] if spec.placement is None else [one.host for one in spec.placement.nodes]


def _missing(state: JobState, spec: JobSpec) -> list[str]:
    lives = {name: state.node(name) for name in _nodes(spec)}
    return [name for name, life in lives.items() if life.unknown_since or life.refused]


def _is_enough(missing: list[str], spec: JobSpec) -> bool:
    least = 1 if spec.placement is None else spec.placement.min_nodes
    return len(_nodes(spec)) - len(missing) >= least


def _left_s(state: JobState, missing: list[str], given: Given) -> float:
    """How much longer to wait for the last of these nodes to go away."""
    away_s = min((state.node(host).away_s(given.now_s) for host in missing), default=0.0)
    return round(placement_of(given.spec).node_timeout_s - away_s, 1)  # a timer may be early


# -- links to nodes --------------------------------------------------------------------------------


def _node_noticed(state: JobState, fact: pt.NodeNoticed, given: Given) -> Decision:
    event = fact.event
    if isinstance(event, NOTICES):
        return [_noticed(state, fact.node, text(event))]
    if event.attempt != state.attempt or not state.node(fact.node).takes_part:
        return []
    if isinstance(event, ev.CheckpointSaved):
        return [event]
    is_first = isinstance(event, ev.TrainingStarted) and state.first_step_after_s is None
    return [event] if is_first else []


def _link_broken(state: JobState, fact: pt.LinkBroken, given: Given) -> Decision:
    """An unreachable node may train on, so nothing is restarted."""
    if state.node(fact.node).unknown_since is not None:
        return []
    broken = ev.NodeUnreachable(
        attempt=state.attempt, node=fact.node, why=fact.why, at_s=given.now_s
    )
    pending = state.restart
    if pending is not None and fact.node in pending.nodes and state.ending is None:
        return [broken, *_begin_on(state, [fact.node], given.spec)]
    is_late = state.ending is not None or pending is not None
    if is_late or not state.node(fact.node).takes_part:
        return [broken]
    return [broken, *_once_settled(apply(state, broken, _ANY_TIME), fact.node, given.spec)]


def _link_made(state: JobState, fact: pt.LinkMade, given: Given) -> Decision:
    life, node, pending = state.node(fact.node), fact.node, state.restart
    events: Decision = []
    if life.unknown_since is not None or life.lost:
        events = [ev.NodeReachable(attempt=state.attempt, node=node)]
    if state.ending is not None:
        if fact.is_there:
            return [*events, pt.EndOn(node=node, grace_s=_grace_left_s(state, given.now_s))]
        if life.takes_part and life.ended is None:
            lives = state.processes_on(node)
            well = bool(lives) and all(one.exited and one.status == 0 for one in lives)
            events.append(ev.NodeEnded(attempt=state.attempt, node=node, well=well))
        return events
    is_wanted = life.takes_part if pending is None else node in (pending.nodes or [node])
    if not is_wanted or life.refused:
        # it runs an earlier attempt
        ends: Decision = [pt.EndOn(node=node, grace_s=0.0)] if fact.is_there else []
        return [*events, *ends, *_take_back(state, given, but=node)]
    if pending is not None:
        return [*events, *_continue_on(state, pending, fact, given.spec)]
    if fact.is_there:
        resumed: Decision = []
        if fact.agent.pid is None:
            exited = pt.AgentExited(node=node, pid=None, agent=fact.agent)
            resumed = _agent_exited(state, exited, given)
        return [*events, *resumed, *_take_back(state, given, but=node)]
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
        pt.JudgeAttempt(),
    ]


def _continue_on(
    state: JobState, pending: PendingRestart, fact: pt.LinkMade, spec: JobSpec
) -> Decision:
    """The next attempt goes on with a node that has come back."""
    node, life = fact.node, state.node(fact.node)
    if pending.nodes:
        again: Decision = []
        if life.sent and fact.agent.listens and life.begun == pending.next_attempt:
            again = [_restart_group(node)]
        return [*again, *_begin_on(state, [node], spec)]
    missing = _missing(state, spec)
    others = [host for host in missing if host != node]
    is_last = all(state.node(host).refused for host in others)
    makes_enough = _is_enough(others, spec) and not _is_enough(missing, spec)
    if life.unknown_since is not None and (is_last or makes_enough):
        return [pt.WaitForRestart(at_s=pending.at_s)]  # the restart was waiting for it
    return []


def _grace_left_s(state: JobState, now_s: float) -> float:
    """The rest of the ranks' time to save, once the job is ending."""
    return BAD_END_GRACE_S if state.kill_at_s is None else max(0.0, state.kill_at_s - now_s)


def _checkpoint_waited(state: JobState, fact: pt.CheckpointWaited, given: Given) -> Decision:
    is_late = fact.attempt != state.attempt or state.restart is not None
    if is_late or state.ending is not None:
        return []
    return _take_back(state, given, has_saved=True)


def _take_back(
    state: JobState, given: Given, *, but: str = "", has_saved: bool = False
) -> Decision:
    """Start another attempt that includes the missing nodes, if that harms no one.

    While only some nodes of the attempt are unreachable, they may train on with the others. If
    all are, the attempt is abandoned after the time to wait for a node.

    Args:
        state: the job.
        given: the time and the job.
        but: the node that has just been reached.
        has_saved: whether the ranks have already been asked to save.
    """
    members = _members(state)
    back = [
        name
        for name, life in state.nodes.items()
        if not (life.takes_part or life.refused) and (name == but or not life.unknown_since)
    ]
    over = _over(state, given.spec)
    is_ending = any(state.node(name).failed or name in over for name in members)
    if not back or is_ending or state.restart or state.phase not in ("starting", "running"):
        return []
    away = [name for name in members if state.node(name).unknown_since and name != but]
    if away and len(away) < len(members):
        return []
    if away and (left_s := _left_s(state, away, given)) > 0:
        return [pt.AwaitNodes(seconds=left_s)]
    if state.phase == "running" and not away and not has_saved:
        return [pt.AskCheckpoint()]
    asked = ev.RestartRequested(
        attempt=state.attempt, used=state.budget.used, limit=given.spec.max_restarts, node=back[0]
    )
    return [asked, pt.WaitForRestart(at_s=None)]


# -- users' requests -------------------------------------------------------------------------------


def _stop_asked(state: JobState, fact: pt.StopAsked, given: Given) -> Decision:
    if state.is_over:
        raise ControlError("the job has ended", code="ended")
    asked = ev.StopRequested(
        attempt=state.attempt,
        grace_s=fact.grace_s,
        kill_at_s=given.now_s + fact.grace_s,
        by=fact.by,
    )
    return [asked, pt.SkipWait(), *_end_ranks(state, fact.grace_s, given.now_s)]


def _end_ranks(state: JobState, grace_s: float, now_s: float) -> Decision:
    ending = ev.RanksEnding(attempt=state.attempt, at_s=now_s)
    return [ending, pt.EndRanks(grace_s=grace_s)]


def _restart_asked(state: JobState, fact: pt.RestartAsked, given: Given) -> Decision:
    """A pending attempt begins at once, and its cost is refunded."""
    used, pending = state.budget.used, state.restart
    if state.phase == "restarting" and pending is not None and pending.at_s is not None:
        if not pending.counted:
            return []  # already requested
        lives = state.nodes.values()
        is_prepared = any(life.begun == pending.next_attempt for life in lives)
        hurried = ev.RestartRequested(
            attempt=state.attempt,
            at_s=given.now_s,
            used=max(0, used - 1),
            limit=given.spec.max_restarts,
            devices_back=[] if is_prepared else fact.devices_back,
        )
        return [hurried, pt.SkipWait()]
    if state.phase not in ("starting", "running", "hung"):
        raise ControlError(f"the job is {state.phase}", "wait until it is running")
    if state.ending is not None:
        raise ControlError("the job is ending", "wait until it has ended")
    asked = ev.RestartRequested(
        attempt=state.attempt,
        used=used,
        limit=given.spec.max_restarts,
        devices_back=fact.devices_back,
    )
    if _is_several(given.spec):
        return [asked, pt.WaitForRestart(at_s=None)]
    if not state.has_living:
        raise ControlError("the ranks have not started yet", "try again in a moment")
    # with its devices as they are, so nothing is waited for
    chosen = ev.NodesChosen(attempt=state.next_attempt, nodes=[HERE], at_s=given.now_s)
    after = apply(apply(state, asked, _ANY_TIME), chosen, _ANY_TIME)
    is_sent = fact.agent.listens and not after.needs_new_agent
    prepared = ev.RestartPrepared(attempt=state.attempt, sent=is_sent)
    return [asked, chosen, *_go_to_next(after, prepared, fact.agent, given)]


# -- the end, and a new supervisor -----------------------------------------------------------------


def _nothing_left(state: JobState, fact: pt.NothingLeft, given: Given) -> Decision:
    ending = state.ending or ev.Ending(state="finished")
    return [
        ev.JobEnded(
            attempt=state.attempt,
            state=ending.state,
            in_queue=state.in_queue,
            is_command=given.spec.is_command,
            cause=ending.cause,
            reason=ending.reason,
            requeue=ending.requeue,
        )
    ]


def _supervisor_started(state: JobState, fact: pt.SupervisorStarted, given: Given) -> Decision:
    """Continue what the previous supervisor had begun."""
    if state.in_queue and state.phase != "stopping":
        return []
    if state.phase == "stopping":
        return _resume_stop(state, given.now_s)
    if state.ending is not None:
        return _end_ranks(state, BAD_END_GRACE_S, given.now_s)
    wanted, resumed = state.node().wanted_agent, list[Any]()
    if state.restart is not None and wanted is None:
        resumed = [pt.WaitForRestart(at_s=state.restart.at_s)]
    elif state.phase == "hung":  # the evidence was still being saved
        resumed = [ev.TroubleDropped(attempt=state.attempt)]
    if _is_several(given.spec):  # `LinkMade` resumes what was ordered on each node
        return resumed or _head_started(state, given)
    if wanted is not None and not wanted.connected and fact.agent.pid in (None, wanted.replaces):
        return [_replace_agent(HERE)]
    if fact.agent.pid is None and not fact.agent_end_seen:
        exited = pt.AgentExited(pid=None, agent=fact.agent)
        return [*resumed, *_agent_exited(state, exited, given)]
    return resumed


def _head_started(state: JobState, given: Given) -> Decision:
    """What follows before the nodes report."""
    if _is_failing(state):
        return [pt.JudgeAttempt()]
    members = _members(state)
    if all(state.node(name).ended for name in members):
        return _finished(state)  # only its end was missing
    if _over(state, given.spec) >= set(members):
        return [pt.AwaitNodes(seconds=ENDS_WITHIN_S)]
    if any(life.unknown_since for life in state.nodes.values()):  # a wait for them would be in vain
        return [pt.AwaitNodes(seconds=placement_of(given.spec).node_timeout_s)]
    return []


def _resume_stop(state: JobState, now_s: float) -> Decision:
    ends = _end_ranks(state, _grace_left_s(state, now_s), now_s)
    if state.ending is not None:
        return ends
    return [_end_for_loss(state, state.cause), *ends]


_DECISIONS: dict[type[pt.Message], Callable[[JobState, Any, Given], Decision]] = {
    pt.AgentListens: _agent_listens,
    pt.GroupStarted: _group_started,
    pt.ProcessExited: _process_exited,
    pt.OrphanExited: _orphan_exited,
    pt.AgentExited: _agent_exited,
    pt.AgentAsked: _agent_asked,
    pt.EvidenceKept: _evidence_kept,
    pt.LeftoversEnded: _leftovers_ended,
    pt.AttemptJudged: _attempt_judged,
    pt.TroubleFound: _trouble_found,
    pt.RestartDue: _restart_due,
    pt.DevicesChosen: _devices_chosen,
    pt.NothingLeft: _nothing_left,
    pt.StopAsked: _stop_asked,
    pt.RestartAsked: _restart_asked,
    pt.SupervisorStarted: _supervisor_started,
    pt.NodeNoticed: _node_noticed,
    pt.LinkBroken: _link_broken,
    pt.LinkMade: _link_made,
    pt.NodeRefused: _node_refused,
    pt.NodesDue: _nodes_due,
    pt.CheckpointWaited: _checkpoint_waited,
}
