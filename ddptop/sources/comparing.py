"""Reads a job for a comparison: its losses from the history, the rest from spec and snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ddptop.view.compare import LossCurve, Run, Sample, offsets_of
from ddptop_runner.base import bounded
from ddptop_runner.job.registry import JobView
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.model.snapshot import NodeSnapshot, RankSample, decode_snapshot
from ddptop_runner.store.history import HistoryReader, Series
from ddptop_runner.store.history_reader import Band, BandReader, attempts_taken

MOST_POINTS = 1000
"""Of a whole run; of a part of it as many."""


class RunReader:
    """Reads one job, and of its losses only what is new. Confined to one thread."""

    def __init__(self, history_db: Path) -> None:
        self._reader = HistoryReader(history_db)
        self._whole = BandReader(self._reader)
        self._part = BandReader(self._reader)

    def read(self, view: JobView) -> Run:
        """The job, with the losses of its whole run.

        Raises:
            DdptopError: when its history cannot be read.
        """
        start = view.created_at if view.snapshot is None else view.snapshot.started_at
        start_s = start.timestamp()
        printed = is_printed(view.snapshot)
        taken = attempts_taken(self._reader)
        run = Run(
            view,
            attempts=tuple((one.attempt, one.started - start_s) for one in taken),
            offsets=offsets_of(
                [(one.attempt, one.taken or 0) for one in taken],
                _told_offsets(view),
                printed=printed,
            ),
            start_s=start_s,
        )
        span = self._reader.span()
        if span is None:
            return run
        band = self._whole.read("loss", span[0], span[1], MOST_POINTS)
        scalars = self._reader.scalar_series(span[0], span[1], MOST_POINTS)
        return replace(
            run,
            curve=curve_of(band, start_s, run.offsets, printed=printed),
            scalars={
                name: curve_of(_band(one), start_s, run.offsets, printed=printed)
                for name, one in scalars.items()
            },
        )

    def closer(self, run: Run, since_s: float, until_s: float) -> Run:
        """The same with finer losses between two moments, in seconds since the job's start.

        Raises:
            DdptopError: when its history cannot be read.
        """
        since, until = run.start_s + since_s, run.start_s + until_s
        band = self._part.read("loss", since, until, MOST_POINTS)
        part = curve_of(band, run.start_s, run.offsets, printed=is_printed(run.view.snapshot))
        if len(part.samples) < 2:
            return run
        first, last = part.samples[0].at_s, part.samples[-1].at_s
        before = [one for one in run.curve.samples if one.at_s < first]
        after = [one for one in run.curve.samples if one.at_s > last]
        return replace(run, curve=LossCurve((*before, *part.samples, *after)))


def read_run(view: JobView) -> Run:
    """One job, with its losses.

    Raises:
        DdptopError: when its history cannot be read.
    """
    return RunReader(view.folder.history_db).read(view)


def _band(series: Series) -> Band:
    return Band(
        bucket_s=series.bucket_s,
        t=series.t,
        median=series.mean,
        step=series.step,
        attempt=series.attempt,
    )


def curve_of(band: Band, start_s: float, offsets: Mapping[int, int], *, printed: bool) -> LossCurve:
    """The ranks' losses as one curve of their medians.

    Args:
        band: the losses of all ranks.
        start_s: the job's start, unix seconds.
        offsets: by attempt, the steps before it; without one an attempt's steps are not known.
        printed: whether steps are as the output says them, which need no attempt.
    """
    half = band.bucket_s / 2
    bad = dict(zip(band.nonfinite_t, zip(band.nonfinite_step, band.nonfinite_attempt, strict=True),
                   strict=True))  # fmt: skip

    def sample(
        t: int, loss: float | None, step: int | None, attempt: int | None, *, is_bad: bool
    ) -> Sample:
        offset = offsets.get(attempt or 0, 0 if printed else None)
        return Sample(
            at_s=max(0.0, t + half - start_s),
            step=None if step is None or offset is None else offset + step,
            loss=loss,
            attempt=attempt,
            is_bad=is_bad,
        )

    rows = zip(band.t, band.median, band.step, band.attempt, strict=True)
    samples = [sample(t, loss, step, attempt, is_bad=t in bad) for t, loss, step, attempt in rows]
    known = set(band.t)
    samples += [sample(t, None, *where, is_bad=True) for t, where in bad.items() if t not in known]
    return LossCurve(tuple(sorted(samples, key=lambda one: one.at_s)))


def _told_offsets(view: JobView) -> dict[int, int]:
    """By attempt, the steps before it, where that is known."""
    if view.snapshot is not None and view.snapshot.run_step is not None:
        return view.snapshot.attempts_began
    found: dict[int, int] = {}  # of an older ddptop: where its script reported its own count
    for folder in sorted(view.folder.evidence_dir.glob("attempt-*-*")):
        try:
            kept = decode_snapshot(bounded.read_bytes(folder / "snapshot.json"))
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
