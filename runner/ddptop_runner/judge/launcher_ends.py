"""Interprets how the ranks of a launched command exited, to find the one to blame. Pure.

Their launcher ends the others once one has failed, and all of them write to one log. So a rank that
was ended by a signal after another one had failed says nothing of the cause; and an exception in
the log is of no rank in particular, unless torch has put the rank before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ddptop_runner.judge.causes.culprit import RankEnd
from ddptop_runner.judge.causes.tracebacks import last_exception
from ddptop_runner.model.diagnose import PythonException

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
            end = dataclasses.replace(end, exit=dataclasses.replace(end.exit, ended_by_us=True))
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
