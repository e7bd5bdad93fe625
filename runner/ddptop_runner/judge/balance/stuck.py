"""Detects ranks stuck in a collective: full utilization at idle power without progress."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec

from ddptop_runner.base.units import duration_in_words, is_or_are, name_gpus, name_ranks
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.findings import Device, Placement, median
from ddptop_runner.judge.balance.rank_devices import is_own
from ddptop_runner.model.snapshot import GpuSample, RankSample
from ddptop_runner.model.words import Severity

SPINNING_PERCENT = 99.0
SPINNING_MEM_PERCENT = 5.0
"""A waiting kernel only polls flags, so memory utilization is below this."""
IDLE_PERCENT = 5.0
"""Maximum utilization of the device of a rank that does not take part."""

LOW_POWER = 0.35
"""Fraction of the power limit above which a device computes, whatever it drew before."""
DROP = 0.5
"""Fraction of the job's own recent power below which work has stopped."""
VERY_LOW_POWER = 0.25
"""Fraction of the power limit that is low by itself, if the job's usual power is unknown."""

QUIET_S = 60.0
"""Minimum time at low power without progress until a job that had progress is stuck."""
QUIET_FACTOR = 3.0
"""A pause this many times the longest one before, such as an evaluation, is suspicious."""
UNSEEN_DROP_S = 120.0
"""How long power must be low in a job whose progress is unknown."""
LONG_S = 300.0
"""How long power must be very low if the job's usual power is unknown, and how long one rank may
keep the others waiting, such as for a checkpoint."""
WORKING_CPU_PERCENT = 20.0
"""A rank with an idle device that uses this much CPU is evaluating or writing."""

LEVEL_SPAN_S = 120.0
"""The usual power is that of about this much time with progress ..."""
MEAN_SPAN_S = 30.0
"""... or, if progress is unknown, the highest mean over this time."""
LONGEST_GAP_S = 600.0
"""Longer pauses between signs of progress do not raise the limit any further."""
LONGEST_LOOK_S = 5.0
"""After a longer gap between looks, such as a suspended machine, waiting starts over."""


class _Look(msgspec.Struct, frozen=True):
    """The job's devices at one moment, if all spin, or all but one."""

    gpus: tuple[int, ...]
    """Machine indices of the spinning devices."""
    ranks: tuple[int, ...]
    """Ranks on them."""
    hosts: tuple[str, ...]
    """Hosts of all ranks; with several, an index is not enough to name a device."""
    aside: int | None
    """The device at 0 % while the others spin; None if all spin."""
    idle_ranks: tuple[RankSample, ...]
    """Ranks on that device."""
    power_w: float
    """Highest among the spinning devices."""
    share: float | None
    """Highest fraction of the power limit; None if a limit is unknown."""
    mem_percent: float | None
    """Highest memory utilization; None if one is unknown."""

    def low(self, level_w: float | None) -> bool:
        """Whether power is far below the job's usual power and close to idle."""
        dropped = level_w is not None and self.power_w < DROP * level_w
        return dropped and (self.share is None or self.share < LOW_POWER)

    @property
    def very_low(self) -> bool:
        """Whether power is low by itself."""
        return self.share is not None and self.share < VERY_LOW_POWER


class _Power:
    """The recent power of a job's devices, in watts per device."""

    def __init__(self) -> None:
        self.while_progressing_w: float | None = None
        self.highest_w: float | None = None
        """Highest mean over `MEAN_SPAN_S`, with or without progress."""
        self._since_progress: deque[float] = deque(maxlen=600)
        self._recent: deque[tuple[float, float]] = deque()

    def begins_to_progress(self) -> None:
        """Discard power during startup."""
        self._since_progress.clear()

    def saw(self, now_s: float, power_w: float) -> None:
        """Add a sample."""
        self._since_progress.append(power_w)
        self._recent.append((now_s, power_w))
        if now_s - self._recent[0][0] < MEAN_SPAN_S:
            return
        mean = sum(watts for _, watts in self._recent) / len(self._recent)
        self.highest_w = max(mean, self.highest_w or 0.0)
        while now_s - self._recent[0][0] >= MEAN_SPAN_S:
            self._recent.popleft()

    def progressed(self, gap_s: float) -> None:
        """Count the power since the last sign of progress as that of progress."""
        if not self._since_progress:
            return
        drawn = sum(self._since_progress) / len(self._since_progress)
        self._since_progress.clear()
        before = self.while_progressing_w
        weight = 1 - math.exp(-min(gap_s, MEAN_SPAN_S) / LEVEL_SPAN_S)
        self.while_progressing_w = drawn if before is None else before + weight * (drawn - before)


