"""`ddptop.report`: what a training script may tell ddptop, if it wants to."""

from __future__ import annotations

import sys


def report(
    loss: object = None, step: object = None, total: object = None, **metrics: object
) -> None:
    """Tell ddptop what only the script knows. Does nothing outside a job, and never raises.

    Numbers and tensors of one element are taken; a tensor on a device is read later, without
    waiting for the device. Anything else is ignored.

    Args:
        loss: The loss to show, instead of the one that was seen in the backward pass.
        step: The step of the whole training, counted over restarts.
        total: The number of steps that the whole training will take.
        **metrics: Any other figures to show, such as `lr=...` or `accuracy=...`.
    """
    probe = sys.modules.get("_ddptop_probe")
    if probe is not None:
        probe.report(loss, step, total, **metrics)
