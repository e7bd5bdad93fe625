"""The current attempt: which ranks started, which reported, and how each one ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host import procs
from ddptop_runner.host.exits import DeathWatch
from ddptop_runner.job import decide
from ddptop_runner.job import save_request as request
from ddptop_runner.job.command_table import CommandTable, table_of
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.job.last_resort import LastResort
from ddptop_runner.job.rank_memory import RankMemory, read_memory
from ddptop_runner.job.rank_record import RankRecord
from ddptop_runner.job.state import JobState, RankLife
from ddptop_runner.judge.checkpoints import CheckpointBook
from ddptop_runner.judge.hangs.watch import HangWatch
from ddptop_runner.judge.losses import LossWatch
from ddptop_runner.model import events as ev
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import ProbeMessage, SavedFile
from ddptop_runner.model.run_step import RankSteps, RunSteps
from ddptop_runner.model.snapshot import NodeSnapshot, Pause
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import JobState as Phase

Message = dict[str, Any]


class Surroundings(Protocol):
    """What the group needs of the supervisor."""

    defects: LastResort
    """Catches what should never be raised."""

    def snapshot_bytes(self) -> bytes:
        """The node snapshot of this moment."""

    def publish(self) -> None:
        """Write the snapshot now: the state has changed."""

    def start_agent(self, attempt: int, restarts_left: int) -> None:
        """Have the guardian start a new agent."""

    def device_report(self) -> DeviceReport | None:
        """The latest report on the job's devices; None where nothing samples them."""

    def change_spec(self, spec: JobSpec) -> None:
        """The next attempts run on other devices, with another number of ranks."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the supervisor's loop; errors go to its log."""


