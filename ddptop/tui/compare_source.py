"""Several jobs beside each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddptop.comparing.differences import Comparison, compare
from ddptop.comparing.reading import read_run
from ddptop.comparing.run import Run
from ddptop.tui.render.chart_figures import FiguresData
from ddptop.tui.render.compare_curves import by_step_data, by_time_data
from ddptop_runner.errors import DdptopError
from ddptop_runner.registry import JobView

LEAST_PAUSE_S = 2.0
"""A live job's losses are read again no sooner than this."""
COST_SHARE = 0.05
"""Reading them takes no more of the time than this."""
REMEMBERED = 8
"""So many jobs' losses are kept: a person goes up and down the list."""


@dataclass(frozen=True)
class Compared:
    """Several jobs beside each other."""

    jobs: tuple[str, ...] = ()
    comparison: Comparison | None = None
    by_time: FiguresData = field(default_factory=FiguresData)
    """Their losses since each one's start."""
    by_step: FiguresData | None = None
    """Their losses by step; None where not all of them tell their steps."""


@dataclass(frozen=True)
class _Known:
    """A job's losses as they were read."""

    run: Run
    stamp: object
    at_s: float
    took_s: float


class CompareSource:
    """Reads it. Used by the collector's thread alone."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._last: tuple[tuple[object, ...], Compared] | None = None

    def read(self, views: Sequence[JobView], now_s: float) -> Compared | None:
        """The jobs' losses; None where there are none."""
        if not views:
            self._last = None
            return None
        runs = [self._run(view) for view in views]
        # the curves are drawn again only where one of them changed
        key = tuple(run.curve for run in runs)
        comparison = compare(runs)
        if self._last is not None and _same(self._last[0], key):
            compared = replace(self._last[1], comparison=comparison)
        else:
            compared = Compared(
                tuple(run.job for run in runs), comparison, by_time_data(runs), by_step_data(runs)
            )
        self._last = (key, compared)
        return compared

    def _run(self, view: JobView) -> Run:
        known = self._known.get(view.spec.job_id)
        stamp = (view.state, _stamp(view.folder.history_db))
        now_s = time.monotonic()
        if known is not None:
            pause_s = max(LEAST_PAUSE_S, known.took_s / COST_SHARE)
            if stamp == known.stamp or (view.is_live and now_s - known.at_s < pause_s):
                return replace(known.run, view=view)
        try:
            run = read_run(view)
        except DdptopError as error:
            run = Run(view, trouble=str(error))
        self._known.pop(view.spec.job_id, None)
        self._known[view.spec.job_id] = _Known(run, stamp, now_s, time.monotonic() - now_s)
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return run


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _stamp(path: Path) -> object:
    stamps = []
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            stamps.append(file.stat().st_mtime_ns)
        except OSError:
            stamps.append(None)
    return tuple(stamps)
