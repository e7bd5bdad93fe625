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

Which rank the others wait for is told by the surest sign that there is: a collective that some have
entered and one has not; then a rank that ended; fewer steps; an interpreter that does not respond;
and last the minority that is where most ranks are not.
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
    """One rank at one look. Unknown is None, and unknown progress is not "no progress"."""

    rank: int
    alive: bool
    paused: bool
    """Stopped by a signal: the person's doing."""
    steps: int | None
    """Optimizer steps of this attempt; None when no probe was heard."""
    since_progress_s: float
    """Seconds since its last step, or since the attempt started when it has taken none."""
    phase: Phase | None = None
    phase_s: float = 0.0
    """Seconds since the phase began."""
    enqueued: Mapping[str, int] = field(default_factory=dict)
    """By process group: the last collective that the rank has entered."""
    completed: Mapping[str, int] = field(default_factory=dict)
    batches: int | None = None
    cpu_s: float | None = None
    """CPU time of the rank and all its descendants since they started."""
    written_bytes: int | None = None
    """By the rank, as /proc/<pid>/io tells."""
    loader: LoaderUsage | None = None
    """Its data loader's processes; None while it does not wait for them, and where it has none."""
    unheard_s: float | None = None
    """Seconds since the probe's last word, which comes at least every 5 s unless the interpreter's
    lock is held; None when it was never heard."""
    exited_with: int | None = None
    """Return code of a rank that has ended."""
    stands_at: str | None = None

    @property
    def known(self) -> bool:
        """Whether its progress can be known at all."""
        return self.steps is not None or bool(self.completed)

    @property
    def is_unheard(self) -> bool:
        """Whether its probe is overdue: its interpreter does not respond."""
        return (self.unheard_s or 0.0) > UNHEARD_S

    @property
    def pending(self) -> bool:
        """Whether it has entered a collective that is not complete."""
        return any(
            entered > self.completed.get(group, entered) for group, entered in self.enqueued.items()
        )


@dataclass(frozen=True)
class Standing:
    """One rank at one look, measured in the time for which somebody looked.

    A supervisor that was stopped, or a machine that was suspended, adds nothing to these times.
    """

    rank: RankProgress
    doing: Phase
    silent_s: float
    """Since its last step or completed collective."""
    idle_s: float
    """Since its last sign of life: progress, or an activity that belongs to what it does."""
    stepless_s: float = 0.0
    """Since its last step; of a rank that takes none, since its last completed collective."""
    busy: bool | None = None
    """Whether it and its descendants use the CPU; None while that is not known."""
    is_still: bool = False
    """Whether nothing is heard of it, and it has used next to no CPU for long: what trains or
    sleeps, with a probe, uses more."""
    batches: int | None = None
    """Taken since `doing` began."""


@dataclass(frozen=True)
class Culprits:
    """The ranks that a stalled group waits for, and how that is known."""

    ranks: tuple[int, ...]
    because: str
    """In words."""
    proven: bool = False
    """Whether the others cannot go on without them, whatever they do."""
    named: bool = True
    """False where nobody is behind, and `ranks` are all."""


@dataclass(frozen=True)
class HangVerdict:
    """A group that has used up its time without progress."""

    ranks: tuple[int, ...]
    """The culprits: whom the others wait for; all where nobody is behind."""
    message: str
    """What stands still, who is behind and by which sign, in words."""
    named: bool = True
    """False where nobody is behind."""


@dataclass(frozen=True)
class SeenPause:
    """A pause of a job that has taken steps before."""

    state: PauseState
    stepless_s: float
    reason: str | None = None
    ranks: tuple[int, ...] = ()
    """Whom the others wait for."""


@dataclass(frozen=True)
class HangLook:
    """What one look found."""

    quiet: Mapping[int, float] = field(default_factory=dict)
    """Ranks that take longer than usual, with the seconds since their last progress. No alarm."""
    suspicion: HangVerdict | None = None
    """The job is stalled. Nothing is done yet."""
    verdict: HangVerdict | None = None
    """Time to take evidence, and to act."""
    pause: SeenPause | None = None
    """None while steps come, and before the first."""
    notes: Mapping[int, str] = field(default_factory=dict)
    """By rank: why it is silent and well, such as "evaluating for 40 s"."""


