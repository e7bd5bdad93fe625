"""Compares jobs: their settings, their loss curves, and how they differ. Pure."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ddptop.job.groups import sweep_of
from ddptop.job.record import Job
from ddptop.job.series import Points, by_step
from ddptop_runner.base.median import median
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import Base, is_validation_loss

T = TypeVar("T", int, float)

LOSS = "loss"
WINDOW_SHARE = 0.1
"""A loss at a step is the median over this fraction of the preceding steps, because the loss of a
single batch is noise."""
LEAST_SPREAD = 3
"""Minimum number of losses whose spread is known."""
SURE = 3.0
"""A difference of this many standard errors is not noise."""
NOTABLE = 0.005
"""Losses with a smaller relative difference are called the same."""


class LossPoint(msgspec.Struct, frozen=True):
    """Where in a run a loss occurred."""

    at_s: float
    """Seconds since the job's start."""
    step: int | None
    loss: float | None
    """None if it was NaN or infinite."""


class LossCurve(msgspec.Struct, frozen=True, dict=True):
    """A job's losses: the medians across ranks, with seconds since the job's start."""

    points: Points = msgspec.field(default_factory=Points)

    @functools.cached_property
    def by_step(self) -> Points:
        """The same by step; repeated steps replace the earlier ones."""
        return by_step(self.points)

    def losses(self, *, by_step: bool) -> list[tuple[float, float]]:
        """The finite losses with their steps or times."""
        points = self.by_step if by_step else self.points
        known = zip(points.t, points.mean, strict=True)
        return [(at, loss) for at, loss in known if loss is not None]

    @property
    def last_step(self) -> int | None:
        """The last step with a finite loss."""
        known = self.losses(by_step=True)
        return int(known[-1][0]) if known else None

    @property
    def last_s(self) -> float | None:
        """Time of the last finite loss, in seconds since the start."""
        known = self.losses(by_step=False)
        return known[-1][0] if known else None

    @property
    def last(self) -> float | None:
        """The last finite loss."""
        known = self.losses(by_step=False)
        return known[-1][1] if known else None

    @property
    def bad_since(self) -> LossPoint | None:
        """The first loss after which none was finite."""
        last_s = self.last_s
        bad = [t for t in self.points.not_finite if last_s is None or t > last_s]
        return None if not bad else self._point(bisect.bisect_left(self.points.t, min(bad)))

    def best(self) -> LossPoint | None:
        """The lowest loss."""
        known = [(loss, i) for i, loss in enumerate(self.points.mean) if loss is not None]
        return self._point(min(known)[1]) if known else None

    def _point(self, i: int) -> LossPoint:
        step = self.points.step[i] if self.points.step else None
        return LossPoint(self.points.t[i], step, self.points.mean[i])

    def loss_at_step(self, step: int) -> float | None:
        """The loss at a step; None if unknown."""
        return _around(self.losses(by_step=True), step)

    def step_time_s(self) -> float | None:
        """Seconds per step across all attempts, not counting the time between attempts."""
        points = self.points
        known = [
            (t, step, attempt)
            for t, step, attempt in zip(points.t, points.step, points.attempt, strict=False)
            if step is not None
        ]
        pairs = [(one, other) for one, other in itertools.pairwise(known) if one[2] == other[2]]
        steps = sum(other[1] - one[1] for one, other in pairs)
        seconds = sum(other[0] - one[0] for one, other in pairs)
        return seconds / steps if steps > 0 and seconds > 0 else None


def _inside(known: Sequence[tuple[float, float]], place: float) -> list[float]:
    """The losses just before a place."""
    places = [at for at, _ in known]
    start = bisect.bisect_left(places, place * (1 - WINDOW_SHARE))
    return [loss for _, loss in known[start : bisect.bisect_right(places, place)]]


def _error(losses: Sequence[float]) -> float:
    """The standard error of the median of these losses; 0 if there are too few to know."""
    if len(losses) < LEAST_SPREAD:
        return 0.0
    middle = median(losses)
    deviation = 1.4826 * median([abs(loss - middle) for loss in losses])  # if normally distributed
    return 1.2533 * deviation / math.sqrt(len(losses))


def _around(known: Sequence[tuple[float, float]], place: float) -> float | None:
    """The median of the losses just before a place, or else interpolated between its neighbors.

    None before the first loss and after the last one.
    """
    if not known or not known[0][0] <= place <= known[-1][0]:
        return None
    if inside := _inside(known, place):
        return median(inside)
    after = bisect.bisect_right([at for at, _ in known], place)
    (left, before), (right, behind) = known[after - 1], known[after]
    return before + (behind - before) * (place - left) / (right - left)


def least(reached: Sequence[T | None]) -> T | None:
    """The step or time that all jobs reached; None if it is unknown for any of them."""
    known = [one for one in reached if one is not None]
    return min(known) if known and len(known) == len(reached) else None


