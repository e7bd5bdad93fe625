"""Keeps the state of the hang verdict between samples, across attempts and supervisors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from ddptop_runner.base.units import is_or_are, name_ranks
from ddptop_runner.host.tree import LoaderUsage
from ddptop_runner.judge.hangs.pause import (
    DEAF,
    Facts,
    awaited,
    begins_after_s,
    of_quiet,
    of_silent,
    of_unknown,
    pause_state,
    reason,
)
from ddptop_runner.judge.hangs.verdict import (
    FLOORS_S,
    INTERVALS_REMEMBERED,
    UNEXPLAINED,
    HangLook,
    HangVerdict,
    Judgment,
    Limits,
    RankProgress,
    SeenPause,
    Standing,
    Time,
    is_warm,
    judge,
)
from ddptop_runner.model.words import Phase

LONGEST_LOOK_S = 3.0
"""The most time that one look adds: what happened during a longer gap (a stopped supervisor, a
suspended machine) is unknown."""

FIRST_REPORT_S = 10.0
"""Every probe reports to a restarted supervisor within this time; until then, what its rank is
doing is unknown."""
ALL_OVERDUE_S = 20.0
"""After this long without a message from any probe, the socket may be gone."""

_NO_TRAINING: frozenset[Phase] = frozenset({"start", "compile", "evaluation", "checkpoint", "end"})
"""Time between steps that includes one of these is not typical."""


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
        self._looked_s: float | None = None
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Start over for a new attempt, keeping what was learned."""
        self._ranks: dict[int, Following] = {}
        self._stalled = False
        self._acted = False
        self._before: Judgment | None = None
        self._stepless_s = 0.0
        self._done_meanwhile: set[Phase] = set()
        """Phases since the last step."""
        self._was_paused = False
        """Whether a signal paused a rank since the last step."""

    def forget(self, rank: int) -> None:
        """Drop what is known about a rank, which is now a different process."""
        self._ranks.pop(rank, None)

    def look(self, ranks: Sequence[RankProgress], now_s: float, *, hung: bool = False) -> HangLook:
        """Check the present state of the ranks.

        Args:
            ranks: all ranks of the attempt.
            now_s: CLOCK_BOOTTIME.
            hung: whether a verdict has already been acted on.
        """
        real_s = 0.0 if self._looked_s is None else max(0.0, now_s - self._looked_s)
        passed_s = min(real_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        self._clock_s += passed_s
        alive = [rank for rank in ranks if rank.alive]
        paused = tuple(rank.rank for rank in alive if rank.paused)
        known = [
            rank
            for rank in alive
            if rank.known and (rank.unheard_s is not None or self._clock_s > FIRST_REPORT_S)
        ]
        ended = [rank for rank in ranks if not rank.alive]
        self._follow(known, ended, passed_s, now_s, gap=real_s > LONGEST_LOOK_S)
        if paused:
            self._restart_clocks()
        standings = [self._ranks[rank.rank].standing(rank, self._clock_s) for rank in known]
        unknown = {
            rank.rank: note
            for rank in alive
            if rank.steps is None and (note := of_unknown(rank)) is not None
        }
        if not standings:
            return HangLook(notes=unknown if self.is_on else {})
        judgment = judge(standings, ended, self._limits)
        self._learn_pauses(judgment)
        self._learn_stops(standings, judgment, bool(paused))
        quiet = {} if paused else self._quiet(standings, judgment)
        explained = dict(unknown if self.is_on else {})
        explained.update(self._notes(standings, judgment, paused, quiet))
        if paused or len(known) < len(alive):
            why = f"{name_ranks(paused)} {is_or_are(paused)} paused" if paused else None
            pause = self._stands(standings, why)
            return HangLook(quiet=quiet, pause=pause, notes=explained)
        if _is_deaf(standings):
            self._restart_clocks()  # what happened meanwhile is unknown
            deaf = [standing for standing in standings if standing.doing != "end"]
            explained.update({standing.rank.rank: DEAF for standing in deaf})
            return HangLook(pause=self._stands(standings, DEAF), notes=explained)
        pause = self._pause(standings, judgment, hung=hung)
        stalled = self.is_on and pause is not None and pause.state == "stalled"
        suspicion = judgment.verdict() if stalled else None
        verdict = self._verdict(judgment)
        return HangLook(
            quiet=quiet, suspicion=suspicion, verdict=verdict, pause=pause, notes=explained
        )

    @property
    def is_on(self) -> bool:
        """Whether there can be a verdict."""
        return self._auto or self._limits.timeout_s is not None

    @property
    def stepless_s(self) -> float:
        """Time since any rank took a step."""
        return self._stepless_s

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
        trains = True
        for rank in ranks:
            followed = self._ranks.get(rank.rank)
            if followed is None:
                followed = self._ranks[rank.rank] = Following(self._clock_s)
            clean = followed.clean
            interval_s = followed.advance(rank, self._clock_s, passed_s, boottime_s)
            if interval_s is not None:
                if clean and warm and not gap:
                    self._limits.saw_interval(rank.rank, interval_s)
                followed.clean = not gap
            if followed.step_time_s is not None and not gap:
                self._limits.saw_step(followed.step_time_s)
            followed.step_time_s = None
            doing = what_it_does(
                rank,
                waits=rank.rank in waiting,
                warm=warm,
                only_collectives=only_collectives,
            )
            followed.use_cpu(rank, self._clock_s, gap=gap)
            followed.note_signs(rank, doing, self._clock_s, passed_s)
            trains = trains and doing not in _NO_TRAINING
        if not trains:
            for followed in self._ranks.values():
                followed.clean = False

    def _restart_clocks(self) -> None:
        """Discard waiting times, after a rank was stopped by a user or did not report."""
        for followed in self._ranks.values():
            followed.restart_clocks(self._clock_s)
        self._before = None

    def _learn_pauses(self, judgment: Judgment) -> None:
        before, self._before = self._before, judgment
        if before is not None and judgment.idle_s < before.idle_s:
            self._limits.saw_pause(before.decides.doing, before.idle_s)
        if before is None or judgment.silent_s < before.silent_s:  # there was progress
            self._stalled = self._acted = False

    def _learn_stops(self, standings: list[Standing], judgment: Judgment, is_paused: bool) -> None:
        """Record how long this job's own pauses last, by phase."""
        stepless_s = min(standing.stepless_s for standing in standings)
        if stepless_s < self._stepless_s:
            if self._stepless_s >= self._begins_after_s and not self._was_paused:
                for doing in self._done_meanwhile:
                    self._limits.saw_stop(doing, self._stepless_s)
            self._done_meanwhile.clear()
            self._was_paused = False
        self._stepless_s = stepless_s
        self._done_meanwhile.add(judgment.decides.doing)
        self._was_paused = self._was_paused or is_paused

    @property
    def _begins_after_s(self) -> float:
        return begins_after_s(self._limits.usual_step_s)

    # -- findings ----------------------------------------------------------------------------

    def _quiet(self, standings: list[Standing], judgment: Judgment) -> dict[int, float]:
        """Ranks that are silent for longer than usual without an explanation."""
        found = {}
        culprits, least_s = judgment.culprits, self._begins_after_s
        for standing in standings:
            number = standing.rank.rank
            if standing.doing not in UNEXPLAINED:
                continue
            waits = standing.doing == "collective" and culprits.named
            if waits and number not in culprits.ranks:
                continue
            known = self._limits.usual_s(number) is not None
            if known and standing.silent_s >= least_s:
                found[number] = standing.silent_s
        return found

    def _notes(
        self,
        standings: list[Standing],
        judgment: Judgment,
        paused: tuple[int, ...],
        quiet: dict[int, float],
    ) -> dict[int, str]:
        found = dict.fromkeys(paused, "paused by a signal")
        for standing in standings:
            number = standing.rank.rank
            if number in found:
                continue
            usual_s = self._limits.usual_s(number)
            if number in quiet and usual_s is not None:
                found[number] = of_quiet(standing, usual_s)
            elif note := of_silent(standing, judgment.culprits, paused):
                found[number] = note
        return found

    def _stands(self, standings: list[Standing], why: str | None) -> SeenPause | None:
        """A pause about which only its duration is known."""
        if not any(standing.rank.steps for standing in standings):
            return None
        if self._stepless_s < self._begins_after_s:
            return None
        return SeenPause("no_step", self._stepless_s, why)

    def _pause(
        self, standings: list[Standing], judgment: Judgment, *, hung: bool
    ) -> SeenPause | None:
        decides = judgment.decides
        has_stepped = any(standing.rank.steps for standing in standings)
        only_collectives = decides.doing in UNEXPLAINED and is_warm(
            [standing.rank for standing in standings], first_step=True
        )
        found = pause_state(
            Facts(
                stepless_s=self._stepless_s,
                usual_s=self._limits.usual_step_s,
                idle_s=judgment.idle_s,
                longest_s=self._limits.longest_pause_s.get(decides.doing),
                awaited_idle=judgment.culprits.proven and decides.busy is False,
                spent=judgment.used if self.is_on else 0.0,
                stalled_before=self._stalled,
                hung=hung,
                begun=has_stepped or only_collectives,
            )
        )
        self._stalled = self._stalled or found == "stalled"
        if found is None:
            return None
        ranks = awaited(judgment, standings)
        own_s = self._limits.longest_pause_s.get(decides.doing, 0.0)
        long = judgment.silent_s >= self._begins_after_s and judgment.silent_s > own_s
        unexplained = decides.doing in UNEXPLAINED and long
        nears = self.is_on and not hung and (unexplained or found == "stalled")
        left_s = judgment.left_s if nears else None
        return SeenPause(found, self._stepless_s, reason(judgment, standings), ranks, left_s)

    def _verdict(self, judgment: Judgment) -> HangVerdict | None:
        if not self.is_on or not judgment.hangs:
            return None
        if self._auto and not self._acted:
            self._acted = True
            self._limits.acted()
        return judgment.verdict()

    # -- across supervisors ------------------------------------------------------------------------

    def remember(self) -> HangMemory:
        """What a restarted supervisor restores."""
        last = {rank: seen[-INTERVALS_REMEMBERED:] for rank, seen in self._limits.intervals.items()}
        limits = msgspec.structs.asdict(self._limits) | {
            "intervals": last,
            "step_times": self._limits.step_times[-INTERVALS_REMEMBERED:],
        }
        ranks = {rank: followed.saved(self._clock_s) for rank, followed in self._ranks.items()}
        return HangMemory(**limits, ranks=ranks)

    def recall(self, memory: HangMemory) -> None:
        """Restore the result of `remember`."""
        known = {name: getattr(memory, name) for name in Limits.__struct_fields__}
        self._limits = Limits(**{**known, "timeout_s": self._limits.timeout_s})
        for rank, saved in memory.ranks.items():
            self._ranks[rank] = Following(self._clock_s, saved)


class _SavedRank(msgspec.Struct):
    """One rank's state, saved for the next supervisor."""

    silent_s: Time
    idle_s: Time
    stepless_s: Time = 0.0
    steps: int | None = None
    completed: dict[str, int] = {}


class HangMemory(Limits):
    """What an earlier supervisor learned and saw of each rank."""

    ranks: dict[int, _SavedRank] = {}


def _is_deaf(standings: list[Standing]) -> bool:
    """Whether working ranks do not report, so that their progress is unknown."""
    return all(
        (standing.rank.unheard_s or 0.0) > ALL_OVERDUE_S and not standing.is_still
        for standing in standings
    )


# -- one rank -------------------------------------------------------------------------------------

BUSY_SHARE = 0.05
"""Fraction of a core. A rank that only waits uses a tenth of this, including its probe."""
LOADER_CPU_S = 0.5
"""CPU time of a data loader's processes that counts as a sign of life; a process that waits for
work uses a fifth of it in three minutes."""
STILL_SHARE = 0.002
STILL_S = 60.0
"""How long a rank that does not report must use no CPU."""
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
        rank: at this look.
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


class Following:
    """One rank's state over an attempt. Times are on the watch's own clock."""

    def __init__(self, now_s: float, saved: _SavedRank | None = None) -> None:
        """`saved`: by an earlier supervisor."""
        saved = saved or _SavedRank(0.0, 0.0)
        self.progress_s = now_s - saved.silent_s
        self.sign_s = now_s - min(saved.idle_s, saved.silent_s)
        self.step_s = now_s - max(saved.stepless_s, saved.silent_s)
        self.doing: Phase | None = None
        self.clean = True
        """Whether there was nothing but training since the last progress, in any rank."""
        self.has_stepped = False
        self.step_time_s: float | None = None
        """For the steps in the last look; the owner resets it."""
        self._doing_batches: int | None = None
        self._steps = saved.steps
        self._stamp_s: float | None = None
        self._completed = saved.completed
        self._batches: int | None = None
        self._written: int | None = None
        self._loader: LoaderUsage | None = None
        """At its last sign of life."""
        self._phase: Phase | None = None
        self._cpu: deque[tuple[float, float]] = deque()
        self._overdue_mark: tuple[float, float] | None = None
        """(the watch's clock, CPU time) at its last message."""

    def advance(
        self, rank: RankProgress, now_s: float, passed_s: float, boottime_s: float
    ) -> float | None:
        """Record progress.

        Args:
            rank: at this look.
            now_s: the watch's clock.
            passed_s: time since the last look, on that clock.
            boottime_s: CLOCK_BOOTTIME of the look.

        Returns:
            Seconds per step, or between two looks with completed collectives; None without
            progress.
        """
        stamp_s = boottime_s - rank.since_progress_s
        stepped = 0
        moved = False
        if rank.steps:
            stepped = max(0, rank.steps - (self._steps or 0))
            moved = self._stamp_s is not None and stamp_s > self._stamp_s + STAMP_SLACK_S
        collected = any(
            count > self._completed.get(group, 0) for group, count in rank.completed.items()
        )
        self._steps = self._steps if rank.steps is None else rank.steps
        self._stamp_s = stamp_s
        self._completed = {**self._completed, **rank.completed}
        if not (stepped or moved or collected):
            return None
        has_stamp = bool(stepped or moved)
        since_s = rank.since_progress_s if has_stamp else rank.unheard_s or 0.0
        at_s = max(self.progress_s, now_s - max(0.0, min(since_s, passed_s)))
        interval_s = (at_s - self.progress_s) / max(1, stepped)
        self.progress_s = at_s
        self.sign_s = max(self.sign_s, at_s)
        if has_stamp or not rank.steps:
            if stepped and self.has_stepped:
                self.step_time_s = (at_s - self.step_s) / stepped
            self.has_stepped = self.has_stepped or bool(stepped)
            self.step_s = at_s
        return interval_s

    def note_signs(self, rank: RankProgress, doing: Phase, now_s: float, passed_s: float) -> None:
        """Record activity that fits what the rank is doing.

        Args:
            rank: at this look.
            doing: its effective phase.
            now_s: the watch's clock.
            passed_s: time since the last look, on that clock.
        """
        changed = (
            self.doing is not None  # unknown for an earlier supervisor's look
            and rank.phase != self._phase
            and (rank.phase in RECOGNIZED or self._phase in RECOGNIZED)
        )
        took = (
            rank.batches is not None and self._batches is not None and rank.batches > self._batches
        )
        if changed or took:  # before the probe's last message
            self.sign_s = max(self.sign_s, now_s - min(rank.unheard_s or 0.0, passed_s))
        if doing == "data" and rank.loader is not None:
            lives = self._loader_works(rank.loader)
        else:
            lives = doing in FLOORS_S and (self.busy(rank, now_s) or self._has_written(rank))
        if lives:
            self.sign_s = now_s
        if doing != self.doing:
            self.doing, self._doing_batches = doing, rank.batches
        self._phase = rank.phase
        self._batches = rank.batches if rank.batches is not None else self._batches

    def _loader_works(self, loader: LoaderUsage) -> bool:
        """Whether its processes used CPU, did I/O, or were replaced."""
        before = self._loader
        if before is not None and before.pids == loader.pids and not loader.waits_for_disk:
            moved_bytes = (loader.io_bytes or 0) - (before.io_bytes or 0)
            if loader.cpu_s - before.cpu_s < LOADER_CPU_S and moved_bytes < WRITTEN_BYTES:
                return False
        self._loader = loader
        return before is not None

    def _has_written(self, rank: RankProgress) -> bool:
        before = self._written
        if rank.written_bytes is None:
            return False
        if before is None or rank.written_bytes < before:
            self._written = rank.written_bytes
            return False
        if rank.written_bytes - before < WRITTEN_BYTES:
            return False
        self._written = rank.written_bytes
        return True

    def use_cpu(self, rank: RankProgress, now_s: float, *, gap: bool) -> None:
        """Record the CPU time of the latest seconds, starting over after a gap between looks."""
        if gap or rank.cpu_s is None or (self._cpu and rank.cpu_s < self._cpu[-1][1]):
            self._cpu.clear()
        if rank.cpu_s is None or not rank.is_overdue:
            self._overdue_mark = None
        elif self._overdue_mark is None or rank.cpu_s < self._overdue_mark[1]:  # a child ended
            self._overdue_mark = (now_s, rank.cpu_s)
        if rank.cpu_s is not None:
            self._cpu.append((now_s, rank.cpu_s))
        while len(self._cpu) > 2 and self._cpu[1][0] <= now_s - CPU_WINDOW_S:
            self._cpu.popleft()

    def cpu_share(self, rank: RankProgress, now_s: float) -> float | None:
        """The fraction of a core that the rank uses; None until measured for long enough."""
        if rank.cpu_s is None or not self._cpu or now_s - self._cpu[0][0] < CPU_SPAN_S:
            return None
        since_s, cpu_s = self._cpu[0]
        return (rank.cpu_s - cpu_s) / (now_s - since_s)

    def busy(self, rank: RankProgress, now_s: float) -> bool | None:
        """Whether the rank uses the CPU; None until measured for long enough."""
        share = self.cpu_share(rank, now_s)
        return None if share is None else share >= BUSY_SHARE

    def is_still(self, rank: RankProgress, now_s: float) -> bool:
        """Whether the rank has used almost no CPU since its last message."""
        if self._overdue_mark is None or rank.cpu_s is None:
            return False
        since_s, cpu_s = self._overdue_mark
        passed_s = now_s - since_s
        return passed_s >= STILL_S and rank.cpu_s - cpu_s <= STILL_SHARE * passed_s

    def restart_clocks(self, now_s: float) -> None:
        """Discard waiting times."""
        self.progress_s = self.sign_s = now_s
        self.clean = False

    def standing(self, rank: RankProgress, now_s: float) -> Standing:
        """The rank's state as input to the verdict."""
        share = self.cpu_share(rank, now_s)
        batches = None
        if rank.batches is not None and self._doing_batches is not None:
            batches = rank.batches - self._doing_batches
        return Standing(
            rank,
            doing=self.doing or "start",
            silent_s=now_s - self.progress_s,
            idle_s=now_s - max(self.sign_s, self.progress_s),
            stepless_s=now_s - self.step_s,
            busy=None if share is None else share >= BUSY_SHARE,
            is_still=self.is_still(rank, now_s),
            batches=batches,
        )

    def saved(self, now_s: float) -> _SavedRank:
        """The state to save for the next supervisor."""
        return _SavedRank(
            silent_s=round(now_s - self.progress_s, 2),
            idle_s=round(now_s - self.sign_s, 2),
            stepless_s=round(now_s - self.step_s, 2),
            steps=self._steps,
            completed=dict(self._completed),
        )
