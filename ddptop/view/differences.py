"""Differences between jobs, and their progress. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop.view.curve import better, common_s, common_step
from ddptop.view.run import Run, options_of

POINTS = 50
"""Maximum number of common steps at which losses are reported."""


@dataclass(frozen=True)
class Difference:
    """Something that was given to the jobs, and is not the same in all of them."""

    what: str
    values: tuple[str | None, ...]
    """In the jobs' order; None where it was not given."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of several jobs."""

    runs: tuple[Run, ...]
    step: int | None
    """The last step that all jobs reached; None if any job's steps are unknown."""
    after_s: float | None
    """The longest elapsed time that all jobs reached, in seconds."""
    losses: tuple[float | None, ...]
    """At that step, or where steps are not known, at that moment."""
    best: int | None
    """Index of the job with the lowest loss there; None if unknown."""
    best_by: float | None
    """By which share of the next one."""
    differences: tuple[Difference, ...]


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare jobs."""
    curves = [run.curve for run in runs]
    step, after_s = common_step(curves), common_s(curves)
    if step is not None:
        losses = [curve.loss_at_step(step) for curve in curves]
    elif after_s is not None:
        losses = [curve.loss_at_s(after_s) for curve in curves]
    else:
        losses = [None for _ in curves]
    best = better(losses) if len(runs) > 1 else None
    return Comparison(
        runs=tuple(runs),
        step=step,
        after_s=after_s,
        losses=tuple(losses),
        best=None if best is None else best[0],
        best_by=None if best is None else best[1],
        differences=tuple(differences(runs)),
    )


def differences(runs: Sequence[Run]) -> list[Difference]:
    """What was given to the jobs and is not the same in all of them."""
    specs = [run.view.spec for run in runs]
    told: list[tuple[str, Sequence[str | None]]] = [
        ("script", [run.script for run in runs]),
        *_options(runs),
        ("python", [spec.python for spec in specs]),
        ("folder", [spec.cwd for spec in specs]),
        ("host", [spec.host for spec in specs]),
        *_environment(runs),
    ]
    found = [Difference(what, tuple(values)) for what, values in told]
    return [one for one in found if len(set(one.values)) > 1]


def _options(runs: Sequence[Run]) -> list[tuple[str, list[str | None]]]:
    given = [options_of(run.view.spec) for run in runs]
    names = dict.fromkeys(name for options in given for name in options)
    return [(name, [options.get(name) for options in given]) for name in names]


def _environment(runs: Sequence[Run]) -> list[tuple[str, list[str | None]]]:
    """Variables by name: which of them were there. Their values are never written down."""
    given = [set(run.view.spec.env_overrides) for run in runs]
    names = sorted({name for mine in given for name in mine})
    rows: list[tuple[str, list[str | None]]] = [
        (f"--env {name}", ["given" if name in mine else None for mine in given]) for name in names
    ]
    shells = [set(run.view.spec.env_names) - own for run, own in zip(runs, given, strict=True)]
    common = set.intersection(*shells) if shells else set()
    only = [sorted(mine - common) for mine in shells]
    if any(only):
        rows.append(("variables", [" ".join(mine) or None for mine in only]))
    return rows


def losses_at_common_steps(
    comparison: Comparison, most: int = POINTS
) -> list[tuple[int, tuple[float | None, ...]]]:
    """Losses of all jobs at the same steps, up to the last common one."""
    last = comparison.step
    if last is None:
        return []
    number = min(most, max(1, last))
    steps = sorted({round(last * (place + 1) / number) for place in range(number)})
    return [
        (step, tuple(run.curve.loss_at_step(step) for run in comparison.runs)) for step in steps
    ]
