"""What a job did with its time, its devices, and its energy: the figures of `ddptop report`.

docs/report.md defines each of them.
"""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from ddptop.job.attempts import Attempt
from ddptop.job.compare import Run
from ddptop.job.record import Job
from ddptop.job.series import Points
from ddptop.sources.compare import read_run
from ddptop.sources.history import JobHistory
from ddptop.sources.past import MOST_EVENTS, read_story
from ddptop_runner.base.median import median
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Checkpoint, Event
from ddptop_runner.store.history_reader import Series
from ddptop_runner.store.history_schema import GPU, RANK

POINTS = 600
"""Maximum number of intervals into which the run is divided."""
MOST_RANKS = 64
"""Waits and step times are those of the first ranks of a larger job."""
PAUSE_S = 10.0
PAUSE_STEPS = 5.0
"""A time without a step is a pause if it is longer than `PAUSE_S` and so many usual steps."""

Doing = Literal["training", "lost training", "starting", "pauses", "between attempts"]


class Period(NamedTuple):
    """A part of the job's life. Times are Unix seconds."""

    start: float
    end: float
    doing: Doing
    lost: float = 0.0
    """The share that a failure cost, if it is training."""


class Finding(msgspec.Struct, kw_only=True):
    """One warning, which may have come and gone."""

    message: str
    since: dt.datetime
    times: int = 0
    lasted_s: float = 0.0
    open_since: dt.datetime | None = None

    def close(self, at: dt.datetime) -> None:
        """Note that it is over."""
        if self.open_since is not None:
            self.lasted_s += max(0.0, (at - self.open_since).total_seconds())
            self.open_since = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All figures about one job."""

    job: Job
    attempts: tuple[Attempt, ...]
    """Latest first."""
    steps_lost: Mapping[int, int]
    """By attempt, its steps after the checkpoint from which the next one continued, if known."""
    run: Run
    """Its losses, with seconds since `run.start_s`."""
    times_s: Mapping[Doing, float]
    """What the job did from its launch to its end, or until now; empty without events."""
    gpu_hours: Mapping[str, float | None]
    """What its devices did while it held them; empty if nothing was recorded."""
    energy_kwh: float | None
    """What the devices used while the job held them."""
    energy_known: float
    """The share of the GPU hours for which the power is known."""
    checkpoints: int
    checkpoint: Checkpoint | None
    """The last one."""
    findings: tuple[Finding, ...]
    """Oldest first."""
    step_times: Points
    """Means over the ranks; times are Unix seconds."""
    utilization: Points
    """Means over the devices; times are Unix seconds."""


class ByTime(NamedTuple):
    """A metric of all ranks or devices in each interval."""

    values: Mapping[int, Sequence[float]]
    """By start of the interval, in Unix seconds."""
    width_s: int


def read_report(job: Job, history: JobHistory) -> Report:
    """The figures of a job that has a history.

    Raises:
        DdptopError: the history cannot be read.
    """
    until = (history.reader.span() or (0, 0))[1] + 1

    def ranks(metric: str) -> dict[int, Series]:
        return history.reader.series(RANK, metric, 0, until, POINTS, range(MOST_RANKS))

    story, events = read_story(job, history), history.events(MOST_EVENTS)
    steps = _by_time(ranks("step_time_s"))
    usual_s = median([value for values in steps.values.values() for value in values] or [0.0])
    pause_s = max(PAUSE_S, PAUSE_STEPS * usual_s, 2.0 * steps.width_s)
    lost = steps_lost(job, story.attempts)
    last = _by_time(ranks("step"), "last")
    pairs = itertools.pairwise((t, max(some)) for t, some in last.values.items())
    stepped_at = [b + last.width_s for (_, before), (b, step) in pairs if step != before]
    periods = periods_of(job, story.attempts, lost, stepped_at, pause_s)
    utilization, power = (
        _by_time(history.reader.series(GPU, metric, 0, until, POINTS))
        for metric in ("util_percent", "power_w")
    )
    data, sync = (_share(_by_time(ranks(metric)), steps) for metric in ("data_wait_s", "sync_s"))
    hours = gpu_hours(periods, utilization, data, sync, steps.width_s)
    energy_kwh, energy_known = energy(periods, power, sum(value or 0 for value in hours.values()))
    saved = [one for one in map(ev.of_row, events) if isinstance(one, ev.CheckpointSaved)]
    return Report(
        job=job,
        attempts=story.attempts,
        steps_lost=lost,
        run=read_run(job, history),
        times_s=times(periods),
        gpu_hours=hours,
        energy_kwh=energy_kwh,
        energy_known=energy_known,
        checkpoints=sum(1 + one.more_before for one in saved),
        checkpoint=saved[-1].checkpoint if saved else None,
        findings=tuple(findings(events)),
        step_times=_points(steps),
        utilization=_points(utilization),
    )


# --- time -----------------------------------------------------------------------------------------


def periods_of(
    job: Job,
    attempts: Sequence[Attempt],
    lost: Mapping[int, int],
    stepped_at: Sequence[float],
    pause_s: float,
) -> list[Period]:
    """The job's life in order, without the time between its end and a relaunch.

    Args:
        job: the job.
        attempts: latest first.
        lost: see `Report.steps_lost`.
        stepped_at: when steps are known to have been taken.
        pause_s: the longest time between two steps that is no pause.
    """
    found: list[Period] = []
    now = job.read_at if job.is_live else job.ended_at
    counts_steps = any(row.type == "training" for one in attempts for row in one.events)
    ordered = attempts[::-1]
    for one, later in itertools.zip_longest(ordered, ordered[1:]):
        ended_at = one.ended_at or (now if later is None else later.started_at)
        if one.started_at is None or ended_at is None:
            continue
        start = one.started_at.timestamp()
        end = max(start, ended_at.timestamp())
        last = {row.type: row.ts.timestamp() for row in one.events}
        before = found[-1].end if found else start
        launched = last.get("launched", before)
        since = max(launched, before) if found else launched
        first = last.get("training", end) if counts_steps else start
        first = min(max(start, first), end)
        found.append(Period(min(since, start), start, "between attempts"))
        found.append(Period(start, first, "starting"))
        share = lost.get(one.number, 0) / one.steps if one.steps else 0.0
        known = [at for at in stepped_at if first < at < end]
        for a, b in itertools.pairwise([first, *known, end]):
            is_pause = counts_steps and b - a > pause_s
            found.append(Period(a, b, "pauses" if is_pause else "training", share))
    if found and now is not None:
        found.append(Period(found[-1].end, max(found[-1].end, now.timestamp()), "between attempts"))
    return found


def steps_lost(job: Job, attempts: Sequence[Attempt]) -> dict[int, int]:
    """See `Report.steps_lost`; for an attempt whose next one says nothing, as its cause has it."""
    found, began = {}, job.snapshot.attempts_began
    for one, later in zip(attempts, [None, *attempts], strict=False):
        lost = None if one.cause is None else one.cause.work_lost_steps
        if later is not None and one.steps is not None and later.number in began:
            lost = began.get(one.number, 0) + one.steps - began[later.number]
        if lost is not None:
            found[one.number] = min(max(0, lost), one.steps or 0)
    return found


def times(periods: Sequence[Period]) -> dict[Doing, float]:
    """How long the job did what, in seconds; {} if nothing is known."""
    found: dict[Doing, float] = dict.fromkeys(get_args(Doing), 0.0) if periods else {}
    for start, end, doing, lost in periods:
        cost_s = lost * (end - start) if doing == "training" else 0.0
        found[doing] += end - start - cost_s
        found["lost training"] += cost_s
    return found


# --- devices --------------------------------------------------------------------------------------


def gpu_hours(
    periods: Sequence[Period],
    utilization: ByTime,
    data: Mapping[int, float],
    sync: Mapping[int, float],
    rank_width_s: int,
) -> dict[str, float | None]:
    """What the devices did while the job held them, in hours; {} if nothing was recorded.

    Args:
        periods: the job's life.
        utilization: of the devices, in percent.
        data: the share of a step that ranks waited for data, by start of the interval.
        sync: the share of a step that ranks waited for others.
        rank_width_s: length of the intervals of `data` and `sync`.
    """
    if not (devices := max(map(len, utilization.values.values()), default=0)):
        return {}
    held_s = sum(one.end - one.start for one in periods if one.doing != "between attempts")
    computing = for_data = for_ranks = idle = stepless = 0.0
    for t, overlap_s, doing in _overlaps(periods, utilization):
        held_s -= overlap_s
        values, at = utilization.values[t], t - t % rank_width_s
        spent, busy = overlap_s * len(values) / 3600, min(1.0, _mean(values) / 100)
        if doing != "training":
            stepless += spent
            continue
        in_data, in_ranks = min(data.get(at, 0.0), 1.0 - busy), min(sync.get(at, 0.0), busy)
        computing += spent * (busy - in_ranks)
        for_ranks += spent * in_ranks
        for_data += spent * in_data
        idle += spent * (1.0 - busy - in_data)
    return {
        "computing": computing,
        "waiting for data": for_data if data else None,
        "waiting for ranks": for_ranks if sync else None,
        "idle": idle,
        "no steps": stepless,
        "not recorded": max(0.0, held_s) * devices / 3600,
    }


def energy(
    periods: Sequence[Period], power: ByTime, held_hours: float
) -> tuple[float | None, float]:
    """(kWh that the devices used while held, the share of `held_hours` for which it is known)."""
    joules = known_s = 0.0
    for t, overlap_s, _ in _overlaps(periods, power):
        joules += overlap_s * sum(power.values[t])
        known_s += overlap_s * len(power.values[t])
    if not known_s or not held_hours:
        return None, 0.0
    return joules / 3.6e6, min(1.0, known_s / 3600 / held_hours)


def _overlaps(periods: Iterable[Period], metric: ByTime) -> Iterator[tuple[int, float, Doing]]:
    """(interval, seconds of it while the devices were held, what the job did then)."""
    starts = sorted(metric.values)
    for start, end, doing, _ in periods:
        first = max(0, bisect.bisect_right(starts, start) - 1)
        for t in starts[first : bisect.bisect_left(starts, end)]:
            overlap_s = min(end, t + metric.width_s) - max(start, t)
            if doing != "between attempts" and overlap_s > 0:
                yield t, overlap_s, doing


def _by_time(series: Mapping[int, Series], of: Literal["mean", "last"] = "mean") -> ByTime:
    values: dict[int, list[float]] = {}
    for one in series.values():
        for t, value in zip(one.t, getattr(one, of), strict=True):
            values.setdefault(t, []).append(value)
    width_s = next((one.bucket_s for one in series.values()), 1)
    return ByTime(dict(sorted(values.items())), width_s)


def _share(part: ByTime, whole: ByTime) -> dict[int, float]:
    return {
        t: min(1.0, _mean(values) / _mean(whole.values[t]))
        for t, values in part.values.items()
        if any(whole.values.get(t, ()))
    }


def _points(of: ByTime) -> Points:
    return Points(t=list(of.values), mean=[_mean(some) for some in of.values.values()])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- findings -------------------------------------------------------------------------------------


def findings(events: Iterable[Event]) -> list[Finding]:
    """The warnings of a run, oldest first; one that came back is one finding."""
    found: dict[str, Finding] = {}
    for row in events:
        event = ev.of_row(row)
        if isinstance(event, ev.AlertRaised) and event.lasts_s is None:
            alert = event.alert
            if alert.severity != "info":
                one = found.setdefault(alert.id, Finding(message="", since=alert.since))
                one.message = alert.message
                one.times += one.open_since is None
                one.open_since = one.open_since or alert.since
        elif isinstance(event, ev.AlertsCleared) and not event.with_job:
            for id_ in event.messages.keys() & found.keys():
                found[id_].close(row.ts)
    return list(found.values())
