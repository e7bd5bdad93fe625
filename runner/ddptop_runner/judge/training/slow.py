"""Which ranks hold up the others, and why.

Ranks that reduce their gradients together take equally long for a step, since all wait for the
slowest, so step times identify no rank. The slow rank is the one that spends more time by itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.base.units import is_or_are, name_ranks, plural, size, step_time
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.balance.imbalance import STRAGGLER, median_of_others
from ddptop_runner.judge.training.window import (
    FIRST_MINUTES,
    LATEST_MINUTES,
    Stretch,
    Window,
    known_median,
    typical,
)
from ddptop_runner.model.snapshot import RankSample

STRETCHES, LEAST_STRETCHES = 28, 14
"""Times are smoothed by the median of so many stretches: a rank must deviate in half of them."""
HOLD_S = 5.0
"""How long the medians must then deviate."""
SHARE, ROUGH_SHARE = 0.16, 0.2
"""How much longer than the median of the others a rank must be busy by itself, in steps; more
where its wait for the others is unknown ..."""
LEAST_S = 0.010
"""... and at least, in seconds."""
LEAST_SPREADS = 8.0
"""And how far beyond chance: four standard errors of the median, by the median deviation."""

Parts = Mapping[int, Sequence[Stretch]]
"""By rank, its latest stretches."""


def over_others(times_s: Mapping[int, float]) -> dict[int, float]:
    """By rank, how much longer its time is than the median of the others'."""
    usual_s = median_of_others(times_s.values())
    return {rank: time_s - usual_s for rank, time_s in times_s.items()}


def straggler(window: Window) -> list[Finding]:
    """The ranks that hold up the others.

    This includes ranks that do not wait for each other and whose steps simply take longer.
    """
    stepping = [rank for rank in window.ranks if rank.state == "running" and rank.steps_per_s]
    parts = {rank.rank: [*window.stretches[rank.rank]][-STRETCHES:] for rank in stepping}
    if len(parts) < 2 or any(len(known) < LEAST_STRETCHES for known in parts.values()):
        return []
    figures = {"busy_s": SHARE}
    if not window.gpus:  # on a device, work goes on after the backward pass was submitted
        figures["until_backward_s"] = SHARE
    if any(typical(known, "busy_s") is None for known in parts.values()):
        figures |= {"data_wait_s": ROUGH_SHARE, "step_time_s": ROUGH_SHARE}
    for figure, share in figures.items():
        apart = _apart(parts, figure, share)
        if figure == "busy_s" and not window.gpus:
            apart = _confirmed(parts, apart)
        if apart:
            found = _finding(window, parts, apart, figure)
            step_s = typical(parts[found.ranks[0]], "step_time_s") or 0.0
            also_s = found.evidence.get("data_wait_s_of_others") or 0.0
            return [found] if also_s < ALSO_WAITS * step_s else []
    return []


ALSO_WAITS = 0.125
"""If the others wait for data this part of a step, too, one waits longest by chance."""


CONFIRMED = 0.25
"""This part of a rank's additional busy time must show before its backward pass: the wait for the
others is measured in few steps, this time in all."""


def _confirmed(parts: Parts, apart: Mapping[int, float]) -> dict[int, float]:
    times_s = {rank: typical(known, "until_backward_s") for rank, known in parts.items()}
    known_s = {rank: time_s for rank, time_s in times_s.items() if time_s is not None}
    if len(known_s) < len(parts):
        return dict(apart)
    before_s = over_others(known_s)
    return {
        rank: excess_s for rank, excess_s in apart.items() if before_s[rank] >= CONFIRMED * excess_s
    }


def _apart(parts: Parts, figure: str, share: float) -> dict[int, float]:
    """Ranks with a time far above the median of the others, with the difference in seconds."""
    excesses_s = []
    for together in zip(*parts.values(), strict=False):
        times_s = {rank: getattr(part, figure) for rank, part in zip(parts, together, strict=True)}
        if None not in times_s.values():
            excesses_s.append(over_others(times_s))
    if len(excesses_s) < LEAST_STRETCHES:
        return {}
    found = {}
    for rank, known in parts.items():
        excess_s = median(one[rank] for one in excesses_s)
        step_s = typical(known, "step_time_s")
        if not step_s or excess_s < max(LEAST_S, share * step_s):
            continue
        spread_s = median(abs(one[rank] - excess_s) for one in excesses_s)
        if excess_s >= LEAST_SPREADS * spread_s / math.sqrt(len(excesses_s)):
            found[rank] = excess_s
    return found


