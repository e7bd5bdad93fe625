"""The hang verdict: how long a group may go without progress, and whether it has exceeded that.

Only progress proves life, and unknown progress is not "no progress". Two times count: `idle_s`,
without any sign of life (progress, or activity that fits the phase, such as batches taken, bytes
written, or CPU time during startup or compilation); and `total_s`, without progress, so that a rank
that takes batches in an endless loop does not pass forever.

A false alarm costs more than a late one: it loses the work since the last checkpoint, and the next
attempt may be no different. Minimums are therefore long where a healthy rank may be silent, and
short only where others wait in a collective that a rank has not entered. torch's own limits for
collectives (NCCL 10 min, gloo 30 min) set the scale: a pause within them is allowed here too,
unless the awaited rank is idle. `Limits` raises the minimums by what it learns from the run.

The rank that the others wait for is identified by the most reliable sign available: a collective
that some have entered and one has not; then a rank that ended; fewer steps; an interpreter that
does not respond; and finally, a position that differs from the majority's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta

from ddptop_runner.base.units import has_or_have, is_or_are, name_ranks
from ddptop_runner.host.tree import LoaderUsage
from ddptop_runner.model.words import PauseState, Phase


@dataclass(frozen=True)
class RankProgress:
    """One rank at one look. None means unknown, which is not "no progress"."""

    rank: int
    alive: bool
    paused: bool
    """Stopped by a signal."""
    steps: int | None
    """Optimizer steps in this attempt; None without a message from the probe."""
    since_progress_s: float
    """Seconds since its last step or, without one, since the attempt started."""
    phase: Phase | None = None
    phase_s: float = 0.0
    """Seconds since the phase began."""
    enqueued: Mapping[str, int] = field(default_factory=dict)
    """By process group, the last collective that the rank entered."""
    completed: Mapping[str, int] = field(default_factory=dict)
    batches: int | None = None
    cpu_s: float | None = None
    """CPU time of the rank and all its descendants since they started."""
    written_bytes: int | None = None
    """Bytes written by the rank, from /proc/<pid>/io."""
    loader: LoaderUsage | None = None
    """Its data loader's processes; None if there are none or it is not waiting for them."""
    unheard_s: float | None = None
    """Seconds since the probe's last message; None without one. A probe reports at least every 5 s
    unless the interpreter's lock is held."""
    exited_with: int | None = None
    """Return code, if it has ended."""
    stands_at: str | None = None

    @property
    def known(self) -> bool:
        """Whether its progress is known."""
        return self.steps is not None or bool(self.completed)

    @property
    def is_overdue(self) -> bool:
        """Whether its probe is overdue, so that its interpreter does not respond."""
        return (self.unheard_s or 0.0) > REPORT_OVERDUE_S

    @property
    def pending(self) -> bool:
        """Whether it is in an incomplete collective."""
        return any(
            entered > self.completed.get(group, entered) for group, entered in self.enqueued.items()
        )


@dataclass(frozen=True)
class Standing:
    """One rank at one look, with times measured while a supervisor was watching.

    Time during which the supervisor was stopped or the machine was suspended does not count.
    """

    rank: RankProgress
    doing: Phase
    silent_s: float
    """Since its last step or completed collective."""
    idle_s: float
    """Since its last sign of life: progress, or activity that fits what it is doing."""
    stepless_s: float = 0.0
    """Since its last step or, if it takes none, its last completed collective."""
    busy: bool | None = None
    """Whether it or its descendants use the CPU; None if unknown."""
    is_still: bool = False
    """Whether it does not report and has long used almost no CPU. A rank with a probe that trains
    or sleeps uses more."""
    batches: int | None = None
    """Batches taken since `doing` began."""


@dataclass(frozen=True)
class Culprits:
    """The ranks that a stalled group waits for, and the evidence."""

    ranks: tuple[int, ...]
    because: str
    """In words."""
    proven: bool = False
    """Whether the others cannot continue without them."""
    named: bool = True
    """False if no rank is behind; `ranks` are then all."""


@dataclass(frozen=True)
class HangVerdict:
    """A group that exceeded its allowed time without progress."""

    ranks: tuple[int, ...]
    """The ranks that the others wait for; all if no rank is behind."""
    message: str
    """Which ranks are stuck, which are behind, and the evidence, in words."""
    named: bool = True
    """False if no rank is behind."""


