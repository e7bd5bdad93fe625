"""One rank of the current attempt: all that is known of it, folded from every source."""

from __future__ import annotations

import datetime as dt
import signal
from dataclasses import dataclass, field
from typing import Any

from ddptop_runner.base.clock import boottime_s, utc_from_boottime, utc_now
from ddptop_runner.base.exit_status import split_status
from ddptop_runner.host import procs
from ddptop_runner.host.tree import RankUsage
from ddptop_runner.judge.hangs.types import WARM_COLLECTIVES, RankProgress
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import MAX_METRICS, ProbeMessage
from ddptop_runner.model.snapshot import ProcessId, RankSample
from ddptop_runner.model.words import (
    LossIs,
    LossSource,
    LossState,
    Phase,
    ProgressSource,
    RankState,
)
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
    heard: bool = False
    steps: int | None = None
    last_step_boottime_s: float | None = None
    loss: float | None = None
    loss_step: int | None = None
    loss_state: LossState | None = None
    loss_source: LossSource | None = None
    loss_bad_since: int | None = None
    loss_last_good: float | None = None
    loss_min: float | None = None
    loss_max: float | None = None
    step_time_s: float | None = None
    data_wait_s: float | None = None
    sync_s: float | None = None
    compute_s: float | None = None
    global_step: int | None = None
    began: int | None = 0
    """The step of the run at which its attempt began; None where that is not known."""
    total_steps: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    stack_signal: int | None = None
    usage: RankUsage | None = None
    exit: RankExit | None = None
    hung: bool = False
    quiet: bool = False
    """Takes longer than usual for its next progress, as the hang watch says."""
    silent_because: str | None = None
    """Why it is silent and well, in words."""
    phase: Phase | None = None
    phase_boottime_s: float | None = None
    stands_at: str | None = None
    batches: int | None = None
    collectives: dict[str, list[int]] = field(default_factory=dict)
    """By process group: [last enqueued, last completed]."""
    collective_boottime_s: float | None = None
    """When a collective was last seen to have completed."""
    heard_boottime_s: float | None = None
    save_signals: list[int] = field(default_factory=list)
    flight_record: str | None = None
    gpu_mem_peak_bytes: int | None = None
    leaving: bool = False
    """Whether its probe has said that the process is about to end."""
    ends_since_s: float | None = None
    """CLOCK_BOOTTIME at which it said so; None once anything else is heard after that."""
    loss_parts: int | None = None
    loss_is: LossIs | None = None
    losses: dict[str, float | None] = field(default_factory=dict)
    """By optimizer; empty where there is only one."""
    frameworks: list[str] = field(default_factory=list)
    replicas: int | None = None
    total_source: ProgressSource | None = None
    epoch: float | None = None
    epochs: int | None = None
    raised: str | None = None
    """The exception that ends its process, `Type: message`, by its probe's last words."""
    raised_at: str | None = None
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
        self._take(rank_view.of_sample(sample))
        if counted and sample.last_progress_at is not None:
            age_s = max(0.0, (utc_now() - sample.last_progress_at).total_seconds())
            self.last_step_boottime_s = boottime_s() - age_s

    def _take(self, changes: dict[str, Any]) -> None:
        for name, value in changes.items():
            setattr(self, name, value)

    def hear(self, message: ProbeMessage) -> None:
        """Fold in one message of the rank's probe."""
        self.heard = True
        self.heard_boottime_s = message.t
        self.leaving = self.leaving or message.final
        self.ends_since_s = message.t if message.final else None
        number = message.stack_signal
        self.stack_signal = number if number in STACK_SIGNALS else None
        if message.pid == self.pid:  # a child's handlers are not the rank's
            self.save_signals = [n for n in message.save_signals if n in SAVE_SIGNALS]
        self._take(rank_view.of_message(message))
        self.phase_boottime_s = message.phase_t
        if _completed(message.collectives) > _completed(self.collectives):
            self.collective_boottime_s = message.t
        if message.collectives:
            self.collectives = message.collectives
        if message.steps is not None:
            self._count(message)
        if message.optimizers:
            self.losses = {name: figures[-1] for name, figures in message.optimizers.items()}
        if message.final:
            self.raised, self.raised_at = message.raised, message.raised_at
        if message.loss_state is not None:
            lows = [x for x in (self.loss_min, message.loss_min) if x is not None]
            highs = [x for x in (self.loss_max, message.loss_max) if x is not None]
            self.loss_min, self.loss_max = min(lows, default=None), max(highs, default=None)
        for name, value in message.metrics.items():
            if name in self.metrics or len(self.metrics) < MAX_METRICS:
                self.metrics[name] = value

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
        usage, collectives = self.usage, self.collectives
        (phase, began_s), heard_s = self._phase(), self.heard_boottime_s
        return RankProgress(
            rank=self.rank,
            alive=self.alive,
            paused=usage is not None and usage.state_letter in "Tt",
            steps=(self.steps or 0) if self.heard else None,
            since_progress_s=self.since_progress_s(now_s),
            phase=phase,
            phase_s=0.0 if began_s is None else max(0.0, now_s - began_s),
            enqueued={group: counts[0] for group, counts in collectives.items()},
            completed={group: counts[1] for group, counts in collectives.items()},
            batches=self.batches,
            cpu_s=None if usage is None else usage.cpu_s,
            written_bytes=None if usage is None else usage.written_bytes,
            loader=None if usage is None else usage.loader,
            unheard_s=None if heard_s is None else max(0.0, now_s - heard_s),
            exited_with=None if self.exit is None else self.exit.returncode,
            stands_at=self.stands_at,
        )

    def _phase(self) -> tuple[Phase | None, float | None]:
        """What it does, and since when: after its probe's last word it ends."""
        if self.ends_since_s is not None:
            return "end", self.ends_since_s
        return self.phase, self.phase_boottime_s

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
        if probe and not self.steps and _completed(self.collectives) < WARM_COLLECTIVES:
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
            stands_at=self.stands_at if self.alive else None,
            quiet_since=last_progress_at if self.alive and self.quiet else None,
            collectives=_completed(self.collectives) if self.collectives else None,
            collectives_enqueued=sum(counts[0] for counts in self.collectives.values())
            if self.collectives
            else None,
            **{name: rank_view.copied(getattr(self, name)) for name in rank_view.SHOWN},
        )


def _completed(collectives: dict[str, list[int]]) -> int:
    return sum(counts[1] for counts in collectives.values())
