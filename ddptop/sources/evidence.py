"""Formats the evidence and the stacks of a job as sections of text."""

from __future__ import annotations

from pathlib import Path

from ddptop.job.hosts import host_of
from ddptop.job.record import Job, own_view
from ddptop.job.stacks import readable, together
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import owner_in_words, owner_name
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.jobs import commands
from ddptop_runner.store.log_clean import sanitize
from ddptop_runner.store.logs import tail_bytes

SHOWN_BYTES = 24 * 1024
"""How much of a file's end is shown."""

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
        sections.append(
            (
                "earlier evidence" if attempt is None else "other evidence",
                "\n".join(str(path) for path in others),
            )
        )
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


def stored_files(view: Job, rank: int | None) -> list[Path]:
    """The stack files of the latest failure or hang."""
    folders = [path for path in view.folder.evidence_dir.glob("attempt-*-*") if path.is_dir()]
    if not folders:
        return []
    last = max(folders, key=lambda path: path.stat().st_mtime)
    if rank is None:
        return sorted(last.glob("stacks-*.txt"))
    owner = owner_name(rank)
    return sorted([*last.glob(f"stacks-{owner}.txt"), *last.glob(f"stacks-{owner}-loader.txt")])


def stacks_hint(view: Job) -> str:
    """Where a job's stacks come from, and how to see all frames."""
    if view.is_foreign:
        return "read with py-spy, without pausing any process; esc closes"
    how = "read without pausing any rank" if view.is_live else "saved at the last failure or hang"
    return f"{how}; all frames: ddptop stacks {view.name}"


def read_stacks(view: Job) -> list[tuple[str, str]]:
    """The stack of each rank: now if the job is live, else from its evidence.

    Raises:
        DdptopError: the supervisor does not answer, or there is no evidence.
    """
    if view.foreign is not None:
        return _foreign_stacks(view, view.foreign)
    if view.is_live:
        found = []
        for entry in commands.stacks(own_view(view)):
            text = entry.text or f"no stacks: {entry.note or 'no reason given'}"
            if entry.loader:
                text = f"{text}\n{entry.loader}"
            about = f"pid {entry.pid or 'n/a'}"
            if (host := host_of(view.snapshot, entry.rank)) is not None:
                about += f"   host {host}"
            found.append((owner_in_words(entry.rank), about, _stack(text, view.spec.cwd)))
        return together(found)
    files = stored_files(view, None)
    if not files:
        raise DdptopError(
            f"{view.name} has no saved stacks", "stacks are saved when a rank fails or hangs"
        )
    return together(
        (path.stem.removeprefix("stacks-").replace("-", " "), "", _stacks_text(path, view.spec.cwd))
        for path in files
    )


def _foreign_stacks(view: Job, job: ForeignJob) -> list[tuple[str, str]]:
    from ddptop_runner.foreign import actions

    if not view.is_live:
        raise DdptopError(f"{view.name} is gone", "stacks can be read only from live processes")
    return together(
        (
            f"rank {one.rank}",
            f"pid {one.pid or 'n/a'}",
            _stack(one.text or f"no stacks: {one.note or 'no reason given'}", None),
        )
        for one in actions.read_stacks(job.ranks)
    )


def _stacks_text(path: Path, folder: str) -> str:
    try:
        return _stack(bounded.read_text(path), folder)
    except OSError as error:
        return f"cannot be read: {error}"


def _stack(text: str, folder: str | None) -> str:
    return readable(sanitize(text).rstrip(), folder)
