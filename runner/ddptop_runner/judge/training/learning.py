"""Whether a training learns anything, and whether that holds for other data."""

from __future__ import annotations

import itertools

from ddptop_runner.base.median import median
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.window import Window, grows_steadily
from ddptop_runner.model.words import NotLearning, Severity

IDLE_STEPS = 256
"""Until then, the probe has looked at the gradients of nine steps."""

_IDLE: dict[NotLearning, tuple[Severity, str]] = {
    "no_gradients": (
        "warning",
        "no parameter of the optimizer has had a gradient in {} steps, so nothing is learned: was "
        "the optimizer given the parameters of the model that is trained?",
    ),
    "zero_gradients": (
        "info",
        "all gradients have been exactly 0 in {} steps, so nothing is learned: does the loss "
        "depend on the model's output?",
    ),
}


def not_learning(window: Window) -> list[Finding]:
    """No step since the attempt began had anything to learn from."""
    reasons = {rank.not_learning for rank in window.ranks}
    steps = min((rank.step or 0 for rank in window.ranks), default=0)
    reason = reasons.pop() if len(reasons) == 1 else None
    if reason is None or steps < IDLE_STEPS:
        return []
    severity, words = _IDLE[reason]
    return [window.finding("not-learning", severity, words.format(steps), {"steps": steps})]


LEAST_RISES, RISE_PARTS = 30, 10
"""A loss that wanders rises for a while, too: the rise must be longer than all before, have at
least so many evaluations, and go on in each of so many parts of it, but for its slow start."""
ABOVE_BEST = 1.1
ABOVE_RECOVERED = 2.0
"""And the rise must be so many times any earlier one."""


def overfitting(window: Window) -> list[Finding]:
    """The validation loss rises, while the training loss falls."""
    for name, evaluations in window.evaluations.items():
        losses = [one.loss for one in evaluations]
        # the medians of three, so that no single good or bad one decides
        smooth = [median(losses[i : i + 3]) for i in range(len(losses) - 2)]
        if len(smooth) <= LEAST_RISES:
            continue
        best = min(range(len(smooth)), key=smooth.__getitem__)
        rises = len(smooth) - 1 - best
        if rises < max(LEAST_RISES, best) or smooth[best] <= 0:
            continue
        before, now = evaluations[best + 1], evaluations[-1]
        rise = smooth[-1] - smooth[best]
        # how far it had risen before and come down again
        lows = itertools.accumulate(smooth[: best + 1], min)
        recovered = max(one - low for one, low in zip(smooth, lows, strict=False))
        if rise < ABOVE_RECOVERED * recovered or smooth[-1] < ABOVE_BEST * smooth[best]:
            continue
        if not grows_steadily(smooth[best + rises // 4 :], RISE_PARTS):
            continue
        if None in (before.training_loss, now.training_loss):
            continue
        if (now.training_loss or 0.0) >= (before.training_loss or 0.0):
            continue
        message = (
            f"the {name} has risen from {smooth[best]:.4g} to {smooth[-1]:.4g} since step "
            f"{before.step}, while the training loss fell: the model overfits"
        )
        evidence = {"best": smooth[best], "now": smooth[-1], "best_step": before.step}
        return [Finding("overfitting", "info", message, evidence=evidence)]
    return []
