"""No recorded healthy training gets a warning, and each recorded mistake is named.

`benchmarks/healthy/record.py` records them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.traces import Replay, names, read, snapshot_of

SICK = {
    "sick-same-batches": ("same-batches", (0, 1)),
    "sick-starved": ("starved", (0, 1)),
    "sick-straggler": ("straggler", (1,)),
    "sick-preempted": ("straggler", (1,)),
    "sick-stalls": ("stalls", (1,)),
    "sick-exploding-loss": ("exploding-loss", (0, 1)),
    "sick-leak": ("memory-growth", (0, 1)),
}
"""By trace, the id and the ranks of the finding."""
SAME_S = 5.0
"""A replay finds it at about the same time as the supervisor did."""

DESERVED_INFO = {
    ("accumulation", "ddp-advice"): "it accumulates gradients without no_sync",
    ("trainer-evaluating", "ddp-advice"): "transformers searches for unused parameters by default",
}
"""By trace and id, why a healthy training is still worth a word."""


@pytest.mark.parametrize("name", [name for name in names() if name not in SICK])
def test_a_healthy_training_is_silent(name: str) -> None:
    replay = Replay(read(name))
    raised = {
        id_: f"after {after_s} s: {alert.severity}: {alert.message}"
        for id_, (after_s, alert) in replay.raised.items()
        if alert.severity != "info" or (Path(name).name, id_) not in DESERVED_INFO
    }
    assert (raised, replay.amber) == ({}, [])


def test_there_are_many_kinds_of_healthy_trainings() -> None:
    assert len({*names()} - {*SICK}) >= 60


def test_lengths_of_epochs_are_known_where_they_were_recorded() -> None:
    for name in names():
        if Path(name).parent.name == "first-epoch":
            snapshots = map(snapshot_of, read(name).rows)
            assert any(all(rank.epoch_batches for rank in one.ranks) for one in snapshots), name


@pytest.mark.parametrize("name", SICK)
def test_a_mistake_is_named_as_when_it_ran(name: str) -> None:
    id_, ranks = SICK[name]
    trace = read(name)
    raised = Replay(trace).raised
    assert set(raised) == {id_}
    after_s, alert = raised[id_]
    assert tuple(alert.ranks) == ranks
    assert after_s == pytest.approx(trace.told[id_], abs=SAME_S)
