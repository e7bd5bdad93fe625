"""Derives the cause of a hang from stacks.

In a hang, most ranks wait at the same place; the one that is elsewhere holds them up. Only
`of_evidence`, `different_calls`, and `hang_cause` read files.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.units import is_or_are, name_ranks
from ddptop_runner.judge.hangs.verdict import DEFAULT_GROUP, HangVerdict, parted
from ddptop_runner.model.snapshot import Cause

_THREAD = re.compile(r"^(?:Current thread|Thread)\b", re.MULTILINE)
_FAULTHANDLER_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_PY_SPY_FRAME = re.compile(r"^ +(?P<name>.+) \((?P<file>[^()]+):(?P<line>\d+)\)$")
_NOT_THE_SCRIPT = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python\d|ddptop_runner)(/|\.|$)|^<frozen "
)
_INSTALLED_SCRIPT = re.compile(r"/(?:site|dist)-packages/(?!(?:torch|triton|ddptop_runner)/)")
_STACKS = re.compile(r"^stacks-rank-(\d+)\.txt$")
_RECORD = re.compile(r"^flight-rank-(\d+)\.json$")
_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives for which all ranks pass tensors of one size."""


class _Call(msgspec.Struct):
    """A collective in torch's flight record."""

    profiling_name: str = ""
    collective_seq_id: int | None = None
    process_group: list[str] = []
    input_sizes: list[list[int]] = []
    is_p2p: bool = False

    def in_words(self) -> str:
        """`barrier`, `all_reduce of 4 elements`."""
        name = self.profiling_name.rpartition(":")[2]
        if name not in _SAME_SIZES:
            return name
        return f"{name} of {sum(math.prod(size) for size in self.input_sizes)} elements"


class _FlightRecord(msgspec.Struct):
    entries: list[_Call] = []


_record_decoder = msgspec.json.Decoder(_FlightRecord)


class Frame(NamedTuple):
    """A frame of a stack."""

    file: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.name}"


def main_thread(text: str, rather: str = '"MainThread"') -> list[Frame]:
    """Frames of the main thread, innermost first.

    Args:
        text: from faulthandler, which prints the main thread last, or from py-spy, which names it
            and prints it first.
        rather: the thread whose headline has these words, if there is one.
    """
    starts = [found.start() for found in _THREAD.finditer(text)]
    ends = [*starts, len(text)][1:]
    blocks = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if not blocks:
        return []
    named = [block for block in blocks if rather in block.partition("\n")[0]]
    lines = (named or blocks[-1:])[0].splitlines()[1:]
    return [frame for frame in map(read_frame, lines) if frame is not None]


def read_frame(line: str) -> Frame | None:
    """The frame that faulthandler or py-spy wrote in a line."""
    found = _FAULTHANDLER_FRAME.match(line) or _PY_SPY_FRAME.match(line)
    return None if found is None else Frame(found["file"], found["line"], found["name"])


def is_script(file: str) -> bool:
    """Whether a file is the training script's own: no library's, and not ddptop's."""
    return bool(file) and not _NOT_THE_SCRIPT.search(file)


def place(text: str) -> str | None:
    """The innermost frame of the script's own code.

    If all code is installed, the innermost frame that is neither torch's nor ddptop's.
    """
    return _innermost(main_thread(text))


def of_crash(text: str) -> str | None:
    """The location of the last crash that faulthandler reported, if any.

    If a thread of C++ crashed, it is that of the main thread.
    """
    _, fatal, dump = text.rpartition("Fatal Python error: ")
    return _innermost(main_thread(dump, "Current thread")) if fatal else None


def _innermost(frames: list[Frame]) -> str | None:
    own = [frame for frame in frames if is_script(frame.file)]
    installed = [frame for frame in frames if _INSTALLED_SCRIPT.search(frame.file)]
    return next(map(str, own or installed or frames), None)


def minority(texts: Mapping[int, str]) -> tuple[int, ...]:
    """Ranks at the least common position; empty if nothing distinguishes them.

    Args:
        texts: stacks by rank.
    """
    stacks = {rank: tuple(main_thread(text)) for rank, text in texts.items()}
    return () if () in stacks.values() else _fewest(stacks)


def _fewest(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Ranks with the least common value; empty if all are equally common."""
    counts = Counter(values.values())
    fewest = min(counts.values(), default=0)
    if fewest == max(counts.values(), default=0):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if counts[value] == fewest))


def _files(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, bytes]]:
    """(rank, content) of the files with such names."""
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for file in files:
        if named := pattern.match(file.name):
            with contextlib.suppress(OSError):
                yield int(named[1]), bounded.read_bytes(file)


def of_evidence(folder: Path) -> dict[int, str]:
    """By rank, the stacks in an evidence folder, except those that could not be collected."""
    texts = {rank: data.decode("utf-8", "replace") for rank, data in _files(folder, _STACKS)}
    return {rank: text for rank, text in texts.items() if main_thread(text)}


def different_calls(folder: Path) -> dict[int, str]:
    """By rank, the first collective of the default group that was not the same on all ranks.

    Empty if they agree, as far as their flight records are known.
    """
    calls: dict[int, dict[int, str]] = {}
    for rank, data in _files(folder, _RECORD):
        try:
            entries = bounded.decode_json(_record_decoder, data).entries
        except msgspec.DecodeError:
            return {}
        calls[rank] = {
            one.collective_seq_id: one.in_words()
            for one in entries
            if one.collective_seq_id is not None
            and one.process_group[:1] == [DEFAULT_GROUP]
            and not one.is_p2p
        }
    for number in sorted(set.intersection(*map(set, calls.values())) if calls else ()):
        found = {rank: known[number] for rank, known in calls.items()}
        if len(set(found.values())) > 1:
            return found
    return {}


def explain(ranks: Collection[int], texts: Mapping[int, str]) -> tuple[tuple[int, ...], str | None]:
    """(culprits, their position), using the stacks to find an outlier if `ranks` names all.

    Args:
        ranks: the culprits according to other evidence.
        texts: stacks by rank.
    """
    culprits = tuple(sorted(ranks))
    if set(texts) <= set(culprits) and len(texts) > 1:  # other evidence named no one in particular
        culprits = minority(texts) or culprits
    places = {place(texts[rank]) for rank in culprits if rank in texts} - {None}
    return culprits, places.pop() if len(places) == 1 else None


def hang_cause(found: HangVerdict, evidence: str) -> Cause:
    """The cause of a hang: what hung, the rank to blame, and its position.

    Args:
        found: the verdict.
        evidence: the folder with the ranks' stacks, collected before any signal.
    """
    culprits, place = explain(found.ranks, of_evidence(Path(evidence)))
    calls = different_calls(Path(evidence))
    if calls:
        culprits = _fewest(calls) or culprits
        words = parted(calls, " in ") or "see their flight records"
        message = f"{found.why}; they called different collectives: {words}"
    elif culprits == found.ranks:
        place = place or found.place
        message = found.message(place)
    else:
        at = "" if place is None else f", but at {place}"
        who = f"{name_ranks(culprits)} {is_or_are(culprits)}"
        message = f"{found.why}; {who} not where the others are{at}"
    rank = culprits[0] if len(culprits) == 1 else None
    return Cause(
        kind="hang",
        rank=rank,
        headline=message if rank is None else f"rank {rank}: {message}",
        summary=f"The job hung: {message}.",
        evidence=evidence,
        place=place,
    )
