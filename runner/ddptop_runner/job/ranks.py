"""The ranks of the current attempt: their figures, folded from all sources, and their table.

The job's state alone holds which of them have exited or hang.
"""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_from_boottime, utc_now
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host import procs, tree
from ddptop_runner.host.tree import RankUsage
from ddptop_runner.job.state import JobState, RankLife
from ddptop_runner.judge.hangs.verdict import WARM_COLLECTIVES, HangReport, RankProgress
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import ProcessId, RankSample
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import Phase, RankState
from ddptop_runner.reading.progress import rank_view
from ddptop_runner.reading.progress.pace import Pace

RATE_WINDOW_S = 10.0
"""Steps per second are averaged over about this time."""
MAX_RATE_MARKS = 1000
PACE_MARKS_APART_S = 1.0
REPORTED_EVERY_S = 0.25
"""The interval of a probe's messages while there are steps."""
SAVE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
STACK_SIGNALS = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
"""Signals that a rank may request; any other signal could end it."""


@dataclass
class RankRecord:
    """The figures of one rank of the current attempt."""

    rank: int
    local_rank: int
    started_boottime_s: float
    job: Callable[[], JobState] = JobState
    process: ProcessId | None = None
    reported: ProbeMessage = rank_view.NOTHING
    """The probe's report, merged over its messages."""
    has_reported: bool = False
    reported_boottime_s: float | None = None
    steps: int | None = None
    last_step_boottime_s: float | None = None
    began: int | None = 0
    """The step of the run at which its attempt began; None if unknown."""
    usage: RankUsage | None = None
    quiet: bool = False
    """Whether its next progress takes longer than usual, according to the hang watch."""
    silent_because: str | None = None
    """The reason why its silence is expected."""
    collective_boottime_s: float | None = None
    """When a completed collective was last observed."""
    gpu_mem_peak_bytes: int | None = None
    leaving: bool = False
    """Whether its probe has reported that the process is about to exit."""
    ends_since_s: float | None = None
    """CLOCK_BOOTTIME of that report; None once it reports anything else."""
    rank_source: str | None = None
    """The source of its number; None if ddptop assigned it."""
    _rate_marks: list[tuple[float, int]] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    """Of its steps in this attempt, by CLOCK_BOOTTIME."""

    @property
    def pid(self) -> int | None:
        """The rank's process ID, once started."""
        return None if self.process is None else self.process.pid

    @property
    def life(self) -> RankLife:
        """The life of its process, from the job's state."""
        job = self.job()
        life = job.launcher if self.rank == LAUNCHER else job.ranks.get(self.rank)
        if life is None or (None not in (life.pid, self.pid) and life.pid != self.pid):
            return RankLife(pid=self.pid)
        return life

    @property
    def alive(self) -> bool:
        """Whether it has started and its end has not been reported."""
        return self.process is not None and not self.life.exited

    @property
    def exit(self) -> RankExit | None:
        """How it ended; None before that."""
        life = self.life
        if not life.exited:
            return None
        return RankExit(
            self.rank,
            life.pid or 0,
            life.status,
            life.at_s or 0.0,
            ended_by_us=life.by_us,
        )

    @property
    def entered(self) -> int | None:
        """Number of collectives that it has entered; None if not reported."""
        entered = [counts[0] for counts in self.reported.collectives.values()]
        return sum(entered) if entered else None

    @property
    def steps_per_s(self) -> float | None:
        """The rate over about ten seconds; 0 for a quiet rank; None with fewer than two marks."""
        if len(self._rate_marks) < 2:
            return None
        if self.quiet:
            return 0.0
        (first_s, first), (last_s, last) = self._rate_marks[0], self._rate_marks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    @property
    def run_step(self) -> int | None:
        """The step of the run that it has reached; None if unknown."""
        if self.reported.global_step is not None:
            return self.reported.global_step
        return None if None in (self.began, self.steps) else (self.began or 0) + (self.steps or 0)

    def restore(self, sample: RankSample, pid: int) -> None:
        """Continue from an earlier supervisor's last sample of this rank."""
        self.process = procs.identify(pid)
        self.has_reported = bool(sample.has_probe)
        counted = sample.step_source != "log"  # output is reread, so it is not a sign of life
        if counted:
            self.steps = sample.step
        self.reported = rank_view.restored(sample)
        self.gpu_mem_peak_bytes = sample.gpu_mem_peak_bytes
        self.rank_source = sample.rank_source
        if counted and sample.last_progress_at is not None:
            age_s = max(0.0, (utc_now() - sample.last_progress_at).total_seconds())
            self.last_step_boottime_s = boottime_s() - age_s

    def receive(self, message: ProbeMessage) -> None:
        """Fold in one message from the rank's probe."""
        self.has_reported = True
        self.reported_boottime_s = message.t
        self.leaving = self.leaving or message.final
        self.ends_since_s = message.t if message.final else None
        if _completed(message.collectives) > _completed(self.reported.collectives):
            self.collective_boottime_s = message.t
        save_signals = self.reported.save_signals
        if message.pid == self.pid:  # a child's handlers are not the rank's
            save_signals = [n for n in message.save_signals if n in SAVE_SIGNALS]
        number = message.stack_signal if message.stack_signal in STACK_SIGNALS else None
        merged = rank_view.merged(self.reported, message)
        self.reported = replace(merged, save_signals=save_signals, stack_signal=number)
        self._count(message)

    def forget_loss_range(self) -> None:
        """Reset the smallest and largest loss, which cover the time since the previous snapshot."""
        self.reported = replace(self.reported, loss_min=None, loss_max=None)

    def _count(self, message: ProbeMessage) -> None:
        steps, at_s = message.steps, message.last_step_t
        if steps is None or at_s is None:
            return
        # even without a new step: a gradient scaler may skip many in a row
        self.last_step_boottime_s = max(self.last_step_boottime_s or 0.0, at_s)
        if self.steps is None or steps > self.steps:
            self._rate_marks.append((at_s, steps))
            if not self.pace.marked_within(at_s, PACE_MARKS_APART_S):
                self.pace.mark(at_s, steps)
            while len(self._rate_marks) > 2 and (
                self._rate_marks[1][0] < at_s - RATE_WINDOW_S
                or len(self._rate_marks) > MAX_RATE_MARKS
            ):
                del self._rate_marks[0]
        self.steps = steps

    def since_progress_s(self, now_s: float) -> float:
        """Seconds since the last step, or else since the attempt's start."""
        return now_s - max(self.started_boottime_s, self.last_step_boottime_s or 0.0)

    def progress(self, now_s: float) -> RankProgress:
        """The rank's progress, for the hang watch."""
        usage, reported = self.usage, self.reported
        (phase, began_s), reported_s = self._phase(), self.reported_boottime_s
        return RankProgress(
            rank=self.rank,
            alive=self.alive,
            paused=usage is not None and usage.state_letter in "Tt",
            steps=(self.steps or 0) if self.has_reported else None,
            since_progress_s=self.since_progress_s(now_s),
            phase=phase,
            phase_s=0.0 if began_s is None else max(0.0, now_s - began_s),
            enqueued={group: counts[0] for group, counts in reported.collectives.items()},
            completed={group: counts[1] for group, counts in reported.collectives.items()},
            batches=reported.batches,
            cpu_s=None if usage is None else usage.cpu_s,
            written_bytes=None if usage is None else usage.written_bytes,
            unheard_s=None if reported_s is None else max(0.0, now_s - reported_s),
            exited_with=self.life.status,
            stands_at=reported.stands_at,
            data_position=reported.data_position,
            is_blocked=usage is not None and usage.state_letter == "D",
        )

    def _phase(self) -> tuple[Phase | None, float | None]:
        """(phase, its start); the phase is `end` after the probe's last message."""
        if self.ends_since_s is not None:
            return "end", self.ends_since_s
        return self.reported.phase, self.reported.phase_t

    def state(self, probe: bool) -> RankState:
        """The rank's state in a word, unless it has exited or hangs."""
        if self.process is None:
            return "starting"
        if self.usage is not None and self.usage.state_letter in "Tt":
            return "paused"
        if probe and not self.steps and _completed(self.reported.collectives) < WARM_COLLECTIVES:
            return "starting"
        if self.quiet:
            return "quiet"
        return "running"

    def sample(self, probe: bool) -> RankSample:
        """The figures in the contract's form; devices are added later, and the end by the view."""
        last_progress_at: dt.datetime | None = None
        progress_s = max(self.last_step_boottime_s or 0.0, self.collective_boottime_s or 0.0)
        if progress_s > 0.0:
            last_progress_at = utc_from_boottime(progress_s)
        usage = self.usage if self.alive else None
        phase, phase_s = self._phase() if self.alive else (None, None)
        collectives = self.reported.collectives
        return RankSample(
            rank=self.rank,
            local_rank=self.local_rank,
            host=procs.host_name(),
            pid=self.pid,
            state=self.state(probe),
            step=self.steps,
            step_source=None if self.steps is None else "probe",
            steps_per_s=self.steps_per_s if self.alive else None,
            cpu_percent=None if usage is None else usage.cpu_percent,
            rss_bytes=None if usage is None else usage.rss_bytes,
            children_rss_bytes=None if usage is None else usage.children_rss_bytes,
            last_progress_at=last_progress_at,
            has_probe=self.has_reported if probe else None,
            state_reason=self.silent_because if self.alive else None,
            phase=phase,
            phase_since=None if phase_s is None else utc_from_boottime(phase_s),
            stands_at=self.reported.stands_at if self.alive else None,
            quiet_since=last_progress_at if self.alive and self.quiet else None,
            collectives=_completed(collectives) if collectives else None,
            collectives_enqueued=self.entered,
            gpu_mem_peak_bytes=self.gpu_mem_peak_bytes,
            rank_source=self.rank_source,
            **rank_view.shown(self.reported),
        )


