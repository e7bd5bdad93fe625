"""Loss gone bad: what `--on-nan` acts on, and one rank's loss that leaves the others'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.alerts import Finding
from ddptop_runner.model import OnNan, RankSample


@dataclass(frozen=True)
class BadLoss:
    """A loss that is to be acted on."""

    rank: int
    step: int | None
    what: str
    """`NaN` or `infinite`."""


class LossWatch:
    """Looks at the ranks' losses once a second.

    Args:
        on_nan: what was asked for.
    """

    def __init__(self, on_nan: OnNan) -> None:
        self._on_nan = on_nan

    def begin_attempt(self) -> None:
        """The group was started anew."""

    def look(
        self, ranks: Sequence[RankSample], now_s: float
    ) -> tuple[BadLoss | None, list[Finding]]:
        """(what `--on-nan` has to act on, findings for the alerts)."""
        return None, []
