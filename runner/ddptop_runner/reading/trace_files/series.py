"""Reads losses and steps from one file: TensorBoard events, or Lightning's metrics.csv.

Pure. Of several series of the loss, such as `train_loss_step` and `train_loss_epoch`, returns one
for training and one for validation.
"""

from __future__ import annotations

import csv
import math
from typing import Literal

from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_files import events
from ddptop_runner.reading.trace_files.events import RecordReader

FileKind = Literal["events", "csv"]

MAX_LINE_BYTES = 1 << 16
"""A longer CSV line ends reading: the file is not a table of numbers."""
MAX_STEP = 10**18


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
        self.records = RecordReader()
        self._chosen = _Chosen(validation)
        self._epoch: tuple[int | None, float] | None = None

    def feed(self, data: bytes) -> list[Reading]:
        """Parse the next bytes; returns the readings of their events."""
        readings: list[Reading] = []
        for record in self.records.feed(data):
            if (event := events.read_event(record)) is not None:
                readings += self._readings(event)
        return readings

    def _readings(self, event: events.Event) -> list[Reading]:
        step = event.step if 0 <= event.step < MAX_STEP else None
        readings = []
        others = []
        for tag, value in event.scalars:
            name = self._chosen.name(tag)
            if name is not None:
                by_epoch = name.counts_epochs and step is not None
                readings.append(
                    Reading(
                        step=None if by_epoch else step,
                        epoch=float(step) if by_epoch and step is not None else None,
                        loss=value,
                        kind="val" if name.validation else "train",
                        written_at_s=event.written_at_s,
                    )
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
                kind = "val" if name.validation else "train"
                readings.append(
                    Reading(step=step, epoch=epoch, loss=loss, kind=kind)  # type: ignore[arg-type]
                )
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
