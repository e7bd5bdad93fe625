"""The hang verdict: how long a group may go without progress, and whether it has exceeded that.

Only progress proves life, and unknown progress is not "no progress". What counts is the time
without any sign of life: progress, or activity that fits the phase, such as batches taken, bytes
written, or CPU time during startup or compilation.

A false alarm costs more than a late one: it loses the work since the last checkpoint, and the next
attempt may be no different. Minimums are therefore long where a healthy rank may be silent, and
short only where others wait in a collective that a rank has not entered. torch's own limits for
collectives (NCCL 10 min, gloo 30 min) set the scale: a pause within them is allowed here too,
unless the awaited rank is idle. `Limits` raises the minimums by what it learns from the run.

The rank that the others wait for is identified by the most reliable sign available: a collective
that some have entered and one has not; then a rank that ended; fewer steps; and finally, a rank
that is not in a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta

from ddptop_runner.base.units import has_or_have, is_or_are, name_ranks
from ddptop_runner.model.words import PauseState, Phase


@dataclass(frozen=True)
class RankProgress:
    """One rank at one moment. None means unknown, which is not "no progress"."""

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
    unheard_s: float | None = None
    """Seconds since the probe's last message; None without one. A probe reports at least every 5 s
    unless the interpreter's lock is held."""
    exited_with: int | None = None
    """Return code, if it has ended."""
    stands_at: str | None = None
    data_position: Sequence[int] | None = None
    """Pass over the training data, and the batches taken in it."""
    is_blocked: bool = False
    """In uninterruptible sleep (D)."""

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
    """One rank at one moment, with times measured while a supervisor was watching.

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
    """Whether it neither reports nor uses the CPU, as if its interpreter were stuck."""


@dataclass(frozen=True)
class Culprits:
    """The ranks that a stalled group waits for, and the evidence."""

    ranks: tuple[int, ...]
    because: str
    """The evidence in words, without a place."""
    place: str | None = None
    """Where they all stand, if that is known and the same."""
    proven: bool = False
    """Whether the others cannot continue without them."""
    named: bool = True
    """False if no rank is behind; `ranks` are then all."""


@dataclass(frozen=True)
class HangVerdict:
    """A group that exceeded its allowed time without progress."""

    ranks: tuple[int, ...]
    """The ranks that the others wait for; all if no rank is behind."""
    why: str
    """How long there was no progress, which ranks are stuck or behind, and the evidence."""
    place: str | None = None
    """Where those ranks stand, according to their probes."""

    def message(self, place: str | None = None) -> str:
        """In words, with `place` (from stacks) or the one that the probes reported."""
        at = place or self.place
        return self.why if at is None else f"{self.why}, last seen at {at}"


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
class HangReport:
    """What the watch found at one moment."""

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

DOING: dict[Phase, str] = {
    "start": "starting",
    "compile": "compiling",
    "evaluation": "evaluating",
    "checkpoint": "saving or loading a checkpoint",
    "data": "waiting for data",
    "end": "exiting",
}
"""What a rank is doing, in words."""


def find_culprits(standings: Sequence[Standing], ended: Sequence[RankProgress] = ()) -> Culprits:
    """The ranks that the others wait for; all of `standings` if nothing distinguishes them.

    Args:
        standings: ranks that are alive with known progress, at least one.
        ended: ranks that have ended.
    """
    return (
        _by_collective([standing.rank for standing in standings], ended)
        or _by_end(standings, ended)
        or _by_steps(standings)
        or _by_waiting(standings)
        or _by_data(standings)
        or Culprits(
            _numbers(standings),
            _together(standings),
            _place([standing.rank for standing in standings]),
            named=False,
        )
    )


def _by_collective(alive: Sequence[RankProgress], ended: Sequence[RankProgress]) -> Culprits | None:
    """Ranks that have not entered a collective in which others wait."""
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
        where = "" if group == DEFAULT_GROUP else f" of process group {group}"
        overdue = any(rank.alive and rank.is_overdue for rank in those)
        missed = "it" if latest == last + 1 else f"collective {last + 1}"
        missing = (
            f"last reported before entering {missed} (no response from the interpreter)"
            if overdue
            else f"never reached {missed}"
        )
        numbers = tuple(rank.rank for rank in those)
        waits = f"{_are(waiting)} waiting in collective {latest}{where}"
        if uneven := _uneven(those, [rank for rank in alive if rank not in behind]):
            missing = f"{uneven} and {missing}"
        because = "; ".join(
            filter(None, (waits, _blocked(those), f"{name_ranks(numbers)} {missing}"))
        )
        if gone := _ended_in_words(those):
            because += f" ({gone})"
        is_shared = not group.startswith("#") and group != "other"  # the same group on all ranks
        found = Culprits(numbers, because, _place(those), proven=is_shared and not overdue)
        if roots and is_shared:
            return found
        unsure = unsure or found
    return unsure


def _uneven(behind: Sequence[RankProgress], ahead: Sequence[RankProgress]) -> str | None:
    """That ranks have left their loop over the data, while others take more of the same pass."""
    ended = {tuple(rank.data_position or ()) for rank in behind}
    going_on = {tuple(rank.data_position or ()) for rank in ahead}
    if len(ended) > 1 or not going_on:
        return None
    number, *taken = ended.pop() or (0,)
    if taken != [0] or any(one[:1] != (number - 1,) or one[1] == 0 for one in going_on):
        return None
    return (
        f"{has_or_have(behind)} left the loop over the data of this epoch, unlike the others (if "
        "the data has ended: use drop_last, or DistributedDataParallel's join())"
    )


def _blocked(ranks: Sequence[RankProgress]) -> str | None:
    """`rank 1 is in uninterruptible sleep (D), ...`, for those that are."""
    numbers = [rank.rank for rank in ranks if rank.is_blocked]
    if not numbers:
        return None
    return f"{_are(numbers)} in uninterruptible sleep (D), as for a disk, a mount, or a driver"


def _by_end(standings: Sequence[Standing], ended: Sequence[RankProgress]) -> Culprits | None:
    """Ranks that ended while all others wait."""
    gone = [rank for rank in ended if rank.exited_with is not None]
    if not gone or not all(standing.doing == "collective" for standing in standings):
        return None
    because = f"{_are(_numbers(standings))} waiting in a collective; {_ended_in_words(gone)}"
    return Culprits(tuple(rank.rank for rank in gone), because, proven=True)


def _by_steps(standings: Sequence[Standing]) -> Culprits | None:
    """Ranks that have taken fewer steps."""
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
    return Culprits(numbers, because, _place([standing.rank for standing in behind]), proven)


def _by_waiting(standings: Sequence[Standing]) -> Culprits | None:
    """Ranks that are not waiting in a collective while others are."""
    waiting = [standing for standing in standings if standing.doing == "collective"]
    others = [standing for standing in standings if standing.doing != "collective"]
    if not waiting or not others or _in_same_collective(standings) is not None:
        return None
    numbers = _numbers(others)
    doing = {standing.doing for standing in others}
    what = DOING.get(doing.pop(), "not") if len(doing) == 1 else "not"
    because = f"{_are(_numbers(waiting))} waiting in a collective; {_are(numbers)} {what}"
    return Culprits(numbers, because, _place([standing.rank for standing in others]))


def _by_data(standings: Sequence[Standing]) -> Culprits | None:
    """Ranks that have left their loop over the data, as for a barrier, while others go on."""
    ended = [one for one in standings if (one.rank.data_position or (0, 1))[1] == 0]
    others = [one.rank for one in standings if one not in ended]
    uneven = _uneven([one.rank for one in ended], others) if ended else None
    if uneven is None:
        return None
    numbers = _numbers(ended)
    return Culprits(numbers, f"{_together(standings)}; {name_ranks(numbers)} {uneven}")


def _in_same_collective(standings: Sequence[Standing]) -> int | None:
    """The collective of the default group that all have entered and that does not complete."""
    entered = standings[0].rank.enqueued.get(DEFAULT_GROUP)
    if entered is None or any(
        one.rank.enqueued.get(DEFAULT_GROUP) != entered
        or one.rank.completed.get(DEFAULT_GROUP, entered) >= entered
        for one in standings
    ):
        return None
    return entered


def _together(standings: Sequence[Standing]) -> str:
    """What a group does in which no rank is behind."""
    steps = {standing.rank.steps for standing in standings} - {None}
    step = steps.pop() if len(steps) == 1 else None
    at = f" at step {step}" if step else ""
    blocked = _blocked([standing.rank for standing in standings])
    if len(standings) == 1:
        return blocked or f"rank {standings[0].rank.rank} is stuck{at}"
    where = parted({one.rank.rank: _place([one.rank]) for one in standings}, " at ")
    places = "" if where is None else f": {where}"
    if (entered := _in_same_collective(standings)) is not None:
        return f"all ranks are waiting in collective {entered}, which has not completed{places}"
    if all(standing.doing == "collective" for standing in standings):
        return f"all ranks are waiting in a collective{at}{places}"
    return f"all ranks are stuck{at}" + ("" if blocked is None else f"; {blocked}")


MOST_PARTS = 3


def parted(values: Mapping[int, str | None], joint: str) -> str | None:
    """`rank 0 at train.py:9 in a, ranks 1, 2 at train.py:5 in b`; None if unknown or the same.

    Args:
        values: by rank.
        joint: between ranks and value, such as " at ".
    """
    ranks: dict[str | None, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks.setdefault(value, []).append(rank)
    if None in ranks or not 1 < len(ranks) <= MOST_PARTS:
        return None
    return ", ".join(f"{name_ranks(those)}{joint}{value}" for value, those in ranks.items())


def _are(ranks: Sequence[int]) -> str:
    return f"{name_ranks(ranks)} {is_or_are(ranks)}"


def _ended_in_words(ranks: Sequence[RankProgress]) -> str:
    gone = [rank for rank in ranks if not rank.alive]
    if not gone:
        return ""
    how = "" if gone[0].exited_with is None else f" with status {gone[0].exited_with}"
    return f"{name_ranks([rank.rank for rank in gone])} {has_or_have(gone)} exited{how}"


def _place(ranks: Sequence[RankProgress]) -> str | None:
    """Where they stand; None if that differs, is outdated, or one has ended."""
    if any(not rank.alive or rank.is_overdue for rank in ranks):
        return None
    places = {rank.stands_at for rank in ranks}
    return places.pop() if len(places) == 1 else None


def _numbers(standings: Sequence[Standing]) -> tuple[int, ...]:
    return tuple(standing.rank.rank for standing in standings)


# -- limits -------------------------------------------------------------------------------

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

PROVEN_IDLE_S = 180.0
"""For a rank without any sign of life that the others wait for."""
PROVEN_BUSY_S = 600.0
"""For a rank that uses the CPU, perhaps in an unrecognized phase, while the others wait for it."""
UNPROVEN_IDLE_S = 600.0
UNPROVEN_BUSY_S = 1800.0
"""For a group in which no rank is known to wait for another."""

ASKED_START_FLOOR_S = 300.0
"""Minimum idle time before the first step with a requested timeout, unless the others wait for a
rank: imports, data, and compilation take minutes."""

MOST_PATIENCE = 8.0

STEPS_KEPT = 30
STEPS_NEEDED = 3
"""With fewer, the usual step time is unknown."""

Time = Annotated[float, Meta(ge=0, lt=1e9)]


class Limits(msgspec.Struct):
    """The requested limit and what was learned from the run, across attempts and supervisors."""

    timeout_s: Time | None = None
    """Requested time without progress; None to use what was learned."""
    longest_idle_s: dict[Phase, Time] = {}
    """By phase, the longest idle time that ended with a sign of life."""
    patience: Annotated[float, Meta(ge=1, le=MOST_PATIENCE)] = 1.0
    """Factor for the minimums, which grows each time a learned limit ends an attempt."""
    step_times: list[Time] = []
    """The latest ones."""

    def saw_pause(self, doing: Phase, idle_s: float) -> None:
        """Record that a group was idle in a phase, and then continued."""
        self.longest_idle_s[doing] = max(round(idle_s, 3), self.longest_idle_s.get(doing, 0.0))

    def saw_step(self, step_time_s: float) -> None:
        """Record the time between two steps of a rank."""
        self.step_times = [*self.step_times, round(step_time_s, 4)][-STEPS_KEPT:]

    @property
    def usual_step_s(self) -> float | None:
        """None until there are enough steps."""
        return median(self.step_times) if len(self.step_times) >= STEPS_NEEDED else None

    def acted(self) -> None:
        """Raise the minimums after a learned limit ended a group, perhaps too early."""
        self.patience = min(MOST_PATIENCE, 2 * self.patience)


def allowed_idle_s(
    limits: Limits, doing: Phase, *, proven: bool, busy: bool | None, begun: bool = True
) -> float:
    """The allowed idle time for a rank that is not waiting for another.

    Args:
        limits: requested and learned. A requested limit applies to each phase after the first step.
        doing: what the rank is doing.
        proven: whether others cannot continue without it.
        busy: whether it uses the CPU; None counts as True.
        begun: whether any rank has taken its first step.
    """
    if (asked_s := limits.timeout_s) is not None:
        if doing == "start":
            return asked_s if proven else max(asked_s, ASKED_START_FLOOR_S)
        return asked_s if begun else max(asked_s, FLOORS_S.get(doing, 0.0))
    if proven and doing == "end":
        floor_s = PROVEN_IDLE_S
    elif doing in FLOORS_S:
        floor_s = FLOORS_S[doing]
    elif busy is False or doing == "collective":  # there, waiting for a device uses the CPU
        floor_s = PROVEN_IDLE_S if proven else UNPROVEN_IDLE_S
    else:
        floor_s = PROVEN_BUSY_S if proven else UNPROVEN_BUSY_S
    return max(floor_s * limits.patience, FACTOR * limits.longest_idle_s.get(doing, 0.0))


# -- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgment:
    """A group at one moment, compared with its limits."""

    silent_s: float
    """Since any rank made progress."""
    idle_s: float
    """Since any rank that could continue showed a sign of life."""
    allowed_s: float
    """For the rank with the most time left."""
    decides: Standing
    """That rank."""
    culprits: Culprits
    deciding: tuple[Standing, ...]
    """Ranks that could continue; all if all wait in a collective."""

    @property
    def used(self) -> float:
        """Fraction of the allowed time used; above 1, the group hangs."""
        return self.idle_s / self.allowed_s

    def verdict(self) -> HangVerdict:
        """In words."""
        why = (
            f"no rank made progress for {self.silent_s:.0f} s (limit: {self.allowed_s:g} s); "
            f"{self.culprits.because}"
        )
        return HangVerdict(self.culprits.ranks, why, self.culprits.place)


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
    found = []
    for rank in deciding:
        proven = culprits.proven and (all_wait or rank.rank.rank in culprits.ranks)
        allowed_s = allowed_idle_s(limits, rank.doing, proven=proven, busy=rank.busy, begun=begun)
        idle_s = min(rank.idle_s, silent_s)
        found.append(Judgment(silent_s, idle_s, allowed_s, rank, culprits, deciding))
    return min(found, key=lambda one: one.used)


# -- pauses ---------------------------------------------------------------------------------------

LEAST_PAUSE_S = 15.0
"""A shorter time without a step is never shown."""
USUAL_STEPS = 3.0
"""Minimum number of usual step times without a step."""
SPENT = 0.75
"""Fraction of the allowed time from which a job is stalled."""

UNEXPLAINED: frozenset[Phase] = frozenset({"steps", "collective"})
"""Phases that do not explain why a rank takes long."""


def begins_after_s(usual_s: float | None) -> float:
    """The time without a step from which a pause is shown."""
    return max(LEAST_PAUSE_S, USUAL_STEPS * (usual_s or 0.0))


def pause_state(
    stepless_s: float,
    usual_s: float | None,
    *,
    stalled: bool,
    hung: bool = False,
    begun: bool = True,
) -> PauseState | None:
    """The kind of pause; None while there are steps.

    Pauses are part of training: an evaluation, a checkpoint, the first batch of an epoch. A pause
    is at first only shown, with its reason, and becomes a warning when most of the limit is used.

    Args:
        stepless_s: since any rank took a step.
        usual_s: the usual step time; None if unknown.
        stalled: whether `SPENT` is used, now or earlier in this pause.
        hung: whether there was a verdict.
        begun: whether a step was taken; startup is not a pause.
    """
    if hung:
        return "hung"
    if stalled:
        return "stalled"
    return "no_step" if begun and stepless_s >= begins_after_s(usual_s) else None


def awaited(judgment: Judgment, standings: Sequence[Standing]) -> tuple[int, ...]:
    """Ranks that the others wait for, if any."""
    if judgment.culprits.named:
        return judgment.culprits.ranks
    if _in_same_collective(standings) is not None:
        return ()
    return _numbers(judgment.deciding) if len(judgment.deciding) < len(standings) else ()


def reason(judgment: Judgment, standings: Sequence[Standing]) -> str | None:
    """The reason for a pause, if known.

    For example `rank 0 is evaluating`, or `waiting for rank 1, last seen at train.py:79`.
    """
    doing = {one.doing for one in judgment.deciding}
    if len(doing) == 1 and (what := DOING.get(doing.pop())) is not None:
        ranks = _numbers(judgment.deciding)
        everyone = len(ranks) == len(standings) > 1
        return f"all ranks are {what}" if everyone else f"{_are(ranks)} {what}"
    if not judgment.culprits.named and _in_same_collective(standings) is not None:
        return _together(standings)
    those = awaited(judgment, standings)
    waiting = [one.rank.rank for one in standings if one.rank.rank not in those]
    place = _place([one.rank for one in standings if not those or one.rank.rank in those])
    seen = "" if place is None else f", last seen at {short_place(place)}"
    if those and waiting:
        who = "waiting" if len(waiting) > 1 else f"{name_ranks(waiting)} is waiting"
        return f"{who} for {name_ranks(those)}{seen}"
    if all(one.doing == "collective" for one in standings) and len(standings) > 1:
        return f"all ranks are waiting in a collective{seen}"
    return seen.removeprefix(", ") or None


def short_place(place: str) -> str:
    """`train.py:79` of `/home/me/train.py:79 in main`."""
    return place.partition(" in ")[0].rpartition("/")[2]
