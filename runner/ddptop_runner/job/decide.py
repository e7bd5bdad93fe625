"""Decides what follows from a fact in a given job state: events to record, and orders. Pure.

No IO, no clock, no waiting: the caller passes the time, records the events in order, and then has
the orders carried out. Their results come back as facts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job.state import Ending, JobState
from ddptop_runner.judge.restarts import policy
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.snapshot import Cause
from ddptop_runner.model.spec import JobSpec

RESUMED_GRACE_S = 10.0
"""For a stop whose supervisor died, if the rest of its grace period is unknown."""
BAD_END_GRACE_S = 10.0
"""From SIGTERM to SIGKILL, for a group that hangs or trains on NaN."""
NO_HEAD = "no contact with the head of the job (--orphan-timeout)"
NOT_FINITE = "the loss was not finite (--on-nan stop)"

Decision: TypeAlias = "list[ev.JobEvent | pt.Order]"


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
    return _DECISIONS[type(fact)](state, fact, now_s, spec)


# -- the agent and its ranks -----------------------------------------------------------------------


def _agent_connected(
    state: JobState, fact: pt.AgentConnected, now_s: float, spec: JobSpec
) -> Decision:
    if state.wanted_agent is None or state.is_over:
        return []
    return [ev.AgentConnected(attempt=state.attempt, pid=fact.pid)]


def _plain_start(state: JobState, fact: pt.PlainStart, now_s: float, spec: JobSpec) -> Decision:
    return [ev.Noticed(attempt=state.attempt, text=f"ranks are not forked: {fact.why}")]


def _agent_listens(state: JobState, fact: pt.AgentListens, now_s: float, spec: JobSpec) -> Decision:
    """Repeat orders that may have been lost with a supervisor."""
    if state.stop is not None or (state.ending is not None and state.ending.end_ranks):
        return [pt.TellAgent(order="stopping")]
    is_new = state.wanted_agent is not None  # it begins with that attempt
    if state.restart is not None and state.restart.sent and not is_new:
        return [_restart_group(state, spec)]
    return []


def _group_started(state: JobState, fact: pt.GroupStarted, now_s: float, spec: JobSpec) -> Decision:
    ranks = [
        ev.RankStarted(attempt=fact.attempt, rank=one.rank, pid=one.pid)
        for one in fact.workers
        if one.rank is not None
    ]
    if fact.attempt == state.attempt and state.processes:  # recorded by an earlier supervisor
        return [one for one in ranks if one.rank not in state.ranks]
    launcher = next((one.pid for one in fact.workers if one.rank is None), None)
    started = ev.AttemptStarted(
        attempt=fact.attempt,
        world=len(fact.workers),
        launcher_pid=launcher,
        probed=spec.probe,
        at_s=now_s,
    )
    return [started, *ranks]


def _process_exited(
    state: JobState, fact: pt.ProcessExited, now_s: float, spec: JobSpec
) -> Decision:
    if state.is_over or fact.attempt != state.attempt:
        return []
    life = state.launcher if fact.rank is None else state.ranks.get(fact.rank)
    if life is not None and life.pid == fact.pid and life.exited and life.status is not None:
        return []
    kind = ev.LauncherExited if fact.rank is None else ev.RankExited
    of_rank = {} if fact.rank is None else {"rank": fact.rank}
    exited = kind(
        attempt=fact.attempt,
        pid=fact.pid,
        status=fact.status,
        at_s=fact.at_s,
        by_us=was_ended(state, fact.rank, fact.at_s),
        approximate=fact.approximate,
        **of_rank,
    )
    return [exited]


def was_ended(state: JobState, rank: int | None, at_s: float) -> bool:
    """Whether ddptop or torch's agent had begun to end the rank by then.

    The agent may find a rank dead before its time of death is known.
    """
    since_s = state.ending_ranks_at_s
    return since_s is not None and at_s >= since_s and rank not in state.failed_before


def _orphan_exited(state: JobState, fact: pt.OrphanExited, now_s: float, spec: JobSpec) -> Decision:
    """Without an agent, a failed rank ends its group, as in torch."""
    if state.is_over or state.wanted_agent is not None:
        return []
    launcher_lives = state.launcher is not None and state.has_living
    ranks_live = any(life.pid is not None and not life.exited for life in state.ranks.values())
    if state.has_failed and state.ending is None and ranks_live and not launcher_lives:
        is_ending = state.ending_ranks_at_s is not None
        return [pt.EndLeftovers() if is_ending else pt.KeepEvidence()]
    return _after_the_ranks(state)


def _after_the_ranks(state: JobState) -> Decision:
    """What follows once no rank is alive."""
    if state.is_over or state.has_living or state.wanted_agent is not None:
        return []
    has_finished = bool(state.processes) and not state.has_failed
    if state.ending is not None or has_finished:
        return [pt.Conclude()]
    if state.restart is not None and state.restart.decided:
        return [pt.WaitForRestart(at_s=state.restart.at_s)]
    if not state.has_failed:
        return [pt.Conclude()]
    return [pt.JudgeAttempt()]


def _agent_exited(state: JobState, fact: pt.AgentExited, now_s: float, spec: JobSpec) -> Decision:
    wanted, pending = state.wanted_agent, state.restart
    if state.is_over or (
        wanted is not None and fact.pid is not None and fact.pid == wanted.replaces
    ):
        return []
    is_prepared = pending is not None and (pending.prepared or pending.sent)
    if state.ending is None and wanted is None and is_prepared:
        return _request_agent(state, pt.AgentState(), spec)
    if state.has_living and wanted is None:
        if state.ending is not None:
            return []  # they may be saving; their end is already under way
        lost = ev.AgentLost(
            attempt=state.attempt,
            status=fact.status,
            ranks=sum(life.pid is not None and not life.exited for life in state.processes),
            is_command=state.launcher is not None,
        )
        return [lost, *_orphan_exited(state, pt.OrphanExited(), now_s, spec)]
    began = wanted is None and any(life.exited for life in state.processes)
    waits = wanted is None and pending is not None and pending.decided
    if state.ending is None and not began and not waits:
        return [pt.JudgeStart(status=fact.status)]
    return [pt.Conclude()] if state.ending is not None else _after_the_ranks(state)


def _agent_asked(state: JobState, fact: pt.AgentAsked, now_s: float, spec: JobSpec) -> Decision:
    if fact.kind == "failing":
        ranks = fact.ranks if fact.attempt == state.attempt else []
        return [pt.KeepEvidence(question=fact.question, ranks=ranks)]
    if fact.kind == "torn_down":
        return [pt.JudgeAttempt(question=fact.question)]
    if fact.kind == "group_stopped":
        follows = state.ending is None and not state.needs_new_agent
        leftovers = pt.EndLeftovers(
            question=fact.question, grace_s=BAD_END_GRACE_S, await_memory=follows
        )
        return [leftovers]
    return [pt.AnswerAgent(question=fact.question)]  # `ended`: it may exit


# -- a failure -------------------------------------------------------------------------------------


def _evidence_kept(state: JobState, fact: pt.EvidenceKept, now_s: float, spec: JobSpec) -> Decision:
    ending = ev.RanksEnding(attempt=state.attempt, at_s=now_s, failed=fact.ranks)
    is_late = state.is_over or fact.attempt != state.attempt
    if fact.question is not None:
        answer = pt.AnswerAgent(question=fact.question)
        return [answer] if is_late else [ending, pt.InterruptRanks(), answer]
    if is_late or state.ending is not None or state.wanted_agent is not None:
        return []
    return [ending, pt.EndLeftovers()]


def _leftovers_ended(
    state: JobState, fact: pt.LeftoversEnded, now_s: float, spec: JobSpec
) -> Decision:
    if fact.question is None:
        return _after_the_ranks(state)
    if state.stop is not None or state.is_over:
        return []  # the agent is being ended and starts nothing more
    answer = pt.AnswerAgent(question=fact.question, rendezvous=state.rendezvous)
    return [*_memory_awaited(state, fact), answer]


def _memory_awaited(
    state: JobState, fact: pt.LeftoversEnded | pt.AgentMadeRoom
) -> list[ev.GpuMemoryAwaited]:
    if fact.found is None:
        return []
    return [
        ev.GpuMemoryAwaited(
            attempt=state.attempt,
            seconds=fact.waited_s,
            found=fact.found,
            is_problem=fact.is_problem,
        )
    ]


def _attempt_judged(
    state: JobState, fact: pt.AttemptJudged, now_s: float, spec: JobSpec
) -> Decision:
    """If judged again, as when a supervisor died, continue with the earlier decision."""
    if state.ending is not None or state.is_over:
        return _end(state, fact.question, now_s)
    if fact.attempt != state.attempt or state.wanted_agent is not None:
        return []
    if state.restart is not None and state.restart.decided:
        return [pt.WaitForRestart(at_s=state.restart.at_s, question=fact.question)]
    judged = None
    if fact.cause is not None:
        judged = ev.FailureJudged(
            attempt=state.attempt, cause=fact.cause, outcome=fact.outcome, ends=fact.ends
        )
    if state.phase == "stopping":  # its loss was not finite, and the verdict was pending
        ended = _end_decided(state, fact.cause, NOT_FINITE, requeue=False)
        events: Decision = [] if judged is None else [judged]
        return [*events, ended, *_end(state, fact.question, now_s)]
    return _restart_or_end(state, judged, now_s, spec, jitter=fact.jitter, question=fact.question)


def _start_judged(state: JobState, fact: pt.StartJudged, now_s: float, spec: JobSpec) -> Decision:
    """An agent that exited by itself would do so again; one that was killed is replaced."""
    if state.ending is not None or state.is_over:
        return _end(state, None, now_s)
    if fact.status is not None and fact.status >= 0:
        ended = _end_decided(state, fact.cause, "no rank could be started", requeue=False)
        return [ended, pt.Conclude()]
    if fact.attempt != state.attempt or (state.wanted_agent is None and state.has_living):
        return []
    if state.wanted_agent is None and state.restart is not None and state.restart.decided:
        return [pt.WaitForRestart(at_s=state.restart.at_s)]
    opened: Decision = []
    attempt = state.attempt or 0
    since_s = now_s if state.attempt_started_s is None else state.attempt_started_s
    if state.wanted_agent is not None:
        attempt += 1
        opened = [ev.AttemptOpened(attempt=attempt, at_s=now_s)]
        state = msgspec.structs.replace(state, attempt=attempt, restart=None)
        since_s = now_s
    lived_s = now_s - since_s
    outcome = AttemptOutcome(attempt, lived_s, 0, None, fact.cause.signal, None, kind="signal")
    judged = ev.FailureJudged(attempt=attempt, cause=fact.cause, outcome=outcome)
    return [*opened, *_restart_or_end(state, judged, now_s, spec, jitter=fact.jitter)]


def _restart_or_end(
    state: JobState,
    judged: ev.FailureJudged | ev.HangJudged | None,
    now_s: float,
    spec: JobSpec,
    *,
    jitter: float,
    question: int | None = None,
    end_ranks: bool = False,
) -> Decision:
    """The restart policy's decision on a failure.

    Args:
        state: the job.
        judged: the verdict; it has no outcome if ddptop failed to judge, and then only the budget
            counts.
        now_s: CLOCK_BOOTTIME.
        spec: the job.
        jitter: see `AttemptJudged`.
        question: the agent's question that will be answered.
        end_ranks: whether ranks are alive and have to be ended.
    """
    events: Decision = [] if judged is None else [judged]
    if spec.membership is not None:
        held_s = spec.membership.orphan_timeout_s
        held = ev.RestartHeld(
            attempt=state.attempt, delay_s=held_s, at_s=now_s + held_s, end_ranks=end_ranks
        )
        wait = pt.WaitForRestart(at_s=now_s + held_s, question=question)
        if state.restart is not None:  # the head requested it before this was judged
            return [*events, pt.WaitForRestart(at_s=None, question=question)]
        return [*events, held, wait]
    cause = state.cause if judged is None else judged.cause
    if judged is None or judged.outcome is None:
        used = state.budget.used
        may_restart = used < spec.max_restarts
        verdict = policy.Decision(restart=may_restart, reason="no restarts left")
    else:
        history = state.history_with(judged.outcome)
        used = history.used
        verdict = policy.decide(history, spec.max_restarts, jitter)
    if not verdict.restart:
        cause = cause or Cause(kind="unknown", summary="The attempt failed; see its evidence.")
        requeue = None if judged is None or judged.outcome is None else verdict.requeue
        ended = _end_decided(state, cause, verdict.reason, requeue=requeue, end_ranks=end_ranks)
        return [*events, ended, *_end(state, question, now_s, end_ranks=end_ranks)]
    at_s = now_s + verdict.delay_s
    decided = ev.RestartDecided(
        attempt=state.attempt,
        used=used + 1,
        limit=spec.max_restarts,
        delay_s=verdict.delay_s,
        at_s=at_s,
        reason=verdict.reason if judged is not None and judged.outcome is not None else None,
        end_ranks=end_ranks,
    )
    return [*events, decided, pt.WaitForRestart(at_s=at_s, question=question)]


def _end_decided(
    state: JobState,
    cause: Cause | None,
    reason: str,
    *,
    requeue: bool | None = None,
    end_ranks: bool = False,
) -> ev.EndDecided:
    return ev.EndDecided(
        attempt=state.attempt,
        state="failed",
        cause=cause,
        reason=reason,
        requeue=requeue,
        end_ranks=end_ranks,
    )


def _end(
    state: JobState, question: int | None, now_s: float, *, end_ranks: bool = False
) -> Decision:
    """Without another attempt: let the agent end, or end the ranks or the job."""
    if question is not None:
        return [pt.AnswerAgent(question=question, restart=False)]
    if end_ranks:
        return _end_ranks(state, BAD_END_GRACE_S, now_s)
    return [] if state.is_over or state.has_living else [pt.Conclude()]


# -- ranks that are alive and have to be ended -----------------------------------------------------


def _trouble_found(state: JobState, fact: pt.TroubleFound, now_s: float, spec: JobSpec) -> Decision:
    phases = ("running",) if fact.reason == "nan" else ("starting", "running")
    if state.phase not in phases or state.is_decided or state.trouble is not None:
        return []
    stops = fact.reason == "nan" and spec.on_nan != "restart"
    found = ev.TroubleFound(
        attempt=state.attempt, ranks=fact.ranks, stops=stops, reason=fact.reason
    )
    return [found, pt.JudgeTrouble(reason=fact.reason)]


def _trouble_judged(
    state: JobState, fact: pt.TroubleJudged, now_s: float, spec: JobSpec
) -> Decision:
    """Judge, unless a rank exited while evidence was saved, or the user stopped or restarted."""
    same = fact.attempt == state.attempt and fact.reason == state.trouble
    if not same or state.is_decided or state.restart is not None or state.is_over:
        return []
    kind = ev.HangJudged if fact.reason == "hang" else ev.FailureJudged
    judged = kind(attempt=state.attempt, cause=fact.cause, outcome=fact.outcome)
    if fact.reason == "nan" and spec.on_nan == "stop":
        ended = _end_decided(state, fact.cause, NOT_FINITE, requeue=False, end_ranks=True)
        return [judged, ended, *_end_ranks(state, BAD_END_GRACE_S, now_s)]
    return _restart_or_end(state, judged, now_s, spec, jitter=fact.jitter, end_ranks=True)


# -- the next attempt ------------------------------------------------------------------------------


def _restart_due(state: JobState, fact: pt.RestartDue, now_s: float, spec: JobSpec) -> Decision:
    if state.ending is not None or state.is_over:
        return _end(state, fact.question, now_s)
    if fact.attempt != state.attempt or state.restart is None:
        return []
    return [pt.ChooseDevices(question=fact.question)]


def _devices_chosen(
    state: JobState, fact: pt.DevicesChosen, now_s: float, spec: JobSpec
) -> Decision:
    question = None if fact.agent.pid is None else fact.question  # an exited agent needs no answer
    if state.ending is not None or state.is_over:
        return _end(state, question, now_s)
    if fact.attempt != state.attempt or state.restart is None or state.wanted_agent is not None:
        return []
    events: Decision = [ev.Noticed(attempt=state.attempt, text=note) for note in fact.notes]
    alive = state.has_living and question is None
    if spec.membership is not None and state.restart.counted:  # the head has not requested it
        ended = _end_decided(state, state.cause, NO_HEAD, requeue=True, end_ranks=alive)
        return [ended, *_end(state, question, now_s, end_ranks=alive)]
    if fact.refused is not None:
        cause = state.cause
        if cause is not None:
            summary = f"{fact.refused}. {cause.summary}"
            cause = msgspec.structs.replace(cause, kind="gpu", summary=summary)
        ended = _end_decided(state, cause, fact.refused, requeue=True, end_ranks=alive)
        return [*events, ended, *_end(state, question, now_s, end_ranks=alive)]
    events.append(ev.RestartPrepared(attempt=state.attempt, aside=fact.aside))
    aside = [*state.set_aside, *fact.aside]
    needs_agent = aside != state.set_aside_before
    if question is not None:
        left = state.restarts_left(spec.max_restarts)
        answer = pt.AnswerAgent(question=question, restart=not needs_agent, restarts_left=left)
        return [*events, answer]
    if alive:
        return [*events, *_restart_ranks(state, fact.agent, now_s, spec, needs_agent=needs_agent)]
    return [*events, *_request_agent(state, fact.agent, spec)]


def _restart_ranks(
    state: JobState, agent: pt.AgentState, now_s: float, spec: JobSpec, *, needs_agent: bool
) -> Decision:
    ending = ev.RanksEnding(attempt=state.attempt, at_s=now_s)
    if not agent.listens or needs_agent:
        return [ending, pt.InterruptRanks(), *_request_agent(state, agent, spec)]
    sent = ev.RestartSent(attempt=state.attempt)
    return [ending, sent, pt.InterruptRanks(), _restart_group(state, spec)]


def _restart_group(state: JobState, spec: JobSpec) -> pt.TellAgent:
    return pt.TellAgent(order="restart_group", restarts_left=state.restarts_left(spec.max_restarts))


def _request_agent(state: JobState, agent: pt.AgentState, spec: JobSpec) -> Decision:
    requested = ev.AgentRequested(
        attempt=state.attempt,
        next_attempt=(state.attempt or 0) + 1,
        restarts_left=state.restarts_left(spec.max_restarts),
        replaces=agent.pid,
    )
    return [requested, pt.ReplaceAgent()]


def _agent_made_room(
    state: JobState, fact: pt.AgentMadeRoom, now_s: float, spec: JobSpec
) -> Decision:
    wanted = state.wanted_agent
    if state.ending is not None or state.is_over:
        return [] if state.is_over else [pt.Conclude()]
    if wanted is None or wanted.connected or fact.attempt != state.attempt:
        return []
    start = pt.StartAgent(attempt=wanted.attempt, restarts_left=wanted.restarts_left)
    return [*_memory_awaited(state, fact), start]


# -- users' requests -------------------------------------------------------------------------------


def _stop_asked(state: JobState, fact: pt.StopAsked, now_s: float, spec: JobSpec) -> Decision:
    if state.is_over:
        raise ControlError("the job has ended", code="ended")
    asked = ev.StopRequested(
        attempt=state.attempt,
        grace_s=fact.grace_s,
        kill_at_s=now_s + fact.grace_s,
        by=fact.by,
    )
    return [asked, pt.SkipWait(), *_end_ranks(state, fact.grace_s, now_s)]


def _end_ranks(state: JobState, grace_s: float, now_s: float) -> Decision:
    ending = ev.RanksEnding(attempt=state.attempt, at_s=now_s)
    return [ending, pt.EndRanks(grace_s=grace_s)]


def is_waiting(state: JobState) -> bool:
    """Whether the next attempt is decided and waits for its time."""
    pending = state.restart
    return state.phase == "restarting" and pending is not None and pending.at_s is not None


def _has_begun(state: JobState, fact: pt.RestartAsked, attempt: int) -> bool:
    """Whether this node takes part in that attempt or is about to; its head may repeat the request.

    Raises:
        ControlError: it cannot, because it missed an attempt or waits for others in this one.
    """
    pending = state.restart
    is_pending = pending is not None and not pending.counted
    is_matching = not is_pending or state.rendezvous == fact.rendezvous
    if state.ending is None and state.phase != "stopping":
        if attempt == state.attempt and pending is None:
            return True
        if attempt == (state.attempt or 0) + 1 and is_matching:
            return is_pending
    raise ControlError(
        f"this node is {state.phase} in attempt {state.attempt}, and cannot begin {attempt}",
        "end its part of the job, and start it for that attempt",
    )


def _restart_asked(state: JobState, fact: pt.RestartAsked, now_s: float, spec: JobSpec) -> Decision:
    """A pending attempt begins at once, and its cost is refunded."""
    if fact.attempt is not None and _has_begun(state, fact, fact.attempt):
        return []
    used, pending = state.budget.used, state.restart
    if is_waiting(state) and pending is not None:
        if not pending.counted:
            return []  # already requested
        hurried = ev.RestartHurried(
            attempt=state.attempt,
            at_s=now_s,
            used=max(0, used - 1),
            limit=spec.max_restarts,
            devices_back=[] if pending.prepared else fact.devices_back,
            rendezvous=fact.rendezvous,
        )
        return [hurried, pt.SkipWait()]
    if state.phase not in ("starting", "running", "hung"):
        raise ControlError(f"the job is {state.phase}", "wait until it is running")
    if not state.has_living:
        raise ControlError("the ranks have not started yet", "try again in a moment")
    asked = ev.RestartRequested(
        attempt=state.attempt,
        used=used,
        limit=spec.max_restarts,
        devices_back=fact.devices_back,
        rendezvous=fact.rendezvous,
    )
    aside = [one for one in state.set_aside if one.device not in fact.devices_back]
    needs_agent = aside != state.set_aside_before
    return [asked, *_restart_ranks(state, fact.agent, now_s, spec, needs_agent=needs_agent)]


# -- the end, and a new supervisor -----------------------------------------------------------------


def _ranks_ended(state: JobState, fact: pt.RanksEnded, now_s: float, spec: JobSpec) -> Decision:
    return [] if state.is_over or state.ending is None else [pt.Conclude()]


def _nothing_left(state: JobState, fact: pt.NothingLeft, now_s: float, spec: JobSpec) -> Decision:
    if state.is_over:
        return []
    ending = state.ending or Ending(state="finished")
    return [
        ev.JobEnded(
            attempt=state.attempt,
            state=ending.state,
            in_queue=state.in_queue,
            is_command=spec.is_command,
            cause=ending.cause,
            reason=ending.reason,
            requeue=ending.requeue,
        )
    ]


def _supervisor_started(
    state: JobState, fact: pt.SupervisorStarted, now_s: float, spec: JobSpec
) -> Decision:
    """Continue what the previous supervisor had begun."""
    if state.is_over or (state.in_queue and state.phase != "stopping"):
        return []
    if state.phase == "stopping":
        return _resume_stop(state, now_s)
    wanted, pending = state.wanted_agent, state.restart
    if wanted is not None and not wanted.connected and fact.agent.pid in (None, wanted.replaces):
        return [pt.ReplaceAgent()]
    to_end = pending is not None and (pending.end_ranks or not pending.decided)
    if pending is not None and to_end and not pending.sent and wanted is None:
        return [pt.WaitForRestart(at_s=pending.at_s)]
    if state.ending is not None and state.ending.end_ranks:
        return _end_ranks(state, BAD_END_GRACE_S, now_s)
    dropped: Decision = []
    if state.phase == "hung":  # the evidence was still being saved
        dropped = [ev.TroubleDropped(attempt=state.attempt)]
    if fact.agent.pid is None and not fact.agent_end_seen:
        exited = pt.AgentExited(pid=None, status=None)
        return [*dropped, *_agent_exited(state, exited, now_s, spec)]
    return dropped


def _resume_stop(state: JobState, now_s: float) -> Decision:
    left_s = RESUMED_GRACE_S
    if state.stop is not None and state.stop.kill_at_s is not None:
        left_s = max(0.0, state.stop.kill_at_s - now_s)
    ends = _end_ranks(state, left_s, now_s)
    if state.ending is not None:
        return ends
    return [_end_decided(state, state.cause, NOT_FINITE, requeue=False), *ends]


_DECISIONS: dict[type[pt.Message], Callable[[JobState, Any, float, JobSpec], Decision]] = {
    pt.AgentConnected: _agent_connected,
    pt.AgentListens: _agent_listens,
    pt.PlainStart: _plain_start,
    pt.GroupStarted: _group_started,
    pt.ProcessExited: _process_exited,
    pt.OrphanExited: _orphan_exited,
    pt.AgentExited: _agent_exited,
    pt.AgentAsked: _agent_asked,
    pt.EvidenceKept: _evidence_kept,
    pt.LeftoversEnded: _leftovers_ended,
    pt.AttemptJudged: _attempt_judged,
    pt.StartJudged: _start_judged,
    pt.TroubleFound: _trouble_found,
    pt.TroubleJudged: _trouble_judged,
    pt.RestartDue: _restart_due,
    pt.DevicesChosen: _devices_chosen,
    pt.RanksEnded: _ranks_ended,
    pt.AgentMadeRoom: _agent_made_room,
    pt.NothingLeft: _nothing_left,
    pt.StopAsked: _stop_asked,
    pt.RestartAsked: _restart_asked,
    pt.SupervisorStarted: _supervisor_started,
}