@dataclass(frozen=True)
class SeenPause:
    """A pause of a job that has taken steps."""

    state: PauseState
    stepless_s: float
    reason: str | None = None
    ranks: tuple[int, ...] = ()
    """The ranks that the others wait for."""
    left_s: float | None = None
    """Until the verdict, unless there is a sign of life; None if the pause is explained."""


@dataclass(frozen=True)
class HangLook:
    """The result of one look."""

    quiet: Mapping[int, float] = field(default_factory=dict)
    """Seconds since the last progress, for ranks that take longer than usual. Not an alarm."""
    suspicion: HangVerdict | None = None
    """Set while the job is stalled, before any action."""
    verdict: HangVerdict | None = None
    """Set when it is time to collect evidence and act."""
    pause: SeenPause | None = None
    """None while there are steps, and before the first."""
    notes: Mapping[int, str] = field(default_factory=dict)
    """By rank, why it is silent but healthy, such as "evaluating for 40 s"."""


REPORT_OVERDUE_S = 8.0
"""A probe reports at least every 5 s unless its interpreter's lock is held."""


WARM_STEPS = 3


WARM_COLLECTIVES = 20
"""With fewer, the group is still starting up."""


def is_warm(ranks: Sequence[RankProgress], *, first_step: bool) -> bool:
    """Whether the group has started up.

    Args:
        ranks: all ranks of the group.
        first_step: whether one step is enough.
    """
    steps = max((rank.steps or 0 for rank in ranks), default=0)
    collectives = max((sum(rank.completed.values()) for rank in ranks), default=0)
    return steps >= (1 if first_step else WARM_STEPS) or (
        steps == 0 and collectives >= WARM_COLLECTIVES
    )


# -- culprits ----------------------------------------------------------------------

DEFAULT_GROUP = "0"
"""Name of the default process group, with all ranks."""


def _is_shared(group: str) -> bool:
    """Whether the name means the same group on all ranks."""
    return not group.startswith("#") and group != "other"


DOING: dict[Phase, str] = {
    "start": "starting",
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving a checkpoint",
    "data": "waiting for its data loader",
    "end": "exiting",
}
"""What a rank is doing, in words."""


def find_culprits(standings: Sequence[Standing], ended: Sequence[RankProgress] = ()) -> Culprits:
    """The ranks that the others wait for; all of `standings` if nothing distinguishes them.

    Args:
        standings: ranks that are alive with known progress, at least one.
        ended: ranks that have ended.
    """
    for sign in (_by_collective, _by_end):
        if found := sign(standings, ended):
            return found
    if len(standings) > 1:
        for other_sign in (_by_steps, _by_silence, _by_mismatch, _by_waiting, _by_place):
            if found := other_sign(standings):
                return found
    return Culprits(_numbers(standings), _together(standings), named=False)


def _by_collective(standings: Sequence[Standing], ended: Sequence[RankProgress]) -> Culprits | None:
    """Ranks that have not entered a collective in which others wait."""
    alive = [standing.rank for standing in standings]
    groups = {group for rank in alive for group in rank.enqueued}
    unsure = None
    for group in sorted(groups, key=lambda name: (name != DEFAULT_GROUP, name)):
        members = [rank for rank in (*alive, *ended) if group in rank.enqueued]
        latest = max(rank.enqueued[group] for rank in members)
        waiting = [
            rank.rank
            for rank in members
            if rank.alive and rank.completed.get(group, latest) < latest <= rank.enqueued[group]
        ]
        behind = [rank for rank in members if rank.enqueued[group] < latest]
        if not waiting or not behind:
            continue
        # a rank in another group's collective is itself waiting
        roots = [rank for rank in behind if not rank.alive or not rank.pending]
        last = min(rank.enqueued[group] for rank in roots or behind)
        those = [rank for rank in roots or behind if rank.enqueued[group] == last]
        numbers = tuple(rank.rank for rank in those)
        where = "" if group == DEFAULT_GROUP else f" of process group {group}"
        overdue = any(rank.alive and rank.is_overdue for rank in those)
        missed = "it" if latest == last + 1 else f"collective {last + 1}"
        missing = (
            f"last reported before entering {missed}" if overdue else f"never reached {missed}"
        )
        facts = [_ended_in_words(those), _silent_in_words(those), _standing_in_words(those)]
        because = (
            f"{_are(waiting)} waiting in collective {latest}{where}; "
            f"{name_ranks(numbers)} {missing}{_aside(facts)}"
        )
        found = Culprits(numbers, because, proven=_is_shared(group) and not overdue)
        if roots and _is_shared(group):
            return found
        unsure = unsure or found
    return unsure


