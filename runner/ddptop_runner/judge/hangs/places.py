"""Where ranks stand, out of their stacks as text: pure, but for `of_evidence`.

In a hang most ranks wait at the same place; the one that stands elsewhere holds them up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from ddptop_runner.base import bounded

_THREAD = re.compile(r"^(?:Current thread|Thread)\b", re.MULTILINE)
_FAULTHANDLER_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_PY_SPY_FRAME = re.compile(r"^ +(?P<name>.+) \((?P<file>[^()]+):(?P<line>\d+)\)$")
_NOT_THE_SCRIPT = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python\d|ddptop_runner/probe)(/|\.|$)|^<frozen "
)
_STACKS = re.compile(r"^stacks-rank-(\d+)\.txt$")


def main_thread(text: str) -> list[str]:
    """Frames of the main thread, the innermost first, each as `file:line in function`.

    Args:
        text: what faulthandler or py-spy wrote. faulthandler has the main thread last; py-spy
            names it, and has it first.
    """
    starts = [found.start() for found in _THREAD.finditer(text)]
    ends = [*starts, len(text)][1:]
    blocks = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if not blocks:
        return []
    named = [block for block in blocks if '"MainThread"' in block.partition("\n")[0]]
    frames = []
    for line in (named or blocks[-1:])[0].splitlines()[1:]:
        found = _FAULTHANDLER_FRAME.match(line) or _PY_SPY_FRAME.match(line)
        if found is not None:
            frames.append(f"{found['file']}:{found['line']} in {found['name']}")
    return frames


def place(text: str) -> str | None:
    """The innermost frame of the script's own code; the innermost of all where there is none."""
    return _innermost(main_thread(text))


def of_crash(text: str) -> str | None:
    """Where the last crash came from that faulthandler told of; None where it told of none."""
    _, fatal, dump = text.rpartition("Fatal Python error: ")
    matches = [_FAULTHANDLER_FRAME.match(line) for line in dump.splitlines() if fatal]
    return _innermost([f"{m['file']}:{m['line']} in {m['name']}" for m in matches if m])


def _innermost(frames: list[str]) -> str | None:
    own = [frame for frame in frames if not _NOT_THE_SCRIPT.search(frame.rpartition(":")[0])]
    return next(iter(own or frames), None)


def minority(texts: Mapping[int, str]) -> tuple[int, ...]:
    """Ranks that stand where fewer do than anywhere else; empty where nothing sets them apart.

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
    """The stacks that an evidence folder holds, by rank; without those that could not be had."""
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
    """(whom the stacks show as the outlier where `ranks` names all of them, where it stands).

    Args:
        ranks: the culprits by other signs.
        texts: stacks by rank.
    """
    culprits = tuple(sorted(ranks))
    if set(texts) <= set(culprits) and len(texts) > 1:  # nobody was told apart by other signs
        culprits = minority(texts) or culprits
    places = {place(texts[rank]) for rank in culprits if rank in texts} - {None}
    return culprits, places.pop() if len(places) == 1 else None
