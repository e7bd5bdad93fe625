"""Charts the loss by step instead of by time. Pure.

The axis counts the steps of all attempts consecutively: an attempt that begins again at step 0
follows the previous one, with a mark between them.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from msgspec.structs import replace

from ddptop.charts.window import View, visible
from ddptop.job.series import AttemptSteps, ChartData, Points

_ROOM_S = 2.0
"""Seconds to read beyond both edges of the view, so that nothing is missing there."""


def no_steps(data: ChartData) -> str | None:
    """One sentence on why the loss cannot be drawn by step; None if it can."""
    if data.stepped is not None:
        return None
    for points in _all(data):
        if any(step is not None for step in points.step):
            return None
    if data.watched:
        return "by step: n/a (the steps of this job, which ddptop did not start, are unknown)"
    return "by step: n/a (step numbers are unknown for these losses)"


def _all(data: ChartData) -> Sequence[Points]:
    middle = () if data.middle is None else (data.middle,)
    return (*middle, *data.series.values())


def _attempt_at(attempts: Sequence[AttemptSteps], at: float) -> int | None:
    """The attempt at a given time."""
    place = bisect.bisect_right([one.at for one in attempts], at)
    return attempts[place - 1].attempt if place else None


def steps_of(points: Points, attempts: Sequence[AttemptSteps] = ()) -> list[float | None]:
    """The position of each sample among all steps taken; None if its step is unknown.

    A sample of several steps is placed in their middle. If steps go back within an attempt, the
    count continues.
    """
    offsets = {one.attempt: one.before - one.first for one in attempts}
    found: list[float | None] = []
    base = end = 0
    last: int | None = None
    current: int | None = None
    known = points.attempt or [None] * len(points.t)
    for t, step, reported in zip(points.t, points.step, known, strict=False):
        if step is None:
            found.append(None)
            continue
        attempt = reported if reported is not None else _attempt_at(attempts, t)
        if attempt != current:
            base = offsets.get(attempt, end) if attempt is not None else end
            base = max(base, end - step)
            current, last = attempt, None
        elif last is not None and step < last:
            base, last = end, None
        several = 0 if last is None else max(0, step - last - 1)
        found.append(base + step - several / 2)
        last, end = step, base + step
    return found


def _stepped(points: Points, attempts: Sequence[AttemptSteps]) -> Points:
    """The same samples with steps instead of times."""
    places = steps_of(points, attempts)
    keep = [i for i, place in enumerate(places) if place is not None]
    t = [float(place) for place in places if place is not None]
    moments = [points.t[i] for i in keep]
    bad = []
    for moment in points.not_finite:
        if moments:
            at = bisect.bisect_right(moments, moment)
            bad.append(t[max(0, at - 1)])
    return replace(
        points,
        t=t,
        low=[points.low[i] for i in keep],
        mean=[points.mean[i] for i in keep],
        high=[points.high[i] for i in keep],
        not_finite=bad,
        step=(),
        attempt=(),
    )


def by_step(data: ChartData) -> ChartData:
    """The chart with steps instead of times."""
    if data.stepped is not None:
        return data.stepped
    series = {rank: _stepped(points, data.attempts) for rank, points in data.series.items()}
    middle = None if data.middle is None else _stepped(data.middle, data.attempts)
    scalars = {name: _stepped(points, data.attempts) for name, points in data.scalars.items()}
    places = [one.t for one in (*series.values(), *(() if middle is None else (middle,))) if one.t]
    since = min((t[0] for t in places), default=0.0)
    until = max((t[-1] for t in places), default=1.0)
    last = max(until, float(data.last_step or 0))
    first = 0.0 if data.last_step is not None else since
    if data.window_s is None:
        since = min(since, first)
    marks = tuple(
        (one.before + 0.5, f"attempt {one.attempt}") for one in data.attempts if one.attempt
    )
    return replace(
        data,
        series=series,
        scalars=scalars,
        middle=middle,
        since=since,
        until=max(until, since + 1),
        whole=(first, max(last, first + 1)),
        marks=marks,
        by_step=True,
    )


def step_times(data: ChartData, view: View) -> tuple[float | None, float | None]:
    """The time that a view's steps took: seconds, and the right edge in unix seconds.

    Approximated from the available samples. None means everything or, for the edge, the newest.
    """
    if view.span is None or data.stepped is not None:
        return None, None
    known, bucket_s = _known(data)
    first, last = known[0][0], known[-1][0]
    since, until = visible(view, first, last)
    room_s = 2 * bucket_s + _ROOM_S
    start, end = _moment(known, since) - room_s, _moment(known, until) + room_s
    if view.right is None:
        return data.extent[1] - start, None
    return end - start, end


def step_moment(data: ChartData, place: float) -> float:
    """The time at which this many steps had been taken, approximated from the available samples."""
    return _moment(_known(data)[0], place)


def _known(data: ChartData) -> tuple[list[tuple[float, float]], float]:
    """Positions among the steps with their times, in order, and the time span of a sample."""
    stepped = by_step(data)
    known = [(float(one.before), one.at) for one in data.attempts]
    known.append((stepped.extent[1], data.extent[1]))
    bucket_s = 0.0
    for points in _all(data)[:1]:
        bucket_s = points.bucket_s
        places = steps_of(points, data.attempts)
        known += [(p, t) for p, t in zip(places, points.t, strict=False) if p is not None]
    return sorted(known), bucket_s


def _moment(known: Sequence[tuple[float, float]], place: float) -> float:
    """The time of a step, interpolated between the known ones around it."""
    at = bisect.bisect_right(known, (place, float("inf")))
    if at == 0 or at == len(known):
        return known[min(at, len(known) - 1)][1]
    (before, start), (after, end) = known[at - 1], known[at]
    return start + (end - start) * (place - before) / max(1e-9, after - before)