def _completed(collectives: dict[str, list[int]]) -> int:
    return sum(counts[1] for counts in collectives.values())


class OwnRanks:
    """The ranks of the current attempt as started by the agent; iterates in order of rank.

    Attributes:
        launcher: for a job that is a command, what started its ranks; otherwise, None. Its end is
            the attempt's end.
        new: newly discovered ranks; the caller takes them and clears the list.
    """

    def __init__(
        self,
        count: int,
        started_boottime_s: float,
        first_rank: int = 0,
        job: Callable[[], JobState] = JobState,
    ) -> None:
        self._started_s = started_boottime_s
        self._job = job
        self._records = {
            first_rank + local: RankRecord(first_rank + local, local, started_boottime_s, job)
            for local in range(count)
        }
        self._rank_of_pid: dict[int, int] = {}
        self.launcher: RankRecord | None = None
        self.new: list[RankRecord] = []

    @property
    def world_size(self) -> int | None:
        """The number of ranks; None if unknown."""
        return len(self._records)

    @property
    def was_restarted(self) -> bool:
        """Whether its ranks replaced others within the attempt."""
        return False

    def __iter__(self) -> Iterator[RankRecord]:
        return iter(self._records.values())

    def __getitem__(self, rank: int) -> RankRecord:
        return self._records[rank]

    def get(self, rank: int) -> RankRecord | None:
        """The record of a rank or of `LAUNCHER`; None without one."""
        return self.launcher if rank == LAUNCHER else self._records.get(rank)

    def started(self, rank: int, local_rank: int, pid: int) -> RankRecord:
        """Record that the process of a rank or of `LAUNCHER` has started."""
        record = self.get(rank)
        if record is None:
            record = self._records[rank] = RankRecord(rank, local_rank, 0.0, self._job)
        record.local_rank = local_rank
        record.process = procs.identify(pid)
        if record is not self.launcher:
            self._rank_of_pid[pid] = rank
        return record

    def restore(self, sample: RankSample, pid: int) -> None:
        """Restore a rank that was started under an earlier supervisor."""
        record = self.started(sample.rank, sample.local_rank, pid)
        record.restore(sample, pid)

    def of_pid(self, pid: int) -> RankRecord | None:
        """The launcher if the process is that, else the rank with that process."""
        is_launcher = self.launcher is not None and self.launcher.pid == pid
        return self.launcher if is_launcher else self.rank_of_pid(pid)

    def rank_of_pid(self, pid: int) -> RankRecord | None:
        """The rank with that process, which may also be the launcher."""
        rank = self._rank_of_pid.get(pid)
        return None if rank is None else self._records[rank]

    def receive(self, message: ProbeMessage, attempt: int | None) -> RankRecord | None:
        """Pass a probe's message to its rank; None for another attempt or an unknown process.

        A process that a rank started may report for it by its number.
        """
        record = self.of_pid(message.pid)
        if record is None:
            if message.attempt != attempt or message.rank is None:
                return None
            record = self._records.get(message.rank)
        if record is None or (record.life.exited and message.attempt != attempt):
            return None
        record.receive(message)
        return record

    def everyone(self) -> list[RankRecord]:
        """The launcher, if any, and the ranks."""
        return [*self, *filter(None, [self.launcher])]

    def ranks_alive(self) -> list[RankRecord]:
        """Ranks that have started and are not known to have ended."""
        return [record for record in self if record.alive]

    def alive(self) -> list[RankRecord]:
        """Those of the attempt's processes (its ranks, or its launcher) not known to have ended."""
        processes = self if self.launcher is None else [self.launcher]
        return [record for record in processes if record.alive]

    def progress(self, now_s: float) -> list[RankProgress]:
        """All ranks' progress, for the hang verdict."""
        return [record.progress(now_s) for record in self]

    def note_quiet(self, looked: HangReport) -> None:
        """Store the hang watch's findings for the state of each rank."""
        for record in self:
            record.quiet = record.rank in looked.quiet
            record.silent_because = looked.notes.get(record.rank)

    def note_peaks(self, samples: Iterable[RankSample]) -> None:
        """Store each rank's highest observed device memory."""
        for sample in samples:
            record, used = self._records.get(sample.rank), sample.gpu_mem_used_bytes
            if record is not None and used is not None:
                record.gpu_mem_peak_bytes = max(record.gpu_mem_peak_bytes or 0, used)

    def steps_at_exit(self, record: RankRecord) -> int | None:
        """How many steps a rank had done when it exited.

        Ranks report four times a second, so the last steps of one that was killed may be known
        only from those that it trained with.
        """
        most, own = self.most_steps(), record.steps
        if own is None or most is None:
            return own
        unreported = REPORTED_EVERY_S * (record.steps_per_s or 0.0) + 1
        return most if most - own <= unreported else own

    def most_steps(self) -> int | None:
        """The most steps of any rank; None before any probe has reported."""
        return max((record.steps or 0 for record in self if record.has_reported), default=None)

    def forget_loss_range(self) -> None:
        """Reset smallest and largest losses, which cover the time since the previous snapshot."""
        for record in self:
            record.forget_loss_range()


