"""What is wrong with the training itself, for all ranks together. Pure functions of a Window.

What is unknown leads to no finding. Each finding has its figures as evidence, and ends once its
condition does.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddptop_runner.base.median import median
from ddptop_runner.base.units import duration_in_words, has_or_have, name_ranks
from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training import slow
from ddptop_runner.judge.training.ddp import ddp_advice
from ddptop_runner.judge.training.learning import not_learning, overfitting
from ddptop_runner.judge.training.memory import memory_growth
from ddptop_runner.judge.training.replicas import diverged
from ddptop_runner.judge.training.resume import data_replayed, lost_state, resume_of
from ddptop_runner.judge.training.window import FIRST_LOSSES, Window, common, known_median, typical
from ddptop_runner.model.snapshot import Checkpoint, Resume

SAME_BATCHES, DISTINCT = 6, 4
"""So many batches must be equal, and so many of them differ from each other: constant data, or
one batch trained on again and again, proves nothing."""


def same_batches(window: Window) -> list[Finding]:
    """All ranks of a DistributedDataParallel job train on the same batches."""
    ranks = window.ranks
    if len(ranks) < 2 or any(rank.ddp_world_size != len(ranks) for rank in ranks):
        return []  # ranks that share a model's parts share its batches, too
    keys = common(window.batches)[-4 * SAME_BATCHES :]
    first = window.batches[ranks[0].rank]
    if len(keys) < SAME_BATCHES or len({first[key] for key in keys}) < DISTINCT:
        return []
    if any(window.batches[rank.rank][key] != first[key] for rank in ranks for key in keys):
        return []
    message = (
        "all ranks train on the same batches, so each does the same work: give the DataLoader a "
        "DistributedSampler"
    )
    evidence = {"batches_equal": len(keys)}
    return [window.finding("same-batches", "warning", message, evidence)]


def same_order(window: Window) -> list[Finding]:
    """A sampler that shuffles by its epoch gives the same order in two epochs."""
    for rank in window.ranks:
        batches = window.batches[rank.rank]
        epochs = sorted({epoch for epoch, _ in batches})
        if rank.repeated_epoch is None or len(epochs) < 2:
            continue
        last, before = epochs[-1], epochs[-2]
        keys = [position for epoch, position in batches if epoch == last]
        known = [position for position in keys if (before, position) in batches]
        equal = {batches[last, one] for one in known if batches[last, one] == batches[before, one]}
        if len(known) >= 3 and len(equal) == len(known):
            message = (
                f"every epoch has the same order of batches: call sampler.set_epoch(epoch) at the "
                f"start of each epoch (the sampler is still at epoch {rank.repeated_epoch})"
            )
            evidence = {"batches_equal": len(known)}
            return [window.finding("same-order", "warning", message, evidence)]
    return []


def uneven_shards(window: Window) -> list[Finding]:
    """Some ranks of a DistributedDataParallel job have fewer batches in their first pass.

    For information: the loop may stop earlier on all ranks. A rank that has left its loop leaves
    the others to the hang detection, or has shown that they stop, too.
    """
    ranks = window.ranks
    lengths = {rank.rank: rank.epoch_batches for rank in ranks if rank.epoch_batches}
    if len(lengths) < len(ranks) or len({*lengths.values()}) < 2:
        return []
    if any(rank.ddp_world_size != len(ranks) for rank in ranks):
        return []
    if None in (sizes := {rank.batch_size for rank in ranks}) or len(sizes) > 1:
        return []  # who gives ranks different batch sizes knows that their batches differ, too
    if len({rank.loss_parts for rank in ranks}) > 1:
        return []  # some accumulate over more batches than others
    taken = [(rank.data_position or [0, 0])[1] for rank in ranks]
    if not all(taken) or not all(rank.step for rank in ranks):
        return []  # before the first step, it may be an evaluation
    fewest, most = min(lengths.values()), max(lengths.values())
    short, full = (
        tuple(rank for rank, batches in lengths.items() if batches == length)
        for length in (fewest, most)
    )
    step_s = known_median(rank.step_time_s for rank in ranks) or 0.0
    left_s = max(0, fewest - max(taken)) * step_s / (ranks[0].loss_parts or 1)
    when = f" (in {duration_in_words(left_s)})" if left_s else ""
    message = (
        f"{name_ranks(short)} {has_or_have(short)} {fewest} batches in this epoch, "
        f"{name_ranks(full)} {has_or_have(full)} {most}: unless all stop after {fewest}{when}, "
        "the job may hang; give each rank as many (DistributedSampler), or train within "
        "model.join()"
    )
    evidence = {"fewest_batches": fewest, "most_batches": most, "left_s": round(left_s, 1)}
    return [Finding("uneven-shards", "info", message, short, hold_s=5.0, evidence=evidence)]


def _starts_over(window: Window, checkpoint: Checkpoint | None) -> bool:
    """Whether the attempt has resumed in the middle of an epoch with an epoch's first batches."""
    if checkpoint is None or checkpoint.data_position is None:
        return False
    epoch, taken = checkpoint.data_position
    for rank in window.ranks:
        if (rank.run_step or 0) <= (rank.step or 0):
            continue
        now, earlier = window.batches[rank.rank], window.earlier.get(rank.rank, {})
        for start in {epoch, 0}:
            known = [one for one in range(4) if (start, one) in earlier and (0, one) in now]
            equal = {now[0, one] for one in known if now[0, one] == earlier[start, one]}
            if len(known) >= 3 and len(equal) == len(known) and taken > max(known):
                return True
    return False


