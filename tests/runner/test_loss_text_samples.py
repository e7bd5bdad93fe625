"""Every recorded output is read to exactly what stands beside it in `<name>.expected`.

The expected files hold one reading per line, in the order handed out, checked against the sample by
hand; what is not said there is unknown (or `counts=run`, `kind=train`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ddptop_runner.reading.loss_text import LossParser, Reading

SAMPLES = Path(__file__).parents[1] / "samples" / "logs"
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
    for learn in (True, False):
        found = read(LossParser(learn), path.read_bytes(), piece)
        assert [written(reading) for reading in found] == expected


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_long_output_of_the_same_lines_reads_the_same(path: Path) -> None:
    data = path.read_bytes() * 40  # the shapes of its lines are known by then
    quick, slow = LossParser(), LossParser(learn=False)
    readings = quick.feed(data)
    assert [written(one) for one in readings] == [written(one) for one in slow.feed(data)]
    expected = Counter(path.with_suffix(".expected").read_text().splitlines())
    assert set(map(written, readings)) <= set(expected) | set(
        map(written, LossParser(learn=False).feed(path.read_bytes() * 2))
    )


def test_every_sample_has_its_readings() -> None:
    assert {path.stem for path in PATHS} == {path.stem for path in SAMPLES.glob("*.expected")}
    assert len(PATHS) >= 23
