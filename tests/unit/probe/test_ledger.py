"""What the probe notes of the batches that a process trains on."""

from __future__ import annotations

import sys
from collections import UserDict
from typing import Any

import pytest

from ddptop_runner.probe.hooks import Hooks
from ddptop_runner.probe.ledger import FIRST_POSITIONS, MAX_HASHES, Ledger

pytestmark = pytest.mark.torch


class Record:
    backwards = batch_elements = count_mask = 0


def ledger_of(torch: Any) -> Ledger:
    return Ledger(torch, Record())


def train(ledger: Ledger, loader: Any, *, skips: int = 0) -> None:
    """One pass over the data, as the patched loader sees it, without training on the first."""
    batches = iter(loader)
    while True:
        try:
            batch = batches._next_data()
        except StopIteration:
            ledger.finished(batches)
            return
        position = batches._num_yielded
        if position < FIRST_POSITIONS or not position & (position - 1):
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
    assert ledger.position() == [1, 0]
    assert ledger.loader_workers == 0
    train(ledger, loader_of(torch, data))
    assert len(ledger.hashes) == MAX_HASHES
    second = {position: crc for epoch, position, crc in ledger.hashes if epoch == 1}
    assert second == {position: first[0, position] for position in second}


def test_the_size_of_a_batch_tells_of_copies_unless_the_loader_pins_memory() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(80, 3), torch.arange(80))
    ledger, batches = ledger_of(torch), iter(loader_of(torch, data))
    batch = batches._next_data()
    ledger.took(batches, batch)
    assert ledger.unpinned_bytes == 4 * (3 * 4 + 8)
    batches._pin_memory = True
    ledger.took(batches, batch)
    assert ledger.unpinned_bytes is None
    batches._pin_memory = False
    ledger.took(batches, [one.to("meta") for one in batch])
    assert ledger.unpinned_bytes is None, "nothing is copied"


def test_batches_that_a_resumed_script_skips_do_not_count() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.randn(80, 3))
    ledger = ledger_of(torch)
    train(ledger, loader_of(torch, data), skips=5)
    assert [position for _, position, _ in ledger.hashes] == [8, 16]
    assert ledger.position() == [1, 0]


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
    assert ledger.position() == [1, 0]


def test_an_epoch_that_set_epoch_did_not_change_is_noted() -> None:
    torch = pytest.importorskip("torch")
    data = list(range(8))
    sampler = torch.utils.data.DistributedSampler(data, 2, 0)
    ledger, loader = ledger_of(torch), loader_of(torch, data, sampler=sampler)
    sampler.set_epoch(3)
    train(ledger, loader)
    assert ledger.repeated_epoch is None
    train(ledger, loader)
    assert ledger.repeated_epoch == 3
    sampler.set_epoch(4)
    train(ledger, loader)
    assert ledger.repeated_epoch is None


@pytest.mark.parametrize("epoch", [None, "0", 0.5, -1, True])
def test_only_a_whole_epoch_of_a_shuffling_sampler_counts(epoch: object) -> None:
    torch = pytest.importorskip("torch")
    data, ledger = list(range(8)), ledger_of(torch)
    sampler = torch.utils.data.DistributedSampler(data, 2, 0, shuffle=epoch is not None)
    sampler.epoch = 0 if epoch is None else epoch
    sampler.__class__ = type("Own", (torch.utils.data.Sampler,), {
        "set_epoch": lambda self, epoch: None, "__iter__": lambda self: iter(range(8)),
        "__len__": lambda self: 8,
    })  # fmt: skip
    for _ in range(2):
        train(ledger, loader_of(torch, data, sampler=sampler))
    assert ledger.repeated_epoch is None


def sampler_of(torch: Any, kind: str, count: int) -> Any:
    data = torch.utils.data
    return {
        "own": lambda: type("Own", (data.SequentialSampler,), {})(range(count)),
        "random": lambda: data.RandomSampler(range(count)),
        "weighted": lambda: data.WeightedRandomSampler([1.0] * count, count),
        "distributed": lambda: data.DistributedSampler(range(2 * count), 2, 0),
    }[kind]()