class AttemptRecord:
    """A job's state and its current attempt, kept as the agent, the probes and /proc report them.

    Args:
        folder: the job's run folder.
        spec: the job.
        log: gets each thing that happens.
        around: the supervisor.
    """

    def __init__(
        self, folder: RunFolder, spec: JobSpec, log: EventLog, around: Surroundings
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._log = log
        self._around = around
        self._begun_s = boottime_s()
        self.table = table_of(spec, self.attempt_started_s)
        self.awaits_agent = False
        """The guardian was asked for an agent and has not answered yet."""
        self._deaths = DeathWatch()
        self._suspected = False
        self.pause: Pause | None = None
        """That no step is taken; None while steps come."""
        self.hangs = HangWatch(spec.hang_timeout_s, auto=spec.hang_auto)
        self.losses = LossWatch(spec.on_nan)
        self.checkpoints = CheckpointBook()
        self.run_steps = RunSteps()
        self._save_asked: request.SaveAsked | None = None
        self.before_end: Callable[[], None] = lambda: None
        """Called once before the event is told that the job has ended."""

    @property
    def job(self) -> JobState:
        """The state of the job."""
        return self._log.state

    @property
    def state(self) -> Phase:
        """In a word."""
        return self.job.phase

    @property
    def attempt(self) -> int:
        """Number of the current attempt."""
        return self.job.attempt or 0

    @property
    def attempt_started_s(self) -> float:
        """CLOCK_BOOTTIME at which it started."""
        known = self.job.attempt_started_s
        return self._begun_s if known is None else known

    def leave_queue(self, spec: JobSpec) -> None:
        """The job has its devices; an agent is being started."""
        self._spec = spec

    def recover(self, snapshot: NodeSnapshot) -> None:
        """Go on from the snapshot of a supervisor that died; the log has restored the state."""
        job, memory = self.job, read_memory(snapshot.memory)
        self.table = table_of(self._spec, self.attempt_started_s)
        if snapshot.launcher is not None and snapshot.launcher.pid is not None:
            self.table.started(LAUNCHER, 0, snapshot.launcher.pid)
        self.checkpoints.recall(snapshot.checkpoint, snapshot.memory.get("saves") or {})
        self.hangs.recall(snapshot.memory.get("hangs") or {})
        for rank in snapshot.ranks:
            if rank.pid is not None and snapshot.attempt == job.attempt:
                self.table.restore(rank, rank.pid)
        if isinstance(self.table, CommandTable) and memory.ranks_met is not None:
            self.table.recall(memory.ranks_met)
        for rank_number, at_s in memory.last_step_s.items():
            if (record := self.table.get(rank_number)) is not None:
                record.last_step_boottime_s = at_s
        for number, life in job.ranks.items():
            record = self.table.get(number)
            if record is not None and record.pid is None and life.pid is not None:
                record = self.table.started(number, number, life.pid)
            if record is not None and life.exited:
                record.exit = _exit_of(number, life)
        if job.launcher is not None and job.launcher.exited and self.table.launcher is not None:
            self.table.launcher.exit = _exit_of(LAUNCHER, job.launcher)
        for record in self.table.everyone():
            if record.process is not None and record.alive and procs.is_alive(record.process):
                self._deaths.watch(record.process.pid)
            if record.alive and self.table.launcher not in (None, record):
                self._mind_met(record)
        self._suspected = job.suspected is not None
        self.run_steps.recall(snapshot, resumed=self._is_resumed)
        self.look_at_steps({})

    def _remembered(self) -> RankMemory:
        """What `recover` needs besides the snapshot's other fields."""
        return RankMemory(
            last_step_s={
                record.rank: record.last_step_boottime_s
                for record in self.table
                if record.last_step_boottime_s is not None
            },
            ranks_met=self.table.remember() if isinstance(self.table, CommandTable) else None,
        )

    async def _agent_known(self, timeout_s: float) -> None:
        """Wait until the guardian has said which agent it started, if it was asked for one."""
        deadline_s = boottime_s() + timeout_s
        while self.awaits_agent and boottime_s() < deadline_s:
            await asyncio.sleep(0.02)

    def _adopt_workers(self, message: Message) -> None:
        for worker in message["workers"]:
            record = self.table[worker["rank"]]
            if record.process is None:
                self.table.started(worker["rank"], worker["local_rank"], worker["pid"])
                self._deaths.watch(worker["pid"])

    def _begin_attempt(self) -> None:
        """The log has a new attempt: of the one before nothing is left."""
        self.table = table_of(self._spec, self.attempt_started_s)
        self._suspected = False
        self.hangs.begin_attempt()
        self.pause = None
        self.losses.begin_attempt()
        self.look_at_steps({})
        self._save_asked = None
        request.withdraw(self._folder)  # whoever is new has nothing to save

    def _group_started(self, message: Message) -> None:
        workers = message["workers"]
        self._log.emit(
            ev.AttemptStarted(
                attempt=message["attempt"],
                world=len(workers),
                launcher_pid=workers[0]["pid"] if self._spec.is_command else None,
                probed=self._spec.probe,
                at_s=boottime_s(),
            )
        )
        self._begin_attempt()
        self._adopt_workers(message)
        for record in self.table:
            self._tell_started(record)
        self._around.publish()

    def _tell_started(self, record: RankRecord) -> None:
        self._log.emit(ev.RankStarted(attempt=self.attempt, rank=record.rank, pid=record.pid))

    def heard(self, message: ProbeMessage) -> None:
        """A probe's message."""
        record = self.table.hear(message, self.attempt)
        self._take_up_new()
        if record is not None and message.saved is not None:
            self._saved(record, message.saved)
        is_first = self.job.first_step_after_s is None and self.state in ("starting", "running")
        if record is not None and record.steps and is_first:  # it counts as running after a while
            took_s = boottime_s() - self.attempt_started_s
            self._log.emit(ev.TrainingStarted(attempt=self.attempt, after_s=took_s))
            self._around.publish()

    @property
    def _is_resumed(self) -> bool:
        """Whether the ranks have taken the place of earlier ones."""
        return self.attempt > 0 or self.table.was_restarted

    def look_at_steps(self, told: Mapping[int, RankSteps]) -> None:
        """Learn at which step of the run the attempt began."""
        self.run_steps.look(
            list(told.values()),
            self.attempt,
            resumed=self._is_resumed,
            candidates=self.checkpoints.run_steps(self.attempt),
        )
        self.checkpoints.heard_began(self.run_steps.began, self.attempt)
        for record in self.table:
            record.began = self.run_steps.began

    def _take_up_new(self) -> None:
        """Ranks of a command that were met just now."""

    def _mind_met(self, record: RankRecord) -> None:
        """A rank of a command whose end nobody tells."""

    def _saved(self, record: RankRecord, file: SavedFile) -> None:
        self.checkpoints.saved(
            file, rank=record.rank, attempt=self.attempt, global_step=record.reported.global_step
        )

    def tell_checkpoint(self, *, at_once: bool = False) -> None:
        """Tell of a new checkpoint, once it is whole; `at_once`: nothing more is to come."""
        last, asked = self.checkpoints.last, self._save_asked
        if asked is not None and last is not None and request.is_done(asked, last):
            self._save_asked = None
            request.withdraw(self._folder)
        if (saved := self.checkpoints.look(boottime_s(), at_once=at_once)) is not None:
            self._log.emit(saved)

    def ask_for_checkpoint(self) -> request.SaveAsked:
        """Ask the script to save now.

        Raises:
            ControlError: when no rank is at work.
        """
        alive = self.table.ranks_alive()
        if self.state != "running" or not alive:
            raise ControlError(
                f"no rank is running: the job is {self.state}", "try again while it is running"
            )
        asked = self._save_asked = request.ask(self._folder, alive)
        self._log.emit(
            ev.CheckpointRequested(
                attempt=self.attempt,
                signals=asked.by_signal(),
                flag_file=asked.flag_stamp is not None,
            )
        )
        return asked

    def _record_exited(
        self, record: RankRecord, returncode: int | None, at_boottime_s: float
    ) -> None:
        """A rank ended that no agent tells of."""
        self.rank_exited(
            {
                "attempt": self.attempt,
                "rank": record.rank,
                "pid": record.pid,
                "returncode": returncode,
                "at_boottime_s": at_boottime_s,
                "approximate": True,  # collected or seen late, unless the death watch saw it
            }
        )

    def rank_exited(self, message: Message) -> None:
        """A rank of the current attempt ended, or its launcher."""
        if message["attempt"] != self.attempt:
            return
        record = self.table[message["rank"]]
        if record.exit is not None and record.exit.returncode is not None:
            return
        self._exited(record, message)
        twin = self.table.rank_of_pid(message["pid"])  # a launcher that is a rank itself
        if twin is not None and twin is not record and twin.alive:
            self._exited(twin, message)

    def _exited(self, record: RankRecord, message: Message) -> None:
        died_at_s = self._deaths.died_at_s(message["pid"])
        at_s = min(message["at_boottime_s"], died_at_s or message["at_boottime_s"])
        by_us = decide.was_ended(self.job, record.rank, at_s)
        record.exit = RankExit(
            record.rank,
            message["pid"],
            message["returncode"],
            at_s,
            ended_by_us=by_us,
            approximate=died_at_s is None and message.get("approximate", False),
        )
        attempt, pid, status = self.attempt, record.pid, message["returncode"]
        if record is self.table.launcher:
            self._log.emit(
                ev.LauncherExited(attempt=attempt, pid=pid, status=status, at_s=at_s, by_us=by_us)
            )
            return
        for event in decide.rank_exited(self.job, attempt, record.rank, pid, status, at_s):
            self._log.emit(event)


def _exit_of(rank: int, life: RankLife) -> RankExit:
    at_s = boottime_s() if life.at_s is None else life.at_s
    return RankExit(rank, life.pid or 0, life.status, at_s, ended_by_us=life.by_us)
