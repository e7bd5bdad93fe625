"""Formats the evidence of a job's failures and hangs as sections of text."""

from __future__ import annotations

from pathlib import Path

from ddptop.view.stacks import readable
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import owner_name
from ddptop_runner.job.registry import JobView
from ddptop_runner.store.log_clean import sanitize
from ddptop_runner.store.logs import tail_bytes

SHOWN_BYTES = 24 * 1024
"""How much of a file's end is shown."""

_ORDER = ("summary", "stacks", "tail", "status", "snapshot")
"""Display order of files, by prefix."""


def folders(view: JobView) -> list[Path]:
    """One folder per failure or hang, latest first."""
    try:
        kept = [path for path in view.folder.evidence_dir.glob("attempt-*-*") if path.is_dir()]
    except OSError:
        return []
    return sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True)


def read(view: JobView, attempt: int | None = None) -> list[tuple[str, str]]:
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
        whose = view.job if attempt is None else f"attempt {attempt} of {view.job}"
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


def _fetch(view: JobView, attempt: int | None) -> None:
    """Fetch the evidence that the job's other nodes saved."""
    from ddptop_runner.jobs.far_files import fetch_evidence

    snapshot = view.snapshot
    causes = [] if snapshot is None else [snapshot.cause, snapshot.previous_cause]
    names = [Path(one.evidence).name for one in causes if one is not None and one.evidence]
    if attempt is not None:
        names = [f"attempt-{attempt}-{why}" for why in ("failure", "hang", "nan")]
    for name in names:
        fetch_evidence(view, name)


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


def stored_files(view: JobView, rank: int | None) -> list[Path]:
    """The stack files of the latest failure or hang."""
    folders = [path for path in view.folder.evidence_dir.glob("attempt-*-*") if path.is_dir()]
    if not folders:
        return []
    last = max(folders, key=lambda path: path.stat().st_mtime)
    if rank is None:
        return sorted(last.glob("stacks-*.txt"))
    owner = owner_name(rank)
    return sorted([*last.glob(f"stacks-{owner}.txt"), *last.glob(f"stacks-{owner}-loader.txt")])
