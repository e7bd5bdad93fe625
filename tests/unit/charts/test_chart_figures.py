"""Several metrics over time, as text."""

from __future__ import annotations

import math
import random

from ddptop.charts.axis import View
from ddptop.charts.curves import MODES, ChartOptions, Curve, Curves, draw_curves
from ddptop.charts.plots import THROUGHPUT, curves_of
from ddptop.job.compare import LOSS
from ddptop.job.series import ChartData, Points, middle_of
from ddptop.style import plain


def points(values: list[float | None]) -> Points:
    known = [(float(t), v) for t, v in enumerate(values) if v is not None]
    means = [v for _, v in known]
    return Points([t for t, _ in known], means, means, means)


GPU = Curves(
    (
        Curve("load", points([50.0 + 50 * math.sin(t / 10) for t in range(100)]), "%", 0, 100),
        Curve("memory", points([60.0 * 2**30] * 100), "bytes", 0, 80 * 2**30),
        Curve("power", points([400.0 + t for t in range(100)]), "W", 0, 700),
        Curve("gpu", points([60.0] * 100), "°C"),
        Curve("memory", points([70.0] * 100), "°C"),
    ),
    since=0,
    until=100,
)


def figures(data: Curves = GPU, width: int = 80, height: int = 24, **options: object):
    drawn = draw_curves(data, ChartOptions(**options), width, height)
    assert len(drawn.lines) == height
    return drawn, [plain(line) for line in drawn.lines]


def test_a_logarithmic_axis_shows_the_values_not_the_limit() -> None:
    load = Curves((Curve("load", points([10.0, 50.0, 90.0]), "%", 0, 100),), since=0, until=3)
    _, lines = figures(load, height=12, logarithmic=True)
    labels = [float(text) for line in lines if (text := line[:7].strip(" │┤"))]
    assert labels
    assert max(labels) <= 100.0


class TestFigures:
    def test_each_unit_has_its_own_plot_and_round_ticks(self) -> None:
        _, lines = figures()
        labels = [line.split("┤")[0].strip() for line in lines if "┤" in line]
        assert [one for one in labels if "%" in one] == ["100%", "50%", "0%"]
        assert [one for one in labels if "GiB" in one] == ["80 GiB", "40 GiB"]
        assert [one for one in labels if "W" in one] == ["600 W", "0 W"]
        assert all(any(unit in one for one in labels) for unit in ("%", "GiB", "W", "°C"))
        assert sum("├" in line for line in lines) == 3

    def test_curves_carry_their_names_and_those_of_one_plot_a_pattern(self) -> None:
        _, lines = figures()
        assert sum(line.rstrip().endswith(" memory") for line in lines) == 2
        assert any(line.rstrip().endswith(" gpu") for line in lines)
        solid = next(line for line in lines if line.endswith(" gpu"))
        broken = [line for line in lines if line.endswith(" memory")][1]
        dots = [sum(bin(ord(one) - 0x2800).count("1") for one in line if "⠀" < one <= "⣿")
                for line in (solid, broken)]  # fmt: skip
        assert dots[1] <= 0.9 * dots[0], "parts of the second curve are left out"

    def test_what_has_no_room_is_said_and_a_begins_with_it(self) -> None:
        drawn, lines = figures(height=9)
        assert "2 more: press a" in plain(drawn.notes[0])
        assert not any("°C" in line for line in lines)
        drawn, lines = figures(height=9, first=3)
        assert any("°C" in line for line in lines)

    def test_present_values_are_in_the_note(self) -> None:
        note = plain(figures()[0].notes[0])
        for said in ("load 27%", "memory 60.0 GiB", "power 499 W", "gpu 60 °C", "memory 70 °C"):
            assert said in note

    def test_with_little_room_whole_values_are_left_out(self) -> None:
        drawn = figures()[0]
        for room in range(5, 120):
            note = plain(drawn.fitting(room))
            assert len(note) <= room
            assert plain(drawn.notes[0]).startswith(note)

    def test_the_cursor_reads_every_curve(self) -> None:
        drawn, lines = figures(view=View(cursor=50.0))
        assert drawn.reading is not None
        read = plain(drawn.reading.line(200))
        for said in ("memory 60.0 GiB", "power 450 W", "gpu 60 °C", "memory 70 °C"):
            assert said in read
        column = lines[-1].index("▲")
        assert sum(line[column] == "│" for line in lines) > len(lines) / 2

    def test_losses_of_two_jobs_share_a_plot(self) -> None:
        two = Curves(
            tuple(Curve(n, points([v] * 100), "loss") for n, v in (("a", 2.0), ("b", 3.0))),
            since=0,
            until=100,
        )
        _, lines = figures(two, height=12)
        assert not any("├" in line for line in lines)
        assert [line[-1] for line in lines if line[-1] in "ab"] == ["b", "a"]

    def test_nothing_yet_and_too_small(self) -> None:
        assert "no data yet" in "".join(figures(Curves())[1])
        assert figures(width=12, height=3)[1][0] == "too small for a chart"


def hostile(chance: random.Random, number: int) -> Points:
    """Samples at any time, many of which are not numbers."""
    t = sorted(chance.random() * 100 for _ in range(number))
    odd = (None, math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-12, 1e30)
    values = [chance.choice((*odd, chance.gauss(2, 1), 2.5)) for _ in t]
    steps = [None if chance.random() < 0.1 else chance.randrange(1000) for _ in t]
    attempts = [chance.choice((None, 0, 1)) for _ in t]
    return Points(t, values, values, values, t[:2], steps, attempts)


def test_any_samples_are_drawn_at_any_size() -> None:
    chance = random.Random(4)
    for _ in range(60):
        width, height = chance.randrange(8, 160), chance.randrange(2, 30)
        number = chance.choice((0, 1, 2, 40))
        series = {rank: hostile(chance, number) for rank in range(chance.choice((1, 4)))}
        data = ChartData(
            middle=middle_of(series),
            number=len(series),
            series=series,
            apart={1: 0.5},
            since=0.0,
            until=chance.choice((0.0, 1e-6, 100.0)),
            marks=((50.0, "attempt 1"),),
        )
        for axis in ("time", "step"):
            view = View(axis, chance.choice((None, 20.0)), None, chance.choice((None, 30.0)))
            options = ChartOptions(
                chance.choice(MODES), 1, chance.random() < 0.5, chance.choice((0.0, 0.9)), view
            )
            losses = curves_of(data, options, chance.choice((LOSS, THROUGHPUT)))
            drawn = draw_curves(losses, options, width, height)
            assert len(drawn.lines) == height
            assert drawn.area is None or all(len(plain(x)) <= width for x in drawn.lines)
        curves = tuple(
            Curve(str(rank), one, chance.choice(("%", "bytes", "s")))
            for rank, one in data.series.items()
        )
        figures(
            Curves(curves, since=0, until=100),
            width,
            height,
            logarithmic=chance.random() < 0.5,
        )
