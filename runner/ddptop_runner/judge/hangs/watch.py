"""Keeps the state of the hang verdict between samples, across attempts and supervisors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from ddptop_runner.base.units import duration_in_words, is_or_are, name_ranks
from ddptop_runner.judge.hangs.verdict import (
    DOING,
    FLOORS_S,
    SPENT,
    UNEXPLAINED,
    Culprits,
    HangReport,
    HangVerdict,
    Judgment,
    Limits,
    RankProgress,
    SeenPause,
    Standing,
    awaited,
    begins_after_s,
    is_warm,
    judge,
    pause_state,
    reason,
)
from ddptop_runner.model.words import Phase

LONGEST_GAP_S = 3.0
"""The most time that one update adds: what happened during a longer gap (a stopped supervisor, a
suspended machine) is unknown."""

FIRST_REPORT_S = 10.0
"""Every probe reports to a restarted supervisor within this time; until then, what its rank is
doing is unknown."""
ALL_OVERDUE_S = 20.0
"""After this long without a message from any probe, the socket may be gone."""
UNKNOWN_AFTER_S = 30.0
"""A rank that has not reported for this long since its start gets a note."""
NOTED_AFTER_S = 2.0
"""A note on anything shorter would only flicker."""

NO_REPORTS = "no reports from the probe: progress unknown"
REPORTS_STOPPED = "the probe stopped reporting: progress unknown"


class HangWatch:
    """Checks a group's progress once per second.

    Args:
        timeout_s: allowed time without progress; None without `auto` turns the watch off.
        auto: learn the allowed time from the run.
    """

    def __init__(self, timeout_s: float | None, *, auto: bool = False) -> None:
        self._auto = auto and timeout_s is None
        self._limits = Limits(timeout_s)
        self._clock_s = 0.0
        self._updated_s: float | None = None
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Start over for a new attempt, keeping what was learned."""
        self._ranks: dict[int, RankHistory] = {}
        self._stalled = False
        self._acted = False
        self._before: Judgment | None = None
        self.stepless_s = 0.0
        """Time since any rank took a step."""

    def forget(self, rank: int) -> None:
        """Drop what is known about a rank, which is now a different process."""
        self._ranks.pop(rank, None)

    def update(
        self, ranks: Sequence[RankProgress], now_s: float, *, hung: bool = False
    ) -> HangReport:
        """Check the present state of the ranks.

        Args:
            ranks: all ranks of the attempt.
            now_s: CLOCK_BOOTTIME.
            hung: whether a verdict has already been acted on.
        """
        real_s = 0.0 if self._updated_s is None else max(0.0, now_s - self._updated_s)
        passed_s = min(real_s, LONGEST_GAP_S)
        self._updated_s = now_s
        self._clock_s += passed_s
        alive = [rank for rank in ranks if rank.alive]
        paused = tuple(rank.rank for rank in alive if rank.paused)
        known = [
            rank
            for rank in alive
            if rank.known and (rank.unheard_s is not None or self._clock_s > FIRST_REPORT_S)
        ]
        ended = [rank for rank in ranks if not rank.alive]
        self._follow(known, ended, passed_s, now_s, gap=real_s > LONGEST_GAP_S)
        if paused:
            self._restart_clocks()
        standings = [self._ranks[rank.rank].standing(rank, self._clock_s) for rank in known]
        notes = {
            rank.rank: NO_REPORTS
            for rank in alive
            if self.is_on and rank.steps is None and rank.since_progress_s >= UNKNOWN_AFTER_S
        }
        if not standings:
            return HangReport(notes=notes)
        judgment = judge(standings, ended, self._limits)
        self._learn(judgment)
        self.stepless_s = min(standing.stepless_s for standing in standings)
        quiet = {} if paused else self._quiet(standings, judgment)
        notes |= self._notes(standings, judgment, paused, quiet)
        if paused or len(known) < len(alive):
            why = f"{name_ranks(paused)} {is_or_are(paused)} paused" if paused else None
            return HangReport(quiet=quiet, pause=self._plain_pause(standings, why), notes=notes)
        reporting = [standing for standing in standings if standing.doing != "end"]
        overdue = all((one.rank.unheard_s or 0.0) > ALL_OVERDUE_S for one in reporting)
        if reporting and overdue and not all(one.is_still for one in reporting):
            self._restart_clocks()  # what happened meanwhile is unknown
            notes |= {one.rank.rank: REPORTS_STOPPED for one in reporting}
            return HangReport(pause=self._plain_pause(standings, REPORTS_STOPPED), notes=notes)
        pause = self._pause(standings, judgment, hung=hung)
        stalled = self.is_on and pause is not None and pause.state == "stalled"
        return HangReport(
            quiet=quiet,
            suspicion=judgment.verdict() if stalled else None,
            verdict=self._verdict(judgment),
            pause=pause,
            notes=notes,
        )

    @property
    def is_on(self) -> bool:
        """Whether there can be a verdict."""
        return self._auto or self._limits.timeout_s is not None

    # -- observations ----------------------------------------------------------------------------

    def _follow(
        self,
        ranks: list[RankProgress],
        ended: list[RankProgress],
        passed_s: float,
        boottime_s: float,
        *,
        gap: bool,
    ) -> None:
        everyone = (*ranks, *ended)
        warm = is_warm(everyone, first_step=not self._auto)
        only_collectives = warm and not any(rank.steps for rank in everyone)
        waiting = held_up(everyone)
        for rank in ranks:
            history = self._ranks.get(rank.rank)
            if history is None:
                history = self._ranks[rank.rank] = RankHistory(self._clock_s)
            step_time_s = history.advance(rank, self._clock_s, passed_s, boottime_s)
            if step_time_s is not None and not gap:
                self._limits.saw_step(step_time_s)
            doing = what_it_does(
                rank, waits=rank.rank in waiting, warm=warm, only_collectives=only_collectives
            )
            history.use_cpu(rank, self._clock_s, gap=gap)
            history.note_signs(rank, doing, self._clock_s, passed_s)

    def _restart_clocks(self) -> None:
        """Discard waiting times, after a rank was stopped by a user or did not report."""
        for history in self._ranks.values():
            history.progress_s = history.sign_s = self._clock_s
        self._before = None

    def _learn(self, judgment: Judgment) -> None:
        before, self._before = self._before, judgment
        if before is not None and judgment.idle_s < before.idle_s:
            self._limits.saw_pause(before.decides.doing, before.idle_s)
        if before is None or judgment.silent_s < before.silent_s:  # there was progress
            self._stalled = self._acted = False

    @property
    def _begins_after_s(self) -> float:
        return begins_after_s(self._limits.usual_step_s)

    # -- findings ----------------------------------------------------------------------------

    def _quiet(self, standings: list[Standing], judgment: Judgment) -> dict[int, float]:
        """Ranks that are silent for longer than usual without an explanation."""
        if self._limits.usual_step_s is None:
            return {}
        culprits = judgment.culprits
        return {
            one.rank.rank: one.silent_s
            for one in standings
            if one.doing in UNEXPLAINED
            and one.silent_s >= self._begins_after_s
            and not (one.doing == "collective" and _waits_for_named(one, culprits))
        }

    def _notes(
        self,
        standings: list[Standing],
        judgment: Judgment,
        paused: tuple[int, ...],
        quiet: dict[int, float],
    ) -> dict[int, str]:
        found = {}
        for standing in standings:
            rank = standing.rank
            if rank.paused:
                found[rank.rank] = "paused by a signal"
            elif rank.rank in quiet:
                usual = f" (usually {self._limits.usual_step_s:.2g} s)"
                at = "" if rank.stands_at is None else f"; last seen at {rank.stands_at}"
                quiet_for = duration_in_words(standing.silent_s)
                found[rank.rank] = f"{quiet_for} without a step{usual}{at}"
            elif note := _note(standing, judgment.culprits, paused):
                found[rank.rank] = note
        return found

    def _plain_pause(self, standings: list[Standing], why: str | None) -> SeenPause | None:
        """A pause about which only its duration is known."""
        begun = any(standing.rank.steps for standing in standings)
        if not begun or self.stepless_s < self._begins_after_s:
            return None
        return SeenPause("no_step", self.stepless_s, why)

    def _pause(
        self, standings: list[Standing], judgment: Judgment, *, hung: bool
    ) -> SeenPause | None:
        decides = judgment.decides
        has_stepped = any(standing.rank.steps for standing in standings)
        only_collectives = decides.doing in UNEXPLAINED and is_warm(
            [standing.rank for standing in standings], first_step=True
        )
        self._stalled = self._stalled or (self.is_on and judgment.used > SPENT)
        found = pause_state(
            self.stepless_s,
            self._limits.usual_step_s,
            stalled=self._stalled,
            hung=hung,
            begun=has_stepped or only_collectives,
        )
        if found is None:
            return None
        unexplained = decides.doing in UNEXPLAINED and judgment.silent_s >= self._begins_after_s
        nears = self.is_on and not hung and (unexplained or found == "stalled")
        left_s = judgment.allowed_s - judgment.idle_s if nears else None
        ranks = awaited(judgment, standings)
        return SeenPause(found, self.stepless_s, reason(judgment, standings), ranks, left_s)

    def _verdict(self, judgment: Judgment) -> HangVerdict | None:
        if not self.is_on or judgment.used <= 1.0:
            return None
        if self._auto and not self._acted:
            self._acted = True
            self._limits.acted()
        return judgment.verdict()

    # -- across supervisors ------------------------------------------------------------------------

    def remember(self) -> Limits:
        """What a restarted supervisor restores; what its ranks did meanwhile is unknown."""
        return self._limits

    def recall(self, limits: Limits) -> None:
        """Restore the result of `remember`."""
        self._limits = msgspec.structs.replace(limits, timeout_s=self._limits.timeout_s)


