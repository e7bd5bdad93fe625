"""Every recorded output is read exactly as specified in `<name>.expected`.

The expected files hold one reading per line, in the order handed out, checked against the sample by
hand; what is not said there is unknown (or `counts=run`, `kind=train`).
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddptop_runner.reading.text.parser import LossParser, Reading, clean, statements

SAMPLES = Path(__file__).with_name("logs")
PATHS = sorted(SAMPLES.glob("*.txt"))
USUAL = Reading()


def written(reading: Reading) -> str:
    """The reading as a line of an expected file."""
    known = {name: getattr(reading, name) for name in Reading.__struct_fields__}
    return " ".join(
        f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in known.items()
        if value != getattr(USUAL, name)
    )


def read(parser: LossParser, data: bytes, piece: int) -> list[Reading]:
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    return [reading for part in pieces for reading in parser.feed(part)] + parser.settle()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_every_sample_in_pieces_of_any_size(path: Path, piece: int) -> None:
    expected = path.with_suffix(".expected").read_text().splitlines()
    found = read(LossParser(), path.read_bytes(), piece)
    assert [written(reading) for reading in found] == expected


def test_every_sample_has_its_readings() -> None:
    assert {path.stem for path in PATHS} == {path.stem for path in SAMPLES.glob("*.expected")}
    assert len(PATHS) >= 22


LINES = sorted(
    {
        line.lower()
        for path in PATHS
        for line in re.split(rb"[\r\n]", path.read_bytes().partition(b"\n")[2])
        if line
    }
)


@pytest.mark.parametrize(
    "line",
    [b"epoc\x1b[1mh 7/9", b"step 3 lo\x1b[0mss 2.5"],
)
def test_a_word_with_control_bytes_in_it_is_read(line: bytes) -> None:
    assert statements(line)


def test_spliced_outputs_never_raise_and_read_the_same_in_pieces() -> None:
    random_ = random.Random(9)
    samples = [path.read_bytes() for path in PATHS]
    for _ in range(12):
        parts = []
        for _ in range(120):
            sample = random_.choice(samples)
            at = random_.randrange(len(sample))
            parts.append(sample[at : at + random_.randrange(600)])
            if random_.randrange(3) == 0:
                parts.append(random_.randbytes(random_.randrange(6)))
        data = b"".join(parts)
        whole = read(LossParser(), data, len(data))
        assert repr(read(LossParser(), data, 997)) == repr(whole)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(LINES)), max_size=12))
def test_any_bytes_are_accepted(parts: list[bytes]) -> None:
    data = b"\n".join(parts)
    parser = LossParser()
    parser.feed(data * 4)
    parser.settle()
    parser.peek(data)
    clean(data)
