"""Combines the progress of the ranks into that of the job. Pure.

The best source that knows the share done is taken: the total that the script reported, then that of
a framework's trainer, then that of a line of output. Of several ranks the slowest counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ddptop_runner.model.snapshot import NodeSnapshot, Progress, RunStep
from ddptop_runner.model.words import ProgressSource

_ORDER: tuple[ProgressSource, ...] = ("api", "trainer", "log")


class RankTold(NamedTuple):
    """What one rank's probe and its output tell of how far it is."""

    run_step: int | None = None
    """By `run_step.of_rank`."""
    steps_per_s: float | None = None
    total: int | None = None
    """Steps of the whole run, by `report` or a trainer."""
    source: ProgressSource | None = None
    """Who said `total`; None is `report`, as in messages of older probes."""
    epoch: float | None = None
    epochs: int | None = None
    text: Progress | None = None
    text_every: int | None = None
    """How far apart the last two steps were that the output told."""


def of_rank(told: RankTold) -> Progress | None:
    """How far one rank is, by its probe and its output; None where nothing said a total."""
    text = _brought_up(told)
    if not told.total:
        return text
    done = told.run_step
    if done is None and text is not None and text.counts == "run" and text.total == told.total:
        done = text.step
    fraction = eta_s = None
    if done is not None and 0 <= done <= told.total:
        fraction = done / told.total
        if told.steps_per_s:
            eta_s = (told.total - done) / told.steps_per_s
        elif told.steps_per_s is None and text is not None:
            eta_s = text.eta_s
    said = Progress(
        step=done,
        total=told.total,
        epoch=told.epoch,
        epochs=told.epochs,
        fraction=fraction,
        eta_s=eta_s,
        source=told.source or "api",
    )
    return text if fraction is None and text is not None and text.fraction is not None else said


def _brought_up(told: RankTold) -> Progress | None:
    """What the output tells, with the run's step where that has gone on since the last line.

    Only where both count the same, as they do that are never farther apart than two lines.
    """
    text, steps = told.text, told.run_step
    if text is None or text.counts != "run" or text.step is None or not text.total:
        return text
    if steps is None or text.fraction is None or steps > text.total:
        return text
    if not 0 < steps - text.step <= (told.text_every or 0):
        return text
    return msgspec.structs.replace(text, step=steps, fraction=steps / text.total)


def of_job(ranks: Iterable[Progress | None]) -> Progress | None:
    """How far the job is; None where no rank knows a total."""
    known = [one for one in ranks if one is not None]
    if not known:
        return None
    clear = [one for one in known if one.fraction is not None] or known
    best = min(_ORDER.index(one.source) for one in clear)
    equal = [one for one in clear if _ORDER.index(one.source) == best]
    slowest = min(equal, key=lambda one: (one.fraction or 0.0, one.step or 0))
    etas = [one.eta_s for one in equal if one.eta_s is not None]
    return Progress(
        step=slowest.step,
        total=slowest.total,
        counts=slowest.counts,
        epoch=slowest.epoch,
        epochs=slowest.epochs,
        fraction=slowest.fraction,
        eta_s=max(etas, default=None),
        estimated=slowest.estimated,
        epoch_fraction=slowest.epoch_fraction,
        epoch_eta_s=slowest.epoch_eta_s,
        source=slowest.source,
    )


def ended(progress: Progress) -> Progress:
    """The same of what has ended, which has no end ahead of it; done to the end is no estimate."""
    return msgspec.structs.replace(
        progress,
        eta_s=None,
        epoch_eta_s=None,
        estimated=progress.estimated and progress.fraction != 1.0,
    )


def of_snapshot(snapshot: NodeSnapshot, is_live: bool) -> Progress | None:
    """How far a job is, as a snapshot has it; one of an older ddptop knows step and total only.

    What has ended has no end ahead of it.
    """
    progress, eta_s = snapshot.progress, snapshot.eta_s if is_live else None
    if progress is not None:
        return progress if is_live else ended(progress)
    step, total = snapshot.step, snapshot.total_steps
    if not total:
        return None
    known = step is not None and step <= total
    fraction = step / total if step is not None and known else None
    return Progress(step=step, total=total, fraction=fraction, eta_s=eta_s, source="api")


def of_moment(run: RunStep | None, last: NodeSnapshot | None) -> Progress | None:
    """How far a job was; None where no total was known.

    Args:
        run: the job's step at that moment.
        last: its last snapshot.
    """
    if last is None or not last.total_steps:
        return None
    told, total = last.progress, last.total_steps
    done = run.step if run is not None and run.counts == "run" else None
    if done is not None and not 0 <= done <= total:
        done = None
    return Progress(
        step=done,
        total=total,
        fraction=None if done is None else done / total,
        estimated=done is not None and told is not None and told.estimated,
        source="api" if told is None else told.source,
    )


def total_steps(progress: Progress | None) -> int | None:
    """Steps of the whole run; None where only those of an epoch are known."""
    return progress.total if progress is not None and progress.counts == "run" else None
