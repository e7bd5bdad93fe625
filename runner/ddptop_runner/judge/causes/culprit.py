"""Which rank caused a failed attempt, and by which sign.

A rank that ended because another one was gone, or that timed out waiting for one, is a victim. It
is named only where nothing explains the failure better.

The launcher of a command ends the other ranks once one has failed, and all of them write to one
log. So a rank that was ended by a signal after another one had failed says nothing about the cause;
and an exception in the log belongs to no rank in particular, unless torch has put the rank before
it (`by_themselves`, `exception_in_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddptop_runner.base.exit_status import split_status
from ddptop_runner.judge.causes.error_text import (
    MAYBE_LOST,
    NOT_A_VICTIM,
    WAITED,
    is_collective_mismatch,
    last_exception,
    missing_at_barrier,
    victim_of,
)
from ddptop_runner.judge.hangs.records import Left
from ddptop_runner.model.diagnose import PythonException, RankExit

RAISED_CODES = (1, None)
"""Exit statuses of an uncaught exception: 1, or None for one that nobody could collect."""
RAISED_SIGNALS = ("SIGABRT", "SIGSEGV")
"""An interpreter with live threads of torch may end so while it goes down after an exception."""

LAST_LINES = 40
"""Of a log without an exception: what C++ says of its own end stands within these."""
LAST_LINE_CHARACTERS = 1000


@dataclass(frozen=True)
class RankEnd:
    """All that is known of one rank's end."""

    exit: RankExit
    exception: PythonException | None = None
    """The last in its log or its error file; of a rank that we ended, before any signal."""
    tail: str = ""
    """The end of its log; of a rank that we ended, before any signal."""
    step: int | None = None
    """Of its attempt."""
    at_step: str = ""
    """The same in words, as a step of the run where that is known."""
    stands_at: str | None = None
    """Where the script stood at the probe's last word, while no step was taken."""
    crashed_at: str | None = None
    """Where the script stood when a signal of its own making ended it."""
    entered: int | None = None
    """Collectives that it had entered."""
    paused: bool = False
    leaving: bool = False
    """Whether its probe had said that the process was about to end, before any of our signals."""
    gpu: int | None = None
    """Machine index of its own device."""
    peak_bytes: int | None = None
    """The most device memory that it was seen with."""
    has_log: bool = True
    """Whether it had a log of its own: the ranks of a command write to one."""

    @property
    def rank(self) -> int:
        """Its rank."""
        return self.exit.rank

    @property
    def exit_code(self) -> int | None:
        """Its exit status; None for one that was signalled or not collected."""
        code = self.exit.returncode
        return None if code is None else split_status(code)[0]

    @property
    def signal(self) -> str | None:
        """The signal that ended it."""
        code = self.exit.returncode
        return None if code is None else split_status(code)[1]

    @property
    def raised(self) -> PythonException | None:
        """The exception that ended it: one that it handled, before it exited otherwise, is none."""
        if self.exit.ended_by_us:
            return self.exception
        if self.signal in RAISED_SIGNALS:
            return self.exception
        if self.signal is None and self.exit_code in RAISED_CODES:
            return self.exception
        return None

    @property
    def failed(self) -> bool:
        """Whether it ended badly, and by itself."""
        return self.exit.failed and not self.exit.ended_by_us

    @property
    def victim(self) -> int:
        """How much of a victim it is: see `victim_of`."""
        if self.raised is None and not self._may_say_why:
            return NOT_A_VICTIM
        return victim_of(self.raised, last_lines(self.tail))

    @property
    def _may_say_why(self) -> bool:
        """Whether it ended itself; of what a signal from outside ended, the log tells nothing."""
        if self.signal is not None:
            return self.signal in RAISED_SIGNALS
        return self.exit_code in RAISED_CODES


def last_lines(tail: str) -> str:
    """The part of a log's end that was written when the process ended."""
    return "\n".join(line[:LAST_LINE_CHARACTERS] for line in tail.splitlines()[-LAST_LINES:])


@dataclass(frozen=True)
class Culprit:
    """Who is to blame."""

    end: RankEnd
    how: str
    """`failed`: it ended badly by itself. `raised`: it raised, and was ended while it went down.
    `order`: it left the order of collectives, and another rank failed for that.
    `left`: it exited with 0 before the others. `missing`: the others waited for it in vain.
    `victim`: it lost the others, and nothing says to whose fault."""
    victim: RankEnd | None = None
    """The first rank that ended because of it."""
    left: Left | None = None
    """That it left the order of collectives, as far as the flight records tell."""