def resumed(window: Window, checkpoint: Checkpoint | None) -> Resume | None:
    """What came back when the attempt resumed; None for the first one, and if unknown."""
    if not window.ranks:
        return None
    if checkpoint is not None and checkpoint.attempt == window.attempt:
        checkpoint = None  # not the one from which it resumed
    earlier, now, replays = window.earlier_course, window.course, _starts_over(window, checkpoint)
    return resume_of(earlier, now, window.ranks[0], checkpoint, replays)


STARVED_SHARE, STARVED_LEAST_S = 1 / 3, 0.005
"""Part of each step that all ranks wait for data, and at least in seconds."""
STARVED_STRETCHES = 14
BUSY_PERCENT = 80.0
"""A device with this utilization has enough to do, whatever the process waits for meanwhile."""


CPUS_BUSY_PERCENT = 90.0
"""More workers do not help where the ranks and their workers use so much of each CPU."""


def starved(window: Window) -> list[Finding]:
    """All ranks spend much of their time waiting for data."""
    shares, waits_s, workers, busy = [], [], set(), 0.0
    if any((rank.gpu_util_percent or 0.0) >= BUSY_PERCENT for rank in window.ranks):
        return []
    for rank in window.ranks:
        parts = [one for one in window.stretches[rank.rank] if not one.is_pause][-30:]
        known = [one for one in parts if one.step_time_s and one.data_wait_s is not None]
        if len(known) < STARVED_STRETCHES:
            return []
        steps = sum(one.steps for one in known)  # a stretch of one slow step counts as one
        step_s = sum(one.steps * (one.step_time_s or 0.0) for one in known) / steps
        wait_s = sum(one.steps * (one.data_wait_s or 0.0) for one in known) / steps
        # it loads by itself: while other processes have its CPU, it does not wait for data
        preempted_s = 0.0 if rank.loader_workers else typical(known, "cpu_wait_s") or 0.0
        if wait_s - preempted_s < max(STARVED_LEAST_S, STARVED_SHARE * step_s):
            return []
        shares.append(wait_s / step_s)
        waits_s.append(wait_s)
        workers.add(rank.loader_workers)
        busy += typical(known, "cpu_percent") or 0.0
    if not shares:
        return []
    who = "all ranks wait" if len(shares) > 1 else "the rank waits"
    share, wait_s = _mean(shares), _mean(waits_s)
    advice = "more DataLoader workers, or cheaper loading, would make it faster"
    if workers == {0}:
        advice = "the DataLoader has no workers (num_workers=0): start with 2 to 4 per rank"
    cpus = max((rank.resources and rank.resources.cpus) or 0 for rank in window.ranks)
    if cpus and busy >= CPUS_BUSY_PERCENT * cpus and len({rank.host for rank in window.ranks}) == 1:
        advice = f"its {cpus} CPUs are busy, so only cheaper loading would make it faster"
    seen = f"; {window.workers}" if window.workers else ""
    message = f"{who} for data {100 * share:.0f}% of the time: {advice}{seen}"
    evidence = {
        "share_percent": round(100 * share, 1),
        "data_wait_s": round(wait_s, 4),
        "loader_workers": next(iter(workers)) if len(workers) == 1 else None,
    }
    return [window.finding("starved", "warning", message, evidence)]