def _finding(window: Window, parts: Parts, apart: Mapping[int, float], figure: str) -> Finding:
    numbers = tuple(sorted(apart))
    worst = max(numbers, key=lambda number: apart[number])
    slowest = Slowest(window, parts, worst, apart[worst], figure)
    who = f"{_who(window.ranks, numbers)} {is_or_are(numbers)} holding up the others"
    it = "it" if len(numbers) == 1 else f"rank {worst}"
    message = f"{who}: {slowest.explained(it)}"
    return Finding(STRAGGLER, "warning", message, numbers, hold_s=HOLD_S, evidence=slowest.evidence)


def _who(ranks: Sequence[RankSample], numbers: Sequence[int]) -> str:
    """`ranks 4, 5 on b`, or `all ranks of b (4-7)`, if there are several hosts."""
    hosts = {rank.host for rank in ranks if rank.rank in numbers}
    if len(hosts) > 1 or len({rank.host for rank in ranks}) == 1:
        return name_ranks(numbers)
    host = hosts.pop()
    if len(numbers) == sum(rank.host == host for rank in ranks) > 1:
        return f"all ranks of {host} ({units.span(numbers)})"
    return f"{name_ranks(numbers)} on {host}"


WAITS = {
    "data_wait_s": "waits {} of each {} step for data",
    "gc_s": "spends {} of each {} step in Python's garbage collector",
    "cpu_wait_s": "waits {} of each {} step for a CPU",
}
"""What can take a rank's time, apart from computing."""
DOES = {
    **WAITS,
    "busy_s": "is busy for {} of each {} step",
    "until_backward_s": "takes {} of each {} step up to its backward pass",
    "step_time_s": "takes {} per step",
}
LEAST_READ_BYTES = 1 << 16
"""Read per step: with less, a rank does not wait for its disk."""


