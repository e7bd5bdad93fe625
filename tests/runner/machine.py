"""A simulated job: the real `apply`, `decide`, and `EventLog` over a host that can lose anything.

One step is one thing that can happen. What the state machine asks for waits in `todo` and is done
by a later step, so that everything can come between; a supervisor that dies forgets it.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import msgspec

from ddptop_runner.base.errors import ControlError
from ddptop_runner.job import decide, effects
from ddptop_runner.job.event_log import EventLog, memory_of
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import apply
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, Cause, Checkpoint, Event, NodeSnapshot

EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
CAUSE = Cause(kind="signal", rank=0, signal="SIGKILL", summary="Rank 0 was killed.")
MOST_RESTARTS = 3
RANKS = 2


class Rows:
    """The history: what is pending is lost with its supervisor."""

    def __init__(self) -> None:
        self.kept: list[Event] = []
        self.pending: list[Event] = []
        self.is_full = False
        self.last_seq = 0
        self.folded = JobState()
        """What all rows fold to, read back from their stored form."""

    def event(self, row: Event) -> Event:
        self.last_seq += 1
        row = msgspec.structs.replace(row, seq=self.last_seq)
        self.pending.append(row)
        stored = msgspec.json.decode(msgspec.json.encode(row.data))
        event = ev.from_data(stored)
        assert event is not None
        self.folded = apply(self.folded, event, row.ts)
        if not self.is_full:
            self.kept += self.pending
            self.pending = []
        return row

    def continue_after(self, seq: int) -> None:
        self.last_seq = max(self.last_seq, seq)


LEADS_TO = {
    ev.Launched: ("starting",),
    ev.AttemptStarted: ("starting", "stopping"),
    ev.TrainingStarted: ("running", "restarting", "hung", "stopping"),
    ev.TroubleFound: ("hung",),
    ev.HangJudged: ("hung",),
    ev.TroubleDropped: ("running",),
    ev.RestartDecided: ("restarting",),
    ev.RestartRequested: ("restarting",),
    ev.RestartHurried: ("restarting",),
    ev.StopRequested: ("stopping",),
    ev.JobLost: ("lost",),
}
"""The phases that may follow an event."""


class Machine:
    """One job on one host, step by step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 100.0
        self.limit = self.random.randint(0, MOST_RESTARTS)
        self.rows = Rows()
        self.log = self._new_log()
        self.alive: dict[int, int] = {}
        """Ranks by pid, of every attempt."""
        self.attempts: dict[int, int] = {}
        """The attempt of each pid."""
        self.dead: list[tuple[int, int, int, int, float]] = []
        """(attempt, rank, pid, status, when) of exits that may be reported, again and again."""
        self.agent: int | None = 1
        self.pids = 10
        self.todo: list[effects.Effect | str] = []
        self.stale = memory_of(self.log.state, 0)
        self.has_stopped = False
        self.lost_log = False
        self.end: ev.JobEnded | None = None
        self._emit(ev.Launched(attempt=0, target="train.py", nproc=RANKS, at_s=self.now_s))
        self._start(0)

    def _new_log(self) -> EventLog:
        history: Any = self.rows
        return EventLog(history, lambda line: None)

    @property
    def state(self) -> Any:
        return self.log.state

    def _snapshot(self, memory: dict[str, Any]) -> NodeSnapshot:
        return NodeSnapshot(
            job="train",
            job_id="train@1",
            host="h",
            seq=1,
            ts=EPOCH,
            state="running",
            started_at=EPOCH,
            memory=msgspec.json.decode(msgspec.json.encode(memory)),
        )

    def _emit(self, event: ev.JobEvent) -> None:
        before = self.state
        self.log.emit(event)
        if before.is_over and not isinstance(event, ev.Launched):
            assert self.state == before, "an end is final"
        if not before.is_over or isinstance(event, ev.Launched):
            self._check_event(before, event)
        assert 0 <= self.state.budget.used <= self.limit, "the budget is overspent"

    def _check_event(self, before: JobState, event: ev.JobEvent) -> None:
        """What each event must do to the state, told apart from how `apply` does it."""
        state = self.state
        if type(event) in LEADS_TO:
            assert state.phase in LEADS_TO[type(event)], f"{event} leads to {state.phase}"
        if isinstance(event, ev.AttemptStarted | ev.Launched):
            assert state.attempt == event.attempt and not state.ranks
            assert state.restart is None and state.ending_ranks_at_s is None
            assert state.attempt_started_s == event.at_s and state.cause is None
            if state.attempt != before.attempt and isinstance(event, ev.AttemptStarted):
                assert state.previous_cause == before.cause
        elif isinstance(event, ev.RankStarted):
            assert state.ranks[event.rank].pid == event.pid
        elif isinstance(event, ev.RankExited):
            life, known = state.ranks[event.rank], before.ranks.get(event.rank)
            if known is not None and known.pid == event.pid and not known.exited:
                assert (life.exited, life.status, life.by_us) == (True, event.status, event.by_us)
        elif isinstance(event, ev.CheckpointSaved):
            assert state.checkpoint == event.checkpoint
        elif isinstance(event, ev.HangSuspected):
            assert state.suspected is not None and state.suspected.found == event.found
        elif isinstance(event, ev.AlertRaised):
            assert event.alert.id in state.alerts
        elif isinstance(event, ev.AlertsCleared):
            assert not state.alerts.keys() & event.messages.keys()
        elif isinstance(event, ev.Noticed):
            assert event.text in [one.alert.message for one in state.alerts.values()]
        elif isinstance(event, ev.RunningAssumed):
            assert state.phase != "starting"
        elif isinstance(event, ev.RestartSent):
            assert state.restart is None or state.restart.sent
        elif isinstance(event, ev.AgentRequested):
            assert state.wanted_agent is not None
        elif isinstance(event, ev.AgentConnected):
            assert state.wanted_agent is None
        elif isinstance(event, ev.TrainingStarted):
            assert state.first_step_after_s == event.after_s
        elif isinstance(event, ev.RanksEnding):
            assert state.ending_ranks_at_s is not None
            assert state.ending_ranks_at_s <= event.at_s
        elif isinstance(event, ev.FailureJudged | ev.HangJudged):
            assert state.cause == event.cause
        elif isinstance(event, ev.RestartDecided):
            assert state.budget.used == before.budget.used + 1 and state.is_decided
            assert state.restart is not None and state.restart.at_s == event.at_s
        elif isinstance(event, ev.RestartHurried):
            counted = before.restart is not None and before.restart.counted
            assert state.budget.used == before.budget.used - counted
            assert state.restart is not None and state.restart.at_s == event.at_s
        elif isinstance(event, ev.RestartRequested):
            assert state.budget.used == before.budget.used and state.restart is not None
        elif isinstance(event, ev.EndDecided | ev.StopRequested):
            assert state.ending is not None
        elif isinstance(event, ev.AgentLost):
            assert state.agent_lost and state.alerts
        elif isinstance(event, ev.JobEnded):
            assert state.phase == event.state and state.ended_at is not None
            assert (state.exit_code == 0) == (event.state == "finished")

    def _decide(self, decision: decide.Decision) -> None:
        for one in decision:
            if isinstance(one, ev.EventBase):
                self._emit(one)
        self.todo += [one for one in decision if not isinstance(one, ev.EventBase)]

    def _start(self, attempt: int) -> None:
        assert not self.alive, "two attempts are alive"
        self._emit(ev.AttemptStarted(attempt=attempt, world=RANKS, at_s=self.now_s))
        for rank in range(RANKS):
            self.pids += 1
            self.alive[self.pids], self.attempts[self.pids] = rank, attempt
            self._emit(ev.RankStarted(attempt=attempt, rank=rank, pid=self.pids))

    def _dies(self, pid: int, status: int) -> None:
        rank = self.alive.pop(pid)
        self.dead.append((self.attempts[pid], rank, pid, status, self.now_s))

    def _report(self) -> None:
        """Every exit that is known on the host reaches the log, once more."""
        for dead in self.dead:
            self._decide([*decide.rank_exited(self.state, *dead)])

    # -- what can happen -------------------------------------------------------------------------

    def time_passes(self) -> None:
        self.now_s += self.random.choice((0.1, 1.0, 20.0))

    def first_step(self) -> None:
        if self.alive and not self.state.is_over:
            self._emit(ev.TrainingStarted(attempt=self.state.attempt, after_s=1.0))

    def rank_dies(self) -> None:
        if self.alive:
            self._dies(self.random.choice(list(self.alive)), self.random.choice((-9, 1, 0)))

    def exits_are_reported(self) -> None:
        self._report()

    def late_exit(self) -> None:
        """Of any attempt, any number of times."""
        if self.dead:
            self._decide([*decide.rank_exited(self.state, *self.random.choice(self.dead))])

    def failure_is_judged(self) -> None:
        """torch ends the others, and the policy decides."""
        state = self.state
        failed = any(a == state.attempt and status for a, _, _, status, _ in self.dead)
        if state.is_over or state.is_decided or state.phase == "stopping" or not failed:
            return
        self._emit(ev.RanksEnding(attempt=state.attempt, at_s=self.now_s))
        for pid in list(self.alive):
            self._dies(pid, -15)
        self._report()
        self._emit(ev.FailureJudged(attempt=state.attempt, cause=CAUSE))
        self._policy(end_ranks=False)

    def something_is_noted(self) -> None:
        """What changes nothing else."""
        attempt = self.state.attempt
        saved = Checkpoint(path=f"/ck/{self.now_s}", at=EPOCH, attempt=attempt)
        hot = Alert(id="hot", severity="warning", message="hot", since=EPOCH)
        if not self.state.is_over:
            self._emit(
                self.random.choice(
                    (
                        ev.CheckpointSaved(attempt=attempt, checkpoint=saved),
                        ev.HangSuspected(attempt=attempt, found=f"stalled at {self.now_s}"),
                        ev.AlertRaised(attempt=attempt, alert=hot),
                        ev.AlertsCleared(attempt=attempt, messages={"hot": "hot"}),
                        ev.Noticed(attempt=attempt, text="a log was cut"),
                        ev.RunningAssumed(attempt=attempt),
                        ev.RestartSent(attempt=attempt),
                    )
                )
            )

    def hang_is_found(self) -> None:
        state = self.state
        if state.phase in ("starting", "running") and self.alive and not state.is_decided:
            self._emit(ev.TroubleFound(attempt=state.attempt, ranks=[0]))
            self.todo.append("judge")

    def _policy(self, *, end_ranks: bool) -> None:
        state = self.state
        if state.budget.used < self.limit:
            self._emit(
                ev.RestartDecided(
                    attempt=state.attempt,
                    used=state.budget.used + 1,
                    limit=self.limit,
                    delay_s=10.0,
                    at_s=self.now_s + 10.0,
                    end_ranks=end_ranks,
                )
            )
        else:
            self._emit(
                ev.EndDecided(
                    attempt=state.attempt,
                    state="failed",
                    cause=CAUSE,
                    reason="no restarts left",
                    end_ranks=end_ranks,
                )
            )
        if end_ranks:
            self.todo.append(effects.FinishAttempt(again=self.state.ending is None))

    def someone_stops(self) -> None:
        if not self.state.is_over:
            self.has_stopped = True
            self._decide(decide.stop(self.state, self.random.choice((0.0, 5.0)), self.now_s))

    def someone_restarts(self) -> None:
        try:
            decide.require_restartable(self.state, has_ranks=bool(self.alive))
        except ControlError:
            return
        used = self.state.budget.used
        self._decide(decide.restart(self.state, self.now_s, used=used, limit=self.limit))

    def agent_dies(self) -> None:
        if self.agent is not None and not self.state.is_over:
            self.agent = None
            if self.alive:
                self._emit(ev.AgentLost(attempt=self.state.attempt, status=-9, ranks=1))

    def disk_is_full(self) -> None:
        self.rows.is_full = True

    def disk_has_room(self) -> None:
        self.rows.is_full = False

    def supervisor_dies(self) -> None:
        """With it goes all that it had in mind; a full disk has lost the end of the log."""
        before = self.state
        memory = self.log.memory()
        if not self.rows.pending and self.random.random() < 0.5:
            memory = self.stale  # it died before it could publish
        self.lost_log |= bool(self.rows.pending)
        last_stored = self.rows.kept[-1].seq if self.rows.kept else 0
        self.rows.pending, self.rows.last_seq, self.todo = [], last_stored, []
        self.log = self._new_log()
        self.log.restore(self.rows.kept, self._snapshot(memory))
        assert self.state == before, "the next supervisor knows another state"
        if self.lost_log:
            self.rows.folded = self.state
        self.stale = self.log.memory()
        self._emit(ev.SupervisorRestarted(attempt=self.state.attempt))
        self._decide(decide.resume(self.state, self.now_s, agent_pid=self.agent))

    def machine_reboots(self) -> None:
        """Everything dies at once; later someone starts the job again."""
        if self.random.random() < 0.7:
            return
        for pid in list(self.alive):
            self.alive.pop(pid)
        last_stored = self.rows.kept[-1].seq if self.rows.kept else 0
        self.lost_log |= bool(self.rows.pending)
        self.rows.pending, self.rows.last_seq, self.todo = [], last_stored, []
        self.log = self._new_log()
        self.log.restore(self.rows.kept)
        self.rows.folded = self.state
        attempt = 1 + max(self.attempts.values())
        if not self.state.is_over:
            self._emit(ev.JobLost(attempt=self.state.attempt, rebooted=True))
        self.has_stopped, self.agent = False, 1
        self._emit(ev.Launched(attempt=attempt, target="train.py", nproc=RANKS, at_s=self.now_s))
        self._start(attempt)
        self.stale = self.log.memory()

    def something_is_done(self) -> None:
        """One of the effects, or the next attempt where its time has come."""
        if self.state.is_over:
            self.todo = []
        elif self.todo:
            self._do(self.todo.pop(0))
        elif self.state.phase == "restarting" and self._may_start():
            self._next_attempt()
        elif not self.alive and (self.state.ending is not None or self._is_done()):
            self._conclude()

    def snapshot_is_published(self) -> None:
        self.stale = self.log.memory()

    STEPS = (
        *(time_passes, first_step, rank_dies, exits_are_reported, late_exit) * 2,
        *(failure_is_judged, something_is_done, something_is_done) * 4,
        *(hang_is_found, someone_restarts, agent_dies, disk_is_full, disk_has_room) * 2,
        something_is_noted,
        something_is_noted,
        *(supervisor_dies, snapshot_is_published, disk_has_room) * 2,
        someone_stops,
        machine_reboots,
    )

    # -- the host --------------------------------------------------------------------------------

    def _may_start(self) -> bool:
        pending = self.state.restart
        return pending is not None and (pending.at_s is None or pending.at_s <= self.now_s)

    def _is_done(self) -> bool:
        ends = [status for a, _, _, status, _ in self.dead if a == self.state.attempt]
        return len(ends) == RANKS and not any(ends)

    def _do(self, effect: effects.Effect | str) -> None:
        state = self.state
        if effect == "judge":
            if state.phase == "hung" and not state.is_decided:
                self._emit(ev.HangJudged(attempt=state.attempt, cause=CAUSE))
                self._policy(end_ranks=True)
        elif effect == effects.FinishAttempt(again=False) or isinstance(effect, effects.EndRanks):
            self._end_ranks()
            self._conclude()
        elif isinstance(effect, effects.RestartRanks | effects.FinishAttempt):
            self._end_ranks()
        elif isinstance(effect, effects.SkipWait):
            assert self._may_start(), "the wait was to be skipped"

    def _end_ranks(self) -> None:
        if self.alive:
            self._emit(ev.RanksEnding(attempt=self.state.attempt, at_s=self.now_s))
        for pid in list(self.alive):
            self._dies(pid, -15)
        self._report()

    def _next_attempt(self) -> None:
        self._end_ranks()
        self.agent = self.agent or 1
        self._start(self.state.attempt + 1)

    def _conclude(self) -> None:
        self._report()
        self._emit(decide.end(self.state, is_command=False))
        self.end = self.end or decide.end(self.state, is_command=False)

    # -- what always holds -----------------------------------------------------------------------

    def check(self) -> None:
        """The invariants, after any step."""
        state = self.state
        assert len({self.attempts[pid] for pid in self.alive}) <= 1, "two attempts are alive"
        assert not (state.is_over and self.alive), "ranks outlive the job"
        rows = [*self.rows.kept, *self.rows.pending]
        assert self.rows.folded == state, "the fold of the log is not the live state"
        exits = [(r.attempt, r.rank, r.pid) for r in rows if r.type == "rank_exited"]
        assert len(exits) == len(set(exits)) or self.lost_log, "an exit is told twice"
        seqs = [row.seq for row in rows]
        assert seqs == sorted(set(seqs)), "two events have one number"
        for pid, rank in self.alive.items():
            life = state.ranks.get(rank)
            assert life is None or life.pid != pid or not life.exited, "a living rank has exited"

    def settle(self) -> None:
        """A stop ends the job, whatever happened before and whoever died."""
        for _ in range(20):
            self.now_s += 60.0
            if self.has_stopped:
                self.something_is_done()
        if self.has_stopped:
            assert self.state.is_over, "a stop did not end the job"
            assert self.state.phase == "stopped", "a stop ended as something else"


def drive(seed: int, steps: int = 30) -> Machine:
    """One interleaving; the same for the same seed."""
    machine = Machine(seed)
    for _ in range(steps):
        step = machine.random.choice(Machine.STEPS)
        step(machine)
        machine.check()
    machine.settle()
    machine.check()
    return machine
