"""What came back of a training that resumes: its data, its optimizer's state, its learning rate.

The attempt before is the measure: where it was at the same step of the run. What it does not tell
is unknown, and stays unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.model.snapshot import Checkpoint, RankSample, Resume

MAX_MARKS = 512
LEAST_STEPS = 8
"""A training that resumes earlier has little to lose, and its steps tell little apart."""
SETTLED_STEPS, JUDGED_MARKS = 8, 60
"""An attempt is judged by where it was after so many steps, and only in its first minute."""


class Mark(NamedTuple):
    """Where a rank was at one time."""

    step: int
    """Of its attempt."""
    run_step: int
    optimizer_steps: int | None
    learning_rate: float | None


class Course:
    """Where one attempt has been, one mark a second; of older parts every second one is kept."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def add(self, rank: RankSample) -> None:
        """Add the present place of a rank, the same one each time."""
        step, run_step = rank.step, rank.run_step
        if step is None or run_step is None or (self.marks and self.marks[-1].step >= step):
            return
        self.marks.append(Mark(step, run_step, rank.optimizer_steps, rank.learning_rate))
        if len(self.marks) > MAX_MARKS:
            del self.marks[1::2]

    def rates_at(self, step: int, step_of: Callable[[Mark], int]) -> tuple[float, float] | None:
        """The learning rates just before and after a step, smaller first; None if unknown."""
        known = [mark for mark in self.marks if mark.learning_rate is not None]
        before = [mark.learning_rate for mark in known if step_of(mark) <= step]
        after = [mark.learning_rate for mark in known if step_of(mark) >= step]
        if not before or not after:
            return None
        return min(before[-1] or 0.0, after[0] or 0.0), max(before[-1] or 0.0, after[0] or 0.0)


def resume_of(
    earlier: Course, now: Course, rank: RankSample, checkpoint: Checkpoint | None, replays: bool
) -> Resume | None:
    """What is known of how an attempt resumed; None if nothing is, or not yet.

    Args:
        earlier: the attempt before.
        now: this one.
        rank: the rank whose marks they are.
        checkpoint: the last one of an earlier attempt; None if unknown.
        replays: whether its data was found to have started over.
    """
    mark = next((one for one in now.marks if one.step >= SETTLED_STEPS), None)
    if mark is None or len(now.marks) > JUDGED_MARKS:
        return None
    began = mark.run_step - mark.step
    if began < LEAST_STEPS or not earlier.marks:
        return None
    rate_now, rate_then = _rates(earlier, mark)
    position = None if checkpoint is None else checkpoint.data_position
    taken = None if position is None else position[1]
    skipped = rank.batches_skipped
    batch = 0 if replays else skipped if skipped and taken else None
    if batch and taken and abs(batch - taken) <= 1:
        batch = taken  # some loaders are a batch ahead
    resume = Resume(
        step=began,
        batch=batch,
        checkpoint_batch=taken,
        optimizer_kept=_is_kept(earlier.marks, mark),
        learning_rate=rate_now,
        learning_rate_before=rate_then,
    )
    return None if resume == Resume(step=began, checkpoint_batch=taken) else resume


def _is_kept(earlier: Sequence[Mark], mark: Mark) -> bool | None:
    """Whether the optimizer counts on from where it was at the same step of the run."""
    last = next((one for one in reversed(earlier) if one.optimizer_steps is not None), None)
    if last is None or last.optimizer_steps is None or mark.optimizer_steps is None:
        return None
    began, should = mark.run_step - mark.step, last.optimizer_steps - last.run_step + mark.run_step
    if abs(mark.optimizer_steps - should) <= began / 4:
        return True
    return False if abs(mark.optimizer_steps - mark.step) <= began / 4 else None


def _rates(earlier: Course, mark: Mark) -> tuple[float | None, float | None]:
    """(the learning rate, and the one before if it is that of the attempt's start instead)."""
    rate = mark.learning_rate
    then = earlier.rates_at(mark.run_step, lambda one: one.run_step)
    if rate is None or then is None:
        return None, None
    if _is_within(rate, then, 1e-6):
        return rate, None
    replayed = earlier.rates_at(mark.step, lambda one: one.step)
    is_other = not _is_within(rate, then, 0.05)
    if is_other and replayed is not None and _is_within(rate, replayed, 1e-6):
        return rate, then[0]
    return None, None


def _is_within(rate: float, bounds: tuple[float, float], share: float) -> bool:
    return bounds[0] * (1 - share) <= rate <= bounds[1] * (1 + share)


def lost_state(resume: Resume | None, ranks: Sequence[RankSample]) -> list[Finding]:
    """The optimizer's state or the learning rate started over, though the training went on."""
    lost = []
    if resume is not None and resume.optimizer_kept is False:
        lost.append("the optimizer's state did not come back: it counts its steps from 0 again")
    if resume is not None and resume.learning_rate_before is not None:
        lost.append(
            f"the learning rate started over at {resume.learning_rate:g} instead of "
            f"{resume.learning_rate_before:g}"
        )
    if resume is None or not lost:
        return []
    message = (
        f"the training resumed at step {resume.step:,}, but {', and '.join(lost)}: save and load "
        "the state_dict of the optimizer and the scheduler, too"
    )
    evidence = {
        "step": resume.step,
        "learning_rate": resume.learning_rate,
        "learning_rate_before": resume.learning_rate_before,
    }
    numbers = tuple(rank.rank for rank in ranks)
    return [Finding("resume-state", "warning", message, numbers, evidence=evidence)]


def data_replayed(resume: Resume | None, ranks: Sequence[RankSample]) -> list[Finding]:
    """The data started over, though the checkpoint was taken in the middle of an epoch."""
    if resume is None or resume.batch != 0 or not resume.checkpoint_batch:
        return []
    taken = resume.checkpoint_batch
    message = (
        f"the checkpoint is {taken} batches into an epoch, but the DataLoader started over at "
        f"batch 0 after the restart: {taken} batches are trained twice; save the position in the "
        "data, too"
    )
    evidence: dict[str, float | None] = {"batches_repeated": taken, "resumed_at_step": resume.step}
    numbers = tuple(rank.rank for rank in ranks)
    return [Finding("data-replayed", "info", message, numbers, evidence=evidence)]
