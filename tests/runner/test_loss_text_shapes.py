"""Lines read the quick way, by shapes that were learned, say what they say the long way."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddptop_runner.reading import loss_text_shapes
from ddptop_runner.reading.loss_text import LossParser
from ddptop_runner.reading.loss_text_line import clean, says
from ddptop_runner.reading.loss_text_shapes import MAX_SHAPES, Shapes

SAMPLES = Path(__file__).parents[1] / "samples" / "logs"
LINES = sorted(
    {
        line.lower()
        for path in SAMPLES.glob("*.txt")
        for line in re.split(rb"[\r\n]", path.read_bytes().partition(b"\n")[2])
        if line
    }
)
MORE = [
    b"[3]<stdout>:step 10/60 loss 2.2527",
    b"[0] 40 2.414[1] 40 2.335",
    b"[default1]:step 10 loss: -2.25 eta: 1 day, 2:03:04",
    b"epoch 3/10 step 100/5000",
    b"step 60: train loss 10.8, val loss 10.9",
    b"it 5 loss=1e-05 best loss 1e-06 0,5 1,234.5",
    b" 10/64 [===>...] - eta: 5s - loss: 0.5",
    b"62% \xe2\x94\x81\xe2\x94\x81 5/8 3.1it/s 1.6s<0.9s loss 3.0",
]


def same(lines: list[bytes]) -> None:
    """Both ways say the same of each line, whatever was learned before."""
    shapes = Shapes()
    for line in lines:
        assert repr(shapes.says(line)) == repr(says(line)), line


def mutated(line: bytes, random_: random.Random) -> bytes:
    """The line with other numbers, and now and then with other bytes."""
    kind = random_.randrange(10)
    if kind < 6:
        return re.sub(
            rb"\d+", lambda found: b"%d" % random_.randrange(10 ** random_.randrange(1, 12)), line
        )
    at = random_.randrange(len(line) + 1)
    if kind < 8:
        word = random_.choice(
            [b" ", b"1", b".", b",", b"-", b"e", b"nan", b"loss", b"\x08", b"\x1b[1m"]
        )
        return line[:at] + word + line[at + random_.randrange(2) :]
    if kind == 8:
        return line[:at] + random_.choice(LINES)[at:]
    return line


def test_numbers_and_bytes_changed_in_every_sample() -> None:
    random_ = random.Random(7)
    for line in LINES + MORE:
        same([*[line] * 4, *(mutated(line, random_) for _ in range(12)), line])


@pytest.mark.parametrize(
    "line",
    [b"epoc\x1b[1mh 7/9", b"step 3 lo\x1b[0mss 2.5", b"st 3 lox\x08ss 2.5", b"epox\x08ch 7/9"],
)
def test_a_word_with_control_bytes_in_it_is_read(line: bytes) -> None:
    assert says(line)
    same([line] * 4)


def test_many_shapes_at_a_time() -> None:
    random_ = random.Random(8)
    pool = random_.sample(LINES, 60) + MORE
    same([mutated(random_.choice(pool), random_) for _ in range(1500)])


numbers = st.one_of(
    st.integers(0, 10**20).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.from_regex(r"\d{1,3}(,\d{3}){0,2}(\.\d{1,3})?", fullmatch=True),
    st.from_regex(r"\d{1,2}(:\d\d){1,2}", fullmatch=True),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(LINES + MORE), st.lists(st.lists(numbers, max_size=12), max_size=4))
def test_any_numbers_in_a_known_shape(line: bytes, fillings: list[list[str]]) -> None:
    parts = re.split(rb"\d+(?:\.\d+)?", line)
    lines = [line] * 3
    for filling in fillings:
        texts = [text.encode().lower() for text in filling] + [b"1"] * len(parts)
        lines.append(b"".join(part + text for part, text in zip(parts, texts, strict=False)))
    same(lines)


@pytest.mark.parametrize("line", [line for line in LINES + MORE if says(line)])
def test_a_line_is_learned_at_its_third_time(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    if b"\x08" in line.strip(b"\x08") or b"1,234.5" in line:
        return  # these are left to the long way
    shapes = Shapes()
    for _ in range(3):
        shapes.says(line)
    monkeypatch.setattr(loss_text_shapes, "says_clean", lambda line: [])
    assert repr(shapes.says(line)) == repr(says(line))


def test_learning_takes_a_bounded_share_of_time_and_memory() -> None:
    learned = []
    original = loss_text_shapes._learned

    def counted(piece: bytes, told: list) -> object:
        learned.append(piece)
        return original(piece, told)

    shapes = Shapes()
    loss_text_shapes._learned = counted
    tracemalloc.start()
    try:
        for number in range(1000):
            word = bytes(97 + int(digit) for digit in str(number))
            for _ in range(3):
                shapes.says(b"step 3 loss 2.5 %b" % (word * 40))
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
        loss_text_shapes._learned = original
    lines = 1000 * 3
    assert len(learned) <= (lines + loss_text_shapes._FIRST_CREDIT) / loss_text_shapes._LEARN_COST


def test_few_shapes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_text_shapes, "_LEARN_COST", 0)
    shapes = Shapes()
    for number in range(MAX_SHAPES + 20):
        word = bytes(97 + int(digit) for digit in str(number))
        for _ in range(3):
            shapes.says(b"step 3 loss 2.5 %b" % word)
        known = sum(map(len, shapes._known.values()))
        assert known == number % MAX_SHAPES + 1


def test_spliced_outputs_read_the_same_both_ways_and_never_raise() -> None:
    random_ = random.Random(9)
    samples = [path.read_bytes() for path in sorted(SAMPLES.glob("*.txt"))]
    for _ in range(12):
        parts = []
        for _ in range(120):
            sample = random_.choice(samples)
            at = random_.randrange(len(sample))
            parts.append(sample[at : at + random_.randrange(600)])
            if random_.randrange(3) == 0:
                parts.append(random_.randbytes(random_.randrange(6)))
        data = b"".join(parts)
        quick, slow = LossParser(), LossParser(learn=False)
        assert repr(quick.feed(data)) == repr(slow.feed(data))
        assert repr(quick.settle()) == repr(slow.settle())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(LINES)), max_size=12))
def test_any_bytes_are_taken(parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    quick, slow = LossParser(), LossParser(learn=False)
    assert repr(quick.feed(data * 4)) == repr(slow.feed(data * 4))
    quick.settle()
    quick.peek(data)
    clean(data)
