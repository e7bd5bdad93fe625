"""How long a group may go without progress, by what its ranks are doing.

Two times count. `idle_s`: without any sign of life (progress, or an activity of the phase: batches
taken, bytes written, CPU time of a start or a compilation). `total_s`: without progress, whatever
the signs, so that a rank that takes batches in an endless loop does not pass forever.

A false action costs more than a late one: it loses the work since the last checkpoint, and the next
attempt hangs at the same place. So the minimums are long where a healthy rank may be silent, and
short only where others wait in a collective that a rank has not entered. torch's own limits for a
collective (NCCL 10 min, gloo 30 min) set the scale: a pause that they allow is allowed here too,
unless the awaited rank is idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
