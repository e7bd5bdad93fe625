"""Which ranks are marked, and in what: the one place that decides it.

Whatever draws, tells or counts an odd rank reads the alerts that come of this (see
`imbalance.marked`). Figures are smoothed first, and only while the job takes steps: an evaluation
on one rank, a checkpoint and a compilation look like trouble and are none. Then each rank has to
lie apart for HOLD_S before it is marked.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Sequence

import msgspec

from ddptop_runner.base.units import name_ranks
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance import straggler, uneven
from ddptop_runner.judge.balance.imbalance import MARKED_BY, alone_s
from ddptop_runner.judge.balance.loss_course import LossApart
from ddptop_runner.model.devices import GpuSample
from ddptop_runner.model.snapshot import Alert, RankSample

HOLD_S = 20.0
"""For so long a rank must lie apart before it is marked."""
HOLD_LOSSES = 10
"""And over so many of its losses."""
GONE_S = 5.0
"""A mark stays for so long after the rank is back: figures at the edge do not let it blink."""

SHORT_S, LONG_S = 20, 60
"""Looks over which times and memory are smoothed (median), and loads (mean: they come in bursts).
"""
LEAST_LONG = 30
"""Looks at a load without which it is not known."""
PAUSE_S, PAUSES = 5.0, 3.0
"""Each rank takes a step at least within so many seconds, or so many times as long as is usual.
What is seen while they take longer is of no training step."""
LONGEST_LOOK_S = 5.0
"""The most that one look adds to the time for which a rank lies apart."""
RECALLED_S = 90.0
"""What an earlier supervisor marked stays marked until this one can know."""

_MEDIANS = ("step_time_s", "data_wait_s", "gpu_mem_used_bytes", "rss_bytes")
_MEANS = ("cpu_percent", "gpu_util_percent", "gpu_power_w")
_ENDED = ("exited", "failed", "stopped", "zombie")


class _Smoothed:
    """One rank's figures over the latest looks."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {
            **{name: deque(maxlen=SHORT_S) for name in (*_MEDIANS, "alone")},
            **{name: deque(maxlen=LONG_S) for name in _MEANS},
        }

    def take(self, rank: RankSample) -> None:
        """One more look."""
        for name, values in self._values.items():
            value = alone_s(rank) if name == "alone" else getattr(rank, name)
            if value is not None:
                values.append(value)

    def of(self, rank: RankSample) -> RankSample:
        """The rank with its figures smoothed; None where they are not known for long enough."""
        smooth: dict[str, float | None] = {}
        for name in _MEDIANS:
            known = self._values[name]
            smooth[name] = statistics.median(known) if known else None
        for name in _MEANS:
            known = self._values[name]
            smooth[name] = statistics.fmean(known) if len(known) >= LEAST_LONG else None
        step_s, alone = smooth["step_time_s"], self._values["alone"]
        smooth["sync_s"] = None
        if step_s is not None and alone and rank.sync_s is not None:
            smooth["sync_s"] = max(0.0, step_s - statistics.median(alone))
        return msgspec.structs.replace(rank, **smooth)


class _Steps:
    """Looks of which each rank has taken a step since the one before."""

    def __init__(self) -> None:
        self._steps: dict[int, int | None] = {}
        self._stepped_s: float | None = None
        self._pending: list[Sequence[RankSample]] = []
        self._gaps_s: deque[float] = deque(maxlen=9)

    def look(
        self, ranks: Sequence[RankSample], now_s: float
    ) -> tuple[Sequence[Sequence[RankSample]], float]:
        """(looks while steps were taken, for how long they were)."""
        steps = {rank.rank: rank.step for rank in ranks}
        before_s = now_s if self._stepped_s is None else self._stepped_s
        self._pending.append(ranks)
        if any(step is not None and self._steps.get(one) == step for one, step in steps.items()):
            if now_s - before_s > self._allowed_s(ranks):
                self._pending.clear()
            return (), 0.0
        gap_s, allowed_s = now_s - before_s, self._allowed_s(ranks)
        looks = self._pending if gap_s <= allowed_s else self._pending[-1:]
        self._steps, self._stepped_s, self._pending = steps, now_s, []
        self._gaps_s.append(gap_s)
        return looks, gap_s if gap_s <= allowed_s else 0.0

    def _allowed_s(self, ranks: Sequence[RankSample]) -> float:
        usual_s = [rank.step_time_s or 0.0 for rank in ranks]
        usual_s += [statistics.median(self._gaps_s)] if self._gaps_s else []
        return max(PAUSE_S, PAUSES * max(usual_s, default=0.0))