class StuckWatch:
    """Tracks one job's progress and power.

    A collective's kernel that waits for another rank keeps its device at 100 % utilization, reads
    almost no memory, and draws little power.
    """

    def __init__(self) -> None:
        self.stuck_ranks: frozenset[int] = frozenset()
        """Ranks whose device spins, from the last update; empty if nothing is stuck."""
        self.reason: str | None = None
        """Why `stuck_ranks` appear to be stuck, in words."""
        self._power = _Power()
        self._looked_s: float | None = None
        self._pids: dict[int, int | None] = {}
        self._marks: dict[int, tuple[object, ...]] = {}
        self._progress_at_s: float | None = None
        self._has_source = False
        self._progress_s: float | None = None
        self._longest_gap_s = 0.0
        self._low_since_s: float | None = None
        self._very_low_since_s: float | None = None

    def update(
        self,
        now_s: float,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        job: str,
        *,
        world_size: int | None = None,
        progress_at_s: float | None = None,
    ) -> list[Finding]:
        """Check again; returns at most one finding, which has already held long enough.

        Args:
            now_s: a monotonic clock, in seconds.
            ranks: the job's ranks, joined with their devices. A change of a step, a loss's step
                or `last_progress_at` is progress.
            gpus: the job's devices, with `mem_util_percent` and `power_limit_w` where known.
            job: the job's name, as in `GpuProcess.job`.
            world_size: ranks of the job on all hosts; None if unknown.
            progress_at_s: when there was last other progress, such as output, on the clock of
                `now_s`.
        """
        placement = Placement(ranks, gpus, job)
        pids = {rank.rank: rank.pid for rank in placement.ranks}
        gap_s = None if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if gap_s is None or gap_s > LONGEST_LOOK_S or pids != self._pids:
            self._restart(now_s if pids == self._pids else None)
        self._pids = pids
        self._follow_progress(now_s, placement, progress_at_s)
        watts = median(device.gpu.power_w for device, _ in _in_use(placement))
        if watts is not None:
            self._power.saw(now_s, watts)
        elsewhere = world_size is not None and world_size > len(ranks)
        return self._judge(now_s, _look(placement), elsewhere)

    def _restart(self, progress_s: float | None) -> None:
        """Discard waiting times, after a gap between looks or a change of ranks."""
        self._low_since_s = self._very_low_since_s = None
        if progress_s is None:
            self._power.highest_w = None
        self._marks.clear()
        if self._progress_s is not None:
            self._progress_s = progress_s

    def _follow_progress(
        self, now_s: float, placement: Placement, progress_at_s: float | None
    ) -> None:
        marks: dict[int, tuple[object, ...]] = {
            rank.rank: (rank.step, rank.global_step, rank.loss_step, rank.last_progress_at)
            for rank in placement.ranks
        }
        moved = any(self._marks.get(rank, mark) != mark for rank, mark in marks.items())
        self._marks = marks
        if any(value is not None for mark in marks.values() for value in mark):
            self._has_source = True
        at_s = now_s if moved else None
        if progress_at_s is not None and progress_at_s > (self._progress_at_s or -math.inf):
            self._progress_at_s, self._has_source = progress_at_s, True
            at_s = now_s if moved else min(progress_at_s, now_s)
        if at_s is None:
            return
        if self._progress_s is not None:
            gap_s = max(0.0, at_s - self._progress_s)
            self._longest_gap_s = max(self._longest_gap_s, min(gap_s, LONGEST_GAP_S))
            self._power.progressed(gap_s)
        else:
            self._power.begins_to_progress()
        self._progress_s = max(at_s, self._progress_s or at_s)

    def _judge(self, now_s: float, look: _Look | None, elsewhere: bool) -> list[Finding]:
        self.stuck_ranks, self.reason = frozenset(), None
        seen = self._progress_s is not None
        level_w = self._power.while_progressing_w if seen else self._power.highest_w
        low = look is not None and look.low(level_w)
        very_low = look is not None and look.very_low and (seen or (look.mem_percent or 0.0) <= 1.0)
        self._low_since_s = _since(self._low_since_s, now_s, low)
        self._very_low_since_s = _since(self._very_low_since_s, now_s, very_low)
        if look is None or not (low or very_low):
            return []
        floor_s = _floor_s(look, elsewhere)
        if floor_s is None:
            return []
        quiet_s = math.inf if self._progress_s is None else now_s - self._progress_s
        for since_s, least_s in (
            (self._low_since_s, QUIET_S if seen else UNSEEN_DROP_S),
            (self._very_low_since_s, LONG_S),
        ):
            allowed_s = max(least_s, floor_s)
            held_s = -math.inf if since_s is None else now_s - since_s
            if held_s >= allowed_s and quiet_s >= max(
                allowed_s, QUIET_FACTOR * self._longest_gap_s
            ):
                return [self._report(look, held_s, quiet_s, level_w)]
        return []

    def _report(self, look: _Look, held_s: float, quiet_s: float, level_w: float | None) -> Finding:
        share = "" if look.share is None else f", {look.share:.0%} of the limit"
        level = ""
        if level_w is not None and look.low(level_w):
            level = f", down from {level_w:.0f} W " + (
                "while making progress" if self._seen else "before"
            )
        power = f"{look.power_w:.0f} W at most{share}{level}"
        self.stuck_ranks = frozenset(look.ranks)
        self.reason = f"100% utilization at idle power ({power}) for {duration_in_words(held_s)}"
        proof = f"no progress for {duration_in_words(quiet_s)}"
        if not self._seen:
            proof = "no progress" if self._has_source else "no steps or log lines to confirm it"
        message = (
            f"{name_ranks(look.ranks)} {is_or_are(look.ranks)} probably waiting "
            f"in a collective: {name_gpus(look.gpus)} {'show' if len(look.gpus) > 1 else 'shows'} "
            f"100% utilization at idle power ({power}) for {duration_in_words(held_s)}, {proof}"
        )
        if look.aside is not None:
            idle = [rank.rank for rank in look.idle_ranks]
            where = f" on {look.idle_ranks[0].host}" if len(look.hosts) > 1 else ""
            message += (
                f"; {name_ranks(idle)}, with GPU {look.aside}{where} at 0%, "
                f"{is_or_are(idle)} probably holding them up: see its stack"
            )
        else:
            message += "; compare the ranks' stacks"
        ranks = (*look.ranks, *(rank.rank for rank in look.idle_ranks))
        gpus = look.gpus if look.aside is None else (*look.gpus, look.aside)
        if len(look.hosts) > 1:
            gpus = ()
        severity: Severity = "error" if self._seen else "warning"
        return Finding("stuck", severity, message, tuple(sorted(ranks)), tuple(sorted(gpus)))

    @property
    def _seen(self) -> bool:
        """Whether these processes have ever made progress."""
        return self._progress_s is not None


