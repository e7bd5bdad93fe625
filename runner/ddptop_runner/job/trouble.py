"""Watches for trouble that ends an attempt with living ranks: hangs and bad losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from ddptop_runner.base.clock import utc_from_boottime
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.judge import losses
from ddptop_runner.judge.hangs.records import hang_cause
from ddptop_runner.judge.hangs.verdict import (
    HangReport,
    HangVerdict,
    Limits,
    RankProgress,
    SeenPause,
)
from ddptop_runner.judge.hangs.watch import HangWatch
from ddptop_runner.judge.losses import LossWatch
from ddptop_runner.judge.restarts import policy
from ddptop_runner.model import events as ev
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.diagnose import AttemptOutcome
from ddptop_runner.model.run_step import at_step
from ddptop_runner.model.snapshot import Cause, Checkpoint, Pause, RankSample
from ddptop_runner.model.spec import JobSpec


class TroubleWatch:
    """Checks all ranks of a job once a second.

    Args:
        spec: the job.
        log: holds the job's state, and receives suspicions.
        take: receives trouble as facts.
    """

    def __init__(self, spec: JobSpec, log: EventLog, take: Callable[[pt.Fact], None]) -> None:
        self._log = log
        self._take = take
        self._losses = LossWatch(spec.on_nan)
        self._is_suspected = False
        self._max_restarts = spec.max_restarts
        self.hangs = HangWatch(spec.hang_timeout_s, auto=spec.hang_auto)
        self.found: HangVerdict | RankSample | None = None
        """The trouble for which the attempt is ended while its ranks are alive."""
        self.pause: Pause | None = None
        """The current pause; None while there are steps."""

    def begin_attempt(self) -> None:
        """Clear everything except the pace of steps."""
        self.hangs.begin_attempt()
        self._losses.begin_attempt()
        self.found = self.pause = None
        self._is_suspected = False

    def recall(self, memory: Limits) -> None:
        """Restore the result of `hangs.remember`; the log has already restored the state."""
        self.hangs.recall(memory)
        self._is_suspected = self._log.state.suspected is not None

    def look(
        self,
        progress: Sequence[RankProgress],
        now_s: float,
        *,
        is_settled: bool = True,
        without_nodes_s: float | None = None,
    ) -> HangReport:
        """Detect a hang or a suspected one.

        Args:
            progress: all ranks' progress.
            now_s: CLOCK_BOOTTIME.
            is_settled: whether every rank has had time to report.
            without_nodes_s: allowed time without a step, if nodes of the attempt have been away for
                longer than that; None if none has.
        """
        job = self._log.state
        looked = self.hangs.update(progress, now_s, hung=job.phase == "hung")
        steps = max((rank.steps for rank in progress if rank.steps is not None), default=None)
        self._note_pause(looked.pause, now_s, steps)
        if job.phase not in ("starting", "running") or not is_settled:
            return looked
        verdict = looked.verdict
        if without_nodes_s is not None and self.hangs.stepless_s > without_nodes_s:
            verdict = verdict or _stuck(progress, self.hangs.stepless_s)
        if verdict is not None:
            self.found = verdict
            self._take(pt.TroubleFound(reason="hang", ranks=list(verdict.ranks)))
        elif looked.suspicion is not None and not self._is_suspected:
            self._log.emit(
                ev.HangSuspected(
                    attempt=job.attempt or 0,
                    found=looked.suspicion.message(),
                    reason=None if looked.pause is None else looked.pause.reason,
                    ranks=list(looked.suspicion.ranks),
                )
            )
        self._is_suspected = looked.suspicion is not None
        return looked

    def _note_pause(self, seen: SeenPause | None, now_s: float, steps: int | None) -> None:
        """Update the pause for viewers; its beginning stays fixed."""
        if seen is None or self._log.state.phase not in ("starting", "running", "hung"):
            self.pause = None
            return
        since = utc_from_boottime(now_s - seen.stepless_s)
        acts_at = None if seen.left_s is None else utc_from_boottime(now_s + seen.left_s)
        self.pause = Pause(
            state=seen.state,
            since=since if self.pause is None else self.pause.since,
            reason=seen.reason,
            ranks=list(seen.ranks),
            verdict_at=acts_at,
            verdict=None if seen.left_s is None else self._verdict(seen, seen.left_s, steps),
        )

    def _verdict(
        self, seen: SeenPause, left_s: float, steps: int | None
    ) -> Literal["restart", "failure"]:
        """What the restart policy would decide about a hang, from what is known before it."""
        state, lives_s = self._log.state, seen.stepless_s + left_s
        hang = AttemptOutcome(state.attempt or 0, lives_s, steps, None, None, None, hung=True)
        decision = policy.decide(state.history_with(hang), self._max_restarts, 0.0)
        return "restart" if decision.restart else "failure"

    def look_at_losses(self, ranks: Sequence[RankSample]) -> None:
        """Report a loss that has gone bad, if `--on-nan` requests it."""
        bad = self._losses.update(ranks)
        if bad is not None and self._log.state.phase == "running":
            self.found = bad
            self._take(pt.TroubleFound(reason="nan"))


def _stuck(progress: Sequence[RankProgress], stepless_s: float) -> HangVerdict:
    """The verdict on ranks that wait for nodes that are away."""
    ranks = tuple(rank.rank for rank in progress if rank.alive)
    return HangVerdict(ranks, f"no rank has taken a step for {stepless_s:.0f} s")


def cause_of(
    found: HangVerdict | RankSample, folder: str, last: Checkpoint | None, attempt: int
) -> Cause:
    """The cause, from the evidence.

    Args:
        found: the trouble.
        folder: contains the evidence.
        last: the job's last checkpoint.
        attempt: the attempt's number.
    """
    if isinstance(found, HangVerdict):
        return hang_cause(found, folder)
    cause = plain_cause(found)
    words = filter(None, [cause.summary, _doubt(found, last, attempt)])
    return replace(cause, summary=" ".join(words), evidence=folder)


def _doubt(bad: RankSample, last: Checkpoint | None, attempt: int) -> str:
    """A warning if the last checkpoint was saved after the loss went bad; otherwise, empty."""
    since = bad.loss_bad_since
    if last is None or last.attempt != attempt or last.step is None or since is None:
        return ""
    if last.step < since:
        return ""
    return f"{last.name}, saved{at_step(last)}, is newer than that step and may also be affected."


def plain_cause(found: HangVerdict | RankSample) -> Cause:
    """The cause according to the finding alone, before evidence is read."""
    if isinstance(found, HangVerdict):
        return Cause(kind="hang", summary=f"The job hung: {found.message()}.")
    return Cause(kind="nan", rank=found.rank, summary=losses.in_words(found))


def plain_outcome(
    found: HangVerdict | RankSample, attempt: int, lived_s: float, steps: int | None
) -> AttemptOutcome:
    """The outcome of an attempt that is ended because of it.

    Args:
        found: the trouble.
        attempt: the attempt's number.
        lived_s: how long the attempt lived.
        steps: the most that any rank took.
    """
    is_hang = isinstance(found, HangVerdict)
    return AttemptOutcome(attempt, lived_s, steps, None, None, None, is_hang, not is_hang)
