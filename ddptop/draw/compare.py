"""Draws a comparison of jobs: rows of figures and differing options. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddptop.charts.curves import form_of, unit_of
from ddptop.charts.plots import name_of
from ddptop.job.compare import (
    LETTERS,
    LOSS,
    NOTABLE,
    Comparison,
    Run,
    Standing,
    names_of,
    options_of,
)
from ddptop.job.figures.jobs import step_cell
from ddptop.job.help import texts
from ddptop.job.progress import progress_of, step_text
from ddptop.job.record import Job
from ddptop.job.status import job_state
from ddptop.style import Span
from ddptop_runner.base import units
from ddptop_runner.model import run_step
from ddptop_runner.model.words import is_of_evaluation, is_validation_loss

LARGE = 1.5
"""From this ratio on, a ratio is clearer than a percentage."""
FASTER = 1.1
"""Paces are called the same up to this ratio."""


@dataclass(frozen=True)
class Row:
    """A row with one figure or option of every job."""

    key: str
    label: str
    about: str
    """What it shows, as help.toml names it."""
    values: tuple[Span, ...]
    """Cells in job order."""
    is_measured: bool = False
    """Whether it always differs slightly."""

    @property
    def is_figure(self) -> bool:
        """Whether it says something about each job itself."""
        return self.key.startswith("figure ")

    @property
    def differs(self) -> bool:
        """Whether this is an option that differs between the jobs."""
        return not self.is_measured and len({text for text, _ in self.values}) > 1


def how_much_lower(found: Standing) -> str:
    """`12% lower`, `3.1x lower`; empty if no loss is clearly the lowest."""
    best, by = found.best, found.best_by
    if best is None or by is None or not found.is_clear:
        return ""
    least = found.losses[best]
    others = [loss for place, loss in enumerate(found.losses) if place != best and loss is not None]
    if least is not None and least > 0 and others and min(others) / least >= LARGE:
        ratio = min(others) / least
        return f"{ratio:.1f}x lower" if ratio < 10 else f"{ratio:.0f}x lower"
    return f"{100 * by:.0f}% lower" if by >= 0.01 else f"{100 * by:.1f}% lower"


def common_label(found: Standing) -> str:
    """The point at which losses are compared: `loss at step 150`."""
    name = found.name.replace("validation", "val.")
    if found.step is not None:
        return f"{name} at step {units.count(found.step)}"
    if found.after_s is not None:
        return f"{name} after {units.duration(found.after_s)}"
    return name


def verdict(comparison: Comparison) -> str:
    """Which job learns better, in one sentence."""
    if len(comparison.runs) < 2:
        return "pick a job to compare with"
    bad = [
        LETTERS[place]
        for place, run in enumerate(comparison.runs)
        if run.curve.bad_since is not None and place in comparison.judged
    ]
    if bad:
        return f"loss is no longer finite for {' and '.join(bad)}"
    found = comparison.decisive
    label = common_label(found)
    where = label[label.rfind(" at step" if found.step is not None else " after") + 1 :]
    if missing := [LETTERS[i] for i in comparison.judged if found.losses[i] is None]:
        return f"no loss to compare for {' and '.join(missing)}"
    whose = "validation losses" if comparison.validation else "training losses"
    sentence = f"the {whose} are the same {where}"
    if found.best_by is not None and NOTABLE <= found.best_by < found.noise:
        sentence = f"the {whose} differ by less than their noise {where}"
    if found.best is not None and (lower := how_much_lower(found)):
        than = f" than {LETTERS[_next(found)]}'s, the next," if len(found.losses) > 2 else ""
        what = whose.removesuffix("es")
        sentence = f"{LETTERS[found.best]}'s {what} is {lower}{than} {where}"
    faster = _faster(comparison.runs)
    return f"{sentence}; {faster}" if faster else sentence


def _next(found: Standing) -> int:
    """The index of the job with the next lowest loss."""
    known = [(loss, i) for i, loss in enumerate(found.losses) if loss is not None]
    return sorted(known)[1][1]


def _faster(runs: Sequence[Run]) -> str:
    """`A is 1.3 times as fast per step`, comparing the two fastest; empty if neither is faster."""
    times = [run.curve.step_time_s() for run in runs]
    known = sorted((time_s, place) for place, time_s in enumerate(times) if time_s)
    if len(known) < max(2, len(runs)) or known[1][0] < FASTER * known[0][0]:
        return ""
    return f"{LETTERS[known[0][1]]} is {known[1][0] / known[0][0]:.1f} times as fast per step"


def rows(comparison: Comparison, now: dt.datetime) -> list[Row]:
    """All rows, most important first."""
    runs = comparison.runs
    found = [
        Row(
            standing.name,
            common_label(standing),
            LOSS if standing.name == LOSS else "validation loss",
            tuple(_common(standing, place) for place in range(len(runs))),
            is_measured=True,
        )
        for standing in (comparison.validation, comparison.loss)
        if standing is not None
    ]
    found += [
        Row(
            f"given {one.what}",
            one.what,
            "option",
            tuple(("not set", "dim") if text is None else (text, "strong") for text in one.values),
        )
        for one in comparison.differences
    ]
    scalars = sorted(names_of(runs)[1:], key=lambda name: not is_of_evaluation(name))
    figures = [*_LOSSES, *map(_scalar, scalars), *_FIGURES]
    return found + [
        Row(
            f"figure {label}",
            label,
            label,
            tuple(_cell(value(run, now)) for run in runs),
            is_measured=is_measured,
        )
        for label, value, is_measured in figures
    ]


def _cell(value: str | Span) -> Span:
    text, style = (value, "") if isinstance(value, str) else value
    return text, "dim" if text == units.NOT_AVAILABLE else style


def _common(found: Standing, place: int) -> Span:
    value = found.losses[place]
    text = units.loss(value)
    if value is None:
        return (text, "dim")
    if found.best == place and (lower := how_much_lower(found)):
        return (f"{text}  ✓ {lower}", "ok")
    return (text, "")


def _best(run: Run, now: dt.datetime) -> str:
    best = run.curve.best()
    if best is None:
        return units.NOT_AVAILABLE
    where = f"after {units.duration(best.at_s)}"
    if best.step is not None:
        where = f"at step {units.count(best.step)}"
    return f"{units.loss(best.loss)} {where}"


def _last(run: Run, now: dt.datetime) -> Span:
    bad = run.curve.bad_since
    if bad is None:
        return (units.loss(run.curve.last), "")
    at = f"{units.duration(bad.at_s)} in" if bad.step is None else f"step {units.count(bad.step)}"
    return (f"not finite since {at}", "bad")


def _scalar(name: str) -> _Figure:
    is_loss, form = is_validation_loss(name), form_of(unit_of(name))

    def value(run: Run, now: dt.datetime) -> str:
        last, best = run.curve_by(name).last, run.curve_by(name).best()
        text = units.NOT_AVAILABLE if last is None else form(last)
        if is_loss and best is not None:
            where = "" if best.step is None else f" at step {units.count(best.step)}"
            text += f", best {units.loss(best.loss)}{where}"
        return text

    return name, value, True


def _steps(run: Run, now: dt.datetime) -> str:
    return step_text(
        run_step.of_snapshot(run.view.snapshot), progress_of(run.view), run.view.is_live
    )


def _elapsed(run: Run, now: dt.datetime) -> str:
    return units.duration(run.view.elapsed_s(now))


_Figure = tuple[str, Callable[[Run, dt.datetime], str | Span], bool]
"""Label, value, and whether it is measured and so always differs slightly."""

_LOSSES: tuple[_Figure, ...] = (("best loss", _best, True), ("last loss", _last, True))
_FIGURES: tuple[_Figure, ...] = (
    ("time per step", lambda run, _: units.step_time(run.curve.step_time_s()), True),
    ("steps", _steps, True),
    ("state", lambda run, _: job_state(run.view.state), False),
    ("elapsed", _elapsed, True),
    ("restarts", lambda run, _: units.count(run.view.snapshot.attempt), False),
    ("ranks", lambda run, _: units.count(run.view.snapshot.world_size), False),
    ("devices", lambda run, _: run.devices, False),
    ("started", lambda run, _: f"{run.view.created_at.astimezone():%b %d %H:%M:%S}", True),
)


def explained(row: Row, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """A row's meaning, and its values in full."""
    known = texts().about["comparison"]
    values = [(name_of(place, run), row.values[place][0]) for place, run in enumerate(runs)]
    return [(row.label, known.get(row.about, known["metric"])), *values]


# --- jobs to compare with -----------------------------------------------------------------------


def companion_row(view: Job, letter: str, mine: Job | None) -> dict[str, Span]:
    """A selectable job's cells by column; for the same script, only the options that differ."""
    same = mine is not None and mine.spec.target == view.spec.target
    what = view.command
    if same and mine is not None:
        given, theirs = options_of(mine.spec), options_of(view.spec)
        other = [
            value if name.startswith("argument ") else f"{name} {value}"
            for name, value in theirs.items()
            if given.get(name) != value
        ]
        other += [f"no {name}" for name in given if name not in theirs]
        what = " ".join(other) or "none"
    return {
        "letter": (letter, "strong"),
        "job": (view.name, ""),
        "state": job_state(view.state),
        "step": step_cell(view.snapshot),
        "started": (f"{view.created_at.astimezone():%b %d %H:%M}", "dim"),
        "what": (what, "" if same else "dim"),
    }