class Slowest:
    """The slowest rank beside the others, and why it is slow, as far as figures explain it.

    A figure explains it that accounts for half of the rank's additional time.

    Args:
        window: the job's ranks.
        parts: by rank, the stretches to compare.
        rank: the slowest one.
        excess_s: how much longer than the others it takes for each step.
        figure: by which that was found.
    """

    def __init__(
        self, window: Window, parts: Parts, rank: int, excess_s: float, figure: str
    ) -> None:
        self._own = parts[rank]
        self._others = {number: known for number, known in parts.items() if number != rank}
        self._gpus, self._gpu = window.gpus, window.gpus.get(rank)
        self._workers = window.workers
        self._excess_s = excess_s
        self._figure, self._usual_s = figure, (self._compare(figure) or (0.0, 0.0))[1]
        self._step_s = typical(self._own, "step_time_s") or excess_s
        self.evidence: dict[str, float | None] = {
            "share_percent": round(100 * excess_s / self._step_s, 1),
            "excess_s": round(excess_s, 4),
        }
        """The figures that were named."""

    def explained(self, it: str) -> str:
        """What takes its time, how much slower all ranks are for that, and why, cause first."""
        takes = f"{it} {self._does()}{self._costs()}"
        why = self._because()
        if not why:
            return takes
        return f"{takes}; {why}" if self._figure in WAITS else f"{why}; {takes}"

    def _does(self) -> str:
        for figure in WAITS:
            over_s = self._over(figure)
            if figure == "cpu_wait_s":
                over_s -= self._wait_for_more_work_s()
            if self._explains(over_s):
                self._figure = figure
                break
        value, usual = self._show(self._figure)
        # the medians of two figures may be of different steps
        what = DOES[self._figure].format(step_time(value), step_time(max(value, self._step_s)))
        others = "the other" if len(self._others) == 1 else "median of the others"
        return f"{what} ({others}: {step_time(usual)})"

    def _wait_for_more_work_s(self) -> float:
        """How much longer the others would wait for a CPU if they had as much work for it."""
        cpu_s, wait_s = self._compare("cpu_s"), self._compare("cpu_wait_s")
        if cpu_s is None or wait_s is None or not cpu_s[1]:
            return 0.0
        return wait_s[1] * max(0.0, cpu_s[0] / cpu_s[1] - 1)

    def _costs(self) -> str:
        if self._figure == "step_time_s":
            return ""
        return f", costing {self.evidence['share_percent']:.0f}% of each step"

    def _because(self) -> str:
        if self._figure == "data_wait_s" and self._workers:
            return self._workers
        if self._figure in ("data_wait_s", "gc_s"):
            return ""
        if self._figure == "cpu_wait_s":
            return self._limited("cpus") or "other processes or threads use its CPUs"
        for why in (self._device, self._batches, self._cores, self._asleep):
            if text := why():
                return text
        return ""

    def _device(self) -> str:
        """A slower device."""
        clock = self._compare("sm_clock_mhz")
        if clock is None or self._gpu is None or not clock[0]:
            return ""
        if self._explains(self._usual_s * (clock[1] / clock[0] - 1)):
            mhz, usual = self._show("sm_clock_mhz")
            reasons = ", ".join(self._gpu.throttle_reasons or ())
            why = f" ({reasons})" if reasons else ""
            return f"GPU {self._gpu.index} runs at {mhz:.0f} MHz, the others at {usual:.0f}{why}"
        return ""

    def _batches(self) -> str:
        """Longer batches."""
        elements = self._compare("batch_elements")
        if elements is None or not elements[1]:
            return ""
        ratio = elements[0] / elements[1]
        if not self._explains(self._usual_s * (ratio - 1)):
            return ""
        self._show("batch_elements")
        return f"its batches are {ratio:.1f} times as large as the others'"

    def _cores(self) -> str:
        """Less of the CPU to compute with."""
        if not self._explains(self._over("cpu_s")):
            return ""
        return self._limited("cpus") or self._limited("threads")

    def _limited(self, figure: str) -> str:
        if self._over(figure) >= 0:
            return ""
        value, usual = self._show(figure)
        if figure == "threads":
            return f"it computes with {plural(round(value), 'thread')}, the others with {usual:.0f}"
        return f"it may run on {value:.0f} of the CPUs, the others on {usual:.0f}"

    def _asleep(self) -> str:
        """Something that it waits for, on a rank without a device: its CPU does no work."""
        if self._gpus or self._compare("cpu_s") is None:
            return ""
        asleep_s = self._excess_s - max(0.0, self._over("cpu_s")) - self._over("cpu_wait_s")
        if not self._explains(asleep_s):
            return ""
        if self._over("read_bytes") >= LEAST_READ_BYTES:
            read, usual = self._show("read_bytes")
            return f"it reads {size(read)} from disk in each step, the others {size(usual)}"
        if self._takes_turns() and (limited := self._limited("cpus")):
            return limited
        if self._explains(self._over("other_threads_s")):
            self._show("other_threads_s")
            return "other threads of its process run meanwhile, and may hold Python's lock (GIL)"
        return "it does not compute meanwhile, but sleeps, or waits for a lock or for files"

    def _takes_turns(self) -> bool:
        """Whether its threads have so much work that one waits while others use its CPUs."""
        cpus, cpu_s, threads_s = (
            typical(self._own, figure) for figure in ("cpus", "cpu_s", "other_threads_s")
        )
        if cpus is None or cpu_s is None or threads_s is None:
            return False
        return self._explains(threads_s) and cpu_s + threads_s >= cpus * self._step_s / 2

    def _compare(self, figure: str) -> tuple[float, float] | None:
        """(its figure, the median of the others'); None if either is unknown."""
        value = typical(self._own, figure)
        usual = known_median(typical(known, figure) for known in self._others.values())
        return None if value is None or usual is None else (value, usual)

    def _over(self, figure: str) -> float:
        value, usual = self._compare(figure) or (0.0, 0.0)
        return value - usual

    def _explains(self, time_s: float) -> bool:
        return time_s >= self._excess_s / 2

    def _show(self, figure: str) -> tuple[float, float]:
        """The same for a known figure, which becomes part of the evidence."""
        value, usual = self._compare(figure) or (0.0, 0.0)
        self.evidence |= {figure: round(value, 4), f"{figure}_of_others": round(usual, 4)}
        return value, usual


STALL_LEAST_S, STALLS = 0.5, 3
"""How much longer than usual a rank's steps take in a stall, and how many make a finding."""
STALL_SHARE = 0.1
"""Part of the time that stalls cost."""
STALL_SPAN_S = 90.0
MEANWHILE = {
    "cpu_wait_s": "other processes had its CPU meanwhile",
    "gc_s": "Python's garbage collector ran meanwhile",
    "data_wait_s": "it waited for data meanwhile",
}


