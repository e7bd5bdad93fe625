"""The NVML calls that pynvml makes twice or short of memory, and the count of all calls.

pynvml asks for a list's length and then for the list. Each call takes a lock of the driver that the
training takes as well, so here buffers are kept and one call does. NVML can also touch one entry
past the field values that it was given, so one more is allocated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from ddptop_runner.devices.words import Why, why_not

_FIRST_ROOM = 32
_MOST_ROOM = 1 << 16


class Tally:
    """Counts the calls of this process into the driver."""

    def __init__(self) -> None:
        self.calls = 0


tally = Tally()


def counted(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function of pynvml answers, which makes one call into the driver.

    Raises:
        pynvml.NVMLError: when the driver does not answer.
    """
    tally.calls += 1
    return function(*arguments)


class _ProcessV1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("mem", ctypes.c_ulonglong)]


class _ProcessV2(ctypes.Structure):
    """Also the layout of version 3."""

    _fields_ = [*_ProcessV1._fields_, ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]


class _Sample(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("at_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("mem", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    ]


class _Value(ctypes.Union):
    _fields_ = [
        ("double", ctypes.c_double),
        ("uint", ctypes.c_uint),
        ("ulonglong", ctypes.c_ulonglong),
        ("longlong", ctypes.c_longlong),
    ]


class _FieldValue(ctypes.Structure):
    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("at_us", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", _Value),
    ]


_VALUE_MEMBERS = {0: "double", 1: "uint", 2: "ulonglong", 3: "ulonglong", 4: "longlong"}
"""Member of the union by nvmlValueType_t."""

_LAYOUTS: dict[str, type[ctypes.Structure]] = {
    "nvmlDeviceGetComputeRunningProcesses_v3": _ProcessV2,
    "nvmlDeviceGetComputeRunningProcesses_v2": _ProcessV2,
    "nvmlDeviceGetComputeRunningProcesses": _ProcessV1,
}
_MEMORY_UNKNOWN = 2**64 - 1

_buffers: dict[type[ctypes.Structure], Any] = {}


def compute_processes(handle: Any, function: str) -> list[tuple[int, int | None]]:
    """(pid, memory in bytes or None) of each compute process, by that version of the function.

    Raises:
        pynvml.NVMLError: when the driver does not answer.
    """

    def ask(count: Any, room: Any) -> int:
        return int(_function(function)(handle, count, room))

    processes = _listed(_LAYOUTS[function], ask)
    return [(p.pid, None if p.mem == _MEMORY_UNKNOWN else int(p.mem)) for p in processes]


def process_samples(handle: Any, since_us: int) -> list[tuple[int, int, int]]:
    """(pid, time in µs of the wall clock, SM share in percent) of each sample since then.

    Raises:
        pynvml.NVMLError: when the driver does not answer.
    """

    def ask(count: Any, room: Any) -> int:
        function = _function("nvmlDeviceGetProcessUtilization")
        return int(function(handle, room, count, ctypes.c_ulonglong(since_us)))

    try:
        samples = _listed(_Sample, ask)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # no process ran, which is no error
            return []
        raise
    return [(sample.pid, int(sample.at_us), sample.sm) for sample in samples]


def field_values(handle: Any, fields: Sequence[tuple[int, int]]) -> list[float | Why]:
    """Values of (field, scope), each a number or why there is none.

    Raises:
        pynvml.NVMLError: when the driver does not answer at all.
    """
    values = (_FieldValue * (len(fields) + 1))()
    for value, (field, scope) in zip(values, fields):  # noqa: B905 - one value is spare
        value.field, value.scope = field, scope
    tally.calls += 1
    _check(_function("nvmlDeviceGetFieldValues")(handle, ctypes.c_int(len(fields)), values))
    return [_number(value) for value in values[: len(fields)]]


def _number(value: _FieldValue) -> float | Why:
    if value.status != pynvml.NVML_SUCCESS:
        return why_not(value.status)
    member = _VALUE_MEMBERS.get(value.kind)
    return why_not(pynvml.NVML_ERROR_UNKNOWN) if member is None else getattr(value.value, member)


def _listed(layout: type[ctypes.Structure], ask: Any) -> list[Any]:
    """What `ask(count, buffer)` lists, asked again only where the buffer was too small."""
    while True:
        buffer = _buffers.get(layout)
        if buffer is None:
            buffer = _buffers[layout] = (layout * _FIRST_ROOM)()
        count = ctypes.c_uint(len(buffer))
        tally.calls += 1
        status = ask(ctypes.byref(count), buffer)
        room = max(count.value, len(buffer)) * 2
        if status == pynvml.NVML_ERROR_INSUFFICIENT_SIZE and room <= _MOST_ROOM:
            _buffers[layout] = (layout * room)()
            continue
        _check(status)
        return buffer[: min(count.value, len(buffer))]


def _function(name: str) -> Any:
    return pynvml._nvmlGetFunctionPointer(name)


def _check(status: int) -> None:
    if status != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(status)