UNHEARD_S = 8.0
"""A probe speaks at least every 5 s unless its interpreter's lock is held."""


WARM_STEPS = 3


WARM_COLLECTIVES = 20
"""Before this many the first of everything still happens."""


def is_warm(ranks: Sequence[RankProgress], *, first_step: bool) -> bool:
    """Whether the start is over for the group.

    Args:
        ranks: all of it.
        first_step: one step is enough.
    """
    steps = max((rank.steps or 0 for rank in ranks), default=0)
    collectives = max((sum(rank.completed.values()) for rank in ranks), default=0)
    return steps >= (1 if first_step else WARM_STEPS) or (
        steps == 0 and collectives >= WARM_COLLECTIVES
    )


# -- whom the others wait for ----------------------------------------------------------------------

DEFAULT_GROUP = "0"
"""Name of the process group of all ranks."""


def _is_shared(group: str) -> bool:
    """Whether the name stands for the same group on all ranks."""
    return not group.startswith("#") and group != "other"


DOING: dict[Phase, str] = {
    "start": "starting",
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving a checkpoint",
    "data": "waiting for its data loader",
    "end": "exiting",
}
"""What one rank does."""


def find_culprits(standings: Sequence[Standing], ended: Sequence[RankProgress] = ()) -> Culprits:
    """The ranks to look at first; all of `standings` where nothing tells them apart.

    Args:
        standings: ranks that live and whose progress is known, at least one.
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
    """Who has not entered a collective in which others wait."""
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
        # a rank that waits in another group's collective is held up itself
        roots = [rank for rank in behind if not rank.alive or not rank.pending]
        last = min(rank.enqueued[group] for rank in roots or behind)
        those = [rank for rank in roots or behind if rank.enqueued[group] == last]
        numbers = tuple(rank.rank for rank in those)
        where = "" if group == DEFAULT_GROUP else f" of process group {group}"
        unheard = any(rank.alive and rank.is_unheard for rank in those)
        missed = "it" if latest == last + 1 else f"collective {last + 1}"
        missing = (
            f"last reported before entering {missed}" if unheard else f"never reached {missed}"
        )
        facts = [_ended_in_words(those), _silent_in_words(those), _standing_in_words(those)]
        because = (
            f"{_are(waiting)} waiting in collective {latest}{where}; "
            f"{name_ranks(numbers)} {missing}{_aside(facts)}"
        )
        found = Culprits(numbers, because, proven=_is_shared(group) and not unheard)
        if roots and _is_shared(group):
            return found
        unsure = unsure or found
    return unsure


def _by_end(standings: Sequence[Standing], ended: Sequence[RankProgress]) -> Culprits | None:
    """Who has ended while all others wait."""
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
    """Where they are instead; empty where that differs or one of them has ended."""
    if any(not rank.alive or rank.is_unheard for rank in ranks):
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
    """Who has taken fewer steps, and does not wait itself."""
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
    """Whose interpreter does not respond, while others' do."""
    silent = [standing for standing in standings if standing.rank.is_unheard]
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
    """All have entered the same collective, and it does not complete: no one's absence."""
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
    """Who does not wait in a collective, while others do."""
    waiting = [standing for standing in standings if standing.doing == "collective"]
    others = [standing for standing in standings if standing.doing != "collective"]
    if not waiting or not others:
        return None
    numbers = _numbers(others)
    doing = {standing.doing for standing in others}
    what = DOING.get(doing.pop()) if len(doing) == 1 else None
    if what == DOING["checkpoint"]:  # it may load it as well
        what = "at a checkpoint"
    return Culprits(
        numbers,
        f"{_are(_numbers(waiting))} waiting in a collective; "
        f"{_are(numbers)} {what or 'not'}{_places_in_words(others)}",
    )


def _by_place(standings: Sequence[Standing]) -> Culprits | None:
    """The ranks at the least common place."""
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
    silent = sum(rank.alive and rank.is_unheard for rank in ranks)
    if silent > 1:
        return "their interpreters are not responding"
    return "its interpreter is not responding" if silent else ""


def _numbers(standings: Sequence[Standing]) -> tuple[int, ...]:
    return tuple(standing.rank.rank for standing in standings)


# -- what is allowed -------------------------------------------------------------------------------

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
    culprits = find_culprits(ranks, ended)
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