class DiscoveredRanks(msgspec.Struct, kw_only=True):
    """What a command's ranks report about their numbers."""

    numbered: set[int] = set()
    """Pids of ranks that do not know their rank."""
    reported_size: int | None = None
    """The world size that the ranks report."""
    former_steps: int | None = None
    """The most steps of any process that is no longer a rank."""


# -- ranks of a command ----------------------------------------------------------------------------


PATIENCE_S = 15.0
"""A rank with a probe first reports within this time; until then, its output does not count."""
ASSUMED = "single"
"""`rank_source` of a command's process that counts as rank 0 because its output shows training."""


class CommandRanks(OwnRanks):
    """A command's launcher and each rank that its probe reports."""

    def __init__(self, started_boottime_s: float, job: Callable[[], JobState] = JobState) -> None:
        super().__init__(0, started_boottime_s, job=job)
        self.launcher = RankRecord(LAUNCHER, 0, started_boottime_s, job)
        self.discovered = DiscoveredRanks()

    @property
    def was_restarted(self) -> bool:
        """Whether the launcher has restarted its ranks by itself."""
        return bool(self.discovered.former_steps)

    def __iter__(self) -> Iterator[RankRecord]:
        return iter([self._records[rank] for rank in sorted(self._records)])

    @property
    def world_size(self) -> int | None:
        """The reported world size, or the number of unnumbered ranks; None before the first."""
        return self.discovered.reported_size or len(self.discovered.numbered) or None

    def receive(self, message: ProbeMessage, attempt: int | None) -> RankRecord | None:
        """Pass a probe's message to its rank, which the message may be the first to reveal."""
        if message.attempt != attempt:
            return None
        record = self.rank_of_pid(message.pid)
        if (
            record is None
            or record.rank_source == ASSUMED
            or message.rank not in (None, record.rank)
        ):
            record = self._discover(message)
        if record is None:
            return None
        record.receive(message)
        if message.rank == record.rank:
            record.rank_source = "probe"
            self.discovered.numbered.discard(message.pid)
        if message.rank is not None and message.world_size:
            self.discovered.reported_size = message.world_size
            self._forget_dead_above(message.world_size)
        return record

    def recall(self, discovered: DiscoveredRanks) -> None:
        """Restore `discovered` of an earlier supervisor, once the records are restored."""
        numbered = discovered.numbered.intersection(self._rank_of_pid)
        self.discovered = replace(discovered, numbered=numbered)

    def most_steps(self) -> int | None:
        """The most steps of any rank, including ranks that the launcher has replaced."""
        known = (super().most_steps(), self.discovered.former_steps)
        return max((steps for steps in known if steps is not None), default=None)

    def assume_rank(self) -> None:
        """Let the command's process be rank 0, until a probe reports."""
        if not self._records and self.launcher is not None and self.launcher.pid is not None:
            self._add(0, self.launcher.pid, 0, ASSUMED)

    def _discover(self, message: ProbeMessage) -> RankRecord | None:
        """The rank that a process is or reports for; None if it belongs to no rank."""
        for record in [one for one in self if one.rank_source == ASSUMED]:
            self._leave(record.pid or 0)
        living = [one for one in self if not one.life.exited and procs.is_alive(one.process)]
        if message.rank is None or message.rank < 0:
            return self._number(message, living)
        holder = next((one for one in living if one.rank == message.rank), None)
        if holder is not None and holder.pid not in self.discovered.numbered:
            if tree.descends_from(message.pid, holder.pid or 0):
                return None if holder.steps else holder
            if not tree.descends_from(holder.pid or 0, message.pid):
                return None
        return self._replace(message, message.rank)

    def _number(self, message: ProbeMessage, living: Sequence[RankRecord]) -> RankRecord | None:
        """The same for a process that does not know its rank."""
        for one in living:
            if tree.descends_from(message.pid, one.pid or 0):
                return None if one.steps else one
        if any(one.pid not in self.discovered.numbered for one in living):
            return None
        taken = {one.rank for one in living}
        rank = next(number for number in range(len(taken) + 1) if number not in taken)
        record = self._replace(message, rank)
        record.local_rank = rank
        self.discovered.numbered.add(message.pid)
        return record

    def _replace(self, message: ProbeMessage, rank: int) -> RankRecord:
        """Make a process this rank, in place of any other."""
        self._leave(message.pid)
        local = rank if message.local_rank is None else message.local_rank
        return self._add(rank, message.pid, local, "probe")

    def _add(self, rank: int, pid: int, local_rank: int, source: str) -> RankRecord:
        record = RankRecord(rank, local_rank, self._started_s, self._job)
        record.process = procs.identify(pid)
        record.started_boottime_s = max(self._started_s, _started_s(record.process))
        record.rank_source = source
        before = self._records.get(rank)
        if before is not None and before.pid is not None:
            self._leave(before.pid)
        self._records[rank] = record
        self._rank_of_pid[pid] = rank
        self.new.append(record)
        return record

    def _forget_dead_above(self, size: int) -> None:
        """Forget dead ranks that a launcher leaves behind when it restarts with fewer ranks."""
        for record in [one for one in self if one.rank >= size and one.life.exited]:
            if record.pid is not None:
                self._leave(record.pid)

    def _leave(self, pid: int) -> None:
        found = self.discovered
        found.numbered.discard(pid)
        rank = self._rank_of_pid.pop(pid, None)
        record = None if rank is None else self._records.pop(rank, None)
        if record is not None and record.has_reported:
            found.former_steps = max(found.former_steps or 0, record.steps or 0)


def table_of(
    spec: JobSpec, started_boottime_s: float, job: Callable[[], JobState] = JobState
) -> OwnRanks:
    """An empty table for a new attempt of this node."""
    if spec.is_command:
        return CommandRanks(started_boottime_s, job)
    first_rank = job().first_rank
    if spec.membership is not None and spec.membership.rendezvous and job().world is None:
        first_rank = spec.membership.rendezvous.first_rank
    return OwnRanks(spec.nproc, started_boottime_s, first_rank, job)


def _started_s(process: ProcessId) -> float:
    """CLOCK_BOOTTIME of a process's start; 0 if unknown."""
    return (process.start_ticks or 0) / procs.TICKS_PER_S
