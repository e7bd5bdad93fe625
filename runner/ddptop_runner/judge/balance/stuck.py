"""Stuck in a collective: full utilization at idle power, without progress."""

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
"""A waiting kernel polls flags: memory is read less than this share of the time."""
ASIDE_PERCENT = 5.0
"""At most this much utilization has the device of a rank that does not take part."""

LOW_POWER = 0.35
"""Of the limit: above it a device computes, whatever it drew before."""
DROP = 0.5
"""Of the job's own recent power: below it the work has stopped."""
VERY_LOW_POWER = 0.25
"""Of the limit: low enough by itself, where nothing is known of the job's own power."""

QUIET_S = 60.0
"""Least time without progress, and at low power, after which a job that progressed is stuck."""
QUIET_FACTOR = 3.0
"""A pause this much longer than the longest one before (an evaluation, say) is suspicious."""
UNSEEN_DROP_S = 120.0
"""For how long power must be down in a job whose progress cannot be seen."""
LONG_S = 300.0
"""For how long power must be very low where no level of the job's own is known, and for how long
a single rank may leave the others waiting, as one that writes a checkpoint does."""
WORKING_CPU_PERCENT = 20.0
"""A rank with an idle device and this much CPU evaluates or writes something."""

LEVEL_SPAN_S = 120.0
"""Power is remembered over about this time of progress ..."""
MEAN_SPAN_S = 30.0
"""... and, where progress cannot be seen, as the highest mean over this time."""
LONGEST_GAP_S = 600.0
"""A longer pause between signs of progress does not raise what is allowed any more."""
LONGEST_LOOK_S = 5.0
"""After a longer gap between two looks (a suspended machine) all waiting begins anew."""


class _Look(msgspec.Struct, frozen=True):
    """The job's devices at one moment, if all but at most one spin."""

    gpus: tuple[int, ...]
    """Machine indices of those that spin."""
    ranks: tuple[int, ...]
    """Ranks on them."""
    hosts: tuple[str, ...]
    """Of all ranks: where there are several, an index alone names no device."""
    aside: int | None
    """The device that stands at 0 % while the others spin; None where all spin."""
    idle_ranks: tuple[RankSample, ...]
    """Ranks on that one."""
    power_w: float
    """Highest of those that spin."""
    share: float | None
    """Highest share of the limit; None where a limit is unknown."""
    mem_percent: float | None
    """Highest memory utilization; None where one is unknown."""

    def low(self, level_w: float | None) -> bool:
        """Whether power is far below the job's own and near that of an idle device."""
        dropped = level_w is not None and self.power_w < DROP * level_w
        return dropped and (self.share is None or self.share < LOW_POWER)

    @property
    def very_low(self) -> bool:
        """Whether power is low by itself."""
        return self.share is not None and self.share < VERY_LOW_POWER


class _Power:
    """What a job's devices drew lately, in watts per device."""

    def __init__(self) -> None:
        self.while_progressing_w: float | None = None
        self.highest_w: float | None = None
        """Highest mean over MEAN_SPAN_S, whatever the ranks did."""
        self._since_progress: deque[float] = deque(maxlen=600)
        self._recent: deque[tuple[float, float]] = deque()

    def begins_to_progress(self) -> None:
        """What was drawn until now was drawn for the start."""
        self._since_progress.clear()

    def saw(self, now_s: float, power_w: float) -> None:
        """One more sample."""
        self._since_progress.append(power_w)
        self._recent.append((now_s, power_w))
        if now_s - self._recent[0][0] < MEAN_SPAN_S:
            return
        mean = sum(watts for _, watts in self._recent) / len(self._recent)
        self.highest_w = max(mean, self.highest_w or 0.0)
        while now_s - self._recent[0][0] >= MEAN_SPAN_S:
            self._recent.popleft()

    def progressed(self, gap_s: float) -> None:
        """What was drawn since the last sign of progress was drawn for progress."""
        if not self._since_progress:
            return
        drawn = sum(self._since_progress) / len(self._since_progress)
        self._since_progress.clear()
        before = self.while_progressing_w
        weight = 1 - math.exp(-min(gap_s, MEAN_SPAN_S) / LEVEL_SPAN_S)
        self.while_progressing_w = drawn if before is None else before + weight * (drawn - before)


