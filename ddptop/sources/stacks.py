"""Formats the stacks of a job's ranks as sections of text."""

from __future__ import annotations

from pathlib import Path

from ddptop.sources.evidence_pages import stored_files
from ddptop.view.host_words import host_of
from ddptop.view.stacks import readable, together
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import owner_in_words
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import AnyJob
from ddptop_runner.jobs import commands
from ddptop_runner.store.log_clean import sanitize


def hint(view: AnyJob) -> str:
    """Where a job's stacks come from, and how to see all frames."""
    if isinstance(view, ForeignView):
        return "read with py-spy, without pausing any process; esc closes"
    how = "read without pausing any rank" if view.is_live else "saved at the last failure or hang"
    return f"{how}; all frames: ddptop stacks {view.job}"


def read(view: AnyJob) -> list[tuple[str, str]]:
    """The stack of each rank: now if the job is live, else from its evidence.

    Raises:
        DdptopError: the supervisor does not answer, or there is no evidence.
    """
    if isinstance(view, ForeignView):
        return _foreign_stacks(view)
    if view.is_live:
        found = []
        for entry in commands.stacks(view):
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
            f"{view.job} has no saved stacks", "stacks are saved when a rank fails or hangs"
        )
    return together(
        (path.stem.removeprefix("stacks-").replace("-", " "), "", _text(path, view.spec.cwd))
        for path in files
    )


def _foreign_stacks(view: ForeignView) -> list[tuple[str, str]]:
    from ddptop_runner.foreign import actions

    if not view.is_live:
        raise DdptopError(f"{view.job} is gone", "stacks can be read only from live processes")
    return together(
        (
            f"rank {one.rank}",
            f"pid {one.pid or 'n/a'}",
            _stack(one.text or f"no stacks: {one.note or 'no reason given'}", None),
        )
        for one in actions.read_stacks(view.foreign.ranks)
    )


def _text(path: Path, folder: str) -> str:
    try:
        return _stack(bounded.read_text(path), folder)
    except OSError as error:
        return f"cannot be read: {error}"


def _stack(text: str, folder: str | None) -> str:
    return readable(sanitize(text).rstrip(), folder)
