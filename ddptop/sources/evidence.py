"""Formats the evidence and the stacks of a job as sections of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddptop.job.ranks import host_of
from ddptop.job.record import Job, own_view
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import owner_in_words, owner_name
from ddptop_runner.base.units import name_ranks
from ddptop_runner.jobs import commands
from ddptop_runner.judge.hangs.records import is_script, read_frame
from ddptop_runner.model.snapshot import RankStacks
from ddptop_runner.store.log_clean import sanitize
from ddptop_runner.store.logs import tail_bytes

SHOWN_BYTES = 24 * 1024
"""How much of a file's end is shown."""

Stack = tuple[str, str, str]
"""A process such as `rank 3`, the rest of its heading, and its stack."""

_ORDER = ("summary", "stacks", "tail", "status", "snapshot")
"""Display order of files, by prefix."""


def folders(view: Job) -> list[Path]:
    """One folder per failure or hang, latest first."""
    try:
        kept = [path for path in view.folder.evidence_dir.glob("attempt-*-*") if path.is_dir()]
    except OSError:
        return []
    return sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True)


def read_evidence(view: Job, attempt: int | None = None) -> list[tuple[str, str]]:
    """(heading, text) of each file of a failure, most useful first; then a listing.

    Args:
        view: the job.
        attempt: the attempt that failed; None for the latest evidence.

    Raises:
        DdptopError: there is no evidence.
    """
    if view.spec.placement is not None:
        _fetch(view, attempt)
    kept = folders(view)
    if attempt is not None:
        kept.sort(key=lambda path: not path.name.startswith(f"attempt-{attempt}-"))
    if not kept or (attempt is not None and not kept[0].name.startswith(f"attempt-{attempt}-")):
        whose = view.name if attempt is None else f"attempt {attempt} of {view.name}"
        raise DdptopError(
            f"no evidence for {whose}", "evidence is saved when a rank fails or the job hangs"
        )
    last, *others = kept
    sections = [(path.name, _text(path, view.spec.cwd)) for path in _files(last)]
    sections.append((f"files in {last}", _listing(last)))
    if others:
        title = "earlier evidence" if attempt is None else "other evidence"
        sections.append((title, "\n".join(map(str, others))))
    return sections


def _fetch(view: Job, attempt: int | None) -> None:
    """Fetch the evidence that the job's other nodes saved."""
    from ddptop_runner.jobs.far_files import fetch_evidence

    snapshot = view.snapshot
    causes = [snapshot.cause, snapshot.previous_cause]
    names = [Path(one.evidence).name for one in causes if one is not None and one.evidence]
    if attempt is not None:
        names = [f"attempt-{attempt}-{why}" for why in ("failure", "hang", "nan")]
    for name in names:
        fetch_evidence(own_view(view), name)


def _files(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if path.is_file()), key=_place)


def _place(path: Path) -> tuple[int, str]:
    places = (place for place, start in enumerate(_ORDER) if path.name.startswith(start))
    return next(places, len(_ORDER)), path.name


def _listing(folder: Path) -> str:
    return "\n".join(f"{path.stat().st_size:>10,}  {path.name}" for path in _files(folder))


def _text(path: Path, folder: str) -> str:
    text = sanitize(tail_bytes(path, SHOWN_BYTES)).rstrip()
    if path.name.startswith("stacks-"):
        text = readable(text, folder)
    cut = "" if path.stat().st_size <= SHOWN_BYTES else "[...]\n"
    return f"{cut}{text}" if text else "(empty)"


def stacks_hint(view: Job) -> str:
    """Where a job's stacks come from, and how to see all frames."""
    if view.is_foreign:
        return "read with py-spy, without pausing any process; esc closes"
    how = "read without pausing any rank" if view.is_live else "saved at the last failure or hang"
    return f"{how}; all frames: ddptop stacks {view.name}"


def read_stacks(view: Job) -> list[tuple[str, str]]:
    """Headings and the stacks of ranks, formatted; see `stacks_of`."""
    folder = None if view.is_foreign else view.spec.cwd
    return together(
        (name, about, readable(sanitize(text).rstrip(), folder))
        for name, about, text in stacks_of(view)
    )


def stacks_of(view: Job, rank: int | None = None) -> list[Stack]:
    """The stack of each rank or of one: now if the job is live, else from its latest evidence.

    Raises:
        DdptopError: the supervisor does not answer, or there is no evidence.
    """
    if view.is_foreign or (view.is_live and not view.in_slurm_queue):
        return [_live(view, one) for one in _live_stacks(view, rank)]
    names = ["*"] if rank is None else [owner_name(rank), f"{owner_name(rank)}-loader"]
    files = {
        path for last in folders(view)[:1] for x in names for path in last.glob(f"stacks-{x}.txt")
    }
    if not files:
        raise DdptopError(
            f"{view.name} has no live ranks and no saved stacks",
            "stacks are saved when a rank fails or hangs",
        )
    found = []
    for path in sorted(files):
        try:
            text = bounded.read_text(path)
        except OSError as error:
            text = f"cannot be read: {error}"
        found.append((path.stem.removeprefix("stacks-").replace("-", " "), "", text))
    return found


def _live(view: Job, one: RankStacks) -> Stack:
    host = host_of(view.snapshot, one.rank)
    about = f"pid {one.pid or 'n/a'}" + ("" if host is None else f" on {host}")
    text = one.text.rstrip() if one.text else f"no stacks: {one.note or 'no reason given'}"
    return owner_in_words(one.rank), about, "\n".join(filter(None, (text, one.loader)))


def _live_stacks(view: Job, rank: int | None) -> list[RankStacks]:
    if view.foreign is None:
        return commands.stacks(own_view(view), rank)
    from ddptop_runner.foreign import actions

    if not view.is_live:
        raise DdptopError(f"{view.name} is gone", "stacks can be read only from live processes")
    return actions.read_stacks(view.foreign.ranks)


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


def together(stacks: Iterable[Stack]) -> list[tuple[str, str]]:
    """Headings and texts; processes with the same stack share an entry, smallest groups first."""
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
    return [*_column(_AT, script), *_column(_INSIDE, [text for _, text in frames[: own[0]]])]


def _column(word: str, texts: Sequence[str]) -> list[str]:
    return [f"{_NEXT if place else word}{text}" for place, text in enumerate(texts)]


def _short(file: str, folder: str | None) -> str:
    """`torch/autograd/graph.py` for a library file; the script's files relative to `folder`."""
    if folder is not None and Path(file).is_relative_to(folder):
        inside = str(Path(file).relative_to(folder))
        if "site-packages" not in inside:
            return inside
    return _LIBRARY.sub("", file)
