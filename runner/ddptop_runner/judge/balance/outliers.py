"""Decides which ranks are outliers, and in which figures.

Everything that draws, names, or counts an outlier reads the alerts from here (see
`imbalance.marked`). Figures are first smoothed, and only while the job takes steps, since an
evaluation on one rank, a checkpoint, or a compilation looks like trouble and is not. A rank must
then deviate for `HOLD_S` before it is marked.

Ranks that reduce their gradients together take equally long for a step, since all wait for the
slowest, so step times identify no rank. The slow rank is the one that spends more time by itself:
waiting for its data, which the probe measures, and computing, which is the rest of a step without
the wait for others, if that is known.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from ddptop_runner.base.units import has_or_have, is_or_are, name_ranks, size, step_time
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.imbalance import busy_s, median_of_others, seen
from ddptop_runner.judge.losses import LossApart
from ddptop_runner.model.snapshot import GpuSample, RankSample
from ddptop_runner.model.words import ENDED

HOLD_S = 20.0
"""How long a rank must deviate before it is marked ..."""
HOLD_LOSSES = 10
"""... and for how many of its losses."""
CLEARS_AFTER_S = 5.0
"""How long a mark remains after the rank is back, so that borderline figures do not flicker."""

SHORT_S, LONG_S = 20, 60
"""Looks over which times and memory are smoothed (by median), and loads (by mean: they are bursty).
"""
LEAST_LONG = 30
"""Minimum number of looks for a known load."""
PAUSE_S, PAUSES = 5.0, 3.0
"""Each rank takes a step within this many seconds, or this many times its usual step time. Figures
from longer times without a step are not those of training."""
LONGEST_LOOK_S = 5.0
"""The most time that one look adds to a rank's deviation."""

_MEDIANS = ("step_time_s", "data_wait_s", "gpu_mem_used_bytes", "rss_bytes")
_MEANS = ("cpu_percent", "gpu_util_percent", "gpu_power_w")


class _Smoothed:
    """One rank's figures in the latest looks."""

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {
            **{name: deque(maxlen=SHORT_S) for name in (*_MEDIANS, "busy")},
            **{name: deque(maxlen=LONG_S) for name in _MEANS},
        }

    def take(self, rank: RankSample) -> None:
        """Add a look."""
        for name, values in self._values.items():
            value = busy_s(rank) if name == "busy" else getattr(rank, name)
            if value is not None:
                values.append(value)

    def of(self, rank: RankSample) -> RankSample:
        """The rank with smoothed figures, which are None until known for long enough."""
        smooth: dict[str, float | None] = {}
        for name in _MEDIANS:
            known = self._values[name]
            smooth[name] = statistics.median(known) if known else None
        for name in _MEANS:
            known = self._values[name]
            smooth[name] = statistics.fmean(known) if len(known) >= LEAST_LONG else None
        step_s, busy = smooth["step_time_s"], self._values["busy"]
        smooth["sync_s"] = None
        if step_s is not None and busy and rank.sync_s is not None:
            smooth["sync_s"] = max(0.0, step_s - statistics.median(busy))
        return msgspec.structs.replace(rank, **smooth)


class _Steps:
    """Looks between which each rank took a step."""

    def __init__(self) -> None:
        self._steps: dict[int, int | None] = {}
        self._stepped_s: float | None = None
        self._pending: list[Sequence[RankSample]] = []
        self._gaps_s: deque[float] = deque(maxlen=9)

    def look(
        self, ranks: Sequence[RankSample], now_s: float
    ) -> tuple[Sequence[Sequence[RankSample]], float]:
        """(looks while steps were taken, their duration)."""
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
    """One rank that deviates in one figure."""

    losses: int
    """Number of its losses when it began to deviate."""
    held_s: float = 0.0
    absent_s: float = 0.0
    shown: bool = False