class _Mark(msgspec.Struct):
    """One rank that lies apart in one figure."""

    losses: int
    """That were seen of it when it began."""
    held_s: float = 0.0
    gone_s: float = 0.0
    told: bool = False


class RankMarks:
    """Looks at a job's ranks about once a second."""

    def __init__(self) -> None:
        self._smoothed: dict[int, _Smoothed] = {}
        self._losses = LossApart()
        self._steps = _Steps()
        self._marks: dict[tuple[str, int], _Mark] = {}
        """By the finding's id and rank."""
        self._excess_s: dict[int, float] = {}
        """By how much each rank held up the others when it last did."""
        self._ids: object = None
        self._looked_s: float | None = None
        self._recalled: list[Finding] = []
        self._recalled_s: float | None = None

    def recall(self, shown: Sequence[Alert]) -> None:
        """Keep what an earlier supervisor marked until figures are known for long enough."""
        self._recalled = [
            Finding(one.id, one.severity, one.message, tuple(one.ranks))
            for one in shown
            if one.id in MARKED_BY
        ]

    def look(
        self,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        now_s: float,
        attempt: int | None = None,
    ) -> list[Finding]:
        """What is marked now, as findings that have held long enough already.

        Args:
            ranks: of the job, joined with their devices.
            gpus: its devices.
            now_s: a clock that only goes forward, in seconds.
            attempt: the job's; with another one all begins anew.
        """
        living = [rank for rank in ranks if rank.state not in _ENDED]
        ids = attempt, tuple(sorted((rank.rank, rank.pid) for rank in living if rank.pid))
        if ids != self._ids:
            self._smoothed.clear()
            self._marks.clear()
            self._losses, self._steps = LossApart(), _Steps()
        if self._recalled_s is None:
            self._recalled_s = now_s + RECALLED_S
        elif ids != self._ids or now_s >= self._recalled_s:
            self._recalled = []
        self._ids = ids
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        return self._found(living, gpus, min(max(0.0, gap_s), LONGEST_LOOK_S), now_s)

    def _found(
        self,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        passed_s: float,
        now_s: float,
    ) -> list[Finding]:
        told = self._told("loss-diverged")
        self._hold("loss-diverged", self._losses.look(ranks, told), passed_s)
        looks, passed_s = self._steps.look(ranks, now_s)
        for look in looks:
            for rank in look:
                self._smoothed.setdefault(rank.rank, _Smoothed()).take(rank)
        smooth = [self._smoothed.setdefault(rank.rank, _Smoothed()).of(rank) for rank in ranks]
        slow = straggler.slow(smooth)
        self._hold("straggler", slow, passed_s)
        found = []
        self._excess_s.update(slow)
        if marked := {rank: self._excess_s[rank] for rank in self._told("straggler")}:
            found.append(straggler.finding(smooth, marked))
        if marked_losses := self._told("loss-diverged"):
            found.append(self._of_losses(marked_losses))
        for kind in uneven.ON_DEVICES if gpus else uneven.ON_CPUS:
            self._hold(kind.id, uneven.far_off(kind, smooth), passed_s)
            if numbers := self._told(kind.id):
                found.append(uneven.finding(kind, smooth, numbers))
        ids = {finding.id for finding in found}
        return [*found, *(one for one in self._recalled if one.id not in ids)]

    def _hold(self, id_: str, apart: Collection[int], passed_s: float) -> None:
        """Count for how long each rank has lain apart."""
        for rank in apart:
            mark = self._marks.get((id_, rank))
            if mark is None:
                mark = self._marks[id_, rank] = _Mark(self._losses.seen(rank))
            else:
                mark.held_s += passed_s
            mark.gone_s = 0.0
            enough = id_ != "loss-diverged" or self._losses.seen(rank) - mark.losses >= HOLD_LOSSES
            mark.told = mark.told or (enough and mark.held_s >= HOLD_S)
        for key in [key for key in self._marks if key[0] == id_ and key[1] not in apart]:
            mark = self._marks[key]
            mark.gone_s += passed_s
            if not mark.told or mark.gone_s > GONE_S:
                del self._marks[key]

    def _told(self, id_: str) -> list[int]:
        return sorted(rank for (of, rank), mark in self._marks.items() if of == id_ and mark.told)

    def _of_losses(self, ranks: Sequence[int]) -> Finding:
        message = f"the loss on {name_ranks(ranks)} has diverged from the others: "
        return Finding(
            "loss-diverged", "warning", message + self._losses.words(ranks), tuple(ranks)
        )