class StuckWatch:
    """Remembers one job's progress and the power that it drew meanwhile.

    A kernel of a collective that waits for another rank keeps its device at 100 % utilization,
    reads next to no memory and draws little power.
    """

    def __init__(self) -> None:
        self.stuck_ranks: frozenset[int] = frozenset()
        """Ranks whose device spins, by the last update; empty while nothing is stuck."""
        self.reason: str | None = None
        """Why `stuck_ranks` are thought to be stuck, in words."""
        self._power = _Power()
        self._looked_s: float | None = None
        self._pids: dict[int, int | None] = {}
        self._marks: dict[int, tuple[object, ...]] = {}
        self._told_s: float | None = None
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
        """Look once more; at most one finding, which has waited long enough already.

        Args:
            now_s: a clock that only goes forward, in seconds.
            ranks: the job's ranks, joined with their devices. A change of a step, a loss's step
                or `last_progress_at` is progress.
            gpus: the job's devices, with `mem_util_percent` and `power_limit_w` where known.
            job: the job's name, as in `GpuProcess.job`.
            world_size: ranks of the job on all hosts; None when unknown.
            progress_at_s: when the caller last saw other progress, such as a log that grew; on
                the clock of `now_s`.
        """
        placement = Placement(ranks, gpus, job)
        pids = {rank.rank: rank.pid for rank in placement.ranks}
        gap_s = None if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if gap_s is None or gap_s > LONGEST_LOOK_S or pids != self._pids:
            self._begin_anew(now_s if pids == self._pids else None)
        self._pids = pids
        self._follow_progress(now_s, placement, progress_at_s)
        watts = median(device.gpu.power_w for device, _ in _in_use(placement))
        if watts is not None:
            self._power.saw(now_s, watts)
        elsewhere = world_size is not None and world_size > len(ranks)
        return self._judge(now_s, _look(placement), elsewhere)

    def _begin_anew(self, progress_s: float | None) -> None:
        """Nobody looked for a while, or the ranks are others: what was awaited does not count."""
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
        if progress_at_s is not None and progress_at_s > (self._told_s or -math.inf):
            self._told_s, self._has_source = progress_at_s, True
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
                return [self._say(look, held_s, quiet_s, level_w)]
        return []

    def _say(self, look: _Look, held_s: float, quiet_s: float, level_w: float | None) -> Finding:
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
        """Whether progress has ever been seen in these processes."""
        return self._progress_s is not None


def _since(since_s: float | None, now_s: float, holds: bool) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _floor_s(look: _Look, elsewhere: bool) -> float | None:
    """Least time to wait, in seconds; None while a rank is seen to do something else."""
    floor_s = LONG_S if elsewhere else 0.0  # a rank on another host may write a checkpoint
    for rank in look.idle_ranks:
        if rank.state in ("blocked", "paused"):
            return None  # said as it is
        if rank.cpu_percent is None:
            floor_s = 2 * LONG_S
        elif rank.cpu_percent >= WORKING_CPU_PERCENT:
            return None
        floor_s = max(floor_s, LONG_S)
    return floor_s


def _in_use(placement: Placement) -> list[tuple[Device, tuple[RankSample, ...]]]:
    """Devices with the ranks on them; by the order of the devices where pids prove nothing."""
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
    """What the devices show; None where it is no spinning, or not to be told."""
    if any(device.gpu.lost for device in placement.devices):
        return None  # said as it is
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
        elif gpu.util_percent <= ASIDE_PERCENT:
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
