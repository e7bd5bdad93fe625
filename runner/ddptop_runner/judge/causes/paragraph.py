"""The cause of a failed attempt in one paragraph: who, what happened, why, who ended after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.base.units import size
from ddptop_runner.devices import codes
from ddptop_runner.host.oom import OomFinding
from ddptop_runner.judge.causes.culprit import Culprit, RankEnd, is_mismatch, last_lines
from ddptop_runner.judge.causes.error_text import (
    WAITED,
    exit_code_in_words,
    gpu_error_in_words,
    is_gpu_oom,
    killed_by,
    known_error,
    last_words,
    signal_in_words,
)
from ddptop_runner.judge.hangs.verdict import parted, short_place
from ddptop_runner.model.diagnose import Held, PythonException, clipped
from ddptop_runner.model.snapshot import Cause

LONGEST = 1000
"""The most characters of a summary."""
QUOTED = 250
"""Characters to quote from a message."""

_HOST_MEMORY = re.compile(r"DefaultCPUAllocator|Cannot allocate memory|\[?Errno 12\b|bad_alloc")
_WORKER_KILLED = re.compile(r"worker \(pid(?:\(s\))? [\d, ]+\)")


@dataclass(frozen=True)
class XidReport:
    """A device error that the driver reported during the attempt."""

    gpu: int
    code: int


@dataclass(frozen=True)
class Surroundings:
    """What the machine and its devices report about the attempt."""

    killed_for_memory: Callable[[], OomFinding | None] = lambda: None
    """Whether the kernel killed a process of the job because memory ran out."""
    xids: Sequence[XidReport] = ()
    lost_gpus: Sequence[int] = ()
    """Machine indices of devices that fell off the bus."""
    sees_all_ranks: bool = True
    """Whether the ends are those of all ranks; otherwise, the head counts the others."""
    offers_memory_snapshots: bool = True
    """Whether these ranks did not record which lines allocate device memory, but others could."""
    is_disk_full: bool = False
    """Whether the file system of the ranks' logs has no space left."""


@dataclass
class _Paragraph:
    """A paragraph under construction."""

    kind: str
    opening: str
    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str | None) -> None:
        if sentence:
            self.sentences.append(sentence)


def cause_of(
    culprit: Culprit, ends: Sequence[RankEnd], around: Surroundings, evidence: str | None
) -> Cause:
    """The cause, with its kind, exception, place, and paragraph.

    Args:
        culprit: from `culprit.find`.
        ends: of all ranks.
        around: from the machine and its devices.
        evidence: the folder with stacks and logs.
    """
    text, end = _paragraph(culprit, ends, around), culprit.end
    exception = end.raised if culprit.how in ("failed", "raised", "victim") else None
    # the status of a rank that we ended is meaningless
    by_another = culprit.how in ("raised", "missing")
    status = culprit.victim if by_another and culprit.victim else end
    left = culprit.how == "left"
    return Cause(
        kind=text.kind,
        rank=None if end.rank == LAUNCHER else end.rank,
        signal=None if left else status.signal,
        exit_code=0 if left else status.exit_code,
        headline=_headline(culprit, exception, text.kind, ends),
        summary=clipped(" ".join([text.opening, *text.sentences]), LONGEST),
        evidence=evidence,
        exception=None if exception is None else exception.short_type,
        place=_place(culprit, exception),
    )


FIRST = ", the first to fail"
_ALSO = {"host_oom": "; out of host memory", "gpu": "; its GPU failed"}


def _headline(
    culprit: Culprit, exception: PythonException | None, kind: str, ends: Sequence[RankEnd]
) -> str:
    end, at = culprit.end, _at_step(culprit.end)
    if is_mismatch(end):
        places = {rank: place and short_place(place) for rank, place in _places(ends).items()}
        if where := parted(places, " at "):
            return f"the ranks entered different collectives: {where}"
    who = "the command" if end.rank == LAUNCHER else f"rank {end.rank}"
    if culprit.how == "left":
        return f"{who} exited with status 0{at} while the others continued"
    if culprit.how == "missing":
        return f"{who} never reached a collective in which others waited"
    also = _ALSO.get(kind, "")
    if exception is not None:
        message = f": {clipped(exception.message, QUOTED)}" if exception.message else ""
        place = f" at {short_place(exception.place)}" if exception.place else ""
        return f"{who}: {exception.short_type}{message}{place}{also}"
    return f"{who} {end.exit.in_words()}{at}{also}"


def _paragraph(culprit: Culprit, ends: Sequence[RankEnd], around: Surroundings) -> _Paragraph:
    end = culprit.end
    alone = len(ends) == 1
    if culprit.how == "left":
        text = _left(culprit)
    elif culprit.how == "missing":
        text = _missing(culprit)
    elif culprit.how == "victim":
        text = _victim(culprit, alone=alone)
    elif end.raised is not None:
        text = _raised(culprit, end.raised, ends, around)
    else:
        text = _ended(culprit, around, alone=alone)
    if is_mismatch(end):
        text.add(_disagreement(ends))
    _add_devices(text, end, around)
    if around.sees_all_ranks:
        text.add(others(culprit, ends))
    return text


