"""Advice on the use of DistributedDataParallel, from its own figures. Nothing of it is a fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.snapshot import DdpUse, RankSample

LEAST_ITERATIONS = 100
SAVES_LEAST = 0.05
"""A smaller part of the time is not worth a figure."""
EXPOSED_MOST = 0.2
"""Part of a step on a device that all-reduces may take beyond the backward pass, or copies of
batches before the forward pass."""
UNPINNED_BYTES_PER_S = 6e9
"""Assumed rate of copies to a device from memory that is not pinned; not measured."""


def ddp_advice(window: Window) -> list[Finding]:
    """What would make DistributedDataParallel faster, most valuable first."""
    uses = [rank.ddp for rank in window.ranks if rank.ddp is not None]
    if len(uses) < max(2, len(window.ranks)):
        return []
    if min(use.iteration for use in uses) < LEAST_ITERATIONS:
        return []
    times_s = [rank.step_time_s for rank in window.ranks if rank.step_time_s]
    # the rank that the others wait for waits for nobody: only for the network
    exposed_s = min(use.comm_s - use.hidden_s for use in uses)
    share = exposed_s / median(times_s) if times_s else 0.0
    pieces = list(_pieces(window, uses, share))
    if not pieces:
        return []
    evidence: dict[str, float | None] = {
        "exposed_s": exposed_s,
        "input_s": window.ranks[0].input_s,
        "syncs_per_step": uses[0].syncs_per_step,
        "unused_bytes": uses[0].unused_bytes,
    }
    return [window.finding("ddp-advice", "info", "; ".join(pieces), evidence)]


def _pieces(window: Window, uses: Sequence[DdpUse], share: float) -> Iterator[str]:
    """The advice, most valuable first.

    Args:
        window: the job's ranks.
        uses: theirs.
        share: the part of a step that ranks wait for the all-reduces of one backward pass.
    """
    ranks = window.ranks
    syncs = min(use.syncs_per_step or 0.0 for use in uses)
    passes = ranks[0].loss_parts or 0
    if passes > 1 and syncs >= 0.9 * passes and not any(rank.losses for rank in ranks):
        saved = min(1.0, (passes - 1) * share)
        gain = f", which saves about {100 * saved:.0f}% of the time" if saved > SAVES_LEAST else ""
        yield (
            f"each step has {passes} backward passes, and each has an all-reduce: to accumulate "
            f"gradients, run all but the last in model.no_sync(){gain}"
        )
    elif share >= EXPOSED_MOST and len(window.gpus) == len(ranks):
        hidden = min(use.hidden_s / use.comm_s for use in uses)
        yield (
            f"all-reduces take {100 * share:.0f}% of each step beyond the backward pass, which "
            f"hides {100 * hidden:.0f}% of them: larger batches, accumulation of gradients with "
            "no_sync, or bf16_compress_hook would make them cheaper"
        )
    copies = min(map(_share_of_copies, ranks))
    if copies >= EXPOSED_MOST and len(window.gpus) == len(ranks):
        yield (
            f"up to {100 * copies:.0f}% of each step goes into copies of batches to the device, "
            "before the forward pass: pin_memory=True in the DataLoader and non_blocking=True in "
            ".to() make them faster"
        )
    if all(use.tf32_off for use in uses) and len(window.gpus) == len(ranks):
        yield (
            "all parameters are float32, and neither TF32 nor autocast is on: "
            'torch.set_float32_matmul_precision("high") multiplies their matrices on tensor cores '
            "(TF32), with less precision"
        )
    unused = {use.unused_bytes for use in uses}
    found_bytes = unused.pop()
    if unused or found_bytes is None:
        return
    if not all(use.finds_unused and use.is_static for use in uses):
        return
    if not found_bytes:
        yield (
            f"find_unused_parameters=True is not needed: all parameters were used in each of "
            f"{uses[0].iteration} iterations, and DDP searched for unused ones each time"
        )
    else:
        yield (
            f"the same {units.size(found_bytes)} of parameters are unused in each iteration: "
            "freeze them and leave out find_unused_parameters, or set static_graph=True"
        )


def _share_of_copies(rank: RankSample) -> float:
    """The part of a step before the forward pass, if copies of batches account for half of it."""
    copies_s = (rank.unpinned_bytes or 0) * (rank.loss_parts or 1) / UNPINNED_BYTES_PER_S
    if rank.input_s is None or not rank.step_time_s or copies_s < rank.input_s / 2:
        return 0.0
    return rank.input_s / rank.step_time_s
