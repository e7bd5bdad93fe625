"""Derives the cause of a hang from stacks and flight records.

In a hang, most ranks wait at the same place; the one that is elsewhere holds them up.

Training repeats itself: the same collectives are followed by the same one. A rank that skips a
collective, or enters an extra one, breaks its own order, which its record shows by itself. A rank
that ended at once has no record; it is to blame if all others kept their order. Only `of_evidence`,
`read_calls`, and `hang_cause` read files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddptop_runner.base import bounded
from ddptop_runner.base.units import name_ranks
from ddptop_runner.judge.hangs.verdict import HangVerdict
from ddptop_runner.model.snapshot import Cause

_THREAD = re.compile(r"^(?:Current thread|Thread)\b", re.MULTILINE)
_FAULTHANDLER_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_PY_SPY_FRAME = re.compile(r"^ +(?P<name>.+) \((?P<file>[^()]+):(?P<line>\d+)\)$")
_NOT_THE_SCRIPT = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python\d|ddptop_runner)(/|\.|$)|^<frozen "
)
_STACKS = re.compile(r"^stacks-rank-(\d+)\.txt$")


def main_thread(text: str) -> list[str]:
    """Frames of the main thread, innermost first, each as `file:line in function`.

    Args:
        text: from faulthandler, which prints the main thread last, or from py-spy, which names it
            and prints it first.
    """
    starts = [found.start() for found in _THREAD.finditer(text)]
    ends = [*starts, len(text)][1:]
    blocks = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if not blocks:
        return []
    named = [block for block in blocks if '"MainThread"' in block.partition("\n")[0]]
    frames = []
    for line in (named or blocks[-1:])[0].splitlines()[1:]:
        if (frame := read_frame(line)) is not None:
            file, number, name = frame
            frames.append(f"{file}:{number} in {name}")
    return frames


def read_frame(line: str) -> tuple[str, str, str] | None:
    """(file, line number, function) of a line that faulthandler or py-spy wrote of a frame."""
    found = _FAULTHANDLER_FRAME.match(line) or _PY_SPY_FRAME.match(line)
    return None if found is None else (found["file"], found["line"], found["name"])


def is_script(file: str) -> bool:
    """Whether a file is the training script's own: no library's, and not ddptop's."""
    return bool(file) and not _NOT_THE_SCRIPT.search(file)


def place(text: str) -> str | None:
    """The innermost frame of the script's own code, or else the innermost frame."""
    return _innermost(main_thread(text))


def of_crash(text: str) -> str | None:
    """The location of the last crash that faulthandler reported, if any."""
    _, fatal, dump = text.rpartition("Fatal Python error: ")
    matches = [_FAULTHANDLER_FRAME.match(line) for line in dump.splitlines() if fatal]
    return _innermost([f"{m['file']}:{m['line']} in {m['name']}" for m in matches if m])


def _innermost(frames: list[str]) -> str | None:
    own = [frame for frame in frames if is_script(frame.rpartition(":")[0])]
    return next(iter(own or frames), None)


def minority(texts: Mapping[int, str]) -> tuple[int, ...]:
    """Ranks at the least common position; empty if nothing distinguishes them.

    Args:
        texts: stacks by rank.
    """
    stacks = {rank: tuple(main_thread(text)) for rank, text in texts.items()}
    counts = Counter(stack for stack in stacks.values() if stack)
    if len(counts) < 2 or () in stacks.values():
        return ()
    fewest, most = min(counts.values()), max(counts.values())
    if fewest == most:
        return ()
    return tuple(sorted(rank for rank, stack in stacks.items() if counts[stack] == fewest))


def of_evidence(folder: Path) -> dict[int, str]:
    """By rank, the stacks in an evidence folder, except those that could not be collected."""
    texts = {}
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return {}
    for file in files:
        named = _STACKS.match(file.name)
        if named is None:
            continue
        try:
            text = bounded.read_text(file)
        except OSError:
            continue
        if main_thread(text):
            texts[int(named[1])] = text
    return texts


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