def better(losses: Sequence[float | None]) -> tuple[int, float] | None:
    """Index of the lowest loss, and its relative distance from the next lowest; None if unknown."""
    known = sorted((loss, place) for place, loss in enumerate(losses) if loss is not None)
    if len(known) < 2 or len(known) < len(losses):
        return None
    (lowest, place), (next_, _) = known[0], known[1]
    if lowest == next_ or not next_:
        return None
    return place, (next_ - lowest) / abs(next_)


LETTERS = "ABCDEFGH"
"""Names of the jobs on the chart."""
MOST_COMPARED = len(LETTERS)


class Run(msgspec.Struct, frozen=True):
    """A job and its losses."""

    view: Job
    curve: LossCurve = msgspec.field(default_factory=LossCurve)
    scalars: Mapping[str, LossCurve] = msgspec.field(default_factory=dict)
    """Other reported scalars, as curves by name."""
    attempts: tuple[tuple[int, float], ...] = ()
    """Each attempt with its start, in seconds since the job started."""
    start_s: float = 0.0
    """When the job started, in unix seconds."""
    trouble: str | None = None
    """Why its losses could not be read."""
    label: str = ""
    """Its name on the chart; empty for the job's."""

    @property
    def job(self) -> str:
        """The job's name."""
        return self.view.name

    def curve_by(self, name: str) -> LossCurve:
        """The curve of the loss or of that scalar; empty if the job has none."""
        return self.curve if name == LOSS else self.scalars.get(name, LossCurve())

    @property
    def devices(self) -> str:
        """`2x H100 80GB HBM3`, or `CPU`."""
        devices = self.view.spec.devices
        if not devices:
            return "CPU"
        names = Counter((device.name or "GPU").removeprefix("NVIDIA ") for device in devices)
        return ", ".join(f"{number}x {name}" for name, number in names.items())

    @property
    def script(self) -> str:
        """The script or module as given; for a command, its executable."""
        spec = self.view.spec
        return f"-m {spec.target}" if spec.kind == "module" else spec.target


def options_of(spec: JobSpec) -> dict[str, str]:
    """The script's arguments by option: `--lr` → `0.01`; an option without a value is `yes`.

    Positional arguments are named by their position: `argument 1`.
    """
    found: dict[str, str] = {}
    place = 0
    words = list(spec.args)
    while words:
        word = words.pop(0)
        if not _is_option(word):
            place += 1
            found[f"argument {place}"] = word
            continue
        name, equals, value = word.partition("=")
        if not equals:
            value = words.pop(0) if words and not _is_option(words[0]) else "yes"
        found[name] = f"{found[name]} {value}" if name in found else value
    return found


