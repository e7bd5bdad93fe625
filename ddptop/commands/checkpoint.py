"""`ddptop checkpoint`: make a job save now, and print the path."""

from __future__ import annotations

from ddptop.commands.unguarded import adopt_if_unguarded
from ddptop.plain.output import info, put
from ddptop_runner.base.units import duration_in_words, size
from ddptop_runner.jobs import checkpoint as wanted
from ddptop_runner.jobs.slurm_queue import find


def run(job: str | None, timeout_s: float | None) -> int:
    """Request a checkpoint, wait until it is complete, and print its path."""
    view = adopt_if_unguarded(find(job))
    asked = wanted.ask(view)
    info(f"ddptop: requested a checkpoint from {view.job} by {asked.in_words()}")
    answer = wanted.wait(view, asked, wanted.TIMEOUT_S if timeout_s is None else timeout_s)
    saved = answer.checkpoint
    size_ = "" if saved.size_bytes is None else f", {size(saved.size_bytes)}"
    took = "" if saved.took_s is None else f", in {duration_in_words(saved.took_s)}"
    info(f"ddptop: saved{answer.in_words()}{size_}{took}")
    if not answer.responded:
        info(f"ddptop: for checkpoints on request, {wanted.SUPPORT}")
    put(saved.path)
    return 0
