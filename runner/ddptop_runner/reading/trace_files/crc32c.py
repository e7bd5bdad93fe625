"""CRC-32C (Castagnoli) of the records of an event file; the standard library lacks it."""

from __future__ import annotations

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
    """The checksum of `data`; some 10 MB/s."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum as it is stored: turned and shifted, since data may hold checksums itself."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
