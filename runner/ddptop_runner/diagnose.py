"""What a failure was: pure functions from exits and log tails to a cause in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddptop_runner.model import Cause
from ddptop_runner.procs import split_status

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
TRAILING_LINES = 20
"""After an uncaught exception little more is written; one further up was handled by the script."""
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_VICTIM = re.compile(
    r"Connection (closed|reset) by (remote )?peer|Broken pipe|Connection refused"
    r"|NCCL.*(watchdog|remote process exited)"
    r"|Application timeout caused pair closure",
    re.IGNORECASE,
)

QUOTED_CHARACTERS = 400
"""Of a line or message in a cause: a progress bar may write a megabyte without a line's end."""


def clipped(text: str) -> str:
    """`text`, or its two ends where it is longer than a sentence can hold."""
    if len(text) <= QUOTED_CHARACTERS:
        return text
    half = QUOTED_CHARACTERS // 2
    return f"{text[:half]} [...] {text[-half:]}"


@dataclass(frozen=True)
class PythonException:
    """The last exception in a log."""

    type: str
    message: str
    place: str | None
    """`file:line in function` of the innermost frame, or None for one without frames."""

    def in_words(self) -> str:
        """As Python prints it, with its place."""
        text = f"{self.type}: {clipped(self.message)}" if self.message else self.type
        return f"{text} (at {self.place})" if self.place else text


@dataclass(frozen=True)
class RankExit:
    """How one rank of an attempt ended."""

    rank: int
    pid: int
    returncode: int | None
    """As subprocess gives it, negative for a signal; None when nobody could collect it."""
    at_boottime_s: float
    ended_by_us: bool = False
    """Whether ddptop or torch's agent had already begun to end this rank."""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than with 0."""
        return self.returncode != 0

    def in_words(self) -> str:
        """`exited with 1`, `was ended by SIGKILL`, or that nobody knows."""
        if self.returncode is None:
            return "ended; its exit status is unknown"
        exit_code, signal = split_status(self.returncode)
        return f"was ended by {signal}" if signal else f"exited with {exit_code}"


def last_exception(text: str) -> PythonException | None:
    """The last Python exception in a log's tail, syntax errors included; None when there is none.

    torch prefixes the lines of an uncaught exception with `[rank0]: `, which is taken off.
    """
    lines = [_RANK_PREFIX.sub("", line) for line in text.splitlines()]
    for start in range(len(lines) - 1, -1, -1):
        if lines[start].strip() == _TRACEBACK:
            return _exception_after(lines[start + 1 :])
    return _syntax_error(lines)


def _exception_after(lines: Sequence[str]) -> PythonException | None:
    place = None
    for index, line in enumerate(lines):
        if frame := _FRAME.match(line):
            place = _place(frame)
        elif line and not line[0].isspace() and (found := _EXCEPTION.match(line)):
            if len(lines) - index > TRAILING_LINES:
                return None
            return PythonException(found["type"], (found["message"] or "").strip(), place)
    return None


def _syntax_error(lines: Sequence[str]) -> PythonException | None:
    """A script that does not compile is reported without the word Traceback."""
    place = None
    for line in lines:
        if frame := _FRAME.match(line):
            place = _place(frame)
        elif place and (found := _EXCEPTION.match(line)) and found["type"].endswith("Error"):
            return PythonException(found["type"], (found["message"] or "").strip(), place)
    return None


def _place(frame: re.Match[str]) -> str:
    name = f" in {frame['name']}" if frame["name"] else ""
    return f"{frame['file']}:{frame['line']}{name}"


def is_victim(exit_: RankExit, exception: PythonException | None) -> bool:
    """Whether the rank ended because another one had: its connection broke, or we ended it."""
    if exit_.ended_by_us:
        return True
    return exception is not None and bool(_VICTIM.search(exception.message))


def first_failure(
    exits: Sequence[RankExit], exceptions: Mapping[int, PythonException | None]
) -> RankExit | None:
    """The failing rank that is the cause: the earliest that is no victim, else the earliest."""
    failed = sorted((exit_ for exit_ in exits if exit_.failed), key=lambda e: e.at_boottime_s)
    culprits = [exit_ for exit_ in failed if not is_victim(exit_, exceptions.get(exit_.rank))]
    return next(iter(culprits or failed), None)


def failure_cause(
    exit_: RankExit,
    exception: PythonException | None,
    tail: str,
    others_failed: int,
    evidence: str | None,
) -> Cause:
    """The cause of a failed attempt in one paragraph.

    Args:
        exit_: the first failing rank's end.
        exception: the exception in its log, if any.
        tail: the end of its log.
        others_failed: how many more ranks ended badly after it.
        evidence: the folder with stacks and logs.
    """
    exit_code, signal = (None, None)
    if exit_.returncode is not None:
        exit_code, signal = split_status(exit_.returncode)
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), None)
    last_line = "Its log is empty." if last is None else f"Its last line: {clipped(last)!r}."
    sentences = [f"Rank {exit_.rank} (pid {exit_.pid}) {exit_.in_words()} first."]
    if signal is None and exception is not None:
        kind = "exception"
        sentences.append(f"{exception.in_words()}.")
    elif signal == "SIGKILL":
        kind = "signal"
        sentences.append("Killed from outside or out of memory: the signal alone cannot tell.")
    else:  # what aborts by itself (C++, a watchdog) says why before it does
        kind = "exit_code" if signal is None else "signal"
        sentences.append(last_line)
    if others_failed:
        plural = "s" if others_failed > 1 else ""
        sentences.append(f"{others_failed} other rank{plural} ended after it.")
    return Cause(
        kind=kind,
        rank=exit_.rank,
        signal=signal,
        exit_code=exit_code,
        summary=" ".join(sentences),
        evidence=evidence,
    )
