"""`ddptop.report` and `ddptop.checkpoint_requested`: what a training script may say and ask."""

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
        **metrics: Any other figures to show, such as `lr=...` or `accuracy=...`: up to 32 of a
            rank, with names of up to 64 characters.
    """
    probe = sys.modules.get("_ddptop_probe")
    if probe is not None:
        probe.report(loss, step, total, **metrics)


def checkpoint_requested() -> bool:
    """Whether a person has asked for a checkpoint (`ddptop checkpoint`, `ddptop stop --save`).

    True once per request and process; always False outside a job. Looking costs microseconds, so a
    script may ask after every step. Ranks learn of a request by themselves, maybe a step apart:
    where saving needs all ranks, ask on one of them and broadcast the answer.
    """
    from ddptop_runner.probe import probe

    asked: bool = probe.checkpoint_requested()  # type: ignore[no-untyped-call]
    return asked
