"""`ddptop stacks`: the stack of every rank."""

from __future__ import annotations

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.plain.output import info, put
from ddptop.sources.evidence_pages import stored_files
from ddptop.view.host_words import host_of
from ddptop_runner.base import bounded
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import owner_in_words
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs import commands
from ddptop_runner.jobs.slurm_queue import find


def run(job: str | None, rank: int | None) -> int:
    """Print stacks of a live job, or the stored evidence of one without processes."""
    view = adopt_if_unguarded(find(job))
    if view.in_slurm_queue or not view.is_live:
        return _print_stored(view, rank)
    for entry in commands.stacks(view, rank):
        host = host_of(view.snapshot, entry.rank)
        where = "" if host is None else f" on {host}"
        pid = "not started" if entry.pid is None else f"pid {entry.pid}"
        put(f"--- {owner_in_words(entry.rank)} ({pid}{where}) ---")
        put(entry.text.rstrip() if entry.text else f"no stacks: {entry.note}")
        if entry.loader:
            put(entry.loader.rstrip())
    return 0


def _print_stored(view: JobView, rank: int | None) -> int:
    files = stored_files(view, rank)
    now = "is waiting in Slurm's queue" if view.in_slurm_queue else f"has ended ({view.state})"
    if not files:
        raise DdptopError(
            f"{view.job} {now} and has no saved stacks",
            "stacks are saved when a rank fails or hangs",
        )
    info(f"ddptop: {view.job} {now}; saved stacks from {files[0].parent}")
    for path in files:
        put(f"--- {path.stem.removeprefix('stacks-')} ---")
        put(bounded.read_text(path).rstrip())
    return 0
