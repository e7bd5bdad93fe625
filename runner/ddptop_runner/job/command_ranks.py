"""Matches processes of a launched command to ranks, from what their probes report. Pure.

A process that knows its rank is that rank, unless another one is: then the one that was there
stays, as long as it lives. A process that trains and knows no rank is a rank as well, where none is
known: such ones are numbered by the order of their start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Descends = Callable[[int, int], bool]
"""Whether the first process is a descendant of the second."""


@dataclass(frozen=True)
class Met:
    """A process that was met as a rank."""

    rank: int
    pid: int
    alive: bool
    stepped: bool
    numbered: bool = False
    """Whether its number is not its own word: it knows no rank, or only its tree tells it."""
    start_ticks: int = 0
    heard: bool = True
    """Whether it spoke itself; else only its tree shows it."""


@dataclass(frozen=True)
class Newcomer:
    """A process that speaks."""

    pid: int
    rank: int | None
    start_ticks: int = 0


@dataclass(frozen=True)
class Seating:
    """Who the newcomer is."""

    rank: int
    takes: bool = False
    """Whether it becomes the rank; else it speaks for the process that is."""
    numbered: bool = False
    moved: tuple[tuple[int, int], ...] = ()
    """(pid, rank) of others that get another number."""


def seat(new: Newcomer, met: Sequence[Met], descends: Descends) -> Seating | None:
    """The rank that a process is or speaks for; None for one that is nobody's.

    Args:
        new: the process, by its own word.
        met: the ranks so far, dead ones included; each rank once.
        descends: tells a child from its parent.
    """
    own = next((one for one in met if one.pid == new.pid), None)
    if own is not None and new.rank in (None, own.rank):
        return Seating(own.rank, numbered=own.numbered and new.rank is None)
    if new.rank is None or new.rank < 0:
        return _seat_by_order(new, met, descends)
    holder = next((one for one in met if one.rank == new.rank and one.pid != new.pid), None)
    if holder is None or not holder.alive or holder.numbered or descends(holder.pid, new.pid):
        return Seating(new.rank, takes=True)
    if descends(new.pid, holder.pid) and not holder.stepped:
        return Seating(holder.rank)
    return None


def _seat_by_order(new: Newcomer, met: Sequence[Met], descends: Descends) -> Seating | None:
    living = [one for one in met if one.alive]
    for one in living:
        if descends(new.pid, one.pid):
            if not one.heard:  # it starts those that train
                return Seating(one.rank, takes=True, numbered=True)
            return None if one.stepped else Seating(one.rank)
    if any(not one.numbered for one in living):
        return None
    taken = {one.rank for one in living}
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    if all((one.start_ticks, one.pid) < (new.start_ticks, new.pid) for one in living):
        return Seating(free, takes=True, numbered=True)
    in_order = sorted([*((one.start_ticks, one.pid) for one in living), (new.start_ticks, new.pid)])
    numbers = dict(zip((pid for _, pid in in_order), sorted({*taken, free}), strict=True))
    moved = tuple((one.pid, numbers[one.pid]) for one in living if numbers[one.pid] != one.rank)
    return Seating(numbers[new.pid], takes=True, numbered=True, moved=moved)
