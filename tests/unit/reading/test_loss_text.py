"""Losses read from a training's output, and what must not be read as a loss."""

from __future__ import annotations

import math
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import table

from ddptop_runner.reading.text.parser import MAX_LINE_BYTES, MAX_RANKS, LossParser, Reading

SAMPLES = Path(__file__).with_name("logs")


def read(data: bytes, piece: int | None = None) -> list[Reading]:
    parser = LossParser()
    size = piece or max(1, len(data))
    readings = [
        reading for at in range(0, len(data), size) for reading in parser.feed(data[at : at + size])
    ]
    return readings + parser.settle()


def one(line: str) -> Reading:
    (reading,) = read(line.encode() + b"\n")
    return reading


def losses(readings: list[Reading], kind: str = "train") -> list[tuple]:
    return [(r.rank, r.step, r.loss) for r in readings if r.loss is not None and r.kind == kind]


def unranked(*points: tuple[int | None, float]) -> list[tuple]:
    return [(None, step, loss) for step, loss in points]


def of(sample: str) -> list[Reading]:
    return read((SAMPLES / f"{sample}.txt").read_bytes())


def test_a_validation_is_no_training() -> None:
    assert losses(of("imagenet"), "val") == unranked((1, 6.8991), (11, 7.06), (21, 6.8884))
    assert losses(of("nanogpt"), "val") == unranked((60, 10.8196))


def test_a_bar_that_still_shows_the_loss_of_the_step_before_gives_no_loss() -> None:
    bars = [
        "  1%|1| 1/9 [00:00<00:00,  9.2it/s, loss=2.25]",
        "  2%|1| 2/9 [00:00<00:00,  9.2it/s, loss=2.25]",
        "  2%|1| 2/9 [00:00<00:00,  9.2it/s, loss=2.46]",
        "  3%|1| 3/9 [00:00<00:00,  9.2it/s, loss=2.46]",
        "  3%|1| 3/9 [00:00<00:00,  9.2it/s, loss=2.46]",
        "  3%|1| 3/9 [00:00<00:00,  9.2it/s, loss=2.46]",
    ]
    readings = read("\r".join(bars).encode())
    assert [(r.step, r.loss) for r in readings] == [
        (1, 2.25), (2, None), (2, 2.46), (3, None), (3, 2.46),
    ]  # fmt: skip


def test_an_unfinished_bar_is_read_while_the_output_rests_and_nothing_else_is() -> None:
    parser = LossParser()
    assert parser.feed(b"\r  1%|1| 1/9 [00:00<00:00,  9.2it/s, loss=2.25") == []
    assert parser.settle() == []  # may end inside the number
    assert parser.feed(b"7]") == []
    assert [(r.step, r.loss) for r in parser.settle()] == [(1, 2.257)]
    assert parser.settle() == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"step 3 loss 2.5") == []
    assert parser.settle() == []
    assert [r.loss for r in parser.feed(b"6\n")] == [2.56]


@pytest.mark.parametrize("case", table(__file__, "who"))
def test_who_a_line_is_of(case: dict[str, Any]) -> None:
    reading = one(case["line"])
    for name in ("rank", "local_rank", "step", "loss"):
        assert getattr(reading, name) == case.get(name)


def test_two_ranks_on_one_line() -> None:
    for glued in (
        b"[0] step 40 loss 2.414[1] step 40 loss 2.335\n",
        b"[0]<stdout>:step 40 loss 2.414[1]<stdout>:step 40 loss 2.335\n",
    ):
        assert losses(read(glued)) == [(0, 40, 2.414), (1, 40, 2.335)]


@pytest.mark.parametrize("case", table(__file__, "words"))
def test_other_words_for_a_loss(case: dict[str, Any]) -> None:
    reading = next(r for r in read(case["line"].encode() + b"\n") if r.kind == "train")
    for name in ("step", "total", "epoch", "loss"):
        assert getattr(reading, name) == case.get(name)


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 3 loss: 1,234.56", 1234.56),
        ("step 3 loss=12,345,678.5, lr=0.1", 12345678.5),
        ("step 3 loss: 0,5432", None),  # a decimal comma, or two values: ambiguous
        ("step 3 loss=2,lr=0.1", 2.0),
        ("step 3 loss: 0.5,0.6", 0.5),
    ],
)
def test_a_comma_within_a_number(line: str, loss: float | None) -> None:
    assert [reading.loss for reading in read(f"{line}\n".encode())] == (
        [] if loss is None else [loss]
    )


