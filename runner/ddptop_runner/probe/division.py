"""Whether the losses of one step were divided by their number before each backward pass.

Then their sum is the loss of the step, else their mean. Frameworks that accumulate gradients divide
by the accumulation factor: they are known by their frames above a backward pass. A script's own
`loss / 4` is the last operation of the loss's graph. Both are looked up once a step, at the second
backward pass.
"""

from __future__ import annotations

import sys

BY_FRAMEWORK = 0
"""Stands for whatever number a framework divides by."""

DIVIDERS = {
    "backward": ("accelerate.accelerator", "deepspeed.runtime.engine"),
    "backward_fn": (
        "lightning.pytorch.loops.optimization.automatic",
        "pytorch_lightning.loops.optimization.automatic",
    ),
}
"""{function: modules} of those that divide, and call the backward pass."""

LOOK_EVERY = 8
"""A framework that has called the backward pass is taken to call it for so many steps."""

MAX_FRAMES = 24
"""Lightning's is twelve above its backward pass."""


class Divisions:
    """Looks up what the losses of one process are divided by."""

    def __init__(self):
        self._skip = 0
        """How many more steps are taken for a framework's without a look."""

    def of(self, tensor, is_scaled):
        """What a loss was divided by, BY_FRAMEWORK or a number; None where nothing tells.

        Args:
            tensor: The loss, as given to the backward pass.
            is_scaled: Whether its last operation is that of a gradient scaler.
        """
        if self._skip:
            self._skip -= 1
            return BY_FRAMEWORK
        if _is_inside_divider(sys._getframe(1)):
            self._skip = LOOK_EVERY - 1
            return BY_FRAMEWORK
        try:
            return _in_graph(tensor, is_scaled)
        except (AttributeError, IndexError, RuntimeError):  # another graph than the one known
            return None


def _is_inside_divider(frame):
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        modules = DIVIDERS.get(frame.f_code.co_name)
        if modules is not None and frame.f_globals.get("__name__") in modules:
            return True
        frame = frame.f_back
    return False


def _in_graph(tensor, is_scaled):
    node = tensor.grad_fn
    if is_scaled and node is not None:
        node = node.next_functions[0][0]
    name = None if node is None else node.name()
    if name not in ("DivBackward0", "MulBackward0"):
        return None
    other = node._saved_other
    if other is None or not other.is_cpu or other.dim() or other.requires_grad:
        return None
    value = other.item()
    if name == "MulBackward0":
        value = 1 / value if value else 0.0
    divisor = round(value) if 1 < value < 1e9 else None
    return divisor if divisor is not None and abs(value - divisor) < 1e-6 * divisor else None
