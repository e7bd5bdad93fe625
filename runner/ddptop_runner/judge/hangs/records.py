"""Derives the cause of a hang from stacks.

In a hang, most ranks wait at the same place; the one that is elsewhere holds them up. Only
`of_evidence` and `hang_cause` read files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

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


def hang_cause(found: HangVerdict, evidence: str) -> Cause:
    """The cause of a hang: what hung, the rank to blame, and its position.

    Args:
        found: the verdict.
        evidence: the folder with the ranks' stacks, collected before any signal.
    """
    culprits, place = explain(found.ranks, of_evidence(Path(evidence)))
    if culprits == found.ranks:
        place = place or found.place
        message = found.message(place)
    else:
        at = "" if place is None else f", but at {place}"
        be = "is" if len(culprits) == 1 else "are"
        message = f"{found.why}; {name_ranks(culprits)} {be} not where the others are{at}"
    rank = culprits[0] if len(culprits) == 1 else None
    return Cause(
        kind="hang",
        rank=rank,
        headline=message if rank is None else f"rank {rank}: {message}",
        summary=f"The job hung: {message}.",
        evidence=evidence,
        place=place,
    )
