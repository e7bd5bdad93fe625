"""Times learned from a run: the longest pause of each phase, and the usual interval."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

from ddptop_runner.judge.hangs.allowances import MOST_PATIENCE, Rules
from ddptop_runner.model.words import Phase

INTERVALS_KEPT = 30
INTERVALS_NEEDED = 3
"""Before this many nobody knows what is usual."""

_PHASES: frozenset[str] = frozenset(get_args(Phase))


@dataclass(frozen=True)
class Interval:
    """Seconds between the signs of progress of one rank."""

    usual_s: float


class Learned:
    """Kept over attempts, and over supervisors by `remember` and `recall`."""

    def __init__(self) -> None:
        self.longest_idle_s: dict[Phase, float] = {}
        self.patience = 1.0
        self._intervals: dict[int, deque[float]] = {}
        self._step_times: deque[float] = deque(maxlen=INTERVALS_KEPT)
        self.longest_pause_s: dict[Phase, float] = {}
        """By what was done in it: the longest time without a step that ended with one."""

    def rules(self, timeout_s: float | None) -> Rules:
        """For one look."""
        return Rules(timeout_s, self.longest_idle_s, self.patience)

    def saw_pause(self, doing: Phase, idle_s: float) -> None:
        """A group was idle in that phase, and went on."""
        self.longest_idle_s[doing] = max(idle_s, self.longest_idle_s.get(doing, 0.0))

    def saw_step(self, step_time_s: float) -> None:
        """A rank took a step, that long after the one before."""
        self._step_times.append(step_time_s)

    @property
    def usual_step_s(self) -> float | None:
        """None while too few steps were seen."""
        return median(self._step_times) if len(self._step_times) >= INTERVALS_NEEDED else None

    def saw_stop(self, doing: Phase, stepless_s: float) -> None:
        """No rank took a step for so long, that was done meanwhile, and then one did."""
        self.longest_pause_s[doing] = max(stepless_s, self.longest_pause_s.get(doing, 0.0))

    def acted(self) -> None:
        """A group was ended for what was learned: it may have been too early."""
        self.patience = min(MOST_PATIENCE, 2 * self.patience)

    def saw_interval(self, rank: int, interval_s: float) -> None:
        """A rank went on, that long after its progress before."""
        self._intervals.setdefault(rank, deque(maxlen=INTERVALS_KEPT)).append(interval_s)

    def interval(self, rank: int) -> Interval | None:
        """What is usual for a rank; None while too little was seen."""
        seen = sorted(self._intervals.get(rank, ()))
        if len(seen) < INTERVALS_NEEDED:
            return None
        return Interval(median(seen))

    def remember(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return {
            "longest_idle_s": {doing: round(s, 3) for doing, s in self.longest_idle_s.items()},
            "patience": self.patience,
            "longest_pause_s": {doing: round(s, 3) for doing, s in self.longest_pause_s.items()},
            "step_times": [round(s, 4) for s in list(self._step_times)[-10:]],
            "intervals": {
                str(rank): [round(s, 4) for s in list(seen)[-10:]]
                for rank, seen in self._intervals.items()
            },
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
        for doing, idle_s in _items(memory.get("longest_idle_s")):
            if doing in _PHASES and _is_time(idle_s):
                self.saw_pause(doing, float(idle_s))  # type: ignore[arg-type]
        for doing, stepless_s in _items(memory.get("longest_pause_s")):
            if doing in _PHASES and _is_time(stepless_s):
                self.saw_stop(doing, float(stepless_s))  # type: ignore[arg-type]
        steps = memory.get("step_times")
        for step_time_s in steps if isinstance(steps, list) else ():
            if _is_time(step_time_s):
                self.saw_step(float(step_time_s))
        patience = memory.get("patience")
        if isinstance(patience, (int, float)) and _is_time(patience):
            self.patience = min(MOST_PATIENCE, max(1.0, float(patience)))
        for rank, seen in _items(memory.get("intervals")):
            if rank.isdecimal() and isinstance(seen, list):
                for interval_s in seen:
                    if _is_time(interval_s):
                        self.saw_interval(int(rank), float(interval_s))


def _items(value: object) -> list[tuple[str, Any]]:
    return [(str(key), item) for key, item in value.items()] if isinstance(value, dict) else []


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
