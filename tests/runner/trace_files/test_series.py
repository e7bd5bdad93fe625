"""Event files and tables of real loggers, and the effects of damage."""

from __future__ import annotations

import math
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddptop_runner.reading import trace_series
from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.parser import Reading
from ddptop_runner.reading.trace_series import (
    MAX_LINE_BYTES,
    MAX_RECORD_BYTES,
    CsvSeries,
    EventSeries,
    RecordReader,
)

SAMPLES = Path(__file__).parents[2] / "samples" / "trace_files"


def sample(folder: str) -> bytes:
    (path,) = [path for path in (SAMPLES / folder).iterdir() if path.is_file()]
    return path.read_bytes()


def read(data: bytes, piece: int | None = None, validation: bool = False) -> list[Reading]:
    series = EventSeries(validation)
    size = piece or len(data)
    readings = []
    for at in range(0, len(data), size):
        readings += series.feed(data[at : at + size])
    return readings


def points(readings: list[Reading], kind: str = "train") -> list[tuple]:
    return [
        (r.step, r.epoch, round(r.loss, 5), r.written_at_s)
        for r in readings
        if r.loss is not None and r.kind == kind
    ]


def losses(readings: list[Reading], kind: str = "train") -> list[tuple]:
    return [(step, epoch, loss) for step, epoch, loss, _ in points(readings, kind)]


@pytest.mark.parametrize("piece", [None, 1, 7, 64])
def test_the_events_of_every_writer(piece: int | None) -> None:
    torch = read(sample("torch"), piece)
    at = 1795000000.25
    assert points(torch)[:-1] == [
        (step, None, round(2.5 - step / 100, 5), at + step) for step in range(0, 50, 10)
    ]
    assert math.isnan(torch[-1].loss or 0.0) and torch[-1].step == 50
    assert points(torch, "val") == [(40, None, 2.25, 1795000050.0)]


LIGHTNING = (0.28961, 0.30054, 0.4885, 0.08433, 0.1808, 0.18184, 0.18361, 0.35294, 0.04656, 0.10955)


def test_lightnings_two_loggers_say_the_same() -> None:
    by_events = read(sample("lightning_logs/version_1"))
    table = CsvSeries()
    by_table = table.feed(sample("lightning_logs/version_0"))
    steps = range(1, 20, 2)
    assert losses(by_events) == [(s, None, x) for s, x in zip(steps, LIGHTNING, strict=True)]
    assert losses(by_table) == [(s, float(s > 9), x) for s, x in zip(steps, LIGHTNING, strict=True)]
    told = [(r.step, r.epoch) for r in by_events if r.epoch is not None]
    assert told == [(s, float(s > 9)) for s in steps]
    for readings in (by_events, by_table):
        assert [x for _, _, x in losses(readings, "val")] == [0.19076, 0.12695]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("loss", (0, False)),
        ("train/loss", (0, False)),
        ("Loss/train", (0, False)),
        ("train_loss_step", (0, False)),
        ("train_loss_epoch", (1, False)),
        ("Training Loss", (0, False)),
        ("trainLoss", (0, False)),
        ("train/total_loss", (0, False)),
        ("lm-loss-training/lm loss", (0, False)),
        ("reduced_train_loss", (0, False)),
        ("train_inner/loss", (0, False)),
        ("batch_loss", (0, False)),
        ("epoch_loss", (1, False)),
        ("eval/loss", (0, True)),
        ("val_loss", (0, True)),
        ("Loss/test", (0, True)),
        ("val_loss/dataloader_idx_0", (0, True)),
        ("evaluation_loss_vs_iterations", (0, True)),
        ("lm loss vs samples", None),
        ("train/box_loss", None),
        ("loss_scale", None),
        ("train/nll_loss", None),
        ("losses", None),
        ("lossless", None),
        ("train/grad_norm", None),
        ("gloss", None),
        ("loss" * 40, None),
    ],
)
def test_which_series_is_a_loss(tag: str, expected: tuple[int, bool] | None) -> None:
    name = fields.of_tag(tag)
    assert (name if name is None else (name.weight, name.validation)) == expected


# --- made by hand: what the wire allows ------------------------------------------------------


def record(data: bytes) -> bytes:
    return struct.pack("<QI", len(data), 0) + data + bytes(4)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def scalar(tag: str, value: float) -> bytes:
    return field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))


