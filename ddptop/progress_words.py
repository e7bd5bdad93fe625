"""How far a job is, in words and as a bar of plain text."""

from __future__ import annotations

from ddptop.output import NOT_AVAILABLE, duration
from ddptop_runner.model import Progress

BAR_CELLS, LIST_CELLS = 20, 10
_SOURCES = {"api": "ddptop.report", "trainer": "its trainer", "log": "its output"}


def share(progress: Progress | None) -> str:
    """`24.7 %`; n/a where the share is not known.

    `~24.7 %` where it is an estimate and not the share of the step and total that stand beside it.
    """
    if progress is None or progress.fraction is None:
        return NOT_AVAILABLE
    about = "~" if progress.estimated and progress.counts != "run" else ""
    return f"{about}{shown_percent(progress.fraction):.1f} %"


def text_bar(fraction: float, cells: int) -> str:
    """`[##........]`; full only at the end."""
    full = int(min(1.0, max(0.0, fraction)) * cells)
    return f"[{'#' * full}{'.' * (cells - full)}]"


def bar_and_share(progress: Progress | None) -> str:
    """`[##........] 24.7 %`; n/a where the share is not known."""
    if progress is None or progress.fraction is None:
        return NOT_AVAILABLE
    return f"{text_bar(progress.fraction, LIST_CELLS)} {share(progress):>7}"


def shown_percent(fraction: float) -> float:
    """Never 100 before the last step, however near."""
    return 100.0 if fraction >= 1.0 else min(99.9, 100 * fraction)


def step_and_total(progress: Progress | None, step: int | None) -> tuple[str, str | None]:
    """The step, and the total of the run where that is known.

    `step` is the slowest rank's, of this attempt; a run that was resumed is farther.
    """
    total = None
    if progress is not None and progress.counts == "run" and progress.total is not None:
        total = str(progress.total)
        step = progress.step
    return NOT_AVAILABLE if step is None else str(step), total


def place(progress: Progress) -> str:
    """`step 12,340 of 50,000`, `epoch 2/5, step 30 of 100`; empty where neither is known."""
    parts = []
    if progress.epoch is not None and (progress.counts != "run" or progress.total is None):
        # as printed: what stands behind the slash may be their number, or that of the last
        of = f"/{progress.epochs}" if progress.epochs else ""
        parts.append(f"epoch {progress.epoch:g}{of}")
    if progress.total is not None:
        unit = "sample" if progress.counts == "samples" else "step"
        done = NOT_AVAILABLE if progress.step is None else f"{progress.step:,}"
        parts.append(f"{unit} {done} of {progress.total:,}")
    return ", ".join(parts)


def in_words(progress: Progress | None) -> str | None:
    """`[#####...............] 24.7 %, step 12,340 of 50,000, 3h27m left, by its output`.

    None where nothing said a total; a bar of the epoch, which says so, where only that is known.
    """
    if progress is None:
        return None
    parts = []
    about = "about " if progress.estimated else ""
    if progress.fraction is not None:
        percent = f"{about}{shown_percent(progress.fraction):.1f} %"
        parts.append(f"{text_bar(progress.fraction, BAR_CELLS)} {percent}")
    elif progress.epoch_fraction is not None:
        bar = text_bar(progress.epoch_fraction, BAR_CELLS)
        parts.append(f"{bar} {shown_percent(progress.epoch_fraction):.1f} % of the epoch")
    parts.append(place(progress))
    if progress.eta_s is not None:
        parts.append(f"{about}{duration(progress.eta_s)} left")
    if progress.epoch_eta_s is not None and (about or progress.fraction is None):
        parts.append(f"{duration(progress.epoch_eta_s)} left of the epoch")
    parts.append(f"by {_SOURCES.get(progress.source, progress.source)}")
    return ", ".join(part for part in parts if part)