def _is_option(word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def companions(jobs: Iterable[Job], first: str) -> list[Job]:
    """Jobs that `first` can be compared with, the best choice first.

    Those with its script come first, and newer ones before older ones.
    """
    own = [job for job in jobs if not job.is_foreign]
    mine = next((job for job in own if job.name == first), None)
    others = [job for job in own if job.name != first]
    others.sort(key=lambda job: job.created_at, reverse=True)
    others.sort(key=lambda job: mine is None or job.spec.target != mine.spec.target)
    return others


def names_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Names of the curves that the runs have, the loss first."""
    return (LOSS, *dict.fromkeys(name for run in runs for name in run.scalars))


POINTS = 50
"""Maximum number of common steps at which losses are reported."""


class Difference(Base, frozen=True, kw_only=True):
    """An option or setting that differs between the jobs."""

    what: str
    """Name of the option or setting."""
    values: tuple[str | None, ...]
    """Values in job order; null for jobs without it."""


class LossesAtStep(Base, frozen=True, kw_only=True):
    """The loss of every job at the same step."""

    step: int
    values: tuple[float | None, ...]
    """Losses in job order."""


class Standing(msgspec.Struct, frozen=True):
    """The jobs' losses at the last point that all of them reached."""

    name: str
    """`loss`, or the name of a validation loss."""
    step: int | None
    """The last step that all jobs reached; None if any job's steps are unknown."""
    after_s: float | None
    """The longest elapsed time that all jobs reached, in seconds."""
    losses: tuple[float | None, ...]
    """At that step, or at that time if steps are unknown."""
    best: int | None
    """Index of the job with the lowest loss there; None if unknown."""
    best_by: float | None
    """Its relative distance from the next lowest loss."""
    noise: float = 0.0
    """A relative distance up to this may be noise."""

    @property
    def is_clear(self) -> bool:
        """Whether one job's loss is lower than all others."""
        return self.best_by is not None and self.best_by >= max(NOTABLE, self.noise)


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of several jobs."""

    runs: tuple[Run, ...]
    loss: Standing
    validation: Standing | None
    """By validation loss; None unless all jobs have the same one."""
    differences: tuple[Difference, ...]
    judged: tuple[int, ...]
    """Indices of the jobs whose losses are compared."""

    @property
    def decisive(self) -> Standing:
        """What shows which job learns better."""
        return self.validation or self.loss


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare the runs at the last point that all of them reached.

    Of a sweep, compare those that finished, or else those that have losses.
    """
    places = range(len(runs))
    able = [place for place in places if runs[place].view.state == "finished"]
    if len(able) < 2:
        able = [place for place in places if runs[place].curve.last_s is not None]
    is_sweep = sweep_of(run.view for run in runs) is not None
    judged = tuple(able if is_sweep and len(able) > 1 else places)
    chosen = [runs[place] for place in judged]
    common = [
        name
        for name in names_of(chosen)
        if is_validation_loss(name) and all(run.curve_by(name).last_s is not None for run in chosen)
    ]
    return Comparison(
        runs=tuple(runs),
        loss=_of_all(standing(chosen, LOSS), judged, len(runs)),
        validation=_of_all(standing(chosen, common[0]), judged, len(runs)) if common else None,
        differences=tuple(differences(runs)),
        judged=judged,
    )


def _of_all(found: Standing, judged: Sequence[int], number: int) -> Standing:
    """The standing with the places of all jobs; those that are not judged have no loss."""
    losses = dict(zip(judged, found.losses, strict=True))
    best = None if found.best is None else judged[found.best]
    return replace(found, losses=tuple(losses.get(place) for place in range(number)), best=best)


def standing(runs: Sequence[Run], name: str) -> Standing:
    """The runs by one of their losses."""
    curves = [run.curve_by(name) for run in runs]
    step = least([curve.last_step for curve in curves])
    after_s = least([curve.last_s for curve in curves])
    place = after_s if step is None else step
    losses: list[float | None] = [None for _ in curves]
    errors: list[float] = []
    if place is not None:
        known = [curve.losses(by_step=step is not None) for curve in curves]
        if name == LOSS:
            losses = [_around(one, place) for one in known]
            errors = sorted(_error(_inside(one, place)) for one in known)
        else:  # an evaluation has little noise
            losses = [next((v for at, v in reversed(one) if at <= place), None) for one in known]
    best = better(losses) if len(runs) > 1 else None
    if best is None:
        return Standing(name, step, after_s, tuple(losses), None, None)
    lowest = abs(losses[best[0]] or 0.0)
    noise = SURE * math.hypot(*errors[-2:]) / lowest if lowest and errors else 0.0
    return Standing(name, step, after_s, tuple(losses), *best, noise)


def code_words(spec: JobSpec) -> str | None:
    """`1a2b3c4d5e on main, with changes`; None without a git repository."""
    if spec.git is None:
        return None
    branch = f" on {spec.git.branch}" if spec.git.branch else ""
    return f"{spec.git.commit[:10]}{branch}{', with changes' if spec.git.has_changes else ''}"


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Options and settings that differ between the jobs."""
    specs = [run.view.spec for run in runs]
    settings: list[tuple[str, Sequence[str | None]]] = [
        ("script", [run.script for run in runs]),
        *_options(runs),
        ("code", [code_words(spec) for spec in specs]),
        ("note", [spec.note for spec in specs]),
        ("python", [spec.python for spec in specs]),
        ("folder", [spec.cwd for spec in specs]),
        ("host", [spec.host for spec in specs]),
        *_environment(runs),
    ]
    found = [Difference(what=what, values=tuple(values)) for what, values in settings]
    return [one for one in found if len(set(one.values)) > 1]


def _options(runs: Sequence[Run]) -> list[tuple[str, list[str | None]]]:
    given = [options_of(run.view.spec) for run in runs]
    names = dict.fromkeys(name for options in given for name in options)
    return [(name, [options.get(name) for options in given]) for name in names]


def _environment(runs: Sequence[Run]) -> list[tuple[str, list[str | None]]]:
    """Variables set with --env, and for which jobs; values are never recorded."""
    given = [set(run.view.spec.env_overrides) for run in runs]
    names = sorted({name for mine in given for name in mine})
    return [
        (f"--env {name}", ["given" if name in mine else None for mine in given]) for name in names
    ]


def losses_at_common_steps(comparison: Comparison, most: int = POINTS) -> list[LossesAtStep]:
    """Losses of all jobs at the same steps, up to the last common step."""
    last = comparison.loss.step
    if last is None:
        return []
    number = min(most, max(1, last))
    steps = sorted({round(last * (place + 1) / number) for place in range(number)})
    return [
        LossesAtStep(step=at, values=tuple(run.curve.loss_at_step(at) for run in comparison.runs))
        for at in steps
    ]
