"""At which step a checkpoint was written, in words that tell the run and an attempt apart: pure.

`step` of a checkpoint counts those of its attempt, which after a restart are not all; `global_step`
those of the run, where that is known.
"""

from __future__ import annotations

from ddptop_runner.model.snapshot import Checkpoint


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


def step_beside(saved: Checkpoint, attempt: int | None) -> str | None:
    """`step 768`, which is the run's; else `step 128 of this attempt`. None where neither is known.

    Args:
        saved: the checkpoint.
        attempt: the present one.
    """
    if saved.global_step is not None:
        return f"step {saved.global_step:,}"
    if saved.step is None:
        return None
    whose = "this attempt" if saved.attempt == attempt else f"attempt {saved.attempt}"
    return f"step {saved.step:,}" + ("" if saved.attempt is None else f" of {whose}")
