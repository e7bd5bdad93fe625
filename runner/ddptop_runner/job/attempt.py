"""Observes the current attempt: its ranks, their progress, losses, and checkpoints.

The log holds the job's state. This module holds what no event contains: each rank's figures and
what was learned about their pace. Snapshots carry it over to the next supervisor.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.errors import ControlError, DamagedFileError
from ddptop_runner.base.files import stamp
from ddptop_runner.base.paths import LAUNCHER, RunFolder, runs_dir
from ddptop_runner.host import procs
from ddptop_runner.host.exits import ProcessWatch
from ddptop_runner.host.oom import OomWatch
from ddptop_runner.job import save_request as request
from ddptop_runner.job.event_log import EventLog, Memory, read_memory
from ddptop_runner.job.ranks import (
    PATIENCE_S,
    CommandRanks,
    OwnRanks,
    RankRecord,
    table_of,
)
from ddptop_runner.job.state import JobState
from ddptop_runner.job.trouble import TroubleWatch
from ddptop_runner.judge.checkpoints import CheckpointBook, SavedAt, step_loaded, was_saved
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.probe_message import LoadedFile, ProbeMessage
from ddptop_runner.model.run_step import RankSteps, RunSteps
from ddptop_runner.model.snapshot import NodeSnapshot, ProcessId, read_snapshot
from ddptop_runner.model.spec import JobSpec, read_spec

STARTED_AFTER_S = 30.0
"""A group that lives this long counts as running, even if its script takes no optimizer steps."""
UNSEEN_S = 3.0
"""A tick this late means that this process was stopped or the machine was suspended."""
EARLY_MESSAGES = 1024
"""Messages kept for ranks that the agent has not reported yet, since forked ranks are quick."""
SETTLE_S = 6.0
"""After a late tick, and at the start, hangs are not judged until every rank could report."""


class Loaded(NamedTuple):
    """What the ranks of an attempt loaded before their first step."""

    files: list[LoadedFile] = []
    step: int | None = None
    """The step of the run at which it was saved; None if unknown."""
    is_checkpoint: bool = False
    """Whether this job, or an earlier run of its script, saved it."""


class Attempt:
    """The current attempt, according to the agent, probes, /proc, and output.

    Args:
        folder: the job's run folder.
        spec: the job, as requested.
        log: holds the job's state, and receives observations.
        take: receives facts that require decisions.
        publish: writes the snapshot immediately.
    """

    def __init__(
        self,
        folder: RunFolder,
        spec: JobSpec,
        log: EventLog,
        take: Callable[[pt.Fact], None],
        publish: Callable[[], None],
    ) -> None:
        self._folder = folder
        self.requested = spec
        self._log = log
        self._take = take
        self._publish = publish
        self._begun_s = boottime_s()
        self.table = self._new_table()
        self.trouble = TroubleWatch(spec, log, take)
        self.checkpoints = CheckpointBook()
        self.run_steps = RunSteps()
        self.oom = OomWatch()
        self.oom.begin_attempt()
        self.on_bad_exit: Callable[[], None] = lambda: None
        """Called when a rank of a command fails by itself."""
        self.on_new_ranks: Callable[[], None] = lambda: None
        """Called when ranks of a command are discovered."""
        self._exits = ProcessWatch(self._rank_exited)
        self._save_asked: pt.SaveAsked | None = None
        self._loaded = Loaded()
        self.began_elsewhere: tuple[int, int] | None = None
        """(attempt, step of the run at which it began) according to another node."""
        self._early: deque[ProbeMessage] = deque(maxlen=EARLY_MESSAGES)
        self._looked_at_s: float | None = None
        self.settled_at_s = boottime_s() + SETTLE_S
        """CLOCK_BOOTTIME from which hangs can be detected."""

    @property
    def job(self) -> JobState:
        """The state of the job."""
        return self._log.state

    @property
    def spec(self) -> JobSpec:
        """The job, as the attempt runs it."""
        return self.job.spec_in_force(self.requested)

    @property
    def number(self) -> int:
        """The attempt's number, counted from 0 over the whole job."""
        return self.job.attempt or 0

    @property
    def started_s(self) -> float:
        """CLOCK_BOOTTIME of its start."""
        known = self.job.attempt_started_s
        return self._begun_s if known is None else known

    def _new_table(self) -> OwnRanks:
        return table_of(self.spec, self.started_s, lambda: self.job)

    def begin(self) -> None:
        """Clear the previous attempt's data."""
        self.table = self._new_table()
        self.trouble.begin_attempt()
        self.oom.begin_attempt()
        self._save_asked = None
        self._loaded = Loaded()
        self.look_at_steps({})
        request.withdraw(self._folder)  # a new attempt has nothing to save yet

    def adopt(self, workers: Sequence[pt.Worker]) -> None:
        """Add processes of the attempt that the agent started."""
        for worker in workers:
            rank = LAUNCHER if worker.rank is None else worker.rank
            known = self.table.get(rank)
            if known is None or known.process is None:
                self._watch(self.table.started(rank, worker.local_rank, worker.pid))
        early, self._early = self._early, deque(maxlen=EARLY_MESSAGES)
        for message in early:
            self.receive(message)

    # -- exits -----------------------------------------------------------------------------------

    def exited(self, pid: int, status: int | None, at_s: float) -> bool:
        """Handle a process's exit; returns whether the process belongs to the attempt.

        Args:
            pid: the process.
            status: as in subprocess; None if no process could collect it.
            at_s: CLOCK_BOOTTIME at which the exit was seen.
        """
        record, twin = self.table.of_pid(pid), self.table.rank_of_pid(pid)
        if record is None:
            return False
        self._report_exit(record, pid, status, at_s)
        if twin is not record and twin is not None and twin.alive:  # a launcher that is a rank
            self._report_exit(twin, pid, status, at_s)
        return True

    def _report_exit(self, record: RankRecord, pid: int, status: int | None, at_s: float) -> None:
        died_at_s = self._exits.died_at_s(pid)
        self._take(
            pt.ProcessExited(
                attempt=self.number,
                rank=None if record is self.table.launcher else record.rank,
                pid=pid,
                status=status,
                at_s=min(at_s, died_at_s or at_s),
            )
        )

    def _rank_exited(self, process: ProcessId, status: int | None) -> None:
        """Handle the exit of a command's rank, which no agent reports."""
        record, launcher = self.table.rank_of_pid(process.pid), self.table.launcher
        if record is None or record.process != process or launcher is None:
            return
        if status is None and launcher.pid == process.pid:
            return  # the command's own process, whose status the agent reports
        self._report_exit(record, process.pid, status, boottime_s())
        well = status == 0 or (status is None and record.leaving)
        if (
            not well and self.job.node().ending_ranks_at_s is None
        ):  # its launcher will end the others
            self.on_bad_exit()

    @property
    def has_unreported_exits(self) -> bool:
        """Whether a rank of a command has exited with a status still unknown."""
        if self.table.launcher is None:
            return False
        return not all(procs.is_alive(record.process) for record in self.table.ranks_alive())

    # -- once a second ---------------------------------------------------------------------------

    def look_at_printing(self, now_s: float) -> None:
        """Let a command whose output shows training be rank 0 if no probe reports in time."""
        if (
            isinstance(self.table, CommandRanks)
            and self.table.alive()
            and (not self.spec.probe or now_s - self.started_s > PATIENCE_S)
        ):
            self.table.assume_rank()
            self._watch_new()

    def _watch_new(self) -> None:
        """Record newly discovered ranks of a command and watch for their exits."""
        new, self.table.new = self.table.new, []
        for record in new:
            self._watch(record)
            self.trouble.hangs.forget(record.rank)
            self._log.emit(ev.RankStarted(attempt=self.number, rank=record.rank, pid=record.pid))
        if new:
            self.on_new_ranks()
            self._publish()

    def _watch(self, record: RankRecord) -> None:
        if record.process is not None:
            self._exits.watch(record.process)

    def look_at_progress(self, now_s: float) -> None:
        """Notice when the group runs, and judge hangs."""
        if self._looked_at_s is not None and now_s - self._looked_at_s > UNSEEN_S:
            self.settled_at_s = now_s + SETTLE_S
        self._looked_at_s = now_s
        lived_s = now_s - self.started_s
        if self.job.phase == "starting" and self.table.alive() and lived_s > STARTED_AFTER_S:
            self._log.emit(ev.RunningAssumed(attempt=self.number))
        is_settled = now_s >= self.settled_at_s
        looked = self.trouble.look(self.table.progress(now_s), now_s, is_settled=is_settled)
        self.table.note_quiet(looked)

    # -- probes and checkpoints ------------------------------------------------------------------

    def receive(self, message: ProbeMessage) -> None:
        """Fold in a message from a probe."""
        if self._is_early(message):
            self._early.append(message)
            return
        record = self.table.receive(message, self.number)
        self._watch_new()
        if record is not None and message.saved is not None:
            self.checkpoints.saved(
                message.saved,
                rank=record.rank,
                attempt=self.number,
                global_step=record.reported.global_step,
            )
        job = self.job
        is_first = job.first_step_after_s is None and job.phase in ("starting", "running")
        if (
            record is not None and record.steps and is_first
        ):  # it counts as running only after a while
            took_s = boottime_s() - self.started_s
            self._log.emit(ev.TrainingStarted(attempt=self.number, after_s=took_s))
            self._publish()

    def _is_early(self, message: ProbeMessage) -> bool:
        """Whether a rank reports before the agent has reported its start."""
        if message.attempt != self.number:
            return (message.attempt or 0) > self.number
        return all(record.process is None for record in self.table.everyone())

    @property
    def _is_resumed(self) -> bool:
        """Whether the ranks replaced earlier ones."""
        return self.number > 0 or self.table.was_restarted

    def look_at_steps(self, printed: Mapping[int, RankSteps]) -> None:
        """Learn at which step of the run the attempt began.

        Args:
            printed: by rank, the steps from its output and its probe.
        """
        loaded = self._look_at_loaded()
        number, step = self.began_elsewhere or (None, None)
        self.run_steps.look(
            list(printed.values()),
            self.number,
            resumed=self._is_resumed or loaded.is_checkpoint,
            candidates=self.checkpoints.run_steps(self.number),
            loaded=step if loaded.step is None and number == self.number else loaded.step,
        )
        self.checkpoints.began(self.run_steps.began, self.number)
        for record in self.table:
            record.began = self.run_steps.began

    def _look_at_loaded(self) -> Loaded:
        """What the ranks resume from, by the files that they loaded."""
        files = next((one.reported.loaded for one in self.table if one.reported.loaded), [])
        if files != self._loaded.files:
            saved = self.checkpoints.saved_at
            if not was_saved(files, saved):
                saved = saved_by_script(self.spec)
            self._loaded = Loaded(files, step_loaded(files, saved), was_saved(files, saved))
        return self._loaded

    def look_at_checkpoints(self, *, at_once: bool = False) -> None:
        """Record a new checkpoint once it is complete.

        Args:
            at_once: whether no more writes are to come.
        """
        last, asked = self.checkpoints.last, self._save_asked
        if asked is not None and last is not None and request.is_done(asked, last):
            self._save_asked = None
            request.withdraw(self._folder)
        if (saved := self.checkpoints.report(boottime_s(), at_once=at_once)) is not None:
            self._log.emit(saved)

    def ask_for_checkpoint(self) -> pt.SaveAsked:
        """Ask the script to save now.

        Raises:
            ControlError: no rank is running.
        """
        alive = self.table.ranks_alive()
        if self.job.phase != "running" or not alive:
            raise ControlError(
                f"no rank is running: the job is {self.job.phase}",
                "try again while it is running",
            )
        asked = self._save_asked = request.ask(self._folder, alive)
        self._log.emit(
            ev.CheckpointRequested(
                attempt=self.number,
                signals=asked.by_signal(),
                flag_file=asked.flag_stamp is not None,
            )
        )
        return asked

    # -- recovery in a new supervisor ------------------------------------------------------------

    def remember(self) -> Memory:
        """The part of the memory that is known here."""
        return Memory(
            last_step_s={
                record.rank: record.last_step_boottime_s
                for record in self.table
                if record.last_step_boottime_s is not None
            },
            discovered=self.table.discovered if isinstance(self.table, CommandRanks) else None,
            hangs=self.trouble.hangs.remember(),
            saves=self.checkpoints.remember(),
            oom_kills=self.oom.remember(),
        )

    def recover(self, snapshot: NodeSnapshot, memory: Memory) -> None:
        """Restore from an earlier supervisor's snapshot; the log has already restored the state."""
        job = self.job
        self.table = self._new_table()
        if snapshot.launcher is not None and snapshot.launcher.pid is not None:
            self.table.started(LAUNCHER, 0, snapshot.launcher.pid)
        self.checkpoints.recall(snapshot.checkpoint, memory.saves)
        self.trouble.recall(memory.hangs)
        self.oom.recall(memory.oom_kills)
        for rank in snapshot.ranks:
            if rank.pid is not None and snapshot.attempt == job.attempt:
                self.table.restore(rank, rank.pid)
        if isinstance(self.table, CommandRanks) and memory.discovered is not None:
            self.table.recall(memory.discovered)
        for rank_number, at_s in memory.last_step_s.items():
            if (record := self.table.get(rank_number)) is not None:
                record.last_step_boottime_s = at_s
        for number, life in job.ranks.items():
            record = self.table.get(number)
            if record is not None and record.pid is None and life.pid is not None:
                self.table.started(number, number, life.pid)
        for record in self.table.everyone():
            if record.alive:
                self._watch(record)
        self.run_steps.recall(snapshot, resumed=self._is_resumed)
        self.look_at_steps({})


# -- what earlier runs of the script saved ---------------------------------------------------------


SEARCHED = 50
"""As many run folders are searched, those written last."""


def saved_by_script(spec: JobSpec) -> list[SavedAt]:
    """What other jobs of this state folder saved that ran the same script in the same folder."""
    try:
        folders = [RunFolder(path) for path in runs_dir().iterdir() if path.name != spec.job]
    except OSError:
        return []
    found = []
    folders.sort(key=lambda folder: stamp(folder.nodes_dir) or 0, reverse=True)
    for folder in folders[:SEARCHED]:
        with contextlib.suppress(DamagedFileError, OSError, ValueError):
            other = read_spec(folder)
            if (other.target, other.cwd) == (spec.target, spec.cwd):
                snapshot = read_snapshot(folder.node_file(other.host))
                found += read_memory(snapshot).saves.saved_at
    return found