def stalls(window: Window) -> list[Finding]:
    """A rank that stops again and again for a moment, while the others wait for it."""
    parts_of = {
        rank: [
            part
            for part in parts
            if part.until_backward_s is not None
            and not part.is_pause
            and parts[-1].ends_s - part.ends_s <= STALL_SPAN_S
        ]
        for rank, parts in window.stretches.items()
    }
    if len(parts_of) < 2 or any(len(parts) < 10 for parts in parts_of.values()):
        return []
    excess_s = {rank: _excess_s(parts, "until_backward_s") for rank, parts in parts_of.items()}
    over = over_others({rank: sum(excess) for rank, excess in excess_s.items()})
    worst = max(over, key=over.__getitem__)
    parts = parts_of[worst]
    places = [i for i, excess in enumerate(excess_s[worst]) if excess >= STALL_LEAST_S]
    stops_s = sum(excess_s[worst][place] for place in places)
    lost_s = min(stops_s, over[worst])
    all_s = parts[-1].ends_s - parts[0].ends_s
    if len(places) < STALLS or not all_s or lost_s < STALL_SHARE * all_s:
        return []
    why, evidence = (
        "",
        {
            "stall_s": round(stops_s / len(places), 2),
            "every_s": round(all_s / len(places), 1),
            "share_percent": round(100 * lost_s / all_s, 1),
        },
    )
    for figure, what in MEANWHILE.items():
        excess = _excess_s(parts, figure)
        time_s = sum(excess[place] for place in places)
        if time_s >= stops_s / 2:
            why, evidence[figure] = f"; {what}", round(time_s / len(places), 2)
            break
    message = (
        f"rank {worst} pauses for {units.duration_in_words(evidence['stall_s'])} about every "
        f"{units.duration_in_words(evidence['every_s'])}, and the others wait for it: it costs "
        f"{evidence['share_percent']:.0f}% of the run{why}"
    )
    return [Finding("stalls", "warning", message, (worst,), hold_s=5.0, evidence=evidence)]


def _excess_s(parts: Collection[Stretch], figure: str) -> list[float]:
    """How much longer than usual each stretch took; 0 if it was shorter or is unknown."""
    usual_s = typical(parts, figure) or 0.0
    times_s: list[float] = [getattr(part, figure) or 0.0 for part in parts]
    return [
        max(0.0, (time_s - usual_s) * part.steps)
        for time_s, part in zip(times_s, parts, strict=True)
    ]


SLOWER = 1.3
"""How many times as long a step takes, in each of the latest minutes, as in any of the first."""
OTHER_BATCHES = 0.1
"""With batches that are so much longer or shorter, steps take another time for good reason."""


def slower_than_before(window: Window) -> list[Finding]:
    """All ranks are slower than in the attempt's first minutes, and the cause shows.

    Without a cause, the script itself may do more by now, such as training more layers.
    """
    first, latest = window.minutes[1:FIRST_MINUTES], window.minutes[FIRST_MINUTES:]
    first_s = [one.step_time_s or 0.0 for one in first]  # without the very first: a warm-up
    latest_s = [one.step_time_s or 0.0 for one in latest]
    if len(latest) < LATEST_MINUTES or not min(first_s) or min(latest_s) < SLOWER * max(first_s):
        return []

    def compare(figure: str) -> tuple[float, float] | None:
        """(the figure now, before); None if either is unknown."""
        now = known_median(getattr(one, figure) for one in latest)
        before = known_median(getattr(one, figure) for one in first)
        return None if now is None or before is None else (now, before)

    step_s, usual_s = median(latest_s), median(first_s)
    elements, clock = compare("batch_elements"), compare("sm_clock_mhz")
    if elements is not None and abs(elements[0] - elements[1]) > OTHER_BATCHES * elements[1]:
        return []
    explained_s = 0.0 if clock is None or not clock[0] else usual_s * (clock[1] / clock[0] - 1)
    if clock is not None and explained_s >= (step_s - usual_s) / 2:
        figure, (value, before) = "sm_clock_mhz", clock
        reasons = {one for gpu in window.gpus.values() for one in gpu.throttle_reasons or ()}
        why = f"the GPUs run at {value:.0f} MHz, before at {before:.0f}"
        why += f" ({', '.join(sorted(reasons))})" if reasons else ""
    else:
        for figure in ("cpu_wait_s", "data_wait_s"):
            value, before = compare(figure) or (0.0, 0.0)
            if value - before >= (step_s - usual_s) / 2:
                break
        else:
            return []
        what = "data" if figure == "data_wait_s" else "a CPU"
        why = f"they wait {step_time(value)} of each step for {what}, before {step_time(before)}"
    who = "all ranks are" if len(window.ranks) > 1 else "the rank is"
    message = (
        f"{who} {step_s / usual_s:.1f} times slower than in the first minutes "
        f"({step_time(step_s)} per step, before {step_time(usual_s)}): {why}"
    )
    evidence: dict[str, float | None] = {
        "step_time_s": round(step_s, 4),
        "step_time_s_before": round(usual_s, 4),
        figure: round(value, 4),
        f"{figure}_before": round(before, 4),
    }
    return [window.finding("slower-than-before", "warning", message, evidence)]
