"""Reading a device's scalar: a stand-in for CUDA whose copies arrive when the test says so."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator

import pytest

from ddptop_runner.probe.losses import NOT_ARRIVED, DeviceScalar


class Memory:
    """Pinned memory of one double."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.cell = ctypes.c_double(0.0)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.cell)

    def copy_(self, scalar: Scalar, non_blocking: bool) -> None:
        assert non_blocking, "the training would wait for the device"
        assert self.cell.value == NOT_ARRIVED
        self.device.under_way.append((self, scalar.value))


class Scalar:
    """A tensor of one element whose value only the device knows."""

    def __init__(self, value: float) -> None:
        self.value = value

    def to(self, dtype: str) -> Scalar:
        assert dtype == "float64"
        return self

    def reshape(self, shape: tuple[int, ...]) -> Scalar:
        return self

    def __add__(self, other: Scalar) -> Scalar:
        return Scalar(self.value + other.value)

    def __truediv__(self, number: int) -> Scalar:
        return Scalar(self.value / number)

    def item(self) -> float:
        raise AssertionError("reading waits for the device")


class Device:
    """As much of torch as the reader uses."""

    float64 = "float64"

    def __init__(self) -> None:
        self.under_way: list[tuple[Memory, float]] = []
        self.capturing = False
        self.modes = 0
        self._C = self
        self.cuda = self

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def _len_torch_dispatch_stack(self) -> int:
        return self.modes

    @contextlib.contextmanager
    def no_grad(self) -> Iterator[None]:
        yield

    DisableTorchFunction = no_grad

    def zeros(self, shape: tuple[()], dtype: str, device: str, pin_memory: bool) -> Memory:
        assert pin_memory and device == "cpu"
        return Memory(self)

    def arrive(self) -> None:
        for memory, value in self.under_way:
            memory.cell.value = value
        self.under_way.clear()


class Reader:
    def __init__(self) -> None:
        self.device = Device()
        self.read: list[tuple[float, int]] = []
        self.scalar = DeviceScalar(self.device)

    def offer(self, value: float, step: int) -> None:
        self.scalar.offer([Scalar(value)], False, lambda read: self.read.append((read, step)))


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_a_value_is_read_once_it_has_arrived(reader):
    reader.offer(0.25, 7)
    assert not reader.scalar.harvest() and reader.read == []
    reader.device.arrive()
    assert reader.scalar.harvest() and reader.read == [(0.25, 7)]
    assert not reader.scalar.harvest()


def test_at_most_one_copy_is_under_way_and_the_newest_comes_next(reader):
    for step in range(1, 6):
        reader.offer(float(step), step)
    assert len(reader.device.under_way) == 1
    reader.device.arrive()
    reader.scalar.harvest()
    reader.offer(6.0, 6)
    reader.device.arrive()
    reader.scalar.harvest()
    assert reader.read == [(1.0, 1), (6.0, 6)]


@pytest.mark.parametrize("obstacle", ["capturing", "modes"])
def test_nothing_happens_during_a_graph_capture_or_under_the_scripts_modes(reader, obstacle):
    setattr(reader.device, obstacle, 1)
    reader.offer(1.0, 1)
    assert reader.device.under_way == [] and not reader.scalar.harvest()
    setattr(reader.device, obstacle, 0)
    reader.offer(2.0, 2)
    assert len(reader.device.under_way) == 1


def test_the_last_value_is_fetched_at_the_end(reader):
    reader.offer(1.0, 1)
    reader.offer(2.0, 2)
    memory_copy = Memory.copy_

    def arrives_at_once(self: Memory, scalar: Scalar, non_blocking: bool) -> None:
        memory_copy(self, scalar, non_blocking)
        self.device.arrive()

    Memory.copy_ = arrives_at_once  # type: ignore[method-assign]
    try:
        reader.device.arrive()
        reader.scalar.drain(time.monotonic() + 5)
    finally:
        Memory.copy_ = memory_copy  # type: ignore[method-assign]
    assert reader.read == [(1.0, 1), (2.0, 2)]
