"""Reads the scalars of a TensorBoard event file: records, checksums, and protobuf's wire format.

Pure, and safe for any bytes. Reads only what a scalar needs: `wall_time`, `step`, and `summary` of
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
_TENSOR_DTYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = 1, 2, 4
_SHAPE_DIM, _DIM_SIZE = 2, 1
_TENSOR_VALUES = {5: ("<f", _FIXED32), 6: ("<d", _FIXED64)}  # float_val, double_val
_CONTENT = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}  # DT_FLOAT, DOUBLE, INT32, INT64, HALF
_BFLOAT16 = 14
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
    """The number in a tensor of one element."""
    dtype, content, number = 0, None, None
    for field, wire, value in _fields(data):
        if isinstance(value, int):
            if field == _TENSOR_DTYPE:
                dtype = value
        elif field == _TENSOR_SHAPE and wire == _BYTES and not _is_one_element(value):
            return None
        elif field == _TENSOR_CONTENT and wire == _BYTES:
            content = value
        elif field in _TENSOR_VALUES:
            layout, single = _TENSOR_VALUES[field]
            if wire == single or (wire == _BYTES and len(value) == struct.calcsize(layout)):
                number = struct.unpack(layout, value)[0]
    if number is None and content is not None:
        if dtype == _BFLOAT16 and len(content) == 2:
            number = _FLOAT.unpack(b"\0\0" + content)[0]
        elif dtype in _CONTENT and len(content) == struct.calcsize(_CONTENT[dtype]):
            number = struct.unpack(_CONTENT[dtype], content)[0]
    return None if number is None else float(number)


def _is_one_element(shape: bytes) -> bool:
    for field, _, dim in _fields(shape):
        if field == _SHAPE_DIM and isinstance(dim, bytes):
            sizes = [size for number, _, size in _fields(dim) if number == _DIM_SIZE]
            if sizes != [1]:
                return False
    return True


_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def _table() -> tuple[int, ...]:
    values = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        values.append(value)
    return tuple(values)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of `data`, at about 10 MB/s."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum as stored: rotated and offset, since data may itself contain checksums."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


MAX_RECORD_BYTES = 1 << 20
"""Longer records, which contain images or audio, are skipped and not kept in memory."""
MAX_CHECKED_BYTES = 1 << 16
"""The checksum of longer data is not verified, since that would take too long."""
HEADER_BYTES = 12
_FOOTER_BYTES = 4
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MAX_KNOWN = 4096


class Record(NamedTuple):
    """One record."""

    data: bytes
    checksum: int

    @property
    def intact(self) -> bool:
        """Whether the checksum matches, as far as it is verified."""
        return len(self.data) > MAX_CHECKED_BYTES or masked(self.data) == self.checksum


class RecordReader:
    """Parses the records of one stream, fed in pieces of any size. Memory is bounded."""

    def __init__(self, in_the_middle: bool = False) -> None:
        """`in_the_middle`: the first bytes may not be the start of a record."""
        self._rest = b""
        self._to_skip = 0
        self._lost = in_the_middle
        """Whether to search for the next record."""
        self._known: dict[bytes, int] = {}

    @property
    def to_skip(self) -> int:
        """Bytes ahead that need not be fed; report with `skipped` that they were left out."""
        return self._to_skip

    def skipped(self, count: int) -> None:
        """`count` bytes, at most `to_skip`, were left out."""
        self._to_skip -= count

    def feed(self, data: bytes) -> list[Record]:
        """Parse the next bytes; returns the records that they complete."""
        if self._to_skip:
            passed = min(self._to_skip, len(data))
            self._to_skip -= passed
            data = data[passed:]
        if self._rest:
            data = self._rest + data
        records = []
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            length, checksum = _HEADER.unpack_from(data, at)
            if self._lost or self._checksum_of(data[at : at + 8]) != checksum:
                at = self._next_header(data, at)
                continue
            end = at + HEADER_BYTES + length + _FOOTER_BYTES
            if length > MAX_RECORD_BYTES:
                self._to_skip = max(0, end - size)
                at = min(end, size)
                continue
            if end > size:
                break
            footer = end - _FOOTER_BYTES
            records.append(
                Record(data[at + HEADER_BYTES : footer], _CRC.unpack_from(data, footer)[0])
            )
            at = end
        self._rest = data[at:]
        return records

    def _next_header(self, data: bytes, at: int) -> int:
        """Position of the next header after damage, or up to where there is none."""
        last = len(data) - HEADER_BYTES
        if not self._lost:
            at += 1
        # a length below 4 GiB ends in four zeros: compute a checksum only there
        zeros = data.find(b"\0\0\0\0", at + 4)
        while 0 <= zeros <= last + 4:
            head = zeros - 4
            _, checksum = _HEADER.unpack_from(data, head)
            if self._checksum_of(data[head : head + 8]) == checksum:
                self._lost = False
                return head
            zeros = data.find(b"\0\0\0\0", zeros + 1)
        self._lost = True
        return max(at, last + 1)

    def _checksum_of(self, length: bytes) -> int:
        known = self._known.get(length)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[length] = masked(length)
        return known