class RankMarks:
    """Checks a job's ranks about once per second."""

    def __init__(self) -> None:
        self._smoothed: dict[int, _Smoothed] = defaultdict(_Smoothed)
        self._losses = LossApart()
        self._steps = _Steps()
        self._marks: dict[tuple[str, int], _Mark] = {}
        """By finding id and rank."""
        self._excess_s: dict[int, float] = {}
        """By rank, how long it last held up the others."""
        self._ids: object = None
        self._updated_s: float | None = None

    def look(
        self,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        now_s: float,
        attempt: int | None = None,
    ) -> list[Finding]:
        """The present marks, as findings that have already held long enough.

        Args:
            ranks: of the job, joined with their devices.
            gpus: its devices.
            now_s: a monotonic clock, in seconds.
            attempt: the job's; everything starts over with a new one.
        """
        living = [rank for rank in seen(ranks) if rank.state not in ENDED]
        ids = attempt, tuple(sorted((rank.rank, rank.pid) for rank in living if rank.pid))
        if ids != self._ids:
            self._smoothed.clear()
            self._marks.clear()
            self._losses, self._steps = LossApart(), _Steps()
        self._ids = ids
        gap_s = 0.0 if self._updated_s is None else now_s - self._updated_s
        self._updated_s = now_s
        return self._found(living, gpus, min(max(0.0, gap_s), LONGEST_LOOK_S), now_s)

    def _found(
        self,
        ranks: Sequence[RankSample],
        gpus: Sequence[GpuSample],
        passed_s: float,
        now_s: float,
    ) -> list[Finding]:
        shown = self._shown_ranks("loss-diverged")
        self._hold("loss-diverged", self._losses.look(ranks, shown), passed_s)
        looks, passed_s = self._steps.look(ranks, now_s)
        for look in looks:
            for rank in look:
                self._smoothed[rank.rank].take(rank)
        smooth = [self._smoothed[rank.rank].of(rank) for rank in ranks]
        nodes, found = slow_nodes(smooth), []
        behind = {rank.rank: nodes[rank.host] for rank in smooth if rank.host in nodes}
        self._hold("slow-node", behind, passed_s)
        self._excess_s.update(behind)
        of_nodes = self._shown_ranks("slow-node")
        found += slow_node_findings(smooth, {rank: self._excess_s[rank] for rank in of_nodes})
        late = {rank: by for rank, by in slow(smooth).items() if rank not in of_nodes}
        self._hold("straggler", late, passed_s)
        self._excess_s.update(late)
        if marked := {rank: self._excess_s[rank] for rank in self._shown_ranks("straggler")}:
            found.append(straggler_finding(smooth, marked))
        if marked_losses := self._shown_ranks("loss-diverged"):
            found.append(self._of_losses(marked_losses))
        for kind in ON_DEVICES if gpus else ON_CPUS:
            self._hold(kind.id, far_off(kind, smooth), passed_s)
            if numbers := self._shown_ranks(kind.id):
                found.append(uneven_finding(kind, smooth, numbers))
        return found

    def _hold(self, id_: str, apart: Collection[int], passed_s: float) -> None:
        """Track how long each rank has deviated."""
        for rank in apart:
            mark = self._marks.get((id_, rank))
            if mark is None:
                mark = self._marks[id_, rank] = _Mark(self._losses.seen(rank))
            else:
                mark.held_s += passed_s
            mark.absent_s = 0.0
            enough = id_ != "loss-diverged" or self._losses.seen(rank) - mark.losses >= HOLD_LOSSES
            mark.shown = mark.shown or (enough and mark.held_s >= HOLD_S)
        for key in [key for key in self._marks if key[0] == id_ and key[1] not in apart]:
            mark = self._marks[key]
            mark.absent_s += passed_s
            if not mark.shown or mark.absent_s > CLEARS_AFTER_S:
                del self._marks[key]

    def _shown_ranks(self, id_: str) -> list[int]:
        return sorted(rank for (of, rank), mark in self._marks.items() if of == id_ and mark.shown)

    def _of_losses(self, ranks: Sequence[int]) -> Finding:
        message = f"the loss on {name_ranks(ranks)} has diverged from the others: "
        return Finding(
            "loss-diverged", "warning", message + self._losses.words(ranks), tuple(ranks)
        )


SHARE = 0.2
"""How much longer than the median of the others a rank must be busy by itself, in steps ..."""
LEAST_S = 0.010
"""... and at least, in seconds."""

Read = Callable[[RankSample], float | None]


def slow(ranks: Sequence[RankSample]) -> dict[int, float]:
    """By rank that holds up the others, for how many seconds per step.

    This includes ranks that do not wait for each other and whose steps simply take longer.
    """
    stepping = [rank for rank in ranks if rank.state == "running" and rank.steps_per_s]
    if len(stepping) < 2:
        return {}
    apart = _apart(stepping, busy_s)
    if not apart and any(busy_s(rank) is None for rank in stepping):
        apart = _apart(stepping, lambda rank: rank.data_wait_s)
        apart = apart or _apart(stepping, lambda rank: rank.step_time_s)
    return {rank.rank: excess_s for rank, excess_s in apart}


