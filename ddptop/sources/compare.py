"""A comparison of several jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ddptop.charts.compared import by_step_data, by_time_data
from ddptop.charts.figures import FiguresData
from ddptop.sources.comparing import RunReader
from ddptop.view.compare import Comparison, LossCurve, Run, compare
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import JobView

Part: TypeAlias = tuple[str, float, float]
"""An axis, "time" or "step", and the part of it that is looked at closely."""

LEAST_PAUSE_S = 2.0
"""Shortest interval between reads of a live job's losses."""
COST_SHARE = 0.05
"""Reading them takes no more of the time than this."""
REMEMBERED = 8
"""Number of jobs whose losses are cached while the cursor moves through the list."""


@dataclass(frozen=True)
class Compared:
    """A comparison of several jobs."""

    jobs: tuple[str, ...] = ()
    comparison: Comparison | None = None
    by_time: FiguresData = field(default_factory=FiguresData)
    """Their losses since each one's start."""
    by_step: FiguresData | None = None
    """Their losses by step; None if any job's steps are unknown."""


@dataclass
class _Known:
    """A job's losses as they were read."""

    reader: RunReader
    run: Run
    stamp: object = None
    at_s: float = 0.0
    took_s: float = 0.0


class CompareSource:
    """Reads it. Used by the collector's thread alone."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last: tuple[tuple[object, ...], Compared] | None = None

    def read(self, views: Sequence[JobView], part: Part | None = None) -> Compared | None:
        """The jobs' losses, finer in a part of the axis; None where there are no jobs."""
        if not views:
            self._last = None
            return None
        runs = [self._run(view) for view in views]
        # the curves are drawn again only where one of them changed
        key = (part, *(run.curve for run in runs))
        comparison = compare(runs)
        if self._last is not None and _same(self._last[0], key):
            compared = replace(self._last[1], comparison=comparison)
        else:
            drawn = runs if part is None else [self._closer(run, part) for run in runs]
            compared = Compared(
                tuple(run.job for run in runs), comparison, by_time_data(drawn), by_step_data(drawn)
            )
        self._last = (key, compared)
        return compared

    def _run(self, view: JobView) -> Run:
        known = self._known.pop(view.spec.job_id, None)
        if known is None:
            known = _Known(RunReader(view.folder.history_db), Run(view))
        self._known[view.spec.job_id] = known
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        stamp, now_s = (view.state, _stamp(view.folder.history_db)), time.monotonic()
        pause_s = max(LEAST_PAUSE_S, known.took_s / COST_SHARE)
        is_young = view.is_live and known.stamp is not None and now_s - known.at_s < pause_s
        if stamp == known.stamp or is_young:
            known.run = replace(known.run, view=view)
            return known.run
        try:
            known.run = known.reader.read(view)
        except DdptopError as error:
            known.run = Run(view, trouble=str(error))
        known.stamp, known.at_s, known.took_s = stamp, now_s, time.monotonic() - now_s
        return known.run

    def _closer(self, run: Run, part: Part) -> Run:
        """A run with finer losses in the zoomed part."""
        span = times_of(run.curve, part)
        if span is None:
            return run
        try:
            return self._known[run.view.spec.job_id].reader.closer(run, *span)
        except DdptopError:
            return run


def times_of(curve: LossCurve, part: Part) -> tuple[float, float] | None:
    """The seconds since a job's start in which a part of the axis lies; None where it has none."""
    axis, since, until = part
    if not curve.samples:
        return None
    if axis == "time":
        return since, until
    inside = [
        one.at_s for one in curve.samples if one.step is not None and since <= one.step <= until
    ]
    if not inside:
        return None
    # one sample to each side: the coarse ones stand for more time than what is looked at
    apart = (curve.samples[-1].at_s - curve.samples[0].at_s) / max(1, len(curve.samples) - 1)
    return max(0.0, min(inside) - apart), max(inside) + apart


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return (
        len(one) == len(other)
        and one[0] == other[0]
        and all(a is b for a, b in zip(one[1:], other[1:], strict=True))
    )


def _stamp(path: Path) -> object:
    stamps: list[int | None] = []
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            stamps.append(file.stat().st_mtime_ns)
        except OSError:
            stamps.append(None)
    return tuple(stamps)