def _waits_for_named(standing: Standing, culprits: Culprits) -> bool:
    """Whether it is not among the ranks that the others are known to wait for."""
    return culprits.named and standing.rank.rank not in culprits.ranks


def _note(standing: Standing, culprits: Culprits, paused: tuple[int, ...]) -> str | None:
    """Why a rank is silent but healthy; None if that is unexplained or it is not silent."""
    rank = standing.rank
    if standing.doing == "collective":
        if paused:
            return f"waiting in a collective while {name_ranks(paused)} {is_or_are(paused)} paused"
        whom = f" for {name_ranks(culprits.ranks)}" if _waits_for_named(standing, culprits) else ""
        what, since_s = f"waiting{whom} in a collective", standing.silent_s
    elif rank.phase == standing.doing in DOING and rank.phase != "start":
        what, since_s = DOING[standing.doing], rank.phase_s
    else:
        return None
    return f"{what} for {duration_in_words(since_s)}" if since_s >= NOTED_AFTER_S else None


# -- one rank -------------------------------------------------------------------------------------

BUSY_SHARE = 0.05
"""Fraction of a core. A rank that only waits uses a tenth of this, including its probe."""
STILL_SHARE = 0.002
"""Fraction of a core. A rank with a probe that trains or sleeps uses more."""
STILL_S = 60.0
"""How long ranks that do not report must use no CPU before they may be hung."""
CPU_WINDOW_S = 10.0
CPU_SPAN_S = 3.0
"""Minimum time over which CPU use is measured."""
WRITTEN_BYTES = 64 * 1024
"""Fewer bytes are just log lines."""
STAMP_SLACK_S = 0.05
"""Tolerance, for clocks and rounding, in the time of the same step."""

