"""Splits a TFRecord stream into records and verifies their checksums.

Pure. Damage costs the records that it hit: after it the next header is looked for whose checksum is
right, which also is how reading begins in the middle of a long file.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ddptop_runner.reading.trace_files import crc32c

MAX_RECORD_BYTES = 1 << 20
"""A longer record is passed over: it holds pictures or sounds, and is not held in memory."""
MAX_CHECKED_BYTES = 1 << 16
"""The checksum of longer data is not computed: it would take longer than it is worth."""
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
        """Whether the data is what was written, as far as that is checked."""
        return len(self.data) > MAX_CHECKED_BYTES or crc32c.masked(self.data) == self.checksum


class RecordReader:
    """Records of one stream, fed in pieces of any size. Takes any bytes; memory is bounded."""

    def __init__(self, in_the_middle: bool = False) -> None:
        """`in_the_middle`: the first bytes need not be the beginning of a record."""
        self._rest = b""
        self._to_skip = 0
        self._lost = in_the_middle
        """Whether the next record has to be looked for."""
        self._known: dict[bytes, int] = {}
        self.damaged = 0
        """Places where something else stood than a record."""

    @property
    def to_skip(self) -> int:
        """Bytes ahead that need not be fed at all: tell with `skipped` that they were left out."""
        return self._to_skip

    def skipped(self, count: int) -> None:
        """`count` bytes, at most `to_skip`, were left out."""
        self._to_skip -= count

    def feed(self, data: bytes) -> list[Record]:
        """Take the next bytes; the records that ended in them."""
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
                if not self._lost:
                    self.damaged += 1
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
        """Where the next header stands after damage; where none does, how far that is known."""
        last = len(data) - HEADER_BYTES
        if not self._lost:
            at += 1
        # a length below 4 GiB ends in four zeros: only there is a checksum computed
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
            known = self._known[length] = crc32c.masked(length)
        return known
