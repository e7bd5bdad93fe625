"""Compares what happened with what was expected; pure, from a job's events to complaints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.faults.kinds import Fault
from benchmarks.faults.record import Record, steps_of_attempt

from ddptop_runner.model.snapshot import Event
from ddptop_runner.store.history_reader import Series

GOES_ON_STEPS = 3
"""Steps that every rank must take to prove that training continues."""
TROUBLE = ("failure", "hang", "group_restart", "failed")
LATE_S = 3.0
"""What a rank does this shortly before its exit may not be recorded: the probe sends four messages
a second, and the history is written once a second."""
FLOOD_LIMIT_BYTES = 3 << 20
"""The limit of `log-flood`, plus what is written between two checks."""
GAP_S = 6.0
"""A longer time without a row in the history is a gap."""


@dataclass(frozen=True)
class Flood:
    """Lines that a rank wrote at once, as far as its log still contains them."""

    wanted: int
    found: int
    in_order: bool
    """Whether those are the last lines, without a gap."""
    live_bytes: int
    """The part of the log that was not dropped."""


@dataclass(frozen=True)
class Seen:
    """A job at one point in time."""

    state: str
    attempt: int | None
    steps: Mapping[int, int | None] = field(default_factory=dict)
    """By rank, in this attempt."""
    restarts_used: int = 0
    guarded: bool | None = None
    holders: Mapping[str, int | None] = field(default_factory=dict)
    """PIDs of guardian, supervisor, and agent."""
    set_aside: tuple[int, ...] = ()
    was: frozenset[str] = frozenset()
    """States seen so far of the rank with the fault, and `unguarded`."""
    events: Sequence[Event] = ()
    """Events after the fault."""
    files_are_well: bool = True
    """Whether snapshot and history can be read."""
    flood: Flood | None = None
    """Which of the lines that flooded a log it still contains."""


def missing(fault: Fault, rank: int, before: Seen, now: Seen) -> list[str]:
    """What should have happened by now but has not; empty if everything has."""
    found = []
    wanted = (before.attempt or 0) + fault.restarts
    if now.attempt != wanted:
        found.append(
            f"attempt {wanted} is not training: the job is in attempt {now.attempt}, {now.state}"
        )
    elif now.state != "finished":
        base = {} if fault.restarts else before.steps
        slow = [
            one
            for one, step in now.steps.items()
            if (step or 0) < (base.get(one) or 0) + GOES_ON_STEPS
        ]
        if slow or not now.steps:
            found.append(f"no further steps from ranks {slow}")
    if fault.event is not None and _telling(fault, now.events) is None:
        matching = f" matching {fault.says!r}" if fault.says else ""
        found.append(f"no {fault.event} event{matching}")
    if not now.files_are_well:
        found.append("history or snapshot cannot be read")
    extra = _EXTRA.get(fault.name)
    return found if extra is None else [*found, *extra(rank, before, now)]


def wrong(fault: Fault, rank: int, before: Seen, now: Seen) -> list[str]:
    """What should never have happened but did."""
    found = []
    wanted = (before.attempt or 0) + fault.restarts
    if (now.attempt or 0) > wanted:
        found.append(f"the job reached attempt {now.attempt} instead of {wanted}")
    if now.state in ("failed", "lost", "stopped"):
        found.append(f"unexpected job state: {now.state}")
    trouble = [event for event in now.events if event.type in TROUBLE]
    if not fault.restarts and trouble:
        found.append(f"unexpected {trouble[0].type} event: {trouble[0].message}")
    told = _telling(fault, now.events)
    if told is not None and fault.names_rank and told.rank != rank:
        found.append(f"the cause names rank {told.rank} instead of {rank}: {told.message}")
    if told is not None and fault.signal is not None and told.signal != fault.signal:
        found.append(f"signal {told.signal} instead of {fault.signal}")
    if told is not None and fault.exit_code is not None and told.exit_code != fault.exit_code:
        found.append(f"exit status {told.exit_code} instead of {fault.exit_code}")
    return found


def _telling(fault: Fault, events: Sequence[Event]) -> Event | None:
    """The event that reports the fault; for failures, the first, whatever it says."""
    of_type = [event for event in events if event.type == fault.event]
    for event in of_type:
        if re.search(fault.says, event.message, re.IGNORECASE | re.DOTALL):
            return event
    return None


def _paused(_rank: int, _before: Seen, now: Seen) -> list[str]:
    return [] if "paused" in now.was else ["the rank was never shown as paused"]


def is_shown(fault: Fault, was: Set[str]) -> bool:
    """Whether everything that is only visible during the fault was seen: a busy machine takes
    longer.
    """
    return fault.name != "stop" or "paused" in was


def _new_holder(role: str) -> list[str]:
    return [f"no new {role}"]


def _supervisor(_rank: int, before: Seen, now: Seen) -> list[str]:
    old, new = before.holders.get("supervisor"), now.holders.get("supervisor")
    return [] if new not in (None, old) else _new_holder("supervisor")


def _guardian(_rank: int, before: Seen, now: Seen) -> list[str]:
    found = [] if "unguarded" in now.was else ["the job was never shown as unguarded"]
    if now.state != "finished" and (
        not now.guarded or now.holders.get("guardian") == before.holders.get("guardian")
    ):
        found += _new_holder("guardian")
    return found


def _agent(_rank: int, before: Seen, now: Seen) -> list[str]:
    gone = now.holders.get("agent") != before.holders.get("agent")
    return [] if gone else ["the killed agent is still shown"]


def _flood(_rank: int, _before: Seen, now: Seen) -> list[str]:
    flood = now.flood
    if flood is None or not flood.found:
        return ["the flood of lines is not in the log"]
    found = []
    if not flood.in_order:
        found.append(f"the log has {flood.found} of {flood.wanted} lines, not the last in a row")
    if flood.live_bytes > FLOOD_LIMIT_BYTES:
        found.append(f"{flood.live_bytes} bytes of the log were not dropped")
    return found


def _set_aside(rank: int, _before: Seen, now: Seen) -> list[str]:
    return [] if rank in now.set_aside else [f"GPU {rank} is not set aside"]


_EXTRA = {
    "log-flood": _flood,
    "stop": _paused,
    "supervisor-killed": _supervisor,
    "guardian-killed": _guardian,
    "agent-killed": _agent,
    "gpu-lost": _set_aside,
}


def story_gaps(events: Sequence[Event], last_attempt: int) -> list[str]:
    """What is missing from the events: consecutive numbers, and each rank's start and exit."""
    found = []
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        found.append("events are missing: the sequence numbers have gaps")
    for attempt in range(last_attempt + 1):
        mine = [event for event in events if event.attempt == attempt]
        started = {event.rank for event in mine if event.type == "rank_started"}
        ended = {event.rank for event in mine if event.type == "rank_exited"}
        if not any(event.type == "attempt_started" for event in mine):
            found.append(f"the start of attempt {attempt} is missing")
        if not started or started != ended:
            found.append(f"attempt {attempt}: ranks {started} started, {ended} ended")
    ends = [event for event in events if event.type in ("finished", "failed", "stopped")]
    if len(ends) != 1:
        found.append(f"{len(ends)} events report the end; expected 1")
    return found


