"""Reads a job for a comparison: its losses from the history, the rest from spec and snapshot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from ddptop.comparing.curve import LossCurve, Sample, place_steps
from ddptop.comparing.run import Run
from ddptop_runner.history import HistoryReader, Series
from ddptop_runner.model import NodeSnapshot, RankSample, decode_snapshot
from ddptop_runner.registry import JobView

MOST_POINTS = 1500
LEAST_POINTS = 200
ROWS_READ = 60_000
"""A job of many ranks is read in coarser steps, so that the look stays quick."""


def points_for(ranks: int) -> int:
    """How finely a job of so many ranks is read."""
    return max(LEAST_POINTS, min(MOST_POINTS, ROWS_READ // max(1, ranks)))


def read_run(view: JobView) -> Run:
    """One job, with its losses.

    Raises:
        DdptopError: when its history cannot be read.
    """
    reader = HistoryReader(view.folder.history_db)
    snapshot = view.snapshot
    points = points_for(view.spec.nproc or (len(snapshot.ranks) if snapshot else 1))
    losses = reader.rank_series("loss", 0, 2**40, points)
    steps = reader.rank_series("step", 0, 2**40, points)
    start_s = (view.created_at if snapshot is None else snapshot.started_at).timestamp()
    curve = curve_of(losses, steps, start_s, _offsets(view), counted=not _printed(snapshot))
    attempts = reader.attempt_starts()
    return Run(view, curve, tuple((number, at - start_s) for number, at in attempts))


def curve_of(
    losses: Mapping[int, Series],
    steps: Mapping[int, Series],
    start_s: float,
    offsets: Mapping[int, int],
    *,
    counted: bool,
) -> LossCurve:
    """The ranks' losses as one curve.

    Args:
        losses: by rank.
        steps: by rank, in buckets of the same width.
        start_s: the job's start, unix seconds.
        offsets: by attempt, the steps before it, where they are known.
        counted: whether steps are counted from each attempt's start.
    """
    values: dict[int, list[float]] = {}
    attempts: dict[int, int | None] = {}
    bad: set[int] = set()
    for one in losses.values():
        for t, mean, attempt in zip(one.t, one.mean, one.attempt, strict=True):
            values.setdefault(t, []).append(mean)
            attempts[t] = attempt
        bad.update(one.nonfinite_t)
    slowest: dict[int, int] = {}
    for one in steps.values():
        for t, last, attempt in zip(one.t, one.last, one.attempt, strict=True):
            slowest[t] = min(slowest.get(t, round(last)), round(last))
            attempts.setdefault(t, attempt)
    widths = [one.bucket_s for one in losses.values()]
    half = (widths[0] if widths else 0) / 2
    moments = sorted({*values, *bad})
    placed = place_steps(
        [(attempts.get(t), slowest.get(t)) for t in moments], offsets, counted=counted
    )
    return LossCurve(
        tuple(
            Sample(
                at_s=max(0.0, t + half - start_s),
                step=step,
                loss=statistics.median(values[t]) if t in values else None,
                attempt=attempts.get(t),
                is_bad=t in bad,
            )
            for t, step in zip(moments, placed, strict=True)
        )
    )


def _printed(snapshot: NodeSnapshot | None) -> bool:
    """Whether steps are as the output says them: they then go on from attempt to attempt."""
    return snapshot is not None and any(rank.step_source == "log" for rank in snapshot.ranks)


def _offsets(view: JobView) -> dict[int, int]:
    """By attempt, the steps before it, where its script reported its own count."""
    found: dict[int, int] = {}
    for folder in sorted(view.folder.evidence_dir.glob("attempt-*-*")):
        try:
            kept = decode_snapshot((folder / "snapshot.json").read_bytes())
        except (OSError, ValueError):
            continue
        _add_offset(found, kept)
    if view.snapshot is not None:
        _add_offset(found, view.snapshot)
    return found


def _add_offset(found: dict[int, int], snapshot: NodeSnapshot) -> None:
    if snapshot.attempt is None:
        return
    known = [before for rank in snapshot.ranks if (before := _before(rank)) is not None]
    if known:
        found[snapshot.attempt] = min(known)


def _before(rank: RankSample) -> int | None:
    if rank.global_step is None or rank.step is None or rank.step_source == "log":
        return None
    return max(0, rank.global_step - rank.step)