def _disagreement(ends: Sequence[RankEnd]) -> str:
    """Where the ranks were when one of them received what it did not expect."""
    places = _places(ends)
    if (where := parted(places, " at ")) is not None:
        return f"It happened with {where}: all ranks must enter the same collectives in turn."
    place = places.popitem()[1] if len(places) > 1 and len(set(places.values())) == 1 else None
    if place is not None:
        return f"All ranks were at {place}, so the sizes of their tensors differ."
    return "It is unknown which rank is at fault."


def _places(ends: Sequence[RankEnd]) -> dict[int, str | None]:
    """Where the ranks were as they ended."""
    return {
        end.rank: (end.raised and end.raised.place) or end.crashed_at or end.stands_at
        for end in ends
        if end.rank >= 0
    }


def others(culprit: Culprit, ends: Sequence[RankEnd]) -> str | None:
    """The other ranks: how many failed, and how many were stopped."""
    mentioned = {culprit.end.rank} | (
        {culprit.victim.rank} if culprit.victim is not None else set()
    )
    ranks = [one for one in ends if one.rank >= 0 and one.rank not in mentioned]
    rest = [one.exit for one in ranks if one.exit.failed]
    ended = sum(exit_.ended_by_us for exit_ in rest)
    failed = len(rest) - ended
    more = "other" if culprit.victim is None else "more"
    words_: list[str] = []
    if failed:
        words_.append(f"{failed} {more} rank{'s' if failed > 1 else ''} failed afterward")
    if ended:
        who = f"{ended}" if failed else f"{ended} {more} rank{'s' if ended > 1 else ''}"
        words_.append(f"{who} {'were' if ended > 1 else 'was'} stopped as a result")
    return f"{', and '.join(words_)}." if words_ else None


def _who(end: RankEnd) -> str:
    who = "The command" if end.rank == LAUNCHER else f"Rank {end.rank}"
    return f"{who} (pid {end.exit.pid})"


def _at_step(end: RankEnd) -> str:
    if end.step is None:
        return ""
    step = end.at_step or f"step {end.step}"
    # the last message of a rank that died without warning is slightly old
    return f" {'at' if end.leaving or not end.failed else 'after'} {step}"


def _opening(culprit: Culprit, *, alone: bool) -> str:
    """The first sentence: which rank, its pid, and how it ended."""
    end = culprit.end
    if culprit.how == "raised":
        return f"{_who(end)} raised an exception{_at_step(end)}."
    return f"{_who(end)} {end.exit.in_words()}{_at_step(end)}{'' if alone else FIRST}."


def _place(culprit: Culprit, exception: PythonException | None) -> str | None:
    if exception is not None:
        return exception.place
    # once a rank has continued, the place is outdated
    return culprit.end.stands_at if culprit.how == "missing" else culprit.end.crashed_at


def _raised(
    culprit: Culprit,
    exception: PythonException,
    ends: Sequence[RankEnd],
    around: Surroundings,
) -> _Paragraph:
    end = culprit.end
    message = exception.whole_message
    place = f" (at {exception.place})" if exception.place else ""
    if is_gpu_oom(exception.type, message):
        first = FIRST if culprit.how != "raised" and len(ends) > 1 else ""
        opening = f"{_who(end)} ran out of GPU memory{_at_step(end)}{place}{first}."
        text = _Paragraph("cuda_oom", opening)
        peaks = {one.rank: one.peak_bytes for one in ends if one.peak_bytes is not None}
        sentences = gpu_error_in_words(message, end.gpu, peaks)
        text.sentences += sentences or [f"{exception.in_words(QUOTED)}."]
        if end.held is not None:
            text.add(_held_in_words(end.held))
        elif around.offers_memory_snapshots and end.rank != LAUNCHER:
            text.add(
                "The lines that hold the memory are named if a restart runs out of it, too; "
                "ddptop launch --memory-snapshot names them at once."
            )
        return text
    text = _Paragraph("exception", _opening(culprit, alone=len(ends) == 1))
    text.add(f"{exception.in_words(QUOTED)}.")
    if exception.short_type == "MemoryError" or _HOST_MEMORY.search(message):
        text.kind = "host_oom"
        text.add("The machine ran out of memory, or the job reached its memory limit.")
    if _WORKER_KILLED.search(message) and ("Killed" in message or "unexpectedly" in message):
        _add_memory(text, around.killed_for_memory())
    if known := known_error(message):
        text.kind = known.kind or text.kind
        text.add(known.words)
    if culprit.victim is not None:
        text.add(_lost_it(culprit.victim))
    return text


def _held_in_words(held: Held) -> str:
    """The lines whose tensors hold most of a device's memory."""
    if not held.total_bytes:
        return "The rank held no tensors there."
    lines = [
        f"{size(many)} from {place or 'torch itself (such as gradients)'}"
        for place, many in list(held.by_place.items())[:3]
    ]
    return f"Its tensors held {size(held.total_bytes)}: {', '.join(lines)}."