def _since(since_s: float | None, now_s: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _floor_s(look: _Look, elsewhere: bool) -> float | None:
    """Minimum time to wait; None while a rank is known to be doing something else."""
    floor_s = LONG_S if elsewhere else 0.0  # a rank on another host may write a checkpoint
    for rank in look.idle_ranks:
        if rank.state in ("blocked", "paused"):
            return None  # reported as such
        if rank.cpu_percent is None:
            floor_s = 2 * LONG_S
        elif rank.cpu_percent >= WORKING_CPU_PERCENT:
            return None
        floor_s = max(floor_s, LONG_S)
    return floor_s


def _in_use(placement: Placement) -> list[tuple[Device, tuple[RankSample, ...]]]:
    """Devices with their ranks, by the order of devices if pids prove nothing."""
    found = []
    for device in placement.devices:
        ranks = tuple(
            rank
            for rank in placement.ranks
            if (
                rank.rank in device.memory and placement.own(rank.rank) in (device, None)
                if placement.seen
                else is_own(rank, device.gpu)
            )
        )
        if ranks:
            found.append((device, ranks))
    return found


def _look(placement: Placement) -> _Look | None:
    """The state of the devices; None if they do not spin or that is unknown."""
    if any(device.gpu.lost for device in placement.devices):
        return None  # has its own finding
    spinning: list[Device] = []
    ranks: list[int] = []
    aside: list[tuple[Device, tuple[RankSample, ...]]] = []
    for device, there in _in_use(placement):
        gpu = device.gpu
        if gpu.util_percent is None or (placement.seen and device.others):
            return None
        if gpu.util_percent >= SPINNING_PERCENT:
            if gpu.power_w is None or (gpu.mem_util_percent or 0.0) > SPINNING_MEM_PERCENT:
                return None
            spinning.append(device)
            ranks += [rank.rank for rank in there]
        elif gpu.util_percent <= IDLE_PERCENT:
            aside.append((device, there))
        else:
            return None
    if not spinning or len(aside) > 1 or len(spinning) + len(aside) < 2:
        return None
    watts = [device.gpu.power_w or 0.0 for device in spinning]
    limits = [device.gpu.power_limit_w for device in spinning]
    memory = [device.gpu.mem_util_percent for device in spinning]
    return _Look(
        gpus=tuple(sorted({device.index for device in spinning})),
        ranks=tuple(sorted(set(ranks))),
        hosts=tuple(sorted({rank.host for rank in placement.ranks})),
        aside=aside[0][0].index if aside else None,
        idle_ranks=aside[0][1] if aside else (),
        power_w=max(watts),
        share=max(drawn / limit for drawn, limit in zip(watts, limits, strict=True) if limit)
        if all(limits)
        else None,
        mem_percent=max(percent for percent in memory if percent is not None)
        if None not in memory
        else None,
    )
