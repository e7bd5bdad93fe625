"""What a run teaches about its own times: the longest pause of each phase, the usual interval."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

from ddptop_runner.hangs.allowances import MOST_PATIENCE, Rules
from ddptop_runner.model_words import Phase

INTERVALS_KEPT = 30
INTERVALS_NEEDED = 3
"""Before this many nobody knows what is usual."""

_PHASES: frozenset[str] = frozenset(get_args(Phase))


@dataclass(frozen=True)
class Interval:
    """Seconds between the signs of progress of one rank."""

    usual_s: float
    longest_s: float
    """The second longest of the latest, once there are enough: one pause is no habit."""


class Learned:
    """Kept over attempts, and over supervisors by `remember` and `recall`."""

    def __init__(self) -> None:
        self.longest_idle_s: dict[Phase, float] = {}
        self.patience = 1.0
        self._intervals: dict[int, deque[float]] = {}

    def rules(self, timeout_s: float | None) -> Rules:
        """For one look."""
        return Rules(timeout_s, self.longest_idle_s, self.patience)

    def saw_pause(self, doing: Phase, idle_s: float) -> None:
        """A group was idle in that phase, and went on."""
        self.longest_idle_s[doing] = max(idle_s, self.longest_idle_s.get(doing, 0.0))

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
        return Interval(median(seen), seen[-2] if len(seen) >= 10 else seen[-1])

    def remember(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return {
            "longest_idle_s": {doing: round(s, 3) for doing, s in self.longest_idle_s.items()},
            "patience": self.patience,
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