def event(step: int, *values: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", 1e9) + b"\x10" + varint(step) + field(5, b"".join(values))


def test_scalar_in_a_tensor_is_ignored() -> None:
    tensor = field(8, b"\x08\x01" + field(4, struct.pack("<f", 0.5)))
    found = read(record(event(1, field(1, field(1, b"loss") + tensor), scalar("val_loss", 0.5))))
    assert [(r.kind, r.loss) for r in found] == [("val", 0.5)]


STREAM = [record(event(step, scalar("loss", step / 4))) for step in range(20)]


def test_a_half_written_record_is_awaited() -> None:
    whole = b"".join(STREAM)
    series = EventSeries()
    cut = len(whole) - 9
    assert [r.step for r in series.feed(whole[:cut])] == list(range(19))
    assert series.feed(b"") == []
    assert [r.step for r in series.feed(whole[cut:])] == [19]


def test_a_huge_record_is_not_held() -> None:
    size = 40 * MAX_RECORD_BYTES
    length = struct.pack("<Q", size)
    series = EventSeries()
    assert series.feed(length + bytes(4)) == []
    tracemalloc.start()
    try:
        for _ in range(40):
            assert series.feed(bytes(MAX_RECORD_BYTES)) == []
        assert tracemalloc.get_traced_memory()[0] < MAX_RECORD_BYTES
    finally:
        tracemalloc.stop()
    assert [r.step for r in series.feed(bytes(4) + b"".join(STREAM))] == list(range(20))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_taken_as_events_and_in_any_pieces_alike(noise: bytes, piece: int) -> None:
    data = STREAM[0] + noise + STREAM[1]
    whole, pieces = RecordReader(), RecordReader()
    found = [
        item for at in range(0, len(data), piece) for item in pieces.feed(data[at : at + piece])
    ]
    assert found == whole.feed(data)
    trace_series.read_event(noise)
    trace_series.read_event(b"loss" + noise)
    trace_series.read_event(event(1, noise, b"loss"))


def test_mutated_files_never_raise() -> None:
    random_ = random.Random(5)
    originals = [path.read_bytes() for path in SAMPLES.rglob("*") if path.is_file()]
    for _ in range(300):
        data = bytearray(random_.choice(originals))
        for _ in range(random_.randrange(1, 8)):
            at = random_.randrange(len(data))
            data[at : at + random_.randrange(3)] = random_.randbytes(random_.randrange(4))
        EventSeries().feed(bytes(data))
        CsvSeries().feed(bytes(data))
        event_data = bytes(data[60:])
        trace_series.read_event(event_data)


# --- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (b"epoch,step,train_loss\r\n0,9,0.5\r\n", [(9, 0.0, 0.5)]),
        (b"step,loss,lr\n9,nan,0.1\n", [(9, None, math.nan)]),
        (b"step,loss\n9,\n", [(9, None, None)]),
        (b"step,loss\n9,0.5", []),  # not ended yet
        (b"step,loss\n9\n10,0.5,3\n11,0.25\n", [(11, None, 0.25)]),
        (b"step,loss\n1e9,0.5\n-1,0.5\n1.5,0.5\n", [(10**9, None, 0.5)] + 2 * [(None, None, 0.5)]),
        (b"step,loss\nx,y\n", []),
        (b"step,accuracy\n9,0.5\n", [(9, None, None)]),
        (b"", []),
        (b'\0\xff,loss\n,\0\n"\n\n', []),
    ],
)
def test_a_table(table: bytes, expected: list[tuple]) -> None:
    for piece in (1, 1000):
        series = CsvSeries()
        found = [
            (r.step, r.epoch, r.loss)
            for at in range(0, len(table), piece)
            for r in series.feed(table[at : at + piece])
            if not r.scalars
        ]
        assert repr(found) == repr(expected)


def test_what_else_is_logged_is_kept_by_its_name() -> None:
    table = b"epoch,step,train_loss,lr-Adam,val_acc\n0,9,0.5,0.001,\n0,19,,,0.75\n"
    assert [r.scalars for r in CsvSeries().feed(table) if r.scalars] == [
        (("lr-Adam", 0.001),),
        (("val_acc", 0.75),),
    ]


def test_a_table_without_lines_is_let_go() -> None:
    series = CsvSeries()
    assert series.feed(b"step,loss\n1,2.5\n") != []
    for _ in range(3):
        assert series.feed(b"x" * MAX_LINE_BYTES) == []
    assert series.feed(b"\n2,2.5\n") == []
