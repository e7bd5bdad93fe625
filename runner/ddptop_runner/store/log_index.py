"""The index of a rank's log: which of its bytes are in archives, and which were dropped.

A log keeps its logical byte offsets for ever: its head moves into archives beside it and is punched
out of the file, whose size stays. Whatever the index names is to be read from there, be the hole
punched yet or not; so a supervisor that dies between the two costs no line and doubles none.
"""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.units import size
from ddptop_runner.model.base import Base
from ddptop_runner.model.snapshot import SCHEMA

GapReason = Literal["ceiling", "disk full", "cut", "missing"]

_WORDS = {
    "ceiling": "dropped: log limit reached",
    "disk full": "dropped: disk full",
    "cut": "missing: truncated by another process",
    "missing": "no longer readable",
}
_RANGE = re.compile(rb"bytes-(\d+)-(\d+)")


class LogPiece(Base, frozen=True, kw_only=True):
    """Bytes of a log that are no longer to be read from its file."""

    archive: str | None = None
    """The gzip file that holds them, in the same folder; None: nothing does."""
    from_byte: int
    to_byte: int
    """The first byte after them."""
    reason: str | None = None
    """Why nothing holds them, a GapReason."""


class LogIndex(Base, frozen=True, kw_only=True):
    """`rank-<r>.log.index.json`. A log without one is all in its file."""

    schema: int = SCHEMA
    pieces: list[LogPiece] = []
    """Without gaps or overlaps, from the log's first byte on."""
    punched_to: int = 0
    """The file's blocks up to this logical byte are given back, or will be in a moment."""
    base_byte: int = 0
    """The logical offset of the file's first byte: more than 0 once someone has cut it short."""

    @property
    def live_from(self) -> int:
        """From this logical byte on the log is read from its file."""
        return max(self.base_byte, self.pieces[-1].to_byte if self.pieces else 0)

    @property
    def first(self) -> int:
        """The log's first logical byte."""
        return self.pieces[0].from_byte if self.pieces else self.base_byte


def index_file(log: Path) -> Path:
    """Where the index of that log is."""
    return log.with_name(f"{log.name}.index.json")


def archive_name(log: Path, number: int) -> str:
    """The name of a log's n-th archive, counted from 1."""
    return f"{log.name}.{number}.gz"


def archives(log: Path) -> dict[int, Path]:
    """All archives beside a log, by number."""
    try:
        names = os.listdir(log.parent)
    except OSError:
        return {}
    pattern = re.compile(re.escape(log.name) + r"\.(\d+)\.gz")
    numbers = [int(match[1]) for name in names if (match := pattern.fullmatch(name))]
    return {number: log.with_name(archive_name(log, number)) for number in sorted(numbers)}


def header_name(from_byte: int, to_byte: int) -> str:
    """What an archive's gzip header says of its content, so that an index can be made anew."""
    return f"bytes-{from_byte}-{to_byte}"


def read_index(log: Path) -> LogIndex:
    """The index of a log: empty where there is none, made anew where it is damaged."""
    try:
        data = bounded.read_bytes(index_file(log))
    except OSError:
        return LogIndex()
    return decode_index(data) or rebuilt(log)


_decoder = msgspec.json.Decoder(LogIndex)


def decode_index(data: bytes) -> LogIndex | None:
    """The index in a file's content; None when that is damaged."""
    try:
        index = bounded.decode_json(_decoder, data)
    except msgspec.MsgspecError:
        return None
    at = index.first
    for piece in index.pieces:
        if piece.from_byte != at or piece.to_byte <= at:
            return None
        if piece.archive is not None and not bounded.is_file_name(piece.archive):
            return None
        at = piece.to_byte
    return index


def range_of(archive: Path) -> tuple[int, int] | None:
    """The logical bytes that an archive's header names; None where it names none."""
    try:
        with os.fdopen(bounded.open_regular(archive), "rb") as file:
            found = _RANGE.search(file.read(128))
    except OSError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def rebuilt(log: Path) -> LogIndex:
    """The index of a log by what its archives say; what is between them counts as missing."""
    found = ((range_of(path), path.name) for path in archives(log).values())
    ranges = [(*range_, name) for range_, name in found if range_ is not None]
    pieces: list[LogPiece] = []
    at = 0
    for from_byte, to_byte, name in sorted(ranges):
        if from_byte < at or to_byte <= from_byte:
            continue
        if from_byte > at:
            pieces.append(LogPiece(from_byte=at, to_byte=from_byte, reason="missing"))
        pieces.append(LogPiece(archive=name, from_byte=from_byte, to_byte=to_byte))
        at = to_byte
    return LogIndex(pieces=pieces)


def with_gap(index: LogIndex, from_byte: int, to_byte: int, reason: GapReason) -> LogIndex:
    """The index with that range given up: whole pieces of it, or what follows the last piece."""
    kept = [piece for piece in index.pieces if not from_byte <= piece.from_byte < to_byte]
    kept.append(LogPiece(from_byte=from_byte, to_byte=to_byte, reason=reason))
    merged: list[LogPiece] = []
    for piece in sorted(kept, key=lambda piece: piece.from_byte):
        last = merged[-1] if merged else None
        if last is not None and (last.archive, last.reason) == (piece.archive, piece.reason):
            merged[-1] = msgspec.structs.replace(last, to_byte=piece.to_byte)
        else:
            merged.append(piece)
    return msgspec.structs.replace(index, pieces=merged)


def gap_line(from_byte: int, to_byte: int, reason: str | None) -> bytes:
    """The line that stands for bytes that nobody can read any more."""
    words = _WORDS.get(reason or "missing", _WORDS["missing"])
    return (
        f"──── {size(to_byte - from_byte)} {words} (bytes {from_byte} to {to_byte}) ────\n".encode()
    )


def open_archive(log: Path, piece: LogPiece) -> gzip.GzipFile:
    """An archive, to be read from its first byte.

    Raises:
        OSError: it is gone.
    """
    path = log.with_name(piece.archive or "")
    os.close(bounded.open_regular(path))  # a pipe would block, and is refused here
    return gzip.GzipFile(path, "rb")
