"""Advice on DistributedDataParallel, and trainings that learn nothing or only their data."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from random import Random

import pytest

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.judge.training.findings import find
from ddptop_runner.judge.training.window import Window
from ddptop_runner.model.snapshot import DdpUse, GpuSample, NodeSnapshot, RankSample

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
USE = {
    "iteration": 200, "syncs_per_step": 1.0, "comm_s": 0.03, "hidden_s": 0.02,
    "finds_unused": False, "unused_bytes": 0, "is_static": True,
}  # fmt: skip

COPIES = {"gpu": 0, "input_s": 0.025, "unpinned_bytes": 80_000_000}


def found(*seconds: dict[str, object], ranks: Sequence[dict[str, object]] = ({}, {})) -> list:
    """The findings after a sample of all ranks a second, 10 steps a second."""
    window = Window(lambda: None)
    findings: list[Finding] = []
    for second, figures in enumerate(seconds, 50):
        snapshot = NodeSnapshot(
            job="j", job_id="j@1", host="h", seq=second, ts=NOON, started_at=NOON,
            state="running", attempt=0, gpus=[GpuSample(index=0), GpuSample(index=1)],
            ranks=[
                RankSample(
                    rank=n, local_rank=n, host="h", pid=n + 1, state="running",
                    **{"step": 10 * second, "step_time_s": 0.1, "loss_parts": 1, **figures, **own},
                )
                for n, own in enumerate(ranks)
            ],
        )  # fmt: skip
        window.update(snapshot, float(second))
        findings = find(window, None)
    return findings


def uses(*ranks: dict[str, object], **figures: object) -> list[Finding]:
    """The findings where the ranks use DDP so, each with figures of its own."""
    own = ranks or ({}, {})
    return found(figures, ranks=[{"ddp": DdpUse(**{**USE, **one})} for one in own])


@pytest.mark.parametrize(
    ("use", "figures", "words"),
    [
        ({"finds_unused": True}, {}, "used in each of 200 iterations"),
        (
            {"finds_unused": True, "unused_bytes": 1 << 20},
            {},
            "the same 1 MiB of parameters are unused",
        ),
        (
            {"syncs_per_step": 3.96},
            {"loss_parts": 4},
            "4 backward passes, and each has an all-reduce: to accumulate gradients, run all but "
            "the last in model.no_sync(), which saves about 30% of the time",
        ),
        (
            {"comm_s": 0.04, "hidden_s": 0.01},
            {"gpu": 0},
            "all-reduces take 30% of each step beyond the backward pass, which hides 25% of them",
        ),
        (
            {},
            COPIES,
            "up to 25% of each step goes into copies of batches to the device, before the forward "
            "pass: pin_memory=True in the DataLoader and non_blocking=True in .to()",
        ),
        ({"tf32_off": True}, {"gpu": 0}, 'torch.set_float32_matmul_precision("high")'),
    ],
)
def test_advice_on_ddp(use, figures, words):
    [finding] = uses(use, use, **figures)
    assert (finding.id, finding.severity, finding.ranks) == ("ddp-advice", "info", (0, 1))
    assert words in finding.message
    assert {"exposed_s", "input_s", "syncs_per_step", "unused_bytes"} == finding.evidence.keys()


@pytest.mark.parametrize(
    ("use", "other", "figures"),
    [
        ({}, {}, {}),
        ({"comm_s": 0.04, "hidden_s": 0.03}, None, {"gpu": 0}),
        ({"comm_s": 0.04, "hidden_s": 0.01}, None, {}),  # gloo is that slow
        ({"comm_s": 0.04}, {"comm_s": 0.025}, {"gpu": 0}),  # it waits for the other rank
        ({"finds_unused": True, "iteration": 10}, None, {}),
        ({"finds_unused": True, "is_static": False}, None, {}),  # some iterations skip layers
        ({"finds_unused": True}, {"finds_unused": True, "unused_bytes": 80}, {}),
        ({"finds_unused": True}, {}, {}),
        ({"syncs_per_step": 1.0}, None, {"loss_parts": 4}),  # with no_sync
        ({"syncs_per_step": 4.0}, None, {"loss_parts": None}),  # a closure, or unknown
        ({"syncs_per_step": 2.0}, None, {"loss_parts": 2, "losses": {"SGD 1": 1.0}}),  # a GAN
        ({"tf32_off": True}, {}, {"gpu": 0}),
        ({"tf32_off": True}, None, {}),
        ({}, None, {**COPIES, "gpu": None}),
        ({}, None, {**COPIES, "input_s": 0.019}),
        ({}, None, {**COPIES, "input_s": None}),
        ({}, None, {**COPIES, "unpinned_bytes": None}),  # pinned, on a device, or unknown
        ({}, None, {**COPIES, "unpinned_bytes": 70_000_000}),  # augmentation on the device
    ],
)
def test_advice_needs_a_reason(use, other, figures):
    assert uses(use, use if other is None else other, **figures) == []


def test_the_measured_advice_comes_first_without_the_wait_for_other_ranks():
    use = {"finds_unused": True, "syncs_per_step": 2.0}
    [finding] = uses({**use, "comm_s": 0.09}, {**use, "comm_s": 0.022}, loss_parts=2)
    first, second = finding.message.split("; ")
    assert first.endswith("in model.no_sync()") and "find_unused" in second


@pytest.mark.parametrize(
    ("reason", "severity", "words"),
    [
        ("no_gradients", "warning", "in 500 steps"),
        ("zero_gradients", "info", "exactly 0"),
    ],
)
def test_a_training_that_learns_nothing(reason, severity, words):
    [finding] = found({"not_learning": reason})
    assert (finding.id, finding.severity) == ("not-learning", severity)
    assert words in finding.message and finding.evidence == {"steps": 500}
    assert found({"not_learning": reason, "step": 200}) == []
    assert found({}, ranks=({"not_learning": reason}, {})) == []


FALLING = [2.0 / (1 + n) for n in range(60)]
DROP = [2.0, 1.5, 1.2, 1.1, 1.0]
RISE = [1.0 + 0.01 * n + 0.008 * (n % 3) for n in range(1, 36)]
OVERFITS = [*DROP, *RISE]


def evaluated(
    losses: Sequence[float], training: Sequence[float] = FALLING, name: str = "val_loss"
) -> list[Finding]:
    """The findings after evaluations on rank 0, one each two seconds."""
    seconds = [
        {
            "loss": training[second // 2], "loss_state": "ok",
            "metrics": {name: losses[second // 2]},
            "metric_reports": {name: 1 + second // 2},
        }
        for second in range(2 * len(losses))
    ]  # fmt: skip
    return found(*seconds)


def test_a_validation_loss_that_rises_while_the_training_loss_falls():
    [finding] = evaluated(OVERFITS, name="Loss/validation")
    assert (finding.id, finding.severity) == ("overfitting", "info")
    assert finding.message.startswith("the Loss/validation has risen from 1.018 to 1.348 since ")
    assert finding.evidence == pytest.approx({"best": 1.018, "now": 1.348, "best_step": 580})


@pytest.mark.parametrize(
    ("losses", "training", "name"),
    [
        (OVERFITS, FALLING, "value_loss"),
        (OVERFITS, FALLING, "val_accuracy"),
        (OVERFITS, FALLING[::-1], "val_loss"),  # both rise
        (OVERFITS[:-8], FALLING, "val_loss"),  # for too few evaluations
        (
            [2.0 - 0.02 * n for n in range(45)] + OVERFITS[4:],
            [2.0 / (1 + n) for n in range(90)],
            "val_loss",
        ),  # it fell as long
        ([*OVERFITS, 1.3, 1.2, 1.1, 1.1, 1.1, 1.1], FALLING, "val_loss"),  # it falls again
        ([*DROP, *(0.75 + loss / 4 for loss in RISE)], FALLING, "val_loss"),  # by little
        ([*DROP, *(1.3 if n > 3 else 1.1 for n in range(36))], FALLING, "val_loss"),  # in one jump
        ([*(2.0, 1.5, 1.5, 1.8, 1.8, 1.8), *OVERFITS[4:]], FALLING, "val_loss"),  # as before
    ],
)
def test_other_validation_losses(losses, training, name):
    assert evaluated(losses, training, name) == []


@pytest.mark.parametrize("inertia", [0.0, 0.8])
def test_a_validation_loss_that_wanders_is_hardly_ever_named(inertia):
    """Random walks, the second with increments that follow each other: 0 % and 1 % of many."""
    random, named = Random(1), 0
    for _ in range(40):
        losses, step = [3.0], 0.0
        for n in range(59):
            step = inertia * step + random.gauss(0.0, 0.02)
            losses.append(losses[-1] * math.exp(step - 0.5 / (1 + n)))
        named += bool(evaluated(losses))
    assert named <= 1


def test_batches_of_one_evaluation_are_one_value():
    seconds = [
        {
            "step": 100, "loss": FALLING[n], "loss_state": "ok",
            "metrics": {"val_loss": loss}, "metric_reports": {"val_loss": n + 1},
        }
        for n, loss in enumerate(OVERFITS)
    ]  # fmt: skip
    assert found(*seconds) == []
