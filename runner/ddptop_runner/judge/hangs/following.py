"""Follows one rank between samples: its last progress, and its last sign of life."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ddptop_runner.host.tree import LoaderUsage
from ddptop_runner.judge.hangs.allowances import FLOORS_S
from ddptop_runner.judge.hangs.types import RankProgress, Standing
from ddptop_runner.model.words import Phase

BUSY_SHARE = 0.05
"""Of one core. A rank that only waits uses a tenth of this, with its probe."""
LOADER_CPU_S = 0.5
"""CPU time of a data loader's processes that is a sign of life; in three minutes, a process that
waits for work uses a fifth of it."""
STILL_SHARE = 0.002
STILL_S = 60.0
"""For how long a rank of which nothing is heard must be still."""
UNHEARD_S = 8.0
"""A probe speaks at least every 5 s unless its interpreter's lock is held."""
CPU_WINDOW_S = 10.0
CPU_SPAN_S = 3.0
"""Least time over which CPU use is judged."""
WRITTEN_BYTES = 64 * 1024
"""Fewer are log lines."""
STAMP_SLACK_S = 0.05
"""Clocks and rounding may move the stamp of the same step by this much."""

RECOGNISED: frozenset[Phase] = frozenset({"compile", "evaluation", "checkpoint", "data", "end"})
"""Phases that explain why no step is taken."""

WARM_STEPS = 3
WARM_COLLECTIVES = 20
"""Before this many the first of everything still happens."""


def is_warm(ranks: Sequence[RankProgress], *, first_step: bool) -> bool:
    """Whether the start is over for the group.

    Args:
        ranks: all of it.
        first_step: one step is enough.
    """
    steps = max((rank.steps or 0 for rank in ranks), default=0)
    collectives = max((sum(rank.completed.values()) for rank in ranks), default=0)
    return steps >= (1 if first_step else WARM_STEPS) or (
        steps == 0 and collectives >= WARM_COLLECTIVES
    )


