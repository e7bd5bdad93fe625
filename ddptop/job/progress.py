"""Describes how far a job is: its run time, steps, pace, and remaining time. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from ddptop.job.record import Job
from ddptop_runner.base import units
from ddptop_runner.base.units import NOT_AVAILABLE, duration
from ddptop_runner.jobs.contract import JobRow
from ddptop_runner.model.snapshot import NodeSnapshot, Progress, RankSample, RunStep
from ddptop_runner.reading.progress.combine import of_snapshot

BAR_CELLS, LIST_CELLS = 20, 10
_SOURCES = {
    "api": "reported through ddptop.report",
    "trainer": "reported by the trainer",
    "log": "read from the output",
}


def share(progress: Progress | None) -> str:
    """`24.7%`; n/a if unknown.

    `~24.7%` if it is an estimate that does not follow from the step and total shown with it.
    """
    if progress is None or progress.fraction is None:
        return NOT_AVAILABLE
    return f"{_about(progress)}{shown_percent(progress.fraction):.1f}%"


def _about(progress: Progress) -> str:
    return "~" if progress.estimated and progress.counts != "run" else ""


def eta(progress: Progress | None, eta_s: float | None) -> str:
    """`3h 27m`, or `~3h 27m` as in `share`; n/a if unknown."""
    about = "" if progress is None or eta_s is None else _about(progress)
    return f"{about}{duration(eta_s)}"


def text_bar(fraction: float, cells: int) -> str:
    """`[##........]`; full only at the end."""
    full = int(min(1.0, max(0.0, fraction)) * cells)
    return f"[{'#' * full}{'.' * (cells - full)}]"


def bar_and_share(progress: Progress | None) -> str:
    """`[##........] 24.7%`; n/a if unknown."""
    if progress is None or progress.fraction is None:
        return NOT_AVAILABLE
    return f"{text_bar(progress.fraction, LIST_CELLS)} {share(progress):>6}"


def shown_percent(fraction: float) -> float:
    """The percentage, kept below 100 until the last step."""
    return 100.0 if fraction >= 1.0 else min(99.9, 100 * fraction)


def step_text(run: RunStep | None, progress: Progress | None, live: bool = True) -> str:
    """`12,340 / 50,000`, `98 of this attempt`, or only the step if the total is unknown.

    Args:
        run: the job's step.
        progress: progress toward a total.
        live: whether the job is live; otherwise, its last attempt is named by its number.
    """
    if run is None:
        return NOT_AVAILABLE
    whose, total = "", ""
    if run.counts == "attempt":
        whose = " of this attempt" if live or run.attempt is None else f" of attempt {run.attempt}"
    elif run.counts == "epoch":
        whose = " of this epoch"
    elif progress is not None and _counts_run(progress):
        total = f" / {progress.total:,}"
    return f"{run.step:,}{total}{whose}"


def step_cell(row: JobRow) -> str:
    """`12340/50000` or `98 of attempt 1`, for a table of jobs."""
    if row.step is None:
        return NOT_AVAILABLE
    if row.step_counts in ("attempt", "epoch"):
        of = row.step_counts
        whose = f"{of} {row.attempt}" if of == "attempt" else "this epoch"
        return f"{row.step} of {whose}"
    progress = row.progress
    known = progress is not None and _counts_run(progress)
    return f"{row.step}/{progress.total}" if progress is not None and known else str(row.step)


def _counts_run(progress: Progress) -> bool:
    return progress.counts == "run" and progress.step is not None and bool(progress.total)


def place(progress: Progress) -> str:
    """`step 12,340 of 50,000` or `epoch 2/5, step 30 of 100`; empty if unknown."""
    parts = []
    if progress.epoch is not None and (progress.counts != "run" or progress.total is None):
        # as printed: the number after the slash may be the count or the last index
        of = f"/{progress.epochs}" if progress.epochs else ""
        parts.append(f"epoch {progress.epoch:g}{of}")
    if progress.total is not None:
        unit = "sample" if progress.counts == "samples" else "step"
        done = NOT_AVAILABLE if progress.step is None else f"{progress.step:,}"
        parts.append(f"{unit} {done} of {progress.total:,}")
    return ", ".join(parts)


def in_words(progress: Progress | None) -> str | None:
    """`[#####...............] 24.7%, step 12,340 of 50,000, 3h27m left, from the output`.

    None if no total is known. If only the epoch's total is, the bar is the epoch's and says so.
    """
    if progress is None:
        return None
    parts = []
    about = "about " if progress.estimated else ""
    if progress.fraction is not None:
        percent = f"{about}{shown_percent(progress.fraction):.1f}%"
        parts.append(f"{text_bar(progress.fraction, BAR_CELLS)} {percent}")
    elif progress.epoch_fraction is not None:
        bar = text_bar(progress.epoch_fraction, BAR_CELLS)
        parts.append(f"{bar} {shown_percent(progress.epoch_fraction):.1f}% of the epoch")
    parts.append(place(progress))
    if progress.eta_s is not None:
        parts.append(f"{about}{duration(progress.eta_s)} left")
    if progress.epoch_eta_s is not None and (about or progress.fraction is None):
        parts.append(f"{duration(progress.epoch_eta_s)} left in the epoch")
    parts.append(_SOURCES.get(progress.source, progress.source))
    return ", ".join(part for part in parts if part)


LEAST_BAR = 10
"""Minimum useful width of a bar, in cells."""


def progress_of(view: Job) -> Progress | None:
    """The progress of a job; None if no total is known."""
    return None if view.snapshot is None else of_snapshot(view.snapshot, view.is_live)


def percent_text(progress: Progress | None) -> str:
    """`25%`, or `~25%` for an estimate; empty if unknown."""
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
    """Why there is no bar, and what is known anyway.

    Args:
        progress: what is known about progress.
        live: whether the job is live.
        young: whether the attempt just started, so that a total may still be reported.
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


def elapsed_s(view: Job, now: dt.datetime) -> float | None:
    """How long the job has run, or ran before it ended."""
    return None if view.snapshot is None else view.elapsed_s(now)


def median_loss(snapshot: NodeSnapshot) -> tuple[float | None, str | None]:
    """(the median of the ranks' losses, the state of a loss that is not finite)."""
    from ddptop_runner.judge.balance.imbalance import seen  # `ls` prints no loss

    for rank in snapshot.ranks:
        if rank.loss_state in ("nan", "inf"):
            return None, rank.loss_state
    known = sorted(rank.loss for rank in seen(snapshot.ranks) if rank.loss is not None)
    if not known:
        return None, None
    middle = len(known) // 2
    return (known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2), "ok"


def steps_per_s(ranks: Sequence[RankSample]) -> float | None:
    """The slowest rank's pace, because the others wait for it."""
    known = [rank.steps_per_s for rank in ranks if rank.steps_per_s is not None]
    return min(known) if known else None


def restarts_text(snapshot: NodeSnapshot) -> str:
    """`1 used, 2 left`."""
    return f"{snapshot.restarts_used} used, {snapshot.restarts_left} left"


def assigned_devices(snapshot: NodeSnapshot) -> set[tuple[str, int]]:
    """Hosts and machine indices of a job's devices."""
    own = {(rank.host, rank.gpu) for rank in snapshot.ranks if rank.gpu is not None}
    return own | {(gpu.host or snapshot.host, gpu.index) for gpu in snapshot.gpus}
