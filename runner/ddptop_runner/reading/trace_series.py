"""Reads losses and steps from one file: TensorBoard events, or Lightning's metrics.csv.

Pure, and safe for any bytes. Of several series of the loss, such as `train_loss_step` and
`train_loss_epoch`, returns one for training and one for validation.
"""

from __future__ import annotations

import csv
import math
import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.fields import Reading, ReadingKind

FileKind = Literal["events", "csv"]

MAX_LINE_BYTES = 1 << 16
"""A longer CSV line ends reading: the file is not a table of numbers."""
MAX_STEP = 10**18


# -- the records of an event file: protobuf's wire format ------------------------------------------

# Checksums are not verified: what follows a damaged record is lost. Only what a scalar needs is
# read; scalars in tensors, as TensorFlow 2 writes them, are not.

# wire types of protobuf
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

# field numbers: tensorflow/core/util/event.proto, framework/summary.proto
_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_SUMMARY = 1, 2, 5
_SUMMARY_VALUE = 1
_VALUE_TAG, _VALUE_SIMPLE = 1, 2
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
    return None if tag is None or number is None else (tag, number)


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


# -- readings ------------------------------------------------------------------------------------


class _Chosen:
    """Chooses the series of the training loss and that of the validation loss."""

    def __init__(self, validation: bool) -> None:
        self.all_validation = validation
        """Whether the folder's name makes every series in the file one of a validation."""
        self._best: dict[bool, tuple[int, str]] = {}

    def name(self, tag: str) -> fields.Name | None:
        """What the name means, if it is the best of its kind so far."""
        name = fields.of_tag(tag)
        if name is None:
            return None
        if self.all_validation and not name.training:
            name = name._replace(validation=True)
        best = self._best.get(name.validation)
        if best is None or name.weight < best[0]:
            self._best[name.validation] = (name.weight, tag)
        elif best[1] != tag:
            return None
        return name


class EventSeries:
    """Parses an event file into readings."""

    def __init__(self, validation: bool = False) -> None:
        """`validation`: whether the folder's name says that it holds logs of a validation."""
        self._records = RecordReader()
        self._chosen = _Chosen(validation)
        self._epoch: tuple[int | None, float] | None = None

    def feed(self, data: bytes) -> list[Reading]:
        """Parse the next bytes; returns the readings of their events."""
        readings: list[Reading] = []
        for record in self._records.feed(data):
            if (event := read_event(record)) is not None:
                readings += self._readings(event)
        return readings

    def _readings(self, event: Event) -> list[Reading]:
        step = event.step if 0 <= event.step < MAX_STEP else None
        readings = []
        others = []
        for tag, value in event.scalars:
            name = self._chosen.name(tag)
            if name is not None:
                kind: ReadingKind = "val" if name.validation else "train"
                readings.append(
                    Reading(step=step, loss=value, kind=kind, written_at_s=event.written_at_s)
                )
            elif tag in ("epoch", "train/epoch") and math.isfinite(value):
                if self._epoch == (step, value):
                    continue
                self._epoch = (step, value)
                readings.append(Reading(step=step, epoch=value, written_at_s=event.written_at_s))
            else:
                others.append((tag, value))
        if others and not self._chosen.all_validation:  # whose names are those of training
            readings.append(Reading(scalars=tuple(others), written_at_s=event.written_at_s))
        return readings


class CsvSeries:
    """Parses a table whose first line names the columns: step, epoch, and losses."""

    def __init__(self, validation: bool = False) -> None:
        self.head = b""
        """The first line of the file; if it changes, the file was rewritten."""
        self.rows = 0
        """Number of lines read below it."""
        self.known_rows = 0
        """Number of rows to skip, because they were returned before."""
        self._rest = b""
        self._chosen = _Chosen(validation)
        self._columns: list[str] | None = None
        self._is_table = True
        self._losses: list[tuple[int, str]] = []
        """(column, name), best first."""

    def feed(self, data: bytes) -> list[Reading]:
        """Parse the next bytes; returns the readings of the lines that they complete."""
        if not self._is_table:
            return []
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        readings: list[Reading] = []
        for line in lines:
            if len(line) > MAX_LINE_BYTES:
                self._give_up()
                break
            readings += self._line(line)
        if len(self._rest) > MAX_LINE_BYTES:
            self._give_up()
        return readings

    def _line(self, line: bytes) -> list[Reading]:
        text = line.decode("utf-8", "replace").replace("\0", "").strip()
        try:
            cells = next(csv.reader([text]), [])
        except csv.Error:
            return []
        if not cells:
            return []
        if self._columns is None:
            self.head = line + b"\n"
            self._begin(cells)
            return []
        self.rows += 1
        if self.rows <= self.known_rows:
            return []
        if len(cells) != len(self._columns):
            return []
        row = dict(zip(self._columns, cells, strict=True))
        step, epoch = _integer(row.get("step")), _number(row.get("epoch"))
        readings = []
        for column, tag in self._losses:
            loss = _number(cells[column])
            name = self._chosen.name(tag) if loss is not None else None
            if name is not None:
                kind: ReadingKind = "val" if name.validation else "train"
                readings.append(Reading(step=step, epoch=epoch, loss=loss, kind=kind))
        if not readings and step is not None:
            readings.append(Reading(step=step, epoch=epoch))
        losses = {column for column, _ in self._losses}
        others = [
            (tag, value)
            for column, tag in enumerate(self._columns)
            if column not in losses and tag not in ("step", "epoch")
            if (value := _number(cells[column])) is not None
        ]
        return [*readings, Reading(scalars=tuple(others))] if others else readings

    def _begin(self, cells: list[str]) -> None:
        self._columns = [cell.strip() for cell in cells]
        found = [
            (name.weight, column, tag)
            for column, tag in enumerate(self._columns)
            if (name := fields.of_tag(tag)) is not None
        ]
        self._losses = [(column, tag) for _, column, tag in sorted(found)]

    def _give_up(self) -> None:
        self._rest, self._is_table = b"", False


def _number(text: str | None) -> float | None:
    """The number in a cell, which may be NaN or infinite; None if it is empty."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _integer(text: str | None) -> int | None:
    number = _number(text)
    if number is None or not 0 <= number < MAX_STEP or number != int(number):
        return None
    return int(number)