def _ended(culprit: Culprit, around: Surroundings, *, alone: bool) -> _Paragraph:
    end = culprit.end
    kind = "exit_code" if end.signal is None else "signal"
    text = _Paragraph(kind, _opening(culprit, alone=alone))
    if killed_by(end.exit_code, end.signal):
        if end.exit_code is not None:
            text.add(_sentence(exit_code_in_words(end.exit_code)))
        finding = around.killed_for_memory()
        _add_memory(text, finding)
        if finding is None:
            text.add("It is unknown whether another process killed it or it ran out of memory.")
        return text
    if end.signal is not None:
        meaning = signal_in_words(end.signal)
        text.add(None if meaning is None else f"{end.signal}: {meaning}.")
        text.add(None if end.crashed_at is None else f"It crashed at {end.crashed_at}.")
    elif end.exit_code is not None:
        text.add(_sentence(exit_code_in_words(end.exit_code)))
    known = known_error(last_lines(end.tail))
    last = last_words(end.tail)
    if last is not None:
        text.add(f"Its last output: {clipped(last, QUOTED)!r}.")
    elif end.has_log:
        text.add("Its log is empty.")
    if known is not None and (end.signal is not None or end.exit_code == 1):
        text.kind = known.kind or text.kind
        text.add(known.words)
    elif around.is_disk_full and end.exit_code is not None:
        text.add("The run folder's disk is full, so it could not print; free some space.")
    return text


def _add_memory(text: _Paragraph, finding: OomFinding | None) -> None:
    if finding is None:
        return
    if finding.killed:
        text.kind = "host_oom"
    text.add(finding.words)


def _add_devices(text: _Paragraph, end: RankEnd, around: Surroundings) -> None:
    """Name a failed device, which is the cause of whatever its rank reported."""
    if end.gpu is not None and end.gpu in around.lost_gpus:
        text.kind = "gpu"
        text.add(f"Its device, GPU {end.gpu}, is lost: the driver can no longer reach it.")
    reports = [one for one in around.xids if end.gpu is None or one.gpu == end.gpu]
    for report in reports[:2]:
        if codes.xid(report.code).fault == "device":
            text.kind = "gpu"
        text.add(f"GPU {report.gpu} reported XID {report.code}: {codes.xid(report.code).meaning}.")


def _left(culprit: Culprit) -> _Paragraph:
    end, victim = culprit.end, culprit.victim
    how = (
        "exited with status 0" if not end.exit.ended_by_us else "was about to exit without an error"
    )
    text = _Paragraph("early_exit", f"{_who(end)} {how}{_at_step(end)} while the others continued.")
    if victim is not None:
        text.add(_lost_it(victim))
    text.add(
        "All ranks must take the same number of steps: check for an early exit, or for uneven data "
        "(drop_last, or DistributedDataParallel's join())."
    )
    return text


def _lost_it(victim: RankEnd) -> str:
    place = victim.raised.place if victim.raised is not None else None
    at = f" at {place}" if place else ""
    if victim.victim == WAITED:
        return f"Rank {victim.rank} timed out waiting for it{at} and {victim.exit.in_words()}."
    return f"Rank {victim.rank} lost its connection to it{at} and {victim.exit.in_words()}."


def _missing(culprit: Culprit) -> _Paragraph:
    end, victim = culprit.end, culprit.victim
    waiting = "the others were" if victim is None else f"rank {victim.rank} was"
    text = _Paragraph(
        "hang", f"{_who(end)} never reached a collective in which {waiting} waiting for it."
    )
    if end.paused:
        text.add("It had been paused by a signal (SIGSTOP).")
    at = f" at {end.stands_at}" if end.stands_at else ""
    if at or end.step is not None:
        text.add(f"It was last seen{at}{_at_step(end)}.")
    if victim is not None and victim.raised is not None:
        text.add(
            f"Rank {victim.rank} gave up{_at_step(victim)} and {victim.exit.in_words()}: "
            f"{victim.raised.in_words(QUOTED)}."
        )
    return text


def _victim(culprit: Culprit, *, alone: bool) -> _Paragraph:
    end = culprit.end
    text = _Paragraph(
        "exception" if end.raised is not None else "exit_code" if end.signal is None else "signal",
        _opening(culprit, alone=alone),
    )
    if end.raised is not None:
        text.add(f"{end.raised.in_words(QUOTED)}.")
    elif last := last_words(end.tail):
        text.add(f"Its last output: {clipped(last, QUOTED)!r}.")
    if end.victim == WAITED:
        text.add("It timed out waiting for another rank, which could not be identified.")
    else:
        text.add("It lost its connection to another rank; the reason is unknown.")
    return text


def _sentence(text: str | None) -> str | None:
    return None if text is None else f"{text[0].upper()}{text[1:]}."