def _by_end(standings: Sequence[Standing], ended: Sequence[RankProgress]) -> Culprits | None:
    """Ranks that ended while all others wait."""
    gone = [rank for rank in ended if rank.exited_with is not None]
    if not gone or not all(standing.doing == "collective" for standing in standings):
        return None
    numbers = tuple(rank.rank for rank in gone)
    waiting = _numbers(standings)
    because = f"{_are(waiting)} waiting in a collective; {_ended_in_words(gone)}"
    return Culprits(numbers, because, proven=True)


def _are(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {is_or_are(ranks)}"


def _aside(facts: Sequence[str]) -> str:
    known = "; ".join(filter(None, facts))
    return f" ({known})" if known else ""


def _standing_in_words(ranks: Sequence[RankProgress]) -> str:
    """Where they are instead; empty if that differs or one has ended."""
    if any(not rank.alive or rank.is_overdue for rank in ranks):
        return ""
    places = {rank.stands_at for rank in ranks}
    place = places.pop() if len(places) == 1 else None
    if place is None:
        return ""
    return f"last seen at {place}"


def _ended_in_words(ranks: Sequence[RankProgress]) -> str:
    gone = [rank for rank in ranks if not rank.alive]
    if not gone:
        return ""
    how = "" if gone[0].exited_with is None else f" with status {gone[0].exited_with}"
    return f"{name_ranks([rank.rank for rank in gone])} {has_or_have(gone)} exited{how}"


def _by_steps(standings: Sequence[Standing]) -> Culprits | None:
    """Ranks that have taken fewer steps and are not waiting."""
    steps = {standing.rank.rank: standing.rank.steps or 0 for standing in standings}
    fewest, most = min(steps.values()), max(steps.values())
    if fewest == most:
        return None
    behind = [standing for standing in standings if steps[standing.rank.rank] == fewest]
    ahead = [standing for standing in standings if steps[standing.rank.rank] == most]
    others = "the other is" if len(standings) - len(behind) == 1 else "the others are"
    numbers = _numbers(behind)
    because = f"{_are(numbers)} stuck at step {fewest}; {others} at step {most}"
    proven = all(standing.doing == "collective" for standing in ahead) and all(
        standing.doing != "collective" for standing in behind
    )
    silent = _aside([_silent_in_words([standing.rank for standing in behind])])
    return Culprits(numbers, because + silent, proven)


def _by_silence(standings: Sequence[Standing]) -> Culprits | None:
    """Ranks whose interpreter does not respond, while others' do."""
    silent = [standing for standing in standings if standing.rank.is_overdue]
    if not silent or len(silent) == len(standings):
        return None
    numbers = _numbers(silent)
    unheard_s = max(standing.rank.unheard_s or 0.0 for standing in silent)
    because = (
        f"{name_ranks(numbers)} {has_or_have(numbers)} not reported for "
        f"{unheard_s:.0f} s: {_silent_in_words([standing.rank for standing in silent])}"
    )
    return Culprits(numbers, because)


def _by_mismatch(standings: Sequence[Standing]) -> Culprits | None:
    """All ranks are in the same collective, which does not complete; none is missing."""
    ranks = [standing.rank for standing in standings]
    for group, entered in ranks[0].enqueued.items():
        if _is_shared(group) and all(
            rank.enqueued.get(group) == entered > rank.completed.get(group, entered)
            for rank in ranks
        ):
            places = sorted({rank.stands_at for rank in ranks if rank.stands_at})
            apart = f"; last seen at {' and '.join(places[:3])}" if len(places) > 1 else ""
            because = (
                f"all ranks are waiting in collective {entered}, which has not completed{apart}"
            )
            return Culprits(_numbers(standings), because, named=False)
    return None


def _by_waiting(standings: Sequence[Standing]) -> Culprits | None:
    """Ranks that are not waiting in a collective while others are."""
    waiting = [standing for standing in standings if standing.doing == "collective"]
    others = [standing for standing in standings if standing.doing != "collective"]
    if not waiting or not others:
        return None
    numbers = _numbers(others)
    doing = {standing.doing for standing in others}
    what = DOING.get(doing.pop()) if len(doing) == 1 else None
    if what == DOING["checkpoint"]:  # or loading one
        what = "at a checkpoint"
    return Culprits(
        numbers,
        f"{_are(_numbers(waiting))} waiting in a collective; "
        f"{_are(numbers)} {what or 'not'}{_places_in_words(others)}",
    )


def _by_place(standings: Sequence[Standing]) -> Culprits | None:
    """The ranks at the least common position."""
    places = Counter(standing.rank.stands_at for standing in standings)
    if None in places or len(places) < 2:
        return None
    (_, most), *rest = places.most_common()
    if rest[0][1] == most:
        return None
    fewest = rest[-1][1]
    odd = [s for s in standings if places[s.rank.stands_at] == fewest]
    here = ", ".join(sorted({standing.rank.stands_at or "" for standing in odd}))
    return Culprits(_numbers(odd), f"{_are(_numbers(odd))} at {here}; the others are elsewhere")


def _together(standings: Sequence[Standing]) -> str:
    steps = {standing.rank.steps for standing in standings} - {None}
    if len(standings) == 1:
        (only,) = standings
        at = "" if not only.rank.steps else f" at step {only.rank.steps}"
        return f"rank {only.rank.rank} is stuck{at}{_places_in_words(standings)}"
    at = f" at step {steps.pop()}" if len(steps) == 1 else ""
    if all(standing.doing == "collective" for standing in standings):
        return f"all ranks are waiting in a collective{at}"
    return f"all ranks are stuck{at}{_places_in_words(standings)}"


def _places_in_words(standings: Sequence[Standing]) -> str:
    places = {standing.rank.stands_at for standing in standings} - {None}
    return f" (last seen at {places.pop()})" if len(places) == 1 else ""


def _silent_in_words(ranks: Sequence[RankProgress]) -> str:
    silent = sum(rank.alive and rank.is_overdue for rank in ranks)
    if silent > 1:
        return "their interpreters are not responding"
    return "its interpreter is not responding" if silent else ""


def _numbers(standings: Sequence[Standing]) -> tuple[int, ...]:
    return tuple(standing.rank.rank for standing in standings)


# -- limits -------------------------------------------------------------------------------

HOUR_S = 3600.0

FACTOR = 5.0
"""Multiple of the longest idle time seen in a phase. That is kept forever, or a pause that occurs
once per epoch would look new each time."""

FLOORS_S: Mapping[Phase, float] = {
    "start": 600.0,
    "compile": 1800.0,
    "evaluation": 1800.0,
    "checkpoint": 1800.0,
    "data": 1800.0,
    "end": 600.0,
}
"""Minimum allowed idle time by phase."""

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
"""Maximum time without progress by phase, with signs of life."""

PROVEN_IDLE_S = 180.0
"""For a rank without any sign of life that the others wait for."""
PROVEN_BUSY_S = 600.0
"""For a rank that uses the CPU, perhaps in an unrecognized phase, while the others wait for it."""
UNPROVEN_IDLE_S = 600.0
UNPROVEN_BUSY_S = 1800.0
"""For a group in which no rank is known to wait for another."""
PROVEN_TOTAL_S = 1800.0
"""For a rank that keeps taking batches while the others wait for it."""

ASKED_START_FLOOR_S = 300.0
"""Minimum idle time before the first step with a requested timeout, unless the others wait for a
rank: imports, data, and compilation take minutes."""

MOST_PATIENCE = 8.0


INTERVALS_KEPT = 30
INTERVALS_NEEDED = 3
"""With fewer, the usual interval is unknown."""
INTERVALS_REMEMBERED = 10

Time = Annotated[float, Meta(ge=0, lt=1e9)]


class Limits(msgspec.Struct):
    """The requested limit and what was learned from the run, across attempts and supervisors."""

    timeout_s: Time | None = None
    """Requested time without progress; None to use what was learned."""
    longest_idle_s: dict[Phase, Time] = {}
    """By phase, the longest idle time that ended with a sign of life."""
    patience: Annotated[float, Meta(ge=1, le=MOST_PATIENCE)] = 1.0
    """Factor for the minimums, which grows each time a learned limit ends an attempt."""
    longest_pause_s: dict[Phase, Time] = {}
    """By phase, the longest time without a step that ended with one."""
    step_times: list[Time] = []
    """The latest ones."""
    intervals: dict[int, list[Time]] = {}
    """By rank, the latest times between signs of progress."""

    def saw_pause(self, doing: Phase, idle_s: float) -> None:
        """Record that a group was idle in a phase, and then continued."""
        self.longest_idle_s[doing] = max(round(idle_s, 3), self.longest_idle_s.get(doing, 0.0))

    def saw_step(self, step_time_s: float) -> None:
        """Record the time between two steps of a rank."""
        self.step_times = [*self.step_times, round(step_time_s, 4)][-INTERVALS_KEPT:]

    @property
    def usual_step_s(self) -> float | None:
        """None until there are enough steps."""
        return median(self.step_times) if len(self.step_times) >= INTERVALS_NEEDED else None

    def saw_stop(self, doing: Phase, stepless_s: float) -> None:
        """Record a time without steps in a phase, after which there was one."""
        longest_s = max(round(stepless_s, 3), self.longest_pause_s.get(doing, 0.0))
        self.longest_pause_s[doing] = longest_s

    def acted(self) -> None:
        """Raise the minimums after a learned limit ended a group, perhaps too early."""
        self.patience = min(MOST_PATIENCE, 2 * self.patience)

    def saw_interval(self, rank: int, interval_s: float) -> None:
        """Record the time between two signs of progress of a rank."""
        seen = self.intervals.get(rank, [])
        self.intervals[rank] = [*seen, round(interval_s, 4)][-INTERVALS_KEPT:]

    def usual_s(self, rank: int) -> float | None:
        """The usual time between a rank's signs of progress; None until there are enough."""
        seen = self.intervals.get(rank, [])
        return median(seen) if len(seen) >= INTERVALS_NEEDED else None


@dataclass(frozen=True)
class Allowance:
    """The allowed times for one rank."""

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
    """The allowed times for a rank that is not waiting for another.

    Args:
        limits: requested and learned.
        doing: what the rank is doing.
        proven: whether others cannot continue without it.
        busy: whether it uses the CPU; None counts as True.
        io_known: whether its data loader's CPU time and I/O are known, so that idle time includes
            neither.
        begun: whether any rank has taken its first step.
    """
    asked_s = limits.timeout_s
    if asked_s is not None:
        return _asked(asked_s, doing, proven=proven, begun=begun)
    if proven and (doing == "end" or (doing == "data" and io_known)):
        floor_s = PROVEN_IDLE_S
    elif doing in FLOORS_S:
        floor_s = FLOORS_S[doing]
    elif doing == "collective":  # CPU time means nothing here: waiting for a device spins
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
    """With `--hang-timeout SECONDS`, which limits idle time in each phase after the first step.

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
"""Phases that do not explain why a rank takes long."""


@dataclass(frozen=True)
class Judgment:
    """A group at one moment, compared with its limits."""

    silent_s: float
    """Since any rank made progress."""
    idle_s: float
    """Since any rank that could continue showed a sign of life."""
    allowed: Allowance
    """For the rank with the most allowed time."""
    decides: Standing
    """That rank."""
    culprits: Culprits
    deciding: tuple[Standing, ...]
    """Ranks that could continue; all if all wait in a collective."""
    used: float
    """Fraction of the allowed time used; above 1, the group hangs."""
    left_s: float = 0.0
    """Until then, without a sign of life."""

    @property
    def hangs(self) -> bool:
        """Whether the allowed time is used up."""
        return self.used > 1.0

    def verdict(self) -> HangVerdict:
        """In words."""
        spent_by_silence = self.silent_s / self.allowed.total_s > self.idle_s / self.allowed.idle_s
        allowed_s = self.allowed.total_s if spent_by_silence else self.allowed.idle_s
        return HangVerdict(
            ranks=self.culprits.ranks,
            named=self.culprits.named,
            message=f"no rank made progress for {self.silent_s:.0f} s "
            f"(limit: {allowed_s:g} s); {self.culprits.because}",
        )


def judge(ranks: Sequence[Standing], ended: Sequence[RankProgress], limits: Limits) -> Judgment:
    """Compare a group with its limits.

    Args:
        ranks: those alive, at least one; all with known progress and none paused.
        ended: those that have ended.
        limits: requested and learned.
    """
    culprits = find_culprits(ranks, ended)
    deciding = tuple(rank for rank in ranks if rank.doing != "collective") or tuple(ranks)
    all_wait = deciding[0].doing == "collective"
    silent_s = min(rank.silent_s for rank in ranks)
    begun = is_warm([*(rank.rank for rank in ranks), *ended], first_step=True)
    least_used, left_s = None, 0.0
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
        left_s = max(left_s, min(allowed.idle_s - idle_s, allowed.total_s - silent_s))
        if least_used is None or used < least_used[0]:
            least_used = (used, idle_s, allowed, rank)
    assert least_used is not None
    used, idle_s, allowed, decides = least_used
    return Judgment(silent_s, idle_s, allowed, decides, culprits, deciding, used, left_s)