def held_up(ranks: Sequence[RankProgress]) -> frozenset[int]:
    """Ranks that have entered a collective which is not complete and which others did not enter.

    One that all have entered says nothing: it runs, or the recorder is late to tell its end.

    Args:
        ranks: those that live, and those that ended.
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
    """The phase that counts for a rank: as the probe recognised it, else from what is known.

    Args:
        rank: at this look.
        waits: whether it is one of those that are `held_up`.
        warm: whether the group's start is over.
        only_collectives: whether the group has been seen to run, and takes no steps.
    """
    if rank.phase in RECOGNISED and rank.phase is not None:
        return rank.phase
    if rank.phase == "collective" or waits:
        return "collective"
    if rank.phase == "start" and not only_collectives:
        return "start"
    return "steps" if warm else "start"


class Following:
    """What is kept of one rank in an attempt. Times are on the watch's own clock."""

    def __init__(self, now_s: float) -> None:
        self.progress_s = now_s
        self.sign_s = now_s
        self.step_s = now_s
        self.doing: Phase | None = None
        self.clean = True
        """Whether nothing but training was seen since the last progress, in any rank."""
        self.has_stepped = False
        self.step_time_s: float | None = None
        """Of the steps that the last look saw; the owner takes it away."""
        self._doing_batches: int | None = None
        self._steps: int | None = None
        self._stamp_s: float | None = None
        self._completed: dict[str, int] = {}
        self._batches: int | None = None
        self._written: int | None = None
        self._loader: LoaderUsage | None = None
        """At its last sign of life."""
        self._phase: Phase | None = None
        self._cpu: deque[tuple[float, float]] = deque()
        self._unheard_mark: tuple[float, float] | None = None
        """(the watch's clock, CPU time) since when nothing is heard of it."""

    def advance(
        self, rank: RankProgress, now_s: float, passed_s: float, boottime_s: float
    ) -> float | None:
        """Note progress.

        Args:
            rank: at this look.
            now_s: the watch's clock.
            passed_s: since the last look, on that clock.
            boottime_s: CLOCK_BOOTTIME of the look.

        Returns:
            Seconds per step, or between two looks that saw a collective complete; None without
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
        since_s = max(0.0, min(rank.since_progress_s, passed_s)) if has_stamp else 0.0
        at_s = max(self.progress_s, now_s - since_s)
        interval_s = (at_s - self.progress_s) / max(1, stepped)
        self.progress_s = at_s
        self.sign_s = max(self.sign_s, at_s)
        if has_stamp or not rank.steps:
            if stepped and self.has_stepped:
                self.step_time_s = (at_s - self.step_s) / stepped
            self.has_stepped = self.has_stepped or bool(stepped)
            self.step_s = at_s
        return interval_s

    def note_signs(self, rank: RankProgress, doing: Phase, now_s: float) -> None:
        """Note activities that belong to what the rank does."""
        changed = (
            self.doing is not None  # of an earlier supervisor's look nothing is known
            and rank.phase != self._phase
            and (rank.phase in RECOGNISED or self._phase in RECOGNISED)
        )
        took = (
            rank.batches is not None and self._batches is not None and rank.batches > self._batches
        )
        if changed or took:
            self.sign_s = now_s
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
        """Whether its processes computed, read or wrote, or are others than before."""
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
        """Keep the CPU time of the latest seconds; after a gap between looks it begins anew."""
        if gap or rank.cpu_s is None or (self._cpu and rank.cpu_s < self._cpu[-1][1]):
            self._cpu.clear()
        if rank.cpu_s is None or (rank.unheard_s or 0.0) <= UNHEARD_S:
            self._unheard_mark = None
        elif self._unheard_mark is None or rank.cpu_s < self._unheard_mark[1]:  # a child ended
            self._unheard_mark = (now_s, rank.cpu_s)
        if rank.cpu_s is not None:
            self._cpu.append((now_s, rank.cpu_s))
        while len(self._cpu) > 2 and self._cpu[1][0] <= now_s - CPU_WINDOW_S:
            self._cpu.popleft()

    def cpu_share(self, rank: RankProgress, now_s: float) -> float | None:
        """How much of a core the rank uses; None while too little was seen."""
        if rank.cpu_s is None or not self._cpu or now_s - self._cpu[0][0] < CPU_SPAN_S:
            return None
        since_s, cpu_s = self._cpu[0]
        return (rank.cpu_s - cpu_s) / (now_s - since_s)

    def busy(self, rank: RankProgress, now_s: float) -> bool | None:
        """Whether the rank uses the CPU; None while too little was seen."""
        share = self.cpu_share(rank, now_s)
        return None if share is None else share >= BUSY_SHARE

    def is_still(self, rank: RankProgress, now_s: float) -> bool:
        """Whether the rank has used next to no CPU since nothing is heard of it."""
        if self._unheard_mark is None or rank.cpu_s is None:
            return False
        since_s, cpu_s = self._unheard_mark
        passed_s = now_s - since_s
        return passed_s >= STILL_S and rank.cpu_s - cpu_s <= STILL_SHARE * passed_s

    def begin_anew(self, now_s: float) -> None:
        """Nothing counts of what was awaited."""
        self.progress_s = self.sign_s = now_s
        self.clean = False

    def standing(self, rank: RankProgress, now_s: float) -> Standing:
        """For the verdict."""
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

    def remember(self, now_s: float) -> dict[str, Any]:
        """How long it stands, and at what; JSON-serialisable."""
        return {
            "silent_s": round(now_s - self.progress_s, 2),
            "idle_s": round(now_s - self.sign_s, 2),
            "stepless_s": round(now_s - self.step_s, 2),
            "steps": self._steps,
            "completed": dict(self._completed),
        }

    def recall(self, memory: dict[str, Any], now_s: float) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
        silent_s, idle_s = memory.get("silent_s"), memory.get("idle_s")
        steps, completed = memory.get("steps"), memory.get("completed")
        if isinstance(steps, int):
            self._steps = steps
        if isinstance(completed, dict):
            self._completed = {
                str(group): count for group, count in completed.items() if isinstance(count, int)
            }
        if isinstance(silent_s, (int, float)) and 0 <= silent_s < 1e9:
            self.progress_s = now_s - silent_s
            self.sign_s = self.step_s = self.progress_s
            stepless_s = memory.get("stepless_s")
            if isinstance(stepless_s, (int, float)) and silent_s <= stepless_s < 1e9:
                self.step_s = now_s - stepless_s
            if isinstance(idle_s, (int, float)) and 0 <= idle_s <= silent_s:
                self.sign_s = now_s - idle_s
