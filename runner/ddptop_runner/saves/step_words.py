"""At which step a checkpoint was written, in words that tell the run and an attempt apart: pure.

`step` of a checkpoint counts those of its attempt, which after a restart are not all; `global_step`
those of the run, where that is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ddptop_runner.model import Checkpoint

Counted = Literal["run", "attempt"]
"""What a step counts that a checkpoint's stands beside."""


class Lead(NamedTuple):
    """By how many steps the output, which counts the run, is ahead of the attempt's own."""

    steps: int
    slack: int
    """So far off `steps` may be: both are told only now and then."""


def went_on_from(lead: Lead | None, candidates: Iterable[int]) -> int | None:
    """The step of the run at which an attempt began; None where that is not known.

    Args:
        lead: by the attempt's output; None where that does not count the run.
        candidates: steps of the run at which it may have begun: 0, those of checkpoints.
    """
    if lead is None:
        return None
    nearest = min(candidates, key=lambda one: abs(lead.steps - one), default=None)
    if nearest is None or abs(lead.steps - nearest) > lead.slack:
        return None
    return nearest


def run_step(saved: Checkpoint | None) -> int | None:
    """Its step of the run; of the first attempt that is its own, if nothing says otherwise."""
    if saved is None or saved.global_step is not None:
        return None if saved is None else saved.global_step
    return saved.step if saved.attempt == 0 else None


def at_step(saved: Checkpoint, *, is_told_otherwise: bool = False) -> str:
    """` at step 150`, ` at step 400 of the run`, ` at step 150 of attempt 1`; empty if not known.

    Args:
        saved: the checkpoint.
        is_told_otherwise: whether the run's steps are told, and are not those of the attempt.
    """
    own, of_run = saved.step, saved.global_step
    if of_run is not None:
        return f" at step {of_run}" + (" of the run" if of_run != own or saved.attempt else "")
    if own is None:
        return ""
    is_plain = saved.attempt is None or (saved.attempt == 0 and not is_told_otherwise)
    return f" at step {own}" + ("" if is_plain else f" of attempt {saved.attempt}")


def step_beside(saved: Checkpoint, counted: Counted, attempt: int | None) -> str | None:
    """`step 400`, where something else tells a step as well; None where it is not known.

    What that step counts is said only where the other one counts something else.

    Args:
        saved: the checkpoint.
        counted: what the other step counts.
        attempt: the present one.
    """
    own, of_run = saved.step, saved.global_step
    if counted == "run" and of_run is not None:
        return f"step {of_run:,}"
    if counted == "attempt" and own is not None and saved.attempt in (None, attempt):
        return f"step {own:,}"
    if own is not None and saved.attempt is not None:
        return f"step {own:,} of attempt {saved.attempt}"
    if of_run is not None:
        return f"step {of_run:,} of the run"
    return None if own is None else f"step {own:,}"