def steps_lost(
    record: Record,
    series: Mapping[int, Series],
    last: Mapping[int, int | None],
    gap_s: float = GAP_S,
    *,
    finished: bool = True,
) -> list[str]:
    """Where ddptop's steps differ from the script's own record.

    Args:
        record: the script's.
        series: the history's `step`, by rank, in buckets of a second.
        last: what the final snapshot has for each rank, of the last attempt.
        gap_s: how long the history may have nothing of an attempt that trains.
        finished: whether the ranks of the last attempt ended by themselves: then each of their
            steps must be known, else their last seconds may be missing.
    """
    attempts = {step.attempt for steps in record.values() for step in steps}
    found = []
    for attempt in sorted(attempts):
        for rank, steps in steps_of_attempt(record, attempt).items():
            if not steps:
                continue
            known = _known(series.get(rank), attempt)
            if attempt == max(attempts) and last.get(rank) is not None:
                known = last[rank]
            heard = sum(step.at < steps[-1].at - LATE_S for step in steps)
            most = len(steps) + 1  # it may have exited before it recorded its last one
            if attempt == max(attempts) and finished:
                heard = most = len(steps)
            if known is None and not heard:
                continue
            if known is None or not heard <= known <= most:
                found.append(
                    f"attempt {attempt}, rank {rank}: {known} steps recorded, but the script took "
                    f"{len(steps)}"
                )
            found += _gaps(series.get(rank), attempt, steps[0].at, steps[-1].at, gap_s)
    return found


def _known(series: Series | None, attempt: int) -> int | None:
    if series is None:
        return None
    pairs = zip(series.attempt, series.last, strict=True)
    return max((int(step) for of, step in pairs if of == attempt), default=None)


def _gaps(
    series: Series | None, attempt: int, first: float, last: float, gap_s: float
) -> list[str]:
    times = (
        []
        if series is None
        else [t for t, of in zip(series.t, series.attempt, strict=True) if of == attempt]
    )
    marks = [first, *times, last]
    return [
        f"attempt {attempt}: nothing recorded for {late - early:.0f} s"
        for early, late in pairwise(marks)
        if late - early > gap_s
    ]