RECORD_BYTES = 32 * 1024 * 1024
"""Longer records are not read."""
CALLS = 600
"""Number of each rank's latest collectives to examine."""
CONTEXT = 8
"""Number of preceding collectives that determine the next."""
LATEST = 4
"""A rank stops within this many collectives after breaking the order."""
LEARNED = 24
"""Fewer collectives do not establish an order."""
KEPT = 0.95
"""Fraction that must have been as expected for there to be an order."""

DEFAULT_GROUP = "0"


@dataclass(frozen=True)
class Call:
    """A collective that a rank entered."""

    number: int
    name: str
    sizes: str

    def in_words(self) -> str:
        """`all_reduce [16, 16]`."""
        return f"{self.name} {self.sizes}".strip()


@dataclass(frozen=True)
class Left:
    """A rank that broke the order of collectives."""

    rank: int
    entered: Call | None = None
    """What it entered; None if it is to blame because all others kept their order."""
    expected: str = ""
    """What it should have entered, in words."""

    def in_words(self) -> str:
        """The sentence for a cause."""
        if self.entered is None:
            return (
                f"The flight recorder shows that all ranks except rank {self.rank} "
                "issued their collectives in the same order."
            )
        return (
            f"Rank {self.rank} issued its collectives out of order: its collective "
            f"{self.entered.number} was {self.entered.in_words()} instead of {self.expected}."
        )


def who_left(records: Mapping[int, Sequence[Call]], world_size: int) -> Left | None:
    """The rank that broke the order; None if the records do not show one.

    Args:
        records: by rank, what it entered, oldest first.
        world_size: number of ranks.
    """
    breaks, kept = [], []
    for rank, calls in records.items():
        found = _break(calls)
        if found is not None:
            breaks.append(Left(rank, *found))
        elif _has_order([call.in_words() for call in calls]):
            kept.append(rank)
    if len(breaks) == 1:
        return breaks[0]
    silent = [rank for rank in range(world_size) if rank not in records]
    # one rank that keeps its own order says nothing about the only other one
    if not breaks and len(silent) == 1 and len(kept) == world_size - 1 > 1:
        return Left(silent[0])
    return None


def differences(records: Mapping[int, Sequence[Call]], world_size: int) -> str:
    """What each of two ranks did, from the records that exist; empty for more ranks.

    Args:
        records: by rank, what it entered, oldest first.
        world_size: number of ranks.
    """
    unclear = "It is unknown which rank is at fault."
    if world_size != 2 or not records:
        return unclear
    did = {
        rank: {call.number: call.in_words() for call in calls} for rank, calls in records.items()
    }
    if len(did) == 1:
        [(rank, calls)] = did.items()
        return (
            f"The last collective of rank {rank} was {max(calls)}, {calls[max(calls)]}; "
            f"rank {1 - rank} left no flight record. {unclear}"
        )
    both = sorted(did[0].keys() & did[1].keys())
    apart = next((number for number in both if did[0][number] != did[1][number]), None)
    if apart is not None:
        return (
            f"In collective {apart}, rank 0 entered {did[0][apart]} and rank 1 {did[1][apart]}. "
            f"{unclear}"
        )
    last = {rank: max(calls) for rank, calls in did.items()}
    ahead = max(last, key=lambda rank: last[rank])
    if last[ahead] == last[1 - ahead]:
        return unclear
    return (
        f"Rank {1 - ahead} did not join collective {last[1 - ahead] + 1}, "
        f"{did[ahead].get(last[1 - ahead] + 1, '')}, which rank {ahead} entered."
    )