RECOGNIZED: frozenset[Phase] = frozenset({"compile", "evaluation", "checkpoint", "data", "end"})
"""Phases that explain a time without steps."""


def held_up(ranks: Sequence[RankProgress]) -> frozenset[int]:
    """Ranks in an incomplete collective that other ranks have not entered.

    A collective that all have entered does not count: it is running, or its end is not yet
    recorded.

    Args:
        ranks: both alive and ended.
    """
    fewest: dict[str, int] = {}
    for rank in ranks:
        for group, count in rank.enqueued.items():
            fewest[group] = min(count, fewest.get(group, count))
    return frozenset(
        rank.rank
        for rank in ranks
        if rank.alive
        and any(
            count > max(fewest[group], rank.completed.get(group, count))
            for group, count in rank.enqueued.items()
        )
    )


def what_it_does(rank: RankProgress, *, waits: bool, warm: bool, only_collectives: bool) -> Phase:
    """The effective phase of a rank: as recognized by the probe, or else inferred.

    Args:
        rank: at this moment.
        waits: whether it is in `held_up`.
        warm: whether the group has started up.
        only_collectives: whether the group runs collectives but takes no steps.
    """
    if rank.phase in RECOGNIZED and rank.phase is not None:
        return rank.phase
    if rank.phase == "collective" or waits:
        return "collective"
    if rank.phase == "start" and not only_collectives:
        return "start"
    return "steps" if warm else "start"


