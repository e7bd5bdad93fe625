"""`ddptop.report` and `ddptop.checkpoint_requested`, the API for training scripts."""

from __future__ import annotations

import sys


def report(
    loss: object = None, step: object = None, total: object = None, **metrics: object
) -> None:
    """Report what only the script knows. Does nothing outside a job, and never raises.

    Accepts numbers and tensors of one element; a tensor on a device is read later, without
    waiting for the device. Anything else is ignored.

    Args:
        loss: The loss to show instead of the one observed in the backward pass.
        step: The step of the whole run, counted across restarts; also as `global_step`.
        total: The total number of steps of the run; also as `total_steps`.
        **metrics: Other figures to show, such as `lr=...` or `accuracy=...`: up to 32 per rank,
            with names of up to 64 characters.
    """
    probe = sys.modules.get("_ddptop_probe")
    if probe is not None:
        probe.report(loss, step, total, **metrics)


def checkpoint_requested() -> bool:
    """Whether the user requested a checkpoint (`ddptop checkpoint`, `ddptop stop --save`).

    True once per request and process; always False outside a job. A call takes microseconds, so a
    script may check after every step. Each rank learns of a request separately, possibly a step
    apart: if saving needs all ranks, check on one rank and broadcast the result.
    """
    from ddptop_runner.probe import probe

    asked: bool = probe.checkpoint_requested()  # type: ignore[no-untyped-call]
    return asked
