"""Combines the progress of the ranks into that of the job. Pure.

Uses the best source that knows the fraction done: the total that the script reported, then that of
a framework's trainer, then that in the output. Of several ranks, the slowest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from ddptop_runner.model.snapshot import NodeSnapshot, Progress, RunStep
from ddptop_runner.model.words import ProgressSource

if TYPE_CHECKING:  # viewers read snapshots, not messages
    from ddptop_runner.model.probe_message import ProbeMessage

_ORDER: tuple[ProgressSource, ...] = ("api", "trainer", "log")


def of_rank(
    reported: ProbeMessage,
    run_step: int | None,
    left_s: Callable[[int], float | None] | None,
    text: Progress | None = None,
    text_every: int | None = None,
) -> Progress | None:
    """A rank's progress, from its probe and its output; None without a total.

    Args:
        reported: by its probe; a total without a source is from `report`, as in messages of older
            probes.
        run_step: from `run_step.of_rank`.
        left_s: seconds until so many more steps are done, at the pace of this attempt; None for a
            rank that makes no progress.
        text: from its output.
        text_every: distance between the last two steps of the output.
    """
    text = _brought_up(text, run_step, text_every)
    done, total = run_step, reported.total_steps
    if not total:
        return text
    if done is None and text is not None and text.counts == "run" and text.total == total:
        done = text.step
    fraction = eta_s = None
    if done is not None and 0 <= done <= total:
        fraction = done / total
        eta_s = None if left_s is None else left_s(total - done)
        if eta_s is None and left_s is not None and text is not None:
            eta_s = text.eta_s
    if fraction is None and text is not None and text.fraction is not None:
        return text
    return Progress(
        step=done,
        total=total,
        epoch=reported.epoch,
        epochs=reported.epochs,
        fraction=fraction,
        eta_s=eta_s,
        source=reported.total_source or "api",
    )


def _brought_up(
    text: Progress | None, steps: int | None, text_every: int | None
) -> Progress | None:
    """Progress from the output, with the run's step if that has advanced since the last line.

    Only if both count the same: they must be no farther apart than two lines.
    """
    if text is None or text.counts != "run" or text.step is None or not text.total:
        return text
    if steps is None or text.fraction is None or steps > text.total:
        return text
    if not 0 < steps - text.step <= (text_every or 0):
        return text
    return msgspec.structs.replace(text, step=steps, fraction=steps / text.total)


def of_job(ranks: Iterable[Progress | None]) -> Progress | None:
    """Progress of the job; None if no rank knows a total."""
    known = [one for one in ranks if one is not None]
    if not known:
        return None
    clear = [one for one in known if one.fraction is not None] or known
    best = min(_ORDER.index(one.source) for one in clear)
    equal = [one for one in clear if _ORDER.index(one.source) == best]
    slowest = min(equal, key=lambda one: (one.fraction or 0.0, one.step or 0))
    etas = [one.eta_s for one in equal if one.eta_s is not None]
    return msgspec.structs.replace(slowest, eta_s=max(etas, default=None))


def ended(progress: Progress) -> Progress:
    """Progress of a job that has ended: no time left, and no estimate if it is complete."""
    return msgspec.structs.replace(
        progress,
        eta_s=None,
        epoch_eta_s=None,
        estimated=progress.estimated and progress.fraction != 1.0,
    )


def of_snapshot(snapshot: NodeSnapshot, is_live: bool) -> Progress | None:
    """Progress of a job in a snapshot; None if no total is known.

    A script that counts from 0 has finished with the step, or epoch, before its total.
    """
    progress = snapshot.progress
    if progress is None or is_live:
        return progress
    parts, fraction = progress.total or progress.epochs, progress.fraction
    if snapshot.state == "finished" and parts and fraction and parts - parts * fraction <= 1.001:
        progress = msgspec.structs.replace(progress, fraction=1.0)
    return ended(progress)


def of_moment(run: RunStep | None, last: NodeSnapshot | None) -> Progress | None:
    """Progress of a job at an earlier moment; None if no total was known.

    Args:
        run: the job's step at that moment.
        last: its last snapshot.
    """
    if last is None or not last.total_steps:
        return None
    latest, total = last.progress, last.total_steps
    done = run.step if run is not None and run.counts == "run" else None
    if done is not None and not 0 <= done <= total:
        done = None
    return Progress(
        step=done,
        total=total,
        fraction=None if done is None else done / total,
        estimated=done is not None and latest is not None and latest.estimated,
        source="api" if latest is None else latest.source,
    )


def total_steps(progress: Progress | None) -> int | None:
    """Steps of the whole run; None if only those of an epoch are known."""
    return progress.total if progress is not None and progress.counts == "run" else None