@pytest.mark.parametrize(
    ("sampler", "more", "batches"),
    [
        ("random", {}, 3),
        ("random", {"batch_size": 5}, 2),
        ("random", {"drop_last": True}, 2),
        ("random", {"batch_size": None}, 10),
        ("weighted", {}, 3),
        ("distributed", {}, 3),
        ("own", {}, None),  # it may be slow, or have side effects
    ],
)
def test_the_first_pass_with_training_has_so_many_batches(
    sampler: str, more: dict[str, Any], batches: int | None
) -> None:
    torch = pytest.importorskip("torch")
    ledger = ledger_of(torch)
    more = {"sampler": sampler_of(torch, sampler, 10), **more}
    loader = loader_of(torch, [torch.ones(2)] * 20, **more)
    train(ledger, loader, skips=100)  # a pass without training proves nothing
    train(ledger, loader)
    assert (ledger.epoch_batches, ledger.batch_size) == (batches, more.get("batch_size", 4))
    train(ledger, loader)
    assert ledger.epoch_batches is None, "a second pass shows that nothing came of it"


def test_the_length_of_a_pass_is_unknown_if_the_script_decides() -> None:
    torch = pytest.importorskip("torch")

    class Once(list[Any]):
        calls = 0

        def __len__(self) -> int:
            self.calls += 1
            if self.calls > 1:  # at the start of the pass
                raise RuntimeError("not now")
            return 10

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(10))

    for data in (Once([0] * 10), Stream()):
        ledger = ledger_of(torch)
        train(ledger, loader_of(torch, data))
        assert (ledger.epoch_batches, ledger.position()) == (None, [1, 0])


def test_a_pass_without_end_has_no_length() -> None:
    torch = pytest.importorskip("torch")
    sampler = torch.utils.data.RandomSampler(range(8), replacement=True, num_samples=sys.maxsize)
    ledger, batches = ledger_of(torch), iter(loader_of(torch, list(range(8)), sampler=sampler))
    ledger.took(batches, [])
    assert ledger.epoch_batches is None, "a datagram with more than 2**53 is refused"


def test_uneven_passes_are_meant_within_join_and_beside_other_data() -> None:
    torch = pytest.importorskip("torch")
    loader = loader_of(torch, [torch.ones(2)] * 10)
    joined = ledger_of(torch)
    joined.is_joined = lambda: True
    train(joined, loader)
    assert joined.epoch_batches is None
    turns, batches = ledger_of(torch), [iter(loader), iter(loader)]
    for one in batches:
        turns.took(one, [])
    assert turns.epoch_batches is None
    zipped, shorter = ledger_of(torch), iter(loader_of(torch, [torch.ones(3)] * 8))
    zipped.took(iter(loader), [])
    zipped.took(shorter, [])
    assert zipped.epoch_batches is None


class Forbidden:
    """A batch that nothing but the script may touch."""

    def __init__(self, torch: Any) -> None:
        self.tensor = torch.ones(3)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def resized(torch: Any) -> Any:
    tensor = torch.ones(300)
    tensor.untyped_storage().resize_(8)
    return tensor


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
        (lambda t: Forbidden(t), False),
        (lambda t: resized(t), False),
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
    assert ledger.position() is not None


@pytest.mark.parametrize("shape", ["tuple", "dict", "UserDict", "nested", "none"])
def test_the_elements_of_the_first_tensor_are_counted(shape: str) -> None:
    torch = pytest.importorskip("torch")
    first, second = torch.zeros(4, 6), torch.zeros(4)
    batch = {
        "tuple": (first, second), "dict": {"ids": first, "labels": second},
        "UserDict": UserDict(ids=first), "nested": [{"x": (first,)}, second], "none": ("text", 3),
    }[shape]  # fmt: skip
    ledger = ledger_of(torch)
    ledger._record = Record()
    ledger.count(batch)
    ledger.count(batch)
    assert ledger._record.batch_elements == (0 if shape == "none" else 48)


@pytest.mark.parametrize("mask", [0, 7])
def test_of_many_short_steps_a_sample_of_the_batches_is_counted(hooks: Hooks, mask: int) -> None:
    torch = pytest.importorskip("torch")
    hooks.record.count_mask = mask
    data = torch.utils.data.TensorDataset(torch.zeros(64, 3))
    counted = [hooks.record.batch_elements for _ in loader_of(torch, data)]
    assert counted[-1] == 64 * 3
    assert len(set(counted)) == 16 // (mask + 1)
