"""What the probe notes of the batches that a process trains on."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest

from ddptop_runner.probe.ledger import MAX_HASHES, Ledger

pytestmark = pytest.mark.torch


class Record:
    backwards = 0


def ledger_of(torch: Any) -> Ledger:
    return Ledger(torch, Record())


def train(ledger: Ledger, loader: Any, *, skips: int = 0) -> None:
    """One pass over the data, as the patched loader sees it, without training on the first."""
    batches = iter(loader)
    while True:
        try:
            batch = batches._next_data()
        except StopIteration:
            return
        ledger.took(batches, batch)
        batches._num_yielded += 1
        ledger._record.backwards += batches._num_yielded > skips


def loader_of(torch: Any, data: Any, *, batch_size: int = 4, **more: Any) -> Any:
    return torch.utils.data.DataLoader(data, batch_size=batch_size, **more)


def test_a_pass_is_hashed_at_its_first_positions_and_at_powers_of_two() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(80, 3), torch.arange(80))
    ledger = ledger_of(torch)
    train(ledger, loader_of(torch, data))
    first = {(epoch, position): crc for epoch, position, crc in ledger.hashes}
    assert list(first) == [(0, n) for n in (0, 1, 2, 3, 4, 8, 16)]
    assert len(set(first.values())) == 7
    assert ledger.position == [0, 20]
    assert ledger.loader_workers == 0
    train(ledger, loader_of(torch, data))
    assert len(ledger.hashes) == MAX_HASHES
    second = {position: crc for epoch, position, crc in ledger.hashes if epoch == 1}
    assert second == {position: first[0, position] for position in second}


def test_batches_that_a_resumed_script_skips_do_not_count() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(80, 3))
    ledger = ledger_of(torch)
    train(ledger, loader_of(torch, data), skips=5)
    assert [position for _, position, _ in ledger.hashes] == [8, 16]
    assert ledger.position == [0, 20]


def test_other_data_than_the_first_is_left_out() -> None:
    torch = pytest.importorskip("torch")
    ledger, data, other = (
        ledger_of(torch),
        [torch.ones(2) * n for n in range(8)],
        [torch.zeros(2)] * 8,
    )
    train(ledger, loader_of(torch, data))
    train(ledger, loader_of(torch, other))
    assert [entry[:2] for entry in ledger.hashes] == [[0, 0], [0, 1]]
    assert ledger.position == [0, 2]


def test_only_a_sampler_that_has_to_be_told_shows_its_epoch() -> None:
    torch = pytest.importorskip("torch")
    data = list(range(8))
    for shuffle, told in ((True, 3), (False, None)):
        sampler = torch.utils.data.DistributedSampler(data, 2, 0, shuffle=shuffle)
        sampler.set_epoch(3)
        ledger = ledger_of(torch)
        train(ledger, loader_of(torch, data, sampler=sampler))
        assert ledger.sampler_epoch == told
    ledger = ledger_of(torch)
    train(ledger, loader_of(torch, data, shuffle=True))
    assert ledger.sampler_epoch is None


@pytest.mark.parametrize(
    ("batch", "is_known"),
    [
        (lambda t: t.ones(3), True),
        (lambda t: {"id": 1, "pixels": t.ones(3)}, True),
        (lambda t: UserDict(input_ids=t.ones(3, dtype=t.long)), True),
        (lambda t: ("a.png", [t.ones(3)]), True),
        (lambda t: t.ones(4, 4).T[1:], False),  # not contiguous
        (lambda t: t.ones(3, device="meta"), False),
        (lambda t: t.eye(3).to_sparse(), False),
        (lambda t: t.ones(0), False),
        (lambda t: "text", False),
        (lambda t: [1] * 100_000, False),
        (lambda t: None, False),
    ],
)
def test_batches_of_many_kinds(batch: Any, is_known: bool) -> None:
    torch = pytest.importorskip("torch")
    ledger = ledger_of(torch)
    batches = iter(loader_of(torch, [0]))
    ledger.took(batches, batch(torch))
    ledger._record.backwards += 1
    ledger.took(batches, None)
    assert bool(ledger.hashes) == is_known
    assert ledger.position is not None
