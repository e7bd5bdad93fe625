"""Whether a training learns anything, and whether that holds for other data."""

from __future__ import annotations

import itertools

from ddptop_runner.base.median import median
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.words import NotLearning, Severity

IDLE_STEPS = 256
"""Until then, the probe has looked at the gradients of nine steps."""

_IDLE: dict[NotLearning, tuple[Severity, str]] = {
    "no_gradients": (
        "warning",
        "no parameter of the optimizer has had a gradient in {} steps, so nothing is learned: was "
        "the optimizer given the parameters of the model that is trained?",
    ),
    "zero_rate": (
        "warning",
        "the learning rate has been 0 for {} steps, so nothing is learned: check its schedule",
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
    ranks = tuple(rank.rank for rank in window.ranks)
    message = words.format(steps)
    return [
        Finding("not-learning", severity, message, ranks, hold_s=5.0, evidence={"steps": steps})
    ]


RISES = 4
"""So many evaluations in a row must be worse than the one before, since the best one."""
ABOVE_BEST = 1.05
ABOVE_NOISE = 2.5
"""And the rise must be so many times the usual deviation from a smooth curve."""


def overfitting(window: Window) -> list[Finding]:
    """The validation loss rises, while the training loss falls."""
    for name, evaluations in window.evaluations.items():
        losses = [one.loss for one in evaluations]
        if len(losses) < RISES + 2:
            continue
        best = min(range(len(losses)), key=losses.__getitem__)
        since = losses[best:]
        if best == 0 or len(since) <= RISES or since[0] <= 0:
            continue
        noise = median(
            abs(before - 2 * loss + after)
            for before, loss, after in zip(losses, losses[1:], losses[2:], strict=False)
        )
        rise = since[-1] - since[0]
        is_rising = all(before < after for before, after in itertools.pairwise(since))
        if not is_rising or since[-1] < ABOVE_BEST * since[0] or rise < ABOVE_NOISE * noise:
            continue
        training, training_then = evaluations[-1].training_loss, evaluations[best].training_loss
        if training is None or training_then is None or training >= training_then:
            continue
        message = (
            f"{name} has risen in {len(since) - 1} evaluations, from {since[0]:.4g} to "
            f"{since[-1]:.4g}, while the training loss fell: the model overfits; the best was at "
            f"step {evaluations[best].step}"
        )
        evidence = {"best": since[0], "now": since[-1], "best_step": evaluations[best].step}
        return [Finding("overfitting", "info", message, (), hold_s=0.0, evidence=evidence)]
    return []
