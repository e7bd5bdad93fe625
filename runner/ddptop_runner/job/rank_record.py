"""One rank of the current attempt: all that is known of it, folded from every source."""

from __future__ import annotations

import datetime as dt
import signal
from dataclasses import dataclass, field

from msgspec.structs import replace

from ddptop_runner.base.clock import boottime_s, utc_from_boottime, utc_now
from ddptop_runner.base.exit_status import split_status
from ddptop_runner.host import procs
from ddptop_runner.host.tree import RankUsage
from ddptop_runner.judge.hangs.verdict import WARM_COLLECTIVES, RankProgress
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import ProcessId, RankSample
from ddptop_runner.model.words import Phase, RankState
from ddptop_runner.reading.progress import rank_view

RATE_WINDOW_S = 10.0
"""Steps per second are counted over about this time."""
MAX_RATE_MARKS = 1000
SAVE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
STACK_SIGNALS = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
"""What a rank may ask to be sent; any other signal could end it."""


@dataclass
class RankRecord:
    """All that is known of one rank of the current attempt."""

    rank: int
    local_rank: int
    started_boottime_s: float
    process: ProcessId | None = None
    reported: ProbeMessage = rank_view.NOTHING
    """What its probe reports, merged over its messages."""
    heard: bool = False
    heard_boottime_s: float | None = None
    steps: int | None = None
    last_step_boottime_s: float | None = None
    began: int | None = 0
    """The step of the run at which its attempt began; None where that is not known."""
    usage: RankUsage | None = None
    exit: RankExit | None = None
    hung: bool = False
    quiet: bool = False
    """Takes longer than usual for its next progress, as the hang watch says."""
    silent_because: str | None = None
    """Why it is silent and well, in words."""
    collective_boottime_s: float | None = None
    """When a collective was last seen to have completed."""
    gpu_mem_peak_bytes: int | None = None
    leaving: bool = False
    """Whether its probe has said that the process is about to end."""
    ends_since_s: float | None = None
    """CLOCK_BOOTTIME at which it said so; None once anything else is heard after that."""
    rank_source: str | None = None
    """What its number was read from; None where ddptop numbered it."""
    _rate_marks: list[tuple[float, int]] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        """The rank's process id, once it is started."""
        return None if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it was started and its end has not been reported."""
        return self.process is not None and self.exit is None

    @property
    def entered(self) -> int | None:
        """Collectives that it has entered; None where that is not reported."""
        entered = [counts[0] for counts in self.reported.collectives.values()]
        return sum(entered) if entered else None

    def steps_per_s(self, now_s: float) -> float | None:
        """Over the last ten seconds or so; 0 for a quiet rank; None with fewer than two marks."""
        if len(self._rate_marks) < 2:
            return None
        if self.quiet:
            return 0.0
        (first_s, first), (last_s, last) = self._rate_marks[0], self._rate_marks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def restore(self, sample: RankSample, pid: int) -> None:
        """Go on from what a supervisor that died had last written of this rank."""
        self.process = procs.identify(pid)
        self.heard = bool(sample.has_probe)
        counted = sample.step_source != "log"  # what was printed is read again, and proves no life
        if counted:
            self.steps = sample.step
        self.reported = rank_view.restored(sample)
        self.gpu_mem_peak_bytes = sample.gpu_mem_peak_bytes
        self.rank_source = sample.rank_source
        if counted and sample.last_progress_at is not None:
            age_s = max(0.0, (utc_now() - sample.last_progress_at).total_seconds())
            self.last_step_boottime_s = boottime_s() - age_s

    def hear(self, message: ProbeMessage) -> None:
        """Fold in one message of the rank's probe."""
        self.heard = True
        self.heard_boottime_s = message.t
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
        """Smallest and largest loss are since the previous snapshot."""
        self.reported = replace(self.reported, loss_min=None, loss_max=None)

    def _count(self, message: ProbeMessage) -> None:
        steps, at_s = message.steps, message.last_step_t
        if steps is None or at_s is None:
            return
        # also without a new step: a gradient scaler may refuse many in a row
        self.last_step_boottime_s = max(self.last_step_boottime_s or 0.0, at_s)
        if self.steps is None or steps > self.steps:
            self._rate_marks.append((at_s, steps))
            while len(self._rate_marks) > 2 and (
                self._rate_marks[1][0] < at_s - RATE_WINDOW_S
                or len(self._rate_marks) > MAX_RATE_MARKS
            ):
                del self._rate_marks[0]
        self.steps = steps

    def since_progress_s(self, now_s: float) -> float:
        """Seconds since the last step, or since the attempt started."""
        return now_s - max(self.started_boottime_s, self.last_step_boottime_s or 0.0)

    def progress(self, now_s: float) -> RankProgress:
        """What the hang watch looks at."""
        usage, reported = self.usage, self.reported
        (phase, began_s), heard_s = self._phase(), self.heard_boottime_s
        return RankProgress(
            rank=self.rank,
            alive=self.alive,
            paused=usage is not None and usage.state_letter in "Tt",
            steps=(self.steps or 0) if self.heard else None,
            since_progress_s=self.since_progress_s(now_s),
            phase=phase,
            phase_s=0.0 if began_s is None else max(0.0, now_s - began_s),
            enqueued={group: counts[0] for group, counts in reported.collectives.items()},
            completed={group: counts[1] for group, counts in reported.collectives.items()},
            batches=reported.batches,
            cpu_s=None if usage is None else usage.cpu_s,
            written_bytes=None if usage is None else usage.written_bytes,
            loader=None if usage is None else usage.loader,
            unheard_s=None if heard_s is None else max(0.0, now_s - heard_s),
            exited_with=None if self.exit is None else self.exit.returncode,
            stands_at=reported.stands_at,
        )

    def _phase(self) -> tuple[Phase | None, float | None]:
        """What it does, and since when: after its probe's last word it ends."""
        if self.ends_since_s is not None:
            return "end", self.ends_since_s
        return self.reported.phase, self.reported.phase_t

    def state(self, now_s: float, probe: bool) -> RankState:
        """The rank's state in a word."""
        if self.exit is not None:
            if self.exit.ended_by_us:
                return "stopped"
            return "failed" if self.exit.failed else "exited"
        if self.process is None:
            return "starting"
        if self.usage is not None and self.usage.state_letter in "Tt":
            return "paused"
        if self.hung:
            return "hung"
        if probe and not self.steps and _completed(self.reported.collectives) < WARM_COLLECTIVES:
            return "starting"
        if self.quiet:
            return "quiet"
        return "running"

    def sample(self, now_s: float, probe: bool) -> RankSample:
        """The record as the contract has it; devices are joined in later."""
        exit_code, signal = None, None
        if self.exit is not None and self.exit.returncode is not None:
            exit_code, signal = split_status(self.exit.returncode)
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
            state=self.state(now_s, probe),
            step=self.steps,
            step_source=None if self.steps is None else "probe",
            steps_per_s=self.steps_per_s(now_s) if self.alive else None,
            cpu_percent=None if usage is None else usage.cpu_percent,
            rss_bytes=None if usage is None else usage.rss_bytes,
            last_progress_at=last_progress_at,
            exit_code=exit_code,
            signal=signal,
            has_probe=self.heard if probe else None,
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