def _break(calls: Sequence[Call]) -> tuple[Call, str] | None:
    """(the first of the latest collectives that is out of order, what was expected)."""
    names = [call.in_words() for call in calls]
    for place in range(max(LEARNED, len(names) - LATEST), len(names)):
        if not _has_order(names[:place]):
            return None
        due = _due(names, place)
        if due and names[place] not in due:
            return calls[place], " or ".join(sorted(due))
    return None


def _has_order(names: Sequence[str]) -> bool:
    """Whether most collectives were as expected."""
    if len(names) < LEARNED:
        return False
    places = range(max(CONTEXT, len(names) - 2 * LEARNED), len(names))
    known = [(names[place], due) for place in places if (due := _due(names, place))]
    right = sum(call in due for call, due in known)
    return len(known) >= LEARNED / 2 and right >= KEPT * len(known)


def _due(names: Sequence[str], place: int) -> set[str]:
    """What followed the same collectives before; empty if they are new."""
    context = names[place - CONTEXT : place]
    return {
        names[start + CONTEXT]
        for start in range(place - CONTEXT)
        if names[start] == context[0] and names[start : start + CONTEXT] == context
    }


def read_calls(path: Path) -> list[Call]:
    """The default group's collectives in a flight record; empty if it cannot be read."""
    try:
        entries = json.loads(bounded.read_bytes(path, RECORD_BYTES)).get("entries")
        calls = [_call(entry) for entry in entries if _counts(entry)]
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return []
    return sorted(calls, key=lambda call: call.number)[-CALLS:]


def _counts(entry: dict[str, Any]) -> bool:
    return not entry.get("is_p2p") and str(entry["process_group"][0]) == DEFAULT_GROUP


def _call(entry: dict[str, Any]) -> Call:
    name = str(entry.get("profiling_name", ""))[:80].rpartition(":")[2]
    sizes = entry.get("input_sizes")
    shown = ", ".join(str(size) for size in sizes[:3]) if isinstance(sizes, list) else ""
    return Call(int(entry["collective_seq_id"]), name, shown[:80])


def left_order(paths: Mapping[int, Path]) -> Left | None:
    """The rank that broke the order of collectives, from the flight records of all ranks."""
    return who_left(read_records(paths), len(paths))


def read_records(paths: Mapping[int, Path]) -> dict[int, list[Call]]:
    """By rank, the default group's collectives in the flight records that can be read."""
    return {rank: calls for rank, path in paths.items() if (calls := read_calls(path))}


def hang_cause(found: HangVerdict, evidence: str, stands_at: Mapping[int, str | None]) -> Cause:
    """The cause of a hang: what hung, the rank to blame, and its position.

    Args:
        found: the verdict.
        evidence: the folder with the ranks' stacks, collected before any signal.
        stands_at: by rank, its position according to its probe.
    """
    paths = {rank: Path(evidence, f"flight-rank-{rank}.json") for rank in stands_at}
    left = None if found.named else left_order(paths)
    named = found.ranks if left is None else (left.rank,)
    culprits, place = explain(named, of_evidence(Path(evidence)))
    if place is None:
        places = {stands_at.get(rank) for rank in culprits} - {None}
        place = places.pop() if len(places) == 1 else None
    message, short = found.message, "" if place is None else place.rpartition("/")[2]
    head, found_at, tail = message.rpartition(f" at {short}")
    is_known = bool(place) and bool(found_at) and tail in ("", ")")
    if is_known:
        message = f"{head} at {place}{tail}"
    words = [f"The job hung: {message}."]
    if left is not None:
        words.append(left.in_words())
    one = len(culprits) == 1
    was = "was" if one else "were"
    if place is not None and not is_known:
        words.append(f"{name_ranks(culprits).capitalize()} {was} last seen at {place}.")
    elif culprits != named:
        words.append(
            f"{name_ranks(culprits).capitalize()} {was} not in the same place as the others."
        )
    return Cause(
        kind="hang",
        rank=culprits[0] if one else None,
        summary=" ".join(words),
        evidence=evidence,
        place=place,
    )
