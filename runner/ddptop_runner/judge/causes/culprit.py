"""Finds the rank that caused a failed attempt.

A rank that ended because another was gone, or that timed out waiting for one, is a victim. It is
blamed only if nothing explains the failure better.

A command's launcher ends the other ranks once one has failed, and all of them write to one log. A
rank that a signal ended after another had failed therefore says nothing about the cause, and an
exception in the log belongs to no particular rank, unless torch prefixed it with the rank
(`by_themselves`, `exception_in_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ddptop_runner.base.exit_status import split_status
from ddptop_runner.judge.causes.error_text import (
    MAYBE_LOST,
    NOT_A_VICTIM,
    WAITED,
    is_collective_mismatch,
    last_exception,
    victim_of,
)
from ddptop_runner.model.diagnose import Held, PythonException, RankExit

RAISED_CODES = (1, None)
"""Exit statuses of an uncaught exception: 1, or None if it could not be collected."""
RAISED_SIGNALS = ("SIGABRT", "SIGSEGV")
"""An interpreter with live torch threads may end with these when it exits after an exception."""

LAST_LINES = 40
"""Without an exception, the message that C++ prints when it aborts is within these lines."""
LAST_LINE_CHARACTERS = 1000


@dataclass(frozen=True)
class RankEnd:
    """What is known about how a rank ended."""

    exit: RankExit
    exception: PythonException | None = None
    """The last in its log; if we ended it, before any signal."""
    tail: str = ""
    """The end of its log; if we ended it, before any signal."""
    step: int | None = None
    """Within its attempt."""
    at_step: str = ""
    """The step in words, as a step of the run if that is known."""
    stands_at: str | None = None
    """The script's position in the probe's last message, while no step was taken."""
    crashed_at: str | None = None
    """The script's position when it crashed."""
    entered: int | None = None
    """Number of collectives that it entered."""
    paused: bool = False
    leaving: bool = False
    """Whether its probe reported that the process was about to exit, before any of our signals."""
    gpu: int | None = None
    """Machine index of its device."""
    peak_bytes: int | None = None
    """Its highest observed device memory."""
    held: Held | None = None
    """What its device memory held when it ran out, if that was recorded."""
    has_log: bool = True
    """Whether it had its own log; the ranks of a command share one."""

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.exit.rank

    @property
    def exit_code(self) -> int | None:
        """None if a signal ended it or the status was not collected."""
        code = self.exit.returncode
        return None if code is None else split_status(code)[0]

    @property
    def signal(self) -> str | None:
        """The signal that ended it."""
        code = self.exit.returncode
        return None if code is None else split_status(code)[1]

    @property
    def raised(self) -> PythonException | None:
        """The exception that ended it, as opposed to one that it handled before it exited."""
        if self.exit.ended_by_us:
            return self.exception
        if self.signal in RAISED_SIGNALS:
            return self.exception
        if self.signal is None and self.exit_code in RAISED_CODES:
            return self.exception
        return None

    @property
    def failed(self) -> bool:
        """Whether it failed on its own."""
        return self.exit.failed and not self.exit.ended_by_us

    @property
    def victim(self) -> int:
        """The degree to which it is a victim; see `victim_of`."""
        if self.raised is None and not self._may_say_why:
            return NOT_A_VICTIM
        return victim_of(self.raised, last_lines(self.tail))

    @property
    def _may_say_why(self) -> bool:
        """Whether it ended itself; if an outside signal did, the log says nothing about it."""
        if self.signal is not None:
            return self.signal in RAISED_SIGNALS
        return self.exit_code in RAISED_CODES


def last_lines(tail: str) -> str:
    """The part of a log that was written as the process ended."""
    return "\n".join(line[:LAST_LINE_CHARACTERS] for line in tail.splitlines()[-LAST_LINES:])


@dataclass(frozen=True)
class Culprit:
    """The rank to blame for a failed attempt, and why."""

    end: RankEnd
    how: str
    """`failed`: it failed on its own. `raised`: it raised, and was ended during shutdown.
    `left`: it exited with 0 before the others. `missing`: the others waited for it in vain.
    `victim`: it lost the others, and nothing shows whose fault that was."""
    victim: RankEnd | None = None
    """The first rank that ended as a result."""