def slow_nodes(ranks: Sequence[RankSample]) -> dict[str, float]:
    """By host of which every rank holds up the ranks elsewhere, for how many seconds per step.

    A host counts only if it has two or more ranks and even the fastest is behind the median of the
    ranks on all other hosts, so that ordinary differences between ranks blame no host.
    """
    on = _by_host(rank for rank in ranks if rank.state == "running" and rank.steps_per_s)
    if len(on) < 2:
        return {}
    for read in (busy_s, lambda rank: rank.data_wait_s, lambda rank: rank.step_time_s):
        if all(read(rank) is not None for there in on.values() for rank in there):
            return _slow_nodes(on, read)
    return {}


def _slow_nodes(on: Mapping[str, Sequence[RankSample]], read: Read) -> dict[str, float]:
    times = {host: [read(rank) or 0.0 for rank in here] for host, here in on.items()}
    least_s = min(map(min, times.values()))
    found = {}
    for host, here in on.items():
        own_s = min(times[host])
        if len(here) < 2 or own_s < least_s + LEAST_S:  # the median of others cannot be lower
            continue
        elsewhere = [time_s for other, there in times.items() if other != host for time_s in there]
        if len(elsewhere) < 2:
            continue
        excess_s = own_s - statistics.median(elsewhere)
        step_s = here[times[host].index(own_s)].step_time_s
        if excess_s >= max(LEAST_S, SHARE * (step_s or 0.0)) > 0:
            found[host] = excess_s
    return found


def _by_host(ranks: Iterable[RankSample]) -> dict[str, list[RankSample]]:
    found: dict[str, list[RankSample]] = {}
    for rank in ranks:
        found.setdefault(rank.host, []).append(rank)
    return found


def slow_node_findings(ranks: Sequence[RankSample], behind: Mapping[int, float]) -> list[Finding]:
    """One finding for all hosts in `slow_nodes`."""
    on = _by_host(rank for rank in ranks if rank.rank in behind)
    if not on:
        return []
    numbers = tuple(sorted(behind))
    excess_s = max(behind.values())
    slowest = next(rank for rank in ranks if behind.get(rank.rank) == excess_s)
    others = [rank for rank in ranks if rank.rank not in behind and rank.step_time_s is not None]
    whose = ", ".join(sorted(on))
    nodes = f"host {whose}" if len(on) == 1 else f"hosts {whose}"
    be = "is" if len(on) == 1 else "are"
    why = _why(slowest, others, excess_s)
    message = (
        f"{nodes} {be} slow: all ranks there ({name_ranks(numbers)}) {is_or_are(numbers)} holding "
        f"up the others; rank {slowest.rank} {why}"
    )
    return [Finding("slow-node", "warning", message, numbers)]


def straggler_finding(ranks: Sequence[RankSample], apart: Mapping[int, float]) -> Finding:
    """The finding on the ranks in `slow`."""
    numbers = tuple(sorted(apart))
    several = len(numbers) > 1
    worst = max(numbers, key=lambda number: apart[number])
    slowest = next(rank for rank in ranks if rank.rank == worst)
    where = f" on {slowest.host}" if any(rank.host != slowest.host for rank in ranks) else ""
    pid = "" if several or not slowest.pid else f" (pid {slowest.pid}{where})"
    who = f"{name_ranks(numbers)}{pid}"
    why = _why(slowest, [rank for rank in ranks if rank.step_time_s is not None], apart[worst])
    message = f"{who} {is_or_are(numbers)} holding up the others: it {why}"
    return Finding("straggler", "warning", message, numbers)


def _apart(ranks: Sequence[RankSample], read: Read) -> list[tuple[RankSample, float]]:
    """Ranks with a time far above the median of the others, with the difference in seconds."""
    known = [(rank, time_s) for rank in ranks if (time_s := read(rank)) is not None]
    if len(known) < len(ranks):
        return []
    usual_s = median_of_others([time_s for _, time_s in known])
    found = []
    for rank, time_s in known:
        step_s = rank.step_time_s
        if step_s and time_s - usual_s >= max(LEAST_S, SHARE * step_s):
            found.append((rank, time_s - usual_s))
    return found