@pytest.mark.parametrize("word", ["best", "Lowest", "min", "previous", "old"])
def test_a_loss_of_another_step_is_not_this_steps(word: str) -> None:
    for name in ("loss", "Train_loss", "val_loss", "validation loss"):
        assert read(f"step 3 {word} {name}: 0.25\n".encode()) == []
    both = read(f"step 3 loss 0.5 ({word} loss 0.25)\n".encode())
    assert [reading.loss for reading in both] == [0.5]


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_read_as_printed(text: str) -> None:
    for line in (f"step 3 loss: {text}", f"step 3 loss {text}", f"{{'loss': '{text}'}}"):
        loss = one(line).loss
        assert loss is not None
        assert math.isnan(loss) if "n" in text.lower()[:1] else math.isinf(loss)


@pytest.mark.parametrize("line", table(__file__, "no_loss"))
def test_what_is_no_loss_and_no_step(line: str) -> None:
    assert read(line.encode() + b"\n") == []


@pytest.mark.parametrize("line", table(__file__, "validation"))
def test_a_loss_of_a_validation(line: str) -> None:
    reading = one(line)
    assert (reading.kind, reading.loss) == ("val", 0.4)


def test_backspaces_begin_a_redraw_like_a_carriage_return() -> None:
    redraws = b"step 1 loss 2.57" + b"\x08" * 16 + b"step 2 loss 2.36\n"
    assert losses(read(redraws)) == unranked((1, 2.57), (2, 2.36))


CONTROL = (b"\r", b"\n", b"\x08" * 9, b"\x1b[2K", b"\x1b]0;", b"loss", b"%|", b"[1,0]<stdout>:")


def _soup(random_: random.Random, size: int) -> bytes:
    """Fragments of real outputs, digits, control bytes, and noise, in any order."""
    samples = [path.read_bytes() for path in SAMPLES.glob("*.txt")]
    parts = []
    while size > 0:
        kind = random_.randrange(4)
        if kind == 0:
            part = random_.randbytes(random_.randrange(60))
        elif kind == 1:
            part = random_.choice(CONTROL)
        elif kind == 2:
            part = b"%d" % random_.randrange(10 ** random_.randrange(1, 40))
        else:
            sample = random_.choice(samples)
            at = random_.randrange(len(sample))
            part = sample[at : at + random_.randrange(200)]
        parts.append(part)
        size -= len(part) + 1
    return b"".join(parts)


def test_any_bytes_are_taken_and_in_any_pieces_alike() -> None:
    random_ = random.Random(20)
    for _ in range(60):
        data = _soup(random_, 6000)
        whole = read(data)
        assert repr(read(data, random_.randrange(1, 900))) == repr(whole)  # NaN equals nothing
        for reading in whole:
            assert reading.step is None or 0 <= reading.step < 10**18


def test_a_line_without_end_takes_no_memory() -> None:
    parser = LossParser()
    tracemalloc.start()
    try:
        for _ in range(400):
            parser.feed(b"x" * 65536)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
        for rank in range(3 * MAX_RANKS):
            parser.feed(
                b"[%d] 3 2.5\n[rank%d]:  1%%|1| 1/9 [0<0, 9it/s, loss=%d.5]\n" % ((rank,) * 3)
            )
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    parser.feed(b"\n")
    assert losses(parser.feed(b"step 3 loss 2.5\n")) == unranked((3, 2.5))


def test_of_a_long_line_the_beginning_counts_and_no_number_is_cut() -> None:
    head = b"step 3 loss 2.5 "
    long = head + b"x" * (MAX_LINE_BYTES - len(head) - 8) + b" step 4 loss 3.5678\n"
    assert losses(read(long)) == unranked((3, 2.5))
    endless = b"step 3 loss 2.5 " * (MAX_LINE_BYTES // 4) + b"\nstep 4 loss 3.5\n"
    for piece in (1000, MAX_LINE_BYTES + 1, len(endless)):
        assert losses(read(endless, piece)) == unranked((3, 2.5), (4, 3.5))
    cut = b" " * (MAX_LINE_BYTES - 6) + b"loss: 3.5678" + b"\nstep 5 loss 4.5\n"
    assert losses(read(cut)) == unranked((5, 4.5))
    assert losses(read(cut, 100)) == unranked((5, 4.5))