def find(ends: Sequence[RankEnd]) -> Culprit | None:
    """Whom to blame for a failed attempt; None where no rank failed.

    Args:
        ends: of every rank whose end is known, in any order.
    """
    in_time = sorted(ends, key=lambda end: end.exit.at_boottime_s)
    failed = [end for end in in_time if end.failed]
    own = [end for end in failed if end.victim == NOT_A_VICTIM]
    if own:
        return Culprit(own[0], "failed")
    first = failed[0] if failed else None
    others = [end for end in in_time if not end.failed]
    if first is None:
        # a failure that nobody stamped in time: the earliest bad end stands for it
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


def is_mismatch(blamed: Culprit) -> bool:
    """Whether its own words say that ranks entered different collectives."""
    end = blamed.end
    if end.raised is not None:
        return is_collective_mismatch(end.raised.whole_message)
    return is_collective_mismatch(last_lines(end.tail))


def by_order(blamed: Culprit, ends: Sequence[RankEnd], left: Left) -> Culprit:
    """The rank that left the order, in place of the one that failed for it."""
    if left.rank == blamed.end.rank:
        return replace(blamed, left=left)
    found = [end for end in ends if end.rank == left.rank]
    return Culprit(found[0], "order", blamed.end, left) if found else blamed


def _left(end: RankEnd) -> bool:
    """Whether it ended well, or was on its way to that when it was ended."""
    if not end.exit.ended_by_us:
        return not end.exit.failed
    return end.leaving and end.raised is None


def _missing(first: RankEnd, alive: Sequence[RankEnd]) -> RankEnd | None:
    """The one rank that did not come where `first` waited; None where several may be meant."""
    if first.victim != WAITED:
        return None
    named = missing_at_barrier(first.raised)
    for end in alive:
        if end.rank == named:
            return end
    paused = [end for end in alive if end.paused]
    if len(paused) == 1:
        return paused[0]
    if len(alive) == 1 and first.exit.rank != alive[0].rank:
        return alive[0]
    return _lowest(alive, [end.entered for end in alive]) or _lowest(
        alive, [end.step for end in alive]
    )


def _lowest(ends: Sequence[RankEnd], counts: Sequence[int | None]) -> RankEnd | None:
    """The one that is behind all others; None where one is unknown or two are equally far."""
    known = [count for count in counts if count is not None]
    if len(known) != len(counts) or not known or known.count(min(known)) != 1:
        return None
    return ends[counts.index(min(known))]


BY_LAUNCHERS = ("SIGTERM", "SIGINT", "SIGKILL")
"""What launchers send to the other ranks when one has failed."""
WRAPPERS = ("ChildFailedError", "CalledProcessError", "HorovodInternalError")
"""What launchers raise themselves because a rank has failed."""
TRACEBACK = "Traceback (most recent call last):"


def exception_in_words(raised: str | None, place: str | None) -> PythonException | None:
    """What a probe said with its last words, `Type: message`, as an exception."""
    if not raised:
        return None
    type_, _, message = raised.partition(": ")
    return PythonException(type_, message, place)


def by_themselves(ends: Sequence[RankEnd], launcher_ended_s: float | None) -> list[RankEnd]:
    """The ends in their order, where those that others brought about count as ended by ddptop.

    Args:
        ends: of the ranks, in any order.
        launcher_ended_s: CLOCK_BOOTTIME at which the launcher ended; None where it lives.
    """
    found: list[RankEnd] = []
    for end in sorted(ends, key=lambda end: end.exit.at_boottime_s):
        after = launcher_ended_s is not None and end.exit.at_boottime_s > launcher_ended_s
        others_failed = any(earlier.exit.failed for earlier in found)
        if end.failed and (after or (others_failed and end.signal in BY_LAUNCHERS)):
            end = replace(end, exit=replace(end.exit, ended_by_us=True))
        found.append(end)
    return found


def ended_well(end: RankEnd) -> bool:
    """Whether nothing speaks against it, where nobody could collect how it ended."""
    return end.exit.returncode is None and end.leaving and end.exception is None


def exception_in_log(tail: str) -> PythonException | None:
    """The exception that a launcher's log ends with; those of launchers themselves are passed over.

    Args:
        tail: the end of the log.
    """
    found = last_exception(tail)
    while found is not None and found.short_type in WRAPPERS:
        tail = tail[: tail.rfind(TRACEBACK)]
        earlier = last_exception(tail)
        if earlier is None:
            return found
        found = earlier
    return found
