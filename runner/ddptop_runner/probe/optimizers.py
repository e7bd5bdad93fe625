"""What an optimizer says of itself: a resumed training should have its state back."""

from __future__ import annotations


def steps_and_rate(optimizer):
    """(steps that its state counts, learning rate); None for each that is not known."""
    if optimizer is None:
        return None, None
    state: dict = next(iter(optimizer.state.values()), {})
    steps = _number(state.get("step"))
    rate = _number(optimizer.param_groups[0].get("lr"))
    return None if steps is None else int(steps), rate


def _number(value):
    """A finite number, or that in a tensor on the CPU, as most optimizers count their steps."""
    if getattr(value, "is_cpu", False) is True and value.numel() == 1:
        value = value.item()
    if type(value) not in (int, float) or not -(2**53) <= value <= 2**53:
        return None
    return value
