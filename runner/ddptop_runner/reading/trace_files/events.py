"""Reads the scalars of a TensorBoard event file: records, and protobuf's wire format.

Pure, and safe for any bytes. Checksums are not verified: what follows a damaged record is lost.
Reads only what a scalar needs: `wall_time`, `step`, and `summary` of
an Event; and `tag`, `simple_value`, and `tensor` (written by TF2) of a value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

# wire types of protobuf
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

# field numbers: tensorflow/core/util/event.proto, framework/summary.proto, framework/tensor.proto
_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_DTYPE, _TENSOR_CONTENT, _TENSOR_FLOATS = 1, 4, 5
_DT_FLOAT = 1
MAX_VALUES = 4096
"""In one event."""

Value = int | bytes


class Event(NamedTuple):
    """The scalars of one event."""

    written_at_s: float | None
    """Unix seconds."""
    step: int
    scalars: list[tuple[str, float]]
    """(tag, value) in the order written."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, position after it); raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """(number, wire type, value) of each field, up to the first damaged one."""
    at, size = 0, len(data)
    while at < size:
        try:
            key, at = _varint(data, at)
            wire = key & 7
            if wire == _VARINT:
                value, at = _varint(data, at)
                yield key >> 3, wire, value
                continue
            length = 8 if wire == _FIXED64 else 4
            if wire == _BYTES:
                length, at = _varint(data, at)
        except IndexError:
            return
        if wire not in (_FIXED64, _BYTES, _FIXED32) or at + length > size:
            return
        yield key >> 3, wire, data[at : at + length]
        at += length


def read_event(data: bytes) -> Event | None:
    """The event in the data of a record; None without a scalar."""
    if b"oss" not in data and b"OSS" not in data and b"epoch" not in data:
        return None  # nothing of interest, like most events of a busy file
    written_at_s, step = None, 0
    scalars: list[tuple[str, float]] = []
    for number, wire, value in _fields(data):
        if isinstance(value, int):
            if number == _EVENT_STEP:
                step = value if value < 1 << 63 else value - (1 << 64)
        elif number == _EVENT_WALL_TIME and wire == _FIXED64:
            written_at_s = _DOUBLE.unpack(value)[0]
        elif number == _EVENT_SUMMARY and wire == _BYTES:
            for inner, inner_wire, content in _fields(value):
                if inner == _SUMMARY_VALUE and inner_wire == _BYTES and isinstance(content, bytes):
                    scalar = _scalar(content)
                    if scalar is not None and len(scalars) < MAX_VALUES:
                        scalars.append(scalar)
    return Event(written_at_s, step, scalars) if scalars else None


def _scalar(data: bytes) -> tuple[str, float] | None:
    tag = number = None
    for field, wire, value in _fields(data):
        if isinstance(value, int):
            continue
        if field == _VALUE_TAG and wire == _BYTES:
            tag = value.decode("utf-8", "replace")
        elif field == _VALUE_SIMPLE and wire == _FIXED32:
            number = _FLOAT.unpack(value)[0]
        elif field == _VALUE_TENSOR and wire == _BYTES:
            number = _of_tensor(value)
    return None if tag is None or number is None else (tag, number)


def _of_tensor(data: bytes) -> float | None:
    """The number in a tensor of one float, which is what TF2 makes of each scalar."""
    known = {number: value for number, _, value in _fields(data)}
    value = known.get(_TENSOR_FLOATS, known.get(_TENSOR_CONTENT))
    if known.get(_TENSOR_DTYPE) != _DT_FLOAT or not isinstance(value, bytes) or len(value) != 4:
        return None
    return float(_FLOAT.unpack(value)[0])


MAX_RECORD_BYTES = 1 << 20
"""Longer records, which contain images or audio, are skipped and not kept in memory."""
HEADER_BYTES = 12
_FOOTER_BYTES = 4
_LENGTH = struct.Struct("<Q")


class RecordReader:
    """Parses the records of one stream, fed in pieces of any size. Memory is bounded."""

    def __init__(self) -> None:
        self._rest = b""
        self._to_skip = 0

    @property
    def to_skip(self) -> int:
        """Bytes ahead that need not be fed; report with `skipped` that they were left out."""
        return self._to_skip

    def skipped(self, count: int) -> None:
        """`count` bytes, at most `to_skip`, were left out."""
        self._to_skip -= count

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes; returns the data of the records that they complete."""
        passed = min(self._to_skip, len(data))
        self._to_skip -= passed
        data = self._rest + data[passed:]
        records = []
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            end = at + HEADER_BYTES + length + _FOOTER_BYTES
            if length > MAX_RECORD_BYTES:
                self._to_skip = max(0, end - size)
            elif end > size:
                break
            else:
                records.append(data[at + HEADER_BYTES : end - _FOOTER_BYTES])
            at = min(end, size)
        self._rest = data[at:]
        return records
