"""The hang verdict: how long a group may go without progress, and whether it has used that up.

Only progress proves life, and unknown progress is not "no progress". Two times count. `idle_s`:
without any sign of life (progress, or an activity of the phase: batches taken, bytes written, CPU
time of a start or a compilation). `total_s`: without progress, whatever the signs, so that a rank
that takes batches in an endless loop does not pass forever.

A false action costs more than a late one: it loses the work since the last checkpoint, and the next
attempt hangs at the same place. So the minimums are long where a healthy rank may be silent, and
short only where others wait in a collective that a rank has not entered. torch's own limits for a
collective (NCCL 10 min, gloo 30 min) set the scale: a pause that they allow is allowed here too,
unless the awaited rank is idle. `Limits` raises them by what the run has shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta

from ddptop_runner.judge.hangs import culprit
from ddptop_runner.judge.hangs.types import Culprits, HangVerdict, RankProgress, Standing, is_warm
from ddptop_runner.model.words import Phase

HOUR_S = 3600.0

FACTOR = 5.0
"""Times the longest idle time that was seen in a phase. It is never forgotten: a pause that comes
once an epoch would look new each time."""

FLOORS_S: Mapping[Phase, float] = {
    "start": 600.0,
    "compile": 1800.0,
    "evaluation": 1800.0,
    "checkpoint": 1800.0,
    "data": 1800.0,
    "end": 600.0,
}
"""Least idle time that is allowed in a phase."""

CEILINGS_S: Mapping[Phase, float] = {
    "start": 24 * HOUR_S,
    "compile": 4 * HOUR_S,
    "evaluation": 24 * HOUR_S,
    "checkpoint": 4 * HOUR_S,
    "data": 4 * HOUR_S,
    "end": 4 * HOUR_S,
    "steps": 24 * HOUR_S,
    "collective": 24 * HOUR_S,
}
"""Most time without progress in a phase that shows signs of life."""

PROVEN_IDLE_S = 180.0
"""The others wait for a rank that shows no life at all."""
PROVEN_BUSY_S = 600.0
"""The others wait for a rank that uses the CPU: it may do what no phase has a name for."""
UNPROVEN_IDLE_S = 600.0
UNPROVEN_BUSY_S = 1800.0
"""Nobody is seen to wait for another rank."""
PROVEN_TOTAL_S = 1800.0
"""The others wait for a rank that takes batches and never comes."""

ASKED_START_FLOOR_S = 300.0
"""With a time that was asked for: least idle time before the first step, unless the others wait for
a rank; imports, data and compilation take minutes."""

MOST_PATIENCE = 8.0


INTERVALS_KEPT = 30
INTERVALS_NEEDED = 3
"""Before this many nobody knows what is usual."""
INTERVALS_REMEMBERED = 10

Time = Annotated[float, Meta(ge=0, lt=1e9)]


class Limits(msgspec.Struct):
    """The requested limit, and what the run has taught, over attempts and supervisors."""

    timeout_s: Time | None = None
    """Seconds without progress; None: as learned."""
    longest_idle_s: dict[Phase, Time] = {}
    """The longest idle time in each phase that ended with a sign of life."""
    patience: Annotated[float, Meta(ge=1, le=MOST_PATIENCE)] = 1.0
    """How often an attempt was ended already by what was learned: floors grow with it."""
    longest_pause_s: dict[Phase, Time] = {}
    """By what was done in it: the longest time without a step that ended with one."""
    step_times: list[Time] = []
    """The latest."""
    intervals: dict[int, list[Time]] = {}
    """By rank, the latest times between two signs of progress."""

    def saw_pause(self, doing: Phase, idle_s: float) -> None:
        """A group was idle in that phase, and went on."""
        self.longest_idle_s[doing] = max(round(idle_s, 3), self.longest_idle_s.get(doing, 0.0))

    def saw_step(self, step_time_s: float) -> None:
        """A rank took a step, that long after the one before."""
        self.step_times = [*self.step_times, round(step_time_s, 4)][-INTERVALS_KEPT:]

    @property
    def usual_step_s(self) -> float | None:
        """None while too few steps were seen."""
        return median(self.step_times) if len(self.step_times) >= INTERVALS_NEEDED else None

    def saw_stop(self, doing: Phase, stepless_s: float) -> None:
        """No rank took a step for so long, that was done meanwhile, and then one did."""
        longest_s = max(round(stepless_s, 3), self.longest_pause_s.get(doing, 0.0))
        self.longest_pause_s[doing] = longest_s

    def acted(self) -> None:
        """A group was ended for what was learned: it may have been too early."""
        self.patience = min(MOST_PATIENCE, 2 * self.patience)

    def saw_interval(self, rank: int, interval_s: float) -> None:
        """A rank went on, that long after its progress before."""
        seen = self.intervals.get(rank, [])
        self.intervals[rank] = [*seen, round(interval_s, 4)][-INTERVALS_KEPT:]

    def usual_s(self, rank: int) -> float | None:
        """The usual time between two signs of progress of a rank; None while too few were seen."""
        seen = self.intervals.get(rank, [])
        return median(seen) if len(seen) >= INTERVALS_NEEDED else None


@dataclass(frozen=True)
class Allowance:
    """The times that one rank is allowed."""

    idle_s: float
    total_s: float


def allowance(
    limits: Limits,
    doing: Phase,
    *,
    proven: bool,
    busy: bool | None,
    io_known: bool = False,
    begun: bool = True,
) -> Allowance:
    """What is allowed to a rank that nobody else's action would set free.

    Args:
        limits: what was asked for, and what was learned.
        doing: what the rank does.
        proven: whether others cannot go on without it.
        busy: whether it uses the CPU; None counts as if it did.
        io_known: whether its data loader's CPU time and I/O are seen, so that idle time is time in
            which it did neither.
        begun: whether any rank has taken its first step.
    """
    asked_s = limits.timeout_s
    if asked_s is not None:
        return _asked(asked_s, doing, proven=proven, begun=begun)
    if proven and (doing == "end" or (doing == "data" and io_known)):
        floor_s = PROVEN_IDLE_S
    elif doing in FLOORS_S:
        floor_s = FLOORS_S[doing]
    elif doing == "collective":  # its CPU tells nothing: waiting for a device spins
        floor_s = PROVEN_IDLE_S if proven else UNPROVEN_IDLE_S
    elif proven:
        floor_s = PROVEN_IDLE_S if busy is False else PROVEN_BUSY_S
    else:
        floor_s = UNPROVEN_IDLE_S if busy is False else UNPROVEN_BUSY_S
    learned_s = FACTOR * limits.longest_idle_s.get(doing, 0.0)
    ceiling_s = PROVEN_TOTAL_S if proven and doing == "steps" else CEILINGS_S[doing]
    total_s = max(ceiling_s, learned_s)
    return Allowance(min(total_s, max(floor_s * limits.patience, learned_s)), total_s)


def _asked(asked_s: float, doing: Phase, *, proven: bool, begun: bool) -> Allowance:
    """With `--hang-timeout SECONDS`: they hold for idle time in each phase after the first step.

    An evaluation that takes batches, or a checkpoint that grows, is not idle.
    """
    if doing == "start":
        idle_s = asked_s if proven else max(asked_s, ASKED_START_FLOOR_S)
        return Allowance(idle_s, max(10 * asked_s, HOUR_S))
    if not begun and doing in FLOORS_S:
        return Allowance(max(asked_s, FLOORS_S[doing]), max(asked_s, CEILINGS_S[doing]))
    if proven and doing not in FLOORS_S:
        return Allowance(asked_s, max(10 * asked_s, PROVEN_TOTAL_S))
    return Allowance(asked_s, max(asked_s, CEILINGS_S[doing]))


# -- the verdict ----------------------------------------------------------------------------------

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


def judge(ranks: Sequence[Standing], ended: Sequence[RankProgress], limits: Limits) -> Judgement:
    """How a group stands.

    Args:
        ranks: those that live, at least one; all of known progress and none paused.
        ended: those that do not.
        limits: what is allowed.
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
            *(limits, rank.doing),
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