class RankHistory:
    """One rank's state over an attempt. Times are on the watch's own clock."""

    def __init__(self, now_s: float) -> None:
        self.progress_s = self.sign_s = self.step_s = now_s
        self.doing: Phase | None = None
        self._has_stepped = False
        self._steps: int | None = None
        self._stamp_s: float | None = None
        self._completed: dict[str, int] = {}
        self._batches: int | None = None
        self._written: int | None = None
        """At its last sign of life."""
        self._phase: Phase | None = None
        self._cpu: deque[tuple[float, float]] = deque()
        self._cpu_when_overdue: tuple[float, float] | None = None
        """(clock, CPU time) when its reports became overdue."""

    def advance(
        self, rank: RankProgress, now_s: float, passed_s: float, boottime_s: float
    ) -> float | None:
        """Record progress.

        Args:
            rank: at this moment.
            now_s: the watch's clock.
            passed_s: time since the last update, on that clock.
            boottime_s: CLOCK_BOOTTIME.

        Returns:
            Seconds per step; None without one, and for the first.
        """
        stamp_s = boottime_s - rank.since_progress_s
        stepped = max(0, (rank.steps or 0) - (self._steps or 0))
        # also without a new step: a gradient scaler may refuse it
        moved = bool(rank.steps) and (
            self._stamp_s is not None and stamp_s > self._stamp_s + STAMP_SLACK_S
        )
        collected = any(
            count > self._completed.get(group, 0) for group, count in rank.completed.items()
        )
        self._steps = self._steps if rank.steps is None else rank.steps
        self._stamp_s = stamp_s
        self._completed = {**self._completed, **rank.completed}
        if not (stepped or moved or collected):
            return None
        has_stamp = stepped > 0 or moved
        since_s = rank.since_progress_s if has_stamp else rank.unheard_s or 0.0
        at_s = max(self.progress_s, now_s - max(0.0, min(since_s, passed_s)))
        self.progress_s = at_s
        self.sign_s = max(self.sign_s, at_s)
        if not has_stamp and rank.steps:
            return None
        step_time_s = (at_s - self.step_s) / stepped if stepped and self._has_stepped else None
        self._has_stepped = self._has_stepped or stepped > 0
        self.step_s = at_s
        return step_time_s

    def note_signs(self, rank: RankProgress, doing: Phase, now_s: float, passed_s: float) -> None:
        """Record activity that fits what the rank is doing.

        Args:
            rank: at this moment.
            doing: its effective phase.
            now_s: the watch's clock.
            passed_s: time since the last update, on that clock.
        """
        changed = rank.phase != self._phase and (
            rank.phase in RECOGNIZED or self._phase in RECOGNIZED
        )
        took = (
            rank.batches is not None and self._batches is not None and rank.batches > self._batches
        )
        if changed or took:  # before the probe's last message
            self.sign_s = max(self.sign_s, now_s - min(rank.unheard_s or 0.0, passed_s))
        if doing in FLOORS_S and (self._is_busy(rank, now_s) or self._has_written(rank)):
            self.sign_s = now_s
        self.doing = doing
        self._phase = rank.phase
        self._batches = rank.batches if rank.batches is not None else self._batches

    def _has_written(self, rank: RankProgress) -> bool:
        if rank.written_bytes is None:
            return False
        before = self._written
        if before is not None and 0 <= rank.written_bytes - before < WRITTEN_BYTES:
            return False
        self._written = rank.written_bytes
        return before is not None and rank.written_bytes > before

    def use_cpu(self, rank: RankProgress, now_s: float, *, gap: bool) -> None:
        """Record the CPU time of the latest seconds, starting over after a gap."""
        if gap or rank.cpu_s is None or (self._cpu and rank.cpu_s < self._cpu[-1][1]):
            self._cpu.clear()
        since = self._cpu_when_overdue
        if rank.cpu_s is None or (rank.unheard_s or 0.0) <= ALL_OVERDUE_S:
            self._cpu_when_overdue = None
        elif since is None or rank.cpu_s < since[1]:  # a child has ended
            self._cpu_when_overdue = now_s, rank.cpu_s
        if rank.cpu_s is not None:
            self._cpu.append((now_s, rank.cpu_s))
        while len(self._cpu) > 2 and self._cpu[1][0] <= now_s - CPU_WINDOW_S:
            self._cpu.popleft()

    def _is_busy(self, rank: RankProgress, now_s: float) -> bool | None:
        """Whether the rank uses the CPU; None until measured for long enough."""
        if rank.cpu_s is None or not self._cpu or now_s - self._cpu[0][0] < CPU_SPAN_S:
            return None
        since_s, cpu_s = self._cpu[0]
        return (rank.cpu_s - cpu_s) / (now_s - since_s) >= BUSY_SHARE

    def _is_still(self, rank: RankProgress, now_s: float) -> bool:
        """Whether the rank has used almost no CPU since its reports became overdue."""
        if self._cpu_when_overdue is None or rank.cpu_s is None:
            return False
        since_s, cpu_s = self._cpu_when_overdue
        passed_s = now_s - since_s
        return passed_s >= STILL_S and rank.cpu_s - cpu_s <= STILL_SHARE * passed_s

    def standing(self, rank: RankProgress, now_s: float) -> Standing:
        """The rank's state as input to the verdict."""
        return Standing(
            rank,
            doing=self.doing or "start",
            silent_s=now_s - self.progress_s,
            idle_s=now_s - max(self.sign_s, self.progress_s),
            stepless_s=now_s - self.step_s,
            busy=self._is_busy(rank, now_s),
            is_still=self._is_still(rank, now_s),
        )
