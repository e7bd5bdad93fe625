"""Ranks for the tests of hang detection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddptop_runner.judge.hangs.verdict import HangReport, RankProgress, Standing
from ddptop_runner.judge.hangs.watch import HangWatch


def rank(number: int, steps: int | None = 40, since_s: float = 0.1, **fields: Any) -> RankProgress:
    """A live rank; `at=(5, 4)` is its default group: [entered, completed]."""
    if (at := fields.pop("at", None)) is not None:
        fields |= {"enqueued": {"0": at[0]}, "completed": {"0": at[1]}}
    fields = {"alive": True, "paused": False, "unheard_s": 0.5, **fields}
    return RankProgress(rank=number, steps=steps, since_progress_s=since_s, **fields)


def standing(
    number: int,
    steps: int | None = 40,
    silent_s: float = 61.0,
    doing: str = "steps",
    **fields: Any,
) -> Standing:
    """A rank that has been silent for that long."""
    measured = {
        key: fields.pop(key) for key in ("idle_s", "busy", "batches_since") if key in fields
    }
    return Standing(
        rank(number, steps, silent_s, **fields),
        doing=doing,  # type: ignore[arg-type]
        silent_s=silent_s,
        idle_s=measured.get("idle_s", silent_s),
        busy=measured.get("busy", False),
    )


class Life:
    """A watch that is updated once a second."""

    def __init__(self, watch: HangWatch) -> None:
        self.watch = watch
        self.now_s = 1000.0
        self.looked = HangReport()

    def look(self, ranks: Iterable[RankProgress], after_s: float = 1.0) -> HangReport:
        self.now_s += after_s
        self.looked = self.watch.update(list(ranks), self.now_s)
        return self.looked

    def train(self, seconds: int, numbers: Iterable[int] = (0, 1, 2), **fields: Any) -> int:
        """All ranks take ten steps a second; returns the last step."""
        numbers = list(numbers)
        for second in range(1, seconds + 1):
            done = 10 * second
            self.look(rank(n, done, 0.0, at=(3 * done, 3 * done), **fields) for n in numbers)
        return 10 * seconds

    def stand(
        self, ranks: Callable[[float], list[RankProgress]], until_s: float
    ) -> tuple[float | None, float | None, float | None]:
        """(first quiet, first suspicion, verdict): when each occurred, in seconds, if it did.

        Args:
            ranks: given the seconds for which they stand.
            until_s: how long to look.
        """
        quiet_s = suspected_s = None
        stood_s = 0.0
        while stood_s < until_s:
            stood_s += 1.0
            looked = self.look(ranks(stood_s))
            quiet_s = stood_s if quiet_s is None and looked.quiet else quiet_s
            suspected_s = stood_s if suspected_s is None and looked.suspicion else suspected_s
            if looked.verdict is not None:
                return quiet_s, suspected_s, stood_s
        return quiet_s, suspected_s, None