CONSTANT_SAMPLES, CONSTANT_STEPS = 20, 100


def constant_loss(window: Window) -> list[Finding]:
    """A loss that is the same to the last digit at each step since the attempt began."""
    constant: list[float] = []
    if window.is_late:
        return []
    for rank in window.ranks:
        samples = [one for one in window.samples[rank.rank] if one.loss_range is not None]
        if rank.rank in window.has_changed_loss or len(samples) < CONSTANT_SAMPLES:
            return []
        if (rank.step or 0) < CONSTANT_STEPS:
            return []
        constant.append(samples[-1].loss or 0.0)
    if not constant:
        return []
    loss, steps = constant[0], min(rank.step or 0 for rank in window.ranks)
    message = (
        f"the loss has been {loss:g} at each of {steps} steps: nothing is learned (are there "
        "several classes, and do gradients reach the parameters?)"
    )
    evidence = {"loss": loss, "steps": steps}
    return [window.finding("constant-loss", "warning", message, evidence)]


EXPLODED, EXPLOSION_SAMPLES = 100.0, 15
"""How far above the first losses, and over how many samples it must rise."""


def exploding_loss(window: Window) -> list[Finding]:
    """A loss that is far above that of the first steps, and rises on a rank."""
    high, rises = [], False
    for rank in window.ranks:
        first = window.first_losses.get(rank.rank, [])
        if rank.loss is None or not first or rank.loss <= EXPLODED * max(first):
            continue
        if window.is_late or rank.losses:  # of optimizers that take turns, as of a GAN
            continue
        known = [one.loss for one in window.samples[rank.rank] if one.loss_range is not None]
        recent = [loss for loss in known[-EXPLOSION_SAMPLES:] if loss is not None]
        if len(first) < FIRST_LOSSES or not recent or max(first) <= 0:
            continue
        third = EXPLOSION_SAMPLES // 3
        parts = [median(recent[i : i + third]) for i in range(0, len(recent), third)]
        if parts[-1] > EXPLODED * max(first):
            high.append((rank.rank, parts[-1], median(first)))
            is_known = len(recent) == EXPLOSION_SAMPLES
            rises = rises or (is_known and parts[0] < parts[1] < parts[2])
    if not rises:
        return []
    numbers = tuple(rank for rank, _, _ in high)
    _, now, first_loss = max(high, key=lambda one: one[1])
    message = (
        f"the loss on {name_ranks(numbers)} has risen from {first_loss:.4g} to {now:.4g}: the "
        "training diverges; lower the learning rate, or clip the gradients"
    )
    evidence = {"first_loss": first_loss, "loss": now}
    return [Finding("exploding-loss", "warning", message, numbers, hold_s=10.0, evidence=evidence)]


def find(window: Window, resume: Resume | None = None) -> list[Finding]:
    """All findings on the training, worst first.

    Args:
        window: the job's ranks.
        resume: what came back when the attempt resumed.
    """
    uneven, starving = slow.straggler(window) or slow.stalls(window), starved(window)
    if starving:  # one of them waits longest, which is no other mistake
        uneven = [one for one in uneven if "data_wait_s" not in one.evidence]
    return [
        *diverged(window.replicas, window.ranks),
        *exploding_loss(window),
        *(constant_loss(window) or not_learning(window)),
        *memory_growth(window),
        *lost_state(resume, window.ranks),
        *same_batches(window),
        *same_order(window),
        *uneven,
        *starving,
        *slow.slower_than_before(window),
        *uneven_shards(window),
        *data_replayed(resume, window.ranks),
        *overfitting(window),
        *ddp_advice(window),
    ]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
