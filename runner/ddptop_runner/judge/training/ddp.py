"""Advice on the use of DistributedDataParallel, from its own figures. Nothing of it is a fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.snapshot import DdpUse, RankSample

LEAST_ITERATIONS = 100
MOST_PIECES = 2
"""The most valuable pieces of advice, in the order of `ddp_advice`."""
SAVES_LEAST = 0.05
"""A smaller part of the time is not worth a figure."""
EXPOSED_LEAST = 0.25
"""The part of each step that a GPU waits for all-reduces from which on it matters."""
SMALL_BUCKET_BYTES, MANY_BUCKETS = 1 << 20, 50
ONE_BUCKET_BYTES = 50 << 20
"""One all-reduce of so much cannot start before the backward pass ends."""


def ddp_advice(window: Window) -> list[Finding]:
    """What would make DistributedDataParallel faster, most valuable first."""
    uses = [rank.ddp for rank in window.ranks if rank.ddp is not None]
    if len(uses) < len(window.ranks) or len(uses) < 2:
        return []
    if min(use.iteration for use in uses) < LEAST_ITERATIONS:
        return []
    # the rank that the others wait for waits for nobody: only for the network
    exposed_s = min(use.comm_s - use.hidden_s for use in uses)
    times_s = [rank.step_time_s for rank in window.ranks if rank.step_time_s]
    step_s = median(times_s) if times_s else None
    pieces = [
        *_accumulation(window.ranks, uses, exposed_s, step_s),
        *_products(uses),
        *_exposed(window.ranks, uses, exposed_s, step_s),
        *_unused(uses),
    ][:MOST_PIECES]
    if not pieces:
        return []
    ranks = tuple(rank.rank for rank in window.ranks)
    message = "; ".join(words for words, _ in pieces)
    evidence = {name: value for _, figures in pieces for name, value in figures.items()}
    return [Finding("ddp-advice", "info", message, ranks, hold_s=5.0, evidence=evidence)]


_Pieces = list[tuple[str, Mapping[str, float | None]]]
"""[(in words, figures)]"""


def _accumulation(
    ranks: Sequence[RankSample], uses: Sequence[DdpUse], exposed_s: float, step_s: float | None
) -> _Pieces:
    parts = {rank.loss_parts for rank in ranks}
    passes = parts.pop() or 0
    if parts or passes < 2 or any(rank.losses for rank in ranks):
        return []
    if any((use.syncs_per_step or 0.0) < 0.9 * passes for use in uses):
        return []
    saved = None if step_s is None else min(1.0, (passes - 1) * exposed_s / step_s)
    gain = f", which saves about {100 * saved:.0f}% of the time" if saved and saved > 0.05 else ""
    words = (
        f"each step has {passes} backward passes, and each has an all-reduce: to accumulate "
        f"gradients, run all but the last in model.no_sync(){gain}"
    )
    saves_percent = None if saved is None else round(100 * saved, 1)
    return [(words, {"backward_passes": passes, "saves_percent": saves_percent})]


def _products(uses: Sequence[DdpUse]) -> _Pieces:
    if not all(use.could_use_tf32 for use in uses):
        return []
    words = (
        "float32 matrices are multiplied without tensor cores: "
        'torch.set_float32_matmul_precision("high") is several times faster, at 10 bits instead '
        "of 23"
    )
    return [(words, {})]


def _exposed(
    ranks: Sequence[RankSample], uses: Sequence[DdpUse], exposed_s: float, step_s: float | None
) -> _Pieces:
    syncs = min(use.syncs_per_step or 0.0 for use in uses)
    if step_s is None or any(rank.gpu is None for rank in ranks):
        return []  # on CPUs, communication and computing take the same cores
    share = syncs * exposed_s / step_s
    if share < EXPOSED_LEAST:
        return []
    use = uses[0]
    size, hidden = units.size(use.parameter_bytes), use.hidden_s / use.comm_s if use.comm_s else 0.0
    if use.buckets == 1 and use.parameter_bytes >= ONE_BUCKET_BYTES:
        why = f"{size} are sent at once: leave bucket_cap_mb at its default"
    elif use.buckets >= MANY_BUCKETS and use.parameter_bytes < use.buckets * SMALL_BUCKET_BYTES:
        why = f"{size} are sent in {use.buckets} parts: raise bucket_cap_mb"
    else:
        why = (
            f"{100 * hidden:.0f}% of them are hidden behind the backward pass: larger batches, or "
            "bf16_compress_hook, make them matter less"
        )
    words = f"all-reduces take {100 * share:.0f}% of each step; {why}"
    evidence = {
        "share_percent": round(100 * share, 1),
        "hidden_percent": round(100 * hidden, 1),
        "buckets": use.buckets,
    }
    return [(words, evidence)]


def _unused(uses: Sequence[DdpUse]) -> _Pieces:
    sizes = {use.unused_bytes for use in uses}
    if not all(use.finds_unused and use.is_static for use in uses) or len(sizes) > 1:
        return []
    unused_bytes, iterations = sizes.pop(), min(use.iteration for use in uses)
    evidence = {"unused_bytes": unused_bytes, "iterations": iterations}
    if unused_bytes == 0:
        words = (
            f"find_unused_parameters=True has found none in {iterations} iterations, but searches "
            "in each: leave it out"
        )
        return [(words, evidence)]
    if unused_bytes is None:
        return []
    words = (
        f"the same {units.size(unused_bytes)} of parameters are unused in each iteration: freeze "
        "them and leave out find_unused_parameters, or set static_graph=True"
    )
    return [(words, evidence)]
