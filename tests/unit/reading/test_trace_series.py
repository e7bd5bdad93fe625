"""Event files of real loggers, and the effects of damage."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddptop_runner.reading.event_files import (
    MAX_RECORD_BYTES,
    EventSeries,
    read_event,
    split_records,
)
from ddptop_runner.reading.text import fields
from ddptop_runner.reading.text.parser import Reading

SAMPLES = Path(__file__).with_name("trace_files")


def sample(folder: str) -> bytes:
    (path,) = [path for path in (SAMPLES / folder).iterdir() if path.is_file()]
    return path.read_bytes()


def read(data: bytes, piece: int | None = None, validation: bool = False) -> list[Reading]:
    """The readings of a file that grows by so many bytes at a time."""
    series = EventSeries(validation)
    readings, position = [], 0
    for size in range(piece or len(data), len(data) + (piece or 1), piece or len(data)):
        found, used = series.read(data[position:size])
        readings += found
        position += used
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


def test_lightnings_logger() -> None:
    found = read(sample("lightning_logs/version_1"))
    steps = range(1, 20, 2)
    assert losses(found) == [(s, None, x) for s, x in zip(steps, LIGHTNING, strict=True)]
    epochs = [dict(r.scalars)["epoch"] for r in found if "epoch" in dict(r.scalars)]
    assert sorted(set(epochs)) == [0.0, 1.0]
    assert [x for _, _, x in losses(found, "val")] == [0.19076, 0.12695]


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


def event(step: int, *values: bytes, at_s: float = 1e9) -> bytes:
    return b"\x09" + struct.pack("<d", at_s) + b"\x10" + varint(step) + field(5, b"".join(values))


STREAM = [record(event(step, scalar("loss", step / 4))) for step in range(20)]


def test_a_half_written_record_is_awaited() -> None:
    whole = b"".join(STREAM)
    series = EventSeries()
    found, used = series.read(whole[:-9])
    assert [r.step for r in found] == list(range(19))
    assert [r.step for r in series.read(whole[used:])[0]] == [19]


def test_a_huge_record_is_skipped() -> None:
    size = 40 * MAX_RECORD_BYTES
    series = EventSeries()
    assert series.read(struct.pack("<Q", size) + bytes(4)) == ([], size + 16)
    assert [r.step for r in series.read(b"".join(STREAM))[0]] == list(range(20))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_are_taken_as_events_and_in_any_pieces_alike(noise: bytes, piece: int) -> None:
    data = STREAM[0] + noise + STREAM[1]
    assert read(data, piece) == read(data)
    assert split_records(data)[1] > 0
    read_event(noise)
    read_event(b"loss" + noise)
    read_event(event(1, noise, b"loss"))


def test_mutated_files_never_raise() -> None:
    random_ = random.Random(5)
    originals = [path.read_bytes() for path in SAMPLES.rglob("*") if path.is_file()]
    for _ in range(300):
        data = bytearray(random_.choice(originals))
        for _ in range(random_.randrange(1, 8)):
            at = random_.randrange(len(data))
            data[at : at + random_.randrange(3)] = random_.randbytes(random_.randrange(4))
        EventSeries().read(bytes(data))
        read_event(bytes(data[60:]))


def test_what_else_is_logged_is_kept_by_its_name() -> None:
    events = record(event(9, scalar("lr-Adam", 0.5))) + record(event(19, scalar("val_acc", 0.75)))
    assert [r.scalars for r in read(events)] == [(("lr-Adam", 0.5),), (("val_acc", 0.75),)]