def find(ends: Sequence[RankEnd]) -> Culprit | None:
    """The rank to blame for a failed attempt; None if no rank failed.

    Args:
        ends: of every rank known to have ended, in any order.
    """
    in_time = sorted(ends, key=lambda end: end.exit.at_boottime_s)
    failed = [end for end in in_time if end.failed]
    own = [end for end in failed if end.victim == NOT_A_VICTIM]
    if own:
        return Culprit(own[0], "failed")
    first = failed[0] if failed else None
    others = [end for end in in_time if not end.failed]
    if first is None:
        # no failure has a time: use the earliest bad end
        bad = [end for end in in_time if end.exit.failed]
        return Culprit(bad[0], "failed") if bad else None
    raised = [end for end in others if end.raised is not None and end.victim == NOT_A_VICTIM]
    if raised:
        return Culprit(raised[0], "raised", first)
    maybe = [end for end in failed if end.victim == MAYBE_LOST]
    if maybe:
        return Culprit(maybe[0], "failed")
    left = [end for end in others if _left(end)]
    if left:
        return Culprit(left[0], "left", first)
    missing = _missing(first, [end for end in others if end.exit.ended_by_us])
    if missing is not None:
        return Culprit(missing, "missing", first)
    return Culprit(first, "victim")


def is_mismatch(end: RankEnd) -> bool:
    """Whether its error says that ranks entered different collectives."""
    if end.raised is not None:
        return is_collective_mismatch(end.raised.whole_message)
    return is_collective_mismatch(last_lines(end.tail))


def _left(end: RankEnd) -> bool:
    """Whether it exited normally, or was about to when it was ended."""
    if not end.exit.ended_by_us:
        return not end.exit.failed
    return end.leaving and end.raised is None


def _missing(first: RankEnd, alive: Sequence[RankEnd]) -> RankEnd | None:
    """The rank that `first` waited for; None if it could be one of several."""
    if first.victim != WAITED:
        return None
    paused = [end for end in alive if end.paused]
    if len(paused) == 1:
        return paused[0]
    if len(alive) == 1 and first.exit.rank != alive[0].rank:
        return alive[0]
    return _lowest(alive, [end.entered for end in alive]) or _lowest(
        alive, [end.step for end in alive]
    )


def _lowest(ends: Sequence[RankEnd], counts: Sequence[int | None]) -> RankEnd | None:
    """The rank behind all others; None if any count is unknown or the lowest is shared."""
    known = [count for count in counts if count is not None]
    if len(known) != len(counts) or not known or known.count(min(known)) != 1:
        return None
    return ends[counts.index(min(known))]


BY_LAUNCHERS = ("SIGTERM", "SIGINT", "SIGKILL")
"""Signals that launchers send to the other ranks when one has failed."""
WRAPPERS = ("ChildFailedError", "CalledProcessError", "HorovodInternalError")
"""Exceptions that launchers raise when a rank has failed."""
TRACEBACK = "Traceback (most recent call last):"


def exception_in_words(raised: str | None, place: str | None) -> PythonException | None:
    """The exception in a probe's last message, which has the form `Type: message`."""
    if not raised:
        return None
    type_, _, message = raised.partition(": ")
    return PythonException(type_, message, place)


def by_themselves(ends: Sequence[RankEnd], launcher_ended_s: float | None) -> list[RankEnd]:
    """The ends in order of time; those caused by the launcher count as ended by ddptop.

    Args:
        ends: of the ranks, in any order.
        launcher_ended_s: CLOCK_BOOTTIME at which the launcher ended; None if it is alive.
    """
    found: list[RankEnd] = []
    for end in sorted(ends, key=lambda end: end.exit.at_boottime_s):
        after = launcher_ended_s is not None and end.exit.at_boottime_s > launcher_ended_s
        others_failed = any(earlier.exit.failed for earlier in found)
        if end.failed and (after or (others_failed and end.signal in BY_LAUNCHERS)):
            end = replace(end, exit=msgspec.structs.replace(end.exit, ended_by_us=True))
        found.append(end)
    return found


def ended_well(end: RankEnd) -> bool:
    """Whether an end without an exit status shows no sign of a failure."""
    return end.exit.returncode is None and end.leaving and end.exception is None


def exception_in_log(tail: str) -> PythonException | None:
    """The last exception at the end of a launcher's log, except those of the launcher itself."""
    found = last_exception(tail)
    while found is not None and found.short_type in WRAPPERS:
        tail = tail[: tail.rfind(TRACEBACK)]
        earlier = last_exception(tail)
        if earlier is None:
            return found
        found = earlier
    return found
