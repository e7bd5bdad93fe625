"""Keeps what the hang verdict needs from look to look, over attempts and supervisors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddptop_runner.hangs import verdict
from ddptop_runner.hangs.types import HangLook, RankProgress


class HangWatch:
    """Looks at a group's progress once a second.

    Args:
        timeout_s: seconds without progress that are allowed; None with `auto` False: off.
        auto: learn the time allowed from the run.
    """

    def __init__(self, timeout_s: float | None, *, auto: bool = False) -> None:
        self._timeout_s = timeout_s
        self._auto = auto

    def begin_attempt(self) -> None:
        """The group was started anew: what was learned stays, what was seen does not."""

    def look(self, ranks: Sequence[RankProgress], now_s: float) -> HangLook:
        """What this moment says.

        Args:
            ranks: all ranks of the attempt.
            now_s: CLOCK_BOOTTIME.
        """
        half_s = None if self._timeout_s is None else self._timeout_s / 2
        return HangLook(
            suspicion=verdict.verdict(ranks, half_s),
            verdict=verdict.verdict(ranks, self._timeout_s),
        )

    def remember(self) -> dict[str, Any]:
        """What the watch of a supervisor that is started again has to know; JSON-serialisable."""
        return {}

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
