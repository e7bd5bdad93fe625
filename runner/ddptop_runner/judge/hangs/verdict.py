"""The hang verdict: how long a group may go without progress, and whether it has used that up.

Only progress proves life, and unknown progress is not "no progress". Two times count. `idle_s`:
without any sign of life (progress, or an activity of the phase: batches taken, bytes written, CPU
time of a start or a compilation). `total_s`: without progress, whatever the signs, so that a rank
that takes batches in an endless loop does not pass forever.

A false action costs more than a late one: it loses the work since the last checkpoint, and the next
attempt hangs at the same place. So the minimums are long where a healthy rank may be silent, and
short only where others wait in a collective that a rank has not entered. torch's own limits for a
collective (NCCL 10 min, gloo 30 min) set the scale: a pause that they allow is allowed here too,
unless the awaited rank is idle. `Learned` raises them by what the run has shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, get_args

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


@dataclass(frozen=True)
class Rules:
    """The requested limits, and the learned times."""

    timeout_s: float | None
    """Seconds without progress; None: as learned."""
    longest_idle_s: Mapping[Phase, float]
    """The longest idle time in each phase that ended with a sign of life."""
    patience: float = 1.0
    """How often an attempt was ended already by what was learned: floors grow with it."""


@dataclass(frozen=True)
class Allowance:
    """The times that one rank is allowed."""

    idle_s: float
    total_s: float


def allowance(
    rules: Rules,
    doing: Phase,
    *,
    proven: bool,
    busy: bool | None,
    io_known: bool = False,
    begun: bool = True,
) -> Allowance:
    """What is allowed to a rank that nobody else's action would set free.

    Args:
        rules: what was asked for, and what was learned.
        doing: what the rank does.
        proven: whether others cannot go on without it.
        busy: whether it uses the CPU; None counts as if it did.
        io_known: whether its data loader's CPU time and I/O are seen, so that idle time is time in
            which it did neither.
        begun: whether any rank has taken its first step.
    """
    asked_s = rules.timeout_s
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
    learned_s = FACTOR * rules.longest_idle_s.get(doing, 0.0)
    ceiling_s = PROVEN_TOTAL_S if proven and doing == "steps" else CEILINGS_S[doing]
    total_s = max(ceiling_s, learned_s)
    return Allowance(min(total_s, max(floor_s * rules.patience, learned_s)), total_s)


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


# -- what a run teaches ---------------------------------------------------------------------------

INTERVALS_KEPT = 30
INTERVALS_NEEDED = 3
"""Before this many nobody knows what is usual."""

_PHASES: frozenset[str] = frozenset(get_args(Phase))


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

    def usual_s(self, rank: int) -> float | None:
        """The usual time between two signs of progress of a rank; None while too few were seen."""
        seen = self._intervals.get(rank, ())
        return median(seen) if len(seen) >= INTERVALS_NEEDED else None

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
