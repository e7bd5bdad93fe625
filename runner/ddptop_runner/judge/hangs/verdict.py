"""The hang verdict: only progress proves life, and unknown progress is not "no progress"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.judge.hangs import culprit
from ddptop_runner.judge.hangs.allowances import Allowance, Rules, allowance
from ddptop_runner.judge.hangs.following import is_warm
from ddptop_runner.judge.hangs.types import Culprits, HangVerdict, RankProgress, Standing
from ddptop_runner.model.words import Phase

UNEXPLAINED: frozenset[Phase] = frozenset({"steps", "collective"})
"""What a rank does that says nothing about why it takes long."""


@dataclass(frozen=True)
class Judgement:
    """A group at one moment, beside what is allowed to it."""

    silent_s: float
    """Since any rank progressed."""
    idle_s: float
    """Since any rank that could go on gave a sign of life."""
    allowed: Allowance
    """To the rank to which most is allowed."""
    decides: Standing
    """That rank."""
    culprits: Culprits
    deciding: tuple[Standing, ...]
    """Ranks that could go on; all where all wait in a collective."""
    used: float
    """Share of what is allowed that is spent; above 1 the group hangs."""

    @property
    def hangs(self) -> bool:
        """Whether all of what is allowed is spent."""
        return self.used > 1.0

    def tell(self) -> HangVerdict:
        """In words."""
        spent_by_silence = self.silent_s / self.allowed.total_s > self.idle_s / self.allowed.idle_s
        allowed_s = self.allowed.total_s if spent_by_silence else self.allowed.idle_s
        return HangVerdict(
            ranks=self.culprits.ranks,
            quiet_s=self.silent_s,
            named=self.culprits.named,
            message=f"no rank made progress for {self.silent_s:.0f} s "
            f"(limit: {allowed_s:g} s); {self.culprits.because}",
        )


def judge(ranks: Sequence[Standing], ended: Sequence[RankProgress], rules: Rules) -> Judgement:
    """How a group stands.

    Args:
        ranks: those that live, at least one; all of known progress and none paused.
        ended: those that do not.
        rules: what is allowed.
    """
    culprits = culprit.find(ranks, ended)
    deciding = tuple(rank for rank in ranks if rank.doing != "collective") or tuple(ranks)
    all_wait = deciding[0].doing == "collective"
    silent_s = min(rank.silent_s for rank in ranks)
    begun = is_warm([*(rank.rank for rank in ranks), *ended], first_step=True)
    least_used = None
    for rank in deciding:
        proven = culprits.proven and (all_wait or rank.rank.rank in culprits.ranks)
        loader = rank.rank.loader
        allowed = allowance(
            *(rules, rank.doing),
            proven=proven,
            busy=rank.busy,
            io_known=loader is not None and loader.io_bytes is not None,
            begun=begun,
        )
        idle_s = min(rank.idle_s, silent_s)
        used = max(idle_s / allowed.idle_s, silent_s / allowed.total_s)
        if least_used is None or used < least_used[0]:
            least_used = (used, idle_s, allowed, rank)
    assert least_used is not None
    used, idle_s, allowed, decides = least_used
    return Judgement(silent_s, idle_s, allowed, decides, culprits, deciding, used)
