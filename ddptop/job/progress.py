"""Describes how far a job is: its run time, steps, pace, and remaining time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.job.record import Job
from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.base.units import NOT_AVAILABLE, duration
from ddptop_runner.model.snapshot import NodeSnapshot, Progress, RankSample, RunStep
from ddptop_runner.model.words import is_validation_loss
from ddptop_runner.reading.progress.combine import of_snapshot

_SOURCES = {
    "api": "reported through ddptop.report",
    "trainer": "reported by the trainer",
    "log": "read from the output",
}


def progress_of(job: Job) -> Progress | None:
    """The progress of a job, or the mean of a sweep's; None if no total is known."""
    if job.members:
        known = [_fraction(one) for one in job.members]
        done = [fraction for fraction in known if fraction is not None]
        if len(done) < len(known):
            return None
        return Progress(source="log", fraction=sum(done) / len(done))
    return of_snapshot(job.snapshot, job.is_live)


def _fraction(job: Job) -> float | None:
    """0 if it has not begun, or ended early without a known fraction."""
    if job.state == "finished":
        return 1.0
    progress = progress_of(job)
    if progress is None or progress.fraction is None:
        return None if job.state == "running" else 0.0
    return progress.fraction


def share(progress: Progress | None) -> str:
    """`24.7%`, or `~24.7%` for an estimate; only 100% at the end; empty if unknown."""
    if progress is None or progress.fraction is None:
        return ""
    return f"{'~' * progress.estimated}{_percent(progress.fraction)}"


def _percent(fraction: float) -> str:
    return "100%" if fraction >= 1.0 else f"{min(99.9, 100 * fraction):.1f}%"


def eta(progress: Progress | None) -> str:
    """`3h 27m`, or `~3h 27m` for an estimate; n/a if unknown."""
    if progress is None or progress.eta_s is None:
        return NOT_AVAILABLE
    return f"{'~' * progress.estimated}{duration(progress.eta_s)}"


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


LEAST_BAR = 10
"""Minimum useful width of a bar, in cells."""


def label(progress: Progress) -> str:
    """The label after a bar: `24.7%`, and the epoch if steps count epochs."""
    percent = share(progress)
    if not percent and progress.epoch_fraction is not None:
        percent = f"{_percent(progress.epoch_fraction)} of the epoch"
    if progress.counts == "run" and progress.total:
        return percent
    return f"{place(progress)}  {percent}".strip()


def source_words(progress: Progress) -> str:
    """Where the total comes from."""
    return _SOURCES.get(progress.source, progress.source)


def no_bar_words(progress: Progress | None) -> str:
    """What is known about progress, and why there is no bar."""
    if progress is None:
        return "total steps unknown"
    if progress.counts == "run" and progress.step is None and progress.total:
        return f"of {units.count(progress.total)} steps; this attempt's starting step is unknown"
    return "; ".join(filter(None, (place(progress), "total steps unknown")))


def median_loss(snapshot: NodeSnapshot) -> tuple[float | None, str | None]:
    """(the median of the ranks' losses, the state of a loss that is not finite)."""
    from ddptop_runner.judge.balance.imbalance import seen  # `ls` prints no loss

    for rank in snapshot.ranks:
        if rank.loss_state in ("nan", "inf"):
            return None, rank.loss_state
    known = [rank.loss for rank in seen(snapshot.ranks) if rank.loss is not None]
    return (median(known), "ok") if known else (None, None)


def validation_losses(snapshot: NodeSnapshot) -> dict[str, float]:
    """The latest validation losses that the script reported, by name; means over the ranks."""
    values: dict[str, list[float]] = {}
    for rank in snapshot.ranks:
        for name, value in rank.metrics.items():
            if value is not None and is_validation_loss(name):
                values.setdefault(name, []).append(value)
    return {name: sum(of) / len(of) for name, of in values.items()}


def steps_per_s(ranks: Sequence[RankSample]) -> float | None:
    """The slowest rank's pace, because the others wait for it."""
    known = [rank.steps_per_s for rank in ranks if rank.steps_per_s is not None]
    return min(known) if known else None


def assigned_devices(snapshot: NodeSnapshot) -> set[tuple[str, int]]:
    """Hosts and machine indices of a job's devices."""
    own = {(rank.host, rank.gpu) for rank in snapshot.ranks if rank.gpu is not None}
    return own | {(gpu.host or snapshot.host, gpu.index) for gpu in snapshot.gpus}