def _why(slowest: RankSample, ranks: Sequence[RankSample], excess_s: float) -> str:
    others = [rank for rank in ranks if rank is not slowest]
    step_s = slowest.step_time_s or 0.0
    share = f"{100 * excess_s / step_s:.0f}% of each step" if step_s else "part of each step"
    of_step = f"of each {step_time(step_s)} step"
    waits_s = [rank.data_wait_s for rank in others if rank.data_wait_s is not None]
    wait_s = slowest.data_wait_s
    if wait_s is not None and waits_s:
        usual_s = statistics.median(waits_s)
        if wait_s - usual_s >= excess_s / 2:
            return (
                f"waits {step_time(wait_s)} {of_step} for data (median of the others: "
                f"{step_time(usual_s)}), costing {share}"
            )
    own_s = busy_s(slowest)
    known_s = [time_s for rank in others if (time_s := busy_s(rank)) is not None]
    if own_s is None or not known_s:
        steps_s = [rank.step_time_s for rank in others if rank.step_time_s is not None]
        median = (
            f" (median of the others: {step_time(statistics.median(steps_s))})" if steps_s else ""
        )
        return f"takes {step_time(step_s)} per step{median}"
    return (
        f"is busy for {step_time(own_s)} {of_step} (median of the others: "
        f"{step_time(statistics.median(known_s))}), costing {share}"
    )


OUT_OF_SPREAD = 3.0
"""An outlier is this many times farther from the median than the median rank is. If all differ,
like the stages of a pipeline, there is none."""

ENOUGH_FOR_A_SPREAD = 4
"""With fewer ranks, the usual spread is unknown."""

_GIB = 1024**3


class Kind(msgspec.Struct, frozen=True):
    """A figure by which ranks are compared."""

    id: str
    """The id of its finding."""
    read: Callable[[RankSample], float | None]
    ratio: float
    """Minimum distance as a fraction of the median ..."""
    least: float
    """... and in the figure's own unit: 1% next to 2% utilization is not an outlier."""
    more_is_worse: bool
    """Which of two ranks is named, since their median lies between them."""
    words: Callable[[str, str], str]
    """The message, from the ranks' figures and the median in words."""
    write: Callable[[float], str]

    def values(self, ranks: Sequence[RankSample]) -> dict[int, float]:
        """By rank, if known."""
        return {rank.rank: value for rank in ranks if (value := self.read(rank)) is not None}


ON_DEVICES = (
    Kind(
        "uneven-memory",
        *(lambda rank: rank.gpu_mem_used_bytes, 0.2, 1.0 * _GIB, True),
        lambda here, usual: f"{here} of device memory in use (median {usual})",
        size,
    ),
    Kind(
        "uneven-load",
        *(lambda rank: rank.gpu_util_percent, 0.25, 15.0, False),
        lambda here, usual: f"a device that is busy {here} of the time (median {usual})",
        lambda percent: f"{percent:.0f}%",
    ),
    Kind(
        "uneven-power",
        *(lambda rank: rank.gpu_power_w, 0.2, 20.0, False),
        lambda here, usual: f"a device that draws {here} (median {usual})",
        lambda watts: f"{watts:.0f} W",
    ),
)
ON_CPUS = (
    Kind(
        "uneven-memory",
        *(lambda rank: rank.rss_bytes, 0.2, 0.5 * _GIB, True),
        lambda here, usual: f"{here} of resident memory (median {usual})",
        size,
    ),
    Kind(
        "uneven-load",
        *(lambda rank: rank.cpu_percent, 0.25, 25.0, True),
        lambda here, usual: f"a CPU load of {here} (median {usual}; 100% is one core)",
        lambda percent: f"{percent:.0f}%",
    ),
)


def far_off(kind: Kind, ranks: Sequence[RankSample]) -> list[int]:
    """Ranks beyond both bounds and this job's usual spread."""
    known = kind.values(ranks)
    if len(known) < 2:
        return []
    median = statistics.median(known.values())
    away = {rank: value - median for rank, value in known.items()}
    if len(known) == 2:
        away = {rank: by for rank, by in away.items() if (by > 0) == kind.more_is_worse}
    is_known = len(known) >= ENOUGH_FOR_A_SPREAD
    spread = statistics.median(map(abs, away.values())) if is_known else 0.0
    least = max(kind.least, kind.ratio * abs(median), OUT_OF_SPREAD * spread)
    return [rank for rank, by in away.items() if abs(by) >= least]


def uneven_finding(kind: Kind, ranks: Sequence[RankSample], apart: Collection[int]) -> Finding:
    """The finding on the ranks in `far_off`."""
    known = kind.values(ranks)
    numbers = tuple(sorted(apart))
    low, high = (kind.write(of(known[number] for number in numbers)) for of in (min, max))
    here = low if low == high else f"{low} to {high}"
    words = kind.words(here, kind.write(statistics.median(known.values())))
    return Finding(
        kind.id, "info", f"{name_ranks(numbers)} {has_or_have(numbers)} {words}", numbers
    )
