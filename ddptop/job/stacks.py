"""Formats stacks for reading: the script's frames first, then the library calls below them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddptop_runner.base.units import name_ranks
from ddptop_runner.judge.hangs.records import is_script, read_frame

_LIBRARY = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python\d[\d.]*)/")
_OWN = re.compile(r"(^|/)ddptop_runner/")
_HEAD = re.compile(r"^(?:Current thread|Thread)\b")
_PROCESS = re.compile(r"^Process \d+: ")
_NUMBER = re.compile(r"^(?:Current thread|Thread) \w+")
_HOW = re.compile(r" \([a-z ]+\)")
_AT, _INSIDE, _NEXT = "at      ", "inside  ", "        "

Thread = tuple[str, "list[tuple[str, str]]"]
"""A thread's heading, and its frames as (file, formatted frame), innermost first."""


def readable(text: str, folder: str | None = None) -> str:
    """Format the output of faulthandler or py-spy, without ddptop's own frames and threads.

    Numbers of processes and threads are left out, and threads are sorted, so that the texts of two
    processes in the same place are equal.

    Args:
        text: the output; lines that are not frames stay unchanged.
        folder: the job's working directory; paths of its files are relative to it.
    """
    parts: list[str] = []
    threads: list[Thread] = []
    for line in text.splitlines():
        if _HEAD.match(line):
            threads.append((line, []))
        elif threads and (frame := read_frame(line)) is not None:
            file, number, name = frame
            if not _OWN.search(file):
                threads[-1][1].append((file, f"{_short(file, folder)}:{number} in {name}"))
        elif threads and line.startswith(" "):  # a native frame, or a note that frames were omitted
            threads[-1][1].append(("", line.strip()))
        elif line and not _PROCESS.match(line):
            parts += _threads(threads)
            threads = []
            parts.append(line)
    return "\n".join([*parts, *_threads(threads)]) or text


def together(stacks: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Headings and texts; processes with the same stack share an entry, smallest groups first.

    Args:
        stacks: for each process, its name such as `rank 3`, the rest of its heading, and its text.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, about, text in stacks:
        groups.setdefault(text, []).append((name, about))
    by_size = sorted(groups.items(), key=lambda one: len(one[1]))
    return [(_heading(members), text) for text, members in by_size]


def _heading(members: Sequence[tuple[str, str]]) -> str:
    if len(members) == 1:
        return "   ".join(filter(None, members[0]))
    numbers = [name.removeprefix("rank ") for name, _ in members]
    if all(number.isdigit() for number in numbers):
        return name_ranks([int(number) for number in numbers])
    return ", ".join(name for name, _ in members)


def _threads(threads: list[Thread]) -> list[str]:
    """The main thread, then the others, each under its heading."""
    if not threads:
        return []
    main = next((one for one in threads if '"MainThread"' in one[0]), threads[-1])
    lines = _frames(main[1])
    for frames, name in sorted(
        (_frames(frames), _NUMBER.sub("", _HOW.sub("", head)).rstrip(":"))
        for head, frames in threads
        if head is not main[0] and frames
    ):
        lines += ["", f"another thread{name}", *frames]
    return lines


def _frames(frames: list[tuple[str, str]]) -> list[str]:
    """The script's frames, and below them the library calls that the innermost one is in."""
    own = [place for place, (file, _) in enumerate(frames) if is_script(file)]
    if not own:
        return _column(_INSIDE, [text for _, text in frames])
    script: list[str] = []
    for place, behind in zip(own, [*own[1:], own[-1] + 1], strict=True):
        script.append(frames[place][1])
        if between := behind - place - 1:
            script.append(f"... {between} library frame{'s'[: between > 1]}")
    return [
        *_column(_AT, script),
        *_column(_INSIDE, [text for _, text in frames[: own[0]]]),
    ]


def _column(word: str, texts: Sequence[str]) -> list[str]:
    return [f"{_NEXT if place else word}{text}" for place, text in enumerate(texts)]


def _short(file: str, folder: str | None) -> str:
    """`torch/autograd/graph.py` for a library file; the script's files relative to `folder`."""
    if folder is not None and Path(file).is_relative_to(folder):
        inside = str(Path(file).relative_to(folder))
        if "site-packages" not in inside:
            return inside
    return _LIBRARY.sub("", file)
