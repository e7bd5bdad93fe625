"""The progress of a job as a bar and as figures; no bar if the share is unknown."""

from __future__ import annotations

from ddptop.view.progress_words import place, shown_percent
from ddptop_runner.base import units
from ddptop_runner.job.registry import AnyJob
from ddptop_runner.model.snapshot import Progress
from ddptop_runner.reading.progress.combine import of_snapshot

LEAST_BAR = 10
"""Cells; a narrower bar says nothing."""


def progress_of(view: AnyJob) -> Progress | None:
    """The progress of a job; None if no total is known."""
    return None if view.snapshot is None else of_snapshot(view.snapshot, view.is_live)


def percent_text(progress: Progress | None) -> str:
    """`25%`, `~25%` where that is an estimate; empty where the share is not known."""
    if progress is None or progress.fraction is None:
        return ""
    percent = 100 if progress.fraction >= 1.0 else min(99, round(100 * progress.fraction))
    return f"{'~' * progress.estimated}{percent}%"


def label(progress: Progress) -> str:
    """The label after a bar: `24.7%`, and the epoch if steps count epochs."""
    percent = ""
    if progress.fraction is not None:
        percent = f"{shown_percent(progress.fraction):5.1f}%"
        percent = f"about {percent.strip()}" if progress.estimated else percent
    elif progress.epoch_fraction is not None:
        percent = f"{shown_percent(progress.epoch_fraction):5.1f}% of the epoch"
    if progress.counts == "run" and progress.total:
        return percent
    return f"{place(progress)}  {percent}"


def no_bar_words(progress: Progress | None, live: bool, young: bool = False) -> str:
    """Why there is no bar, and what is known all the same.

    Args:
        progress: what was told of it.
        live: whether the job lives.
        young: whether it has only begun, so that a total may still be told.
    """
    more = ": no bar or ETA" if live else ""
    if progress is None:
        return "total steps not known yet" if young else f"total steps unknown{more}"
    known = place(progress)
    if progress.counts != "run":
        return f"{known}; total steps in the run unknown{more}"
    if progress.step is None and progress.total:
        steps = units.count(progress.total)
        return f"of {steps} steps; this attempt's starting step is unknown{more}"
    return f"{known}; progress unknown{more}"
