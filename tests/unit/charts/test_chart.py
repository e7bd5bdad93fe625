"""Braille cells, series in columns, and the chart, as strings."""

from __future__ import annotations

import itertools
import re

import pytest
from ddptop.charts.axis import Scale, View
from ddptop.charts.braille import Canvas
from ddptop.charts.curves import WEIGHTS, ChartOptions, draw_curves
from ddptop.charts.frame import Chart, tick_rows, value_range, without_top
from ddptop.charts.plots import THROUGHPUT, VALIDATIONS, curves_of, rates
from ddptop.job.compare import LOSS
from ddptop.job.series import ChartData, Points, bin_points, middle_of
from ddptop.style import Line, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace


def rows(canvas: Canvas) -> list[str]:
    return ["".join(character for character, _ in canvas.row(y)) for y in range(canvas.rows)]


class TestCanvas:
    def test_the_higher_layer_owns_the_cell(self) -> None:
        canvas = Canvas(1, 1)
        canvas.column(0, 0, 3, 0)
        canvas.dot(1, 0, 2)
        canvas.dot(1, 3, 1)
        assert canvas.row(0) == [("⢀", 2)]

    def test_a_segment_has_no_gaps(self) -> None:
        canvas = Canvas(2, 2)
        canvas.segment(0, 0, 3, 7, 0)
        assert rows(canvas) == [" ⡜", "⡜ "]


def points(values: list[float | None], every_s: float = 1.0, start: float = 0.0) -> Points:
    known = [(start + i * every_s, v) for i, v in enumerate(values) if v is not None]
    means = [v for _, v in known]
    return Points(t=[t for t, _ in known], low=means, mean=means, high=means)


class TestSeries:
    def test_bins_hold_extremes_and_mean(self) -> None:
        one = Points(t=[0.5, 1.5, 6.5], low=[1, 2, 5], mean=[2, 4, 6], high=[3, 9, 7])
        columns = bin_points(one, 0, 8, 4)
        assert columns.low == [1, None, None, 5]
        assert columns.mean == [3, None, None, 6]
        assert columns.high == [9, None, None, 7]

    def test_what_lies_outside_is_left_out(self) -> None:
        columns = bin_points(points([1, 2, 3]), 1, 2, 2)
        assert columns.mean == [2, 3]

    def test_the_longest_gap_follows_the_usual_distance(self) -> None:
        sparse = bin_points(points([1] * 10, every_s=10), 0, 100, 100)
        dense = bin_points(points([1] * 100), 0, 100, 100)
        assert (sparse.max_gap, dense.max_gap) == (30, 3)

    def test_not_finite_values_are_noted_by_column(self) -> None:
        one = Points(t=[0], low=[1], mean=[1], high=[1], not_finite=[75, 500])
        assert bin_points(one, 0, 100, 10).not_finite == {7}

    def test_the_middle_is_the_median_between_least_and_greatest(self) -> None:
        middle = middle_of({rank: points([v, None]) for rank, v in enumerate((1.0, 2.0, 9.0))})
        assert middle is not None
        assert (middle.low, middle.mean, middle.high) == ([1], [2], [9])


def losses(series: dict[int, Points] | None = None, **more: object) -> ChartData:
    """The losses of these ranks; those in `odd` hold up the others."""
    series = series or {}
    odd = dict(more.pop("odd", {}))
    return ChartData(middle=middle_of(series), number=len(series), series=series, apart=odd, **more)


def draw_chart(
    data: ChartData, options: ChartOptions, width: int, height: int, name: str = LOSS
) -> Chart:
    return draw_curves(curves_of(data, options, name), options, width, height)


def chart(data: ChartData, width: int = 40, height: int = 7, **options: object) -> list[str]:
    drawn = draw_chart(data, ChartOptions(**options), width, height)
    assert len(drawn.lines) == height
    return [plain(line) for line in drawn.lines]


class TestChart:
    def test_a_falling_loss(self) -> None:
        data = losses({0: points([8 - 6 * i / 99 for i in range(100)])}, since=0, until=100)
        assert chart(data) == [
            "     8 ┤⠒⠤⢄⣀┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈",
            "       │    ⠉⠑⠒⠤⢄⣀                      ",
            "       │          ⠉⠑⠒⠤⢄⣀                ",
            "       │                ⠉⠑⠒⠤⣀⡀          ",
            "       │                     ⠈⠉⠒⠢⠤⣀⡀    ",
            "     2 ┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈⠈⠉⠒⠢⠤",
            "        start             1m            ",
        ]

    def test_a_gap_is_a_gap(self) -> None:
        data = losses({0: points([2.0] * 30 + [None] * 40 + [2.0] * 30)}, since=0, until=100)
        assert chart(data, width=58)[2] == (
            "       │⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀                    ⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀"
        )

    def test_a_band_is_filled_between_samples_but_not_over_a_gap(self) -> None:
        def sparse(level: float) -> Points:
            return points(([level, None, None, None] * 10 + [None] * 30 + [level] * 2), 1.0)

        data = losses({r: sparse(2.0 + r / 10) for r in range(3)}, since=0, until=72)
        top = draw_chart(data, ChartOptions(), 44, 9).lines[0]
        cells = "".join("#" if style == "band" else "." for text, style in top for _ in text)
        assert cells[8:] == "#" * 19 + "." * 16 + "#"

    def test_a_restart_is_a_mark_that_curves_do_not_cross(self) -> None:
        jump = points([2.0] * 50 + [3.0] * 50)
        without = chart(losses({0: jump}, since=0, until=100))
        lines = chart(losses({0: jump}, since=0, until=100, marks=((50.0, "attempt 1"),)))
        assert without[1][8 + 16] not in " ┊"
        assert lines[0] == "     3 ┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒"
        assert lines[1] == "       │                ┊ attempt 1     ", "below the curve"

    def test_a_mark_is_labeled_on_the_side_that_has_room(self) -> None:
        flat = {0: points([2.0] * 100)}
        early = chart(losses(flat, since=0, until=100, marks=((50.0, "attempt 1"),)))
        assert early[0] == "   2.1 ┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┊ attempt 1 ┈┈┈┈"
        late = chart(losses(flat, since=0, until=100, marks=((97.0, "attempt 1"),)))
        assert late[0] == "   2.1 ┤┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈┈ attempt 1 ┊"

    def test_nan_is_detected_and_reported(self) -> None:
        one = points([2.0] * 100)
        bad = Points(one.t, one.low, one.mean, one.high, not_finite=[40.0])
        data = losses({0: one, 1: bad}, since=0, until=100)
        drawn = draw_chart(data, ChartOptions(), 40, 7)
        assert "✕" in plain(drawn.lines[-2])
        assert "rank 1 ✕ NaN" in plain(drawn.notes[0])

    def test_an_outlier_is_behind_the_median_and_named(self) -> None:
        drifting = [2.0] * 50 + [3.0] * 50
        series = {r: points(drifting if r == 3 else [2.0] * 100) for r in range(4)}
        drawn = draw_chart(losses(series, since=0, until=100, odd={3: 0.5}), ChartOptions(), 70, 9)
        where = dots_in(drawn.lines, "warn")
        assert where and min(x for x, _ in where) >= 8 + 20
        assert plain(drawn.notes[0]).startswith("rank 3 +50%")
        assert any(plain(line).endswith(" rank 3") for line in drawn.lines)

    def test_names_stand_at_the_ends_of_their_curves(self) -> None:
        series = {
            0: points([2.0] * 100),
            1: points([2.0] * 50 + [4.0] * 50),
            2: points([2.0] * 100),
        }
        data = losses(series, since=0, until=100)
        lines = draw_chart(data, ChartOptions(mode="rank", rank=1), 80, 16).lines
        ends = {plain(line)[-6:].strip(): y for y, line in enumerate(lines)}
        rows = [y for y, line in enumerate(lines) if any(s == "chosen" for _, s in line)]
        assert ends["rank 1"] == rows[0], "the highest row with its curve"
        assert ends["median"] > ends["rank 1"] + 3

    def test_one_rank_and_all_ranks(self) -> None:
        data = losses({r: points([2.0 + r] * 100) for r in range(2)}, since=0, until=100)
        for mode, legend in (
            ("rank", "━ rank 1 3.0000  ━ median 2.5000"),
            ("ranks", "━ rank 1 3.0000"),
        ):
            drawn = draw_chart(data, ChartOptions(mode, 1), 40, 7)
            assert plain(drawn.notes[0]) == legend
            styles = {style for line in drawn.lines for _, style in line}
            assert {"chosen", "dim"} <= styles

    def test_a_window_counts_back_from_now(self) -> None:
        data = losses({0: points([2.0] * 300)}, since=0, until=300)
        assert chart(data, width=80, view=View(span=300))[-1].split() == [
            "-5m",
            "-4m",
            "-3m",
            "-2m",
            "-1m",
            "now",
        ]
        ended = losses({0: points([2.0] * 300)}, since=0, until=300, ended=True)
        assert chart(ended, width=60, view=View(span=300))[-1].split()[-1] == "end"

    def test_a_logarithmic_axis_needs_a_positive_loss(self) -> None:
        falling = losses(
            {0: points([10.0 ** (2 - i / 25) for i in range(100)])}, since=0, until=100
        )
        labels = [line[:7].strip() for line in chart(falling, height=12, logarithmic=True)]
        assert [label for label in labels if label] == ["100", "10", "1", "0.1", "0.01"]
        negative = losses({0: points([-1.0] * 100)}, since=0, until=100)
        assert len(chart(negative, logarithmic=True)) == 7


class TestSmoothed:
    DATA = losses(
        {
            rank: points([2.0 + (rank == 3) * 2 + (t % 7) / 10 for t in range(200)])
            for rank in range(4)
        },
        since=0,
        until=200,
        odd={3: 0.5},
    )

    @pytest.mark.parametrize("mode", ["median", "ranks", "rank"])
    def test_what_was_measured_stays_as_a_shade(self, mode: str) -> None:
        drawn = draw_chart(self.DATA, ChartOptions(mode, 3, smoothing=0.97), 80, 12)
        shades = {style for line in drawn.lines for text, style in line if text.strip()}
        assert "band" in shades
        main = "warn" if mode != "rank" else "chosen"
        rows = [y for y, line in enumerate(drawn.lines) for _, style in line if style == main]
        raw = draw_chart(self.DATA, ChartOptions(mode, 3), 80, 12)
        before = [y for y, line in enumerate(raw.lines) for _, style in line if style == main]
        assert len(set(rows)) < len(set(before)), "the smoothed line goes up and down less"

    def test_the_cursor_reads_both(self) -> None:
        options = ChartOptions(smoothing=0.9, view=View(cursor=100.0))
        reading = draw_chart(self.DATA, options, 80, 12).reading
        assert reading is not None
        assert "(raw " in plain(reading.line(99))


SERIES = st.lists(st.floats(-2, 9), min_size=30, max_size=30)


@settings(max_examples=40, deadline=None)
@given(st.lists(SERIES, min_size=2, max_size=5), st.sampled_from(WEIGHTS), st.booleans(), st.data())
def test_the_median_lies_between_the_least_and_the_greatest(
    ranks: list[list[float]], weight: float, logarithmic: bool, draw: st.DataObject
) -> None:
    missing = draw.draw(st.sets(st.integers(0, 29), max_size=29))
    series = {
        rank: points([None if t in missing else v for t, v in enumerate(values)])
        for rank, values in enumerate(ranks)
    }
    data = losses(series, since=0, until=30, marks=((11.0, "attempt 1"),))
    for at in range(30):
        options = ChartOptions(
            logarithmic=logarithmic, smoothing=weight, view=View(cursor=at + 0.5)
        )
        reading = draw_chart(data, options, 38, 9).reading
        assert reading is not None
        shown = plain(reading.line(200))
        if found := re.search(r"median (\S+).*  (\S+) to (\S+)", shown):
            middle, low, high = (float(one) for one in found.groups())
            assert low <= middle <= high, shown


def test_the_cursor_reads_a_range_from_zero() -> None:
    data = losses({rank: points([float(rank)] * 60) for rank in range(3)}, since=0, until=60)
    reading = draw_chart(data, ChartOptions(view=View(cursor=30.5)), 68, 20).reading
    assert reading is not None
    assert "0 to 2" in plain(reading.line(200))


def dots_in(lines: list[Line], style: str) -> set[tuple[int, int]]:
    """Where a style's dots are, as cells."""
    return {
        (x, y)
        for y, one in enumerate(lines)
        for x, (text, of) in enumerate((c, of) for text, of in one for c in text)
        if of == style and "\u2800" < text <= "\u28ff"
    }


class TestValidation:
    """Evaluations every 20 s of a loss above and one below the training loss."""

    DATA = losses({0: points([4.0 - t / 50 for t in range(100)])}, since=0, until=100)

    def test_each_evaluation_is_a_marker_on_a_dim_line(self) -> None:
        rare = points([4.6 - t / 5 for t in range(5)], every_s=20.0, start=10.0)
        data = replace(self.DATA, scalars={"val_loss": rare})
        lines = draw_chart(data, ChartOptions(), 118, 30).lines
        marked = [c for one in lines for text, of in one if of == VALIDATIONS[0] for c in text]
        between = {x for x, _ in dots_in(lines, "dim")}
        assert marked.count("●") == 5
        assert len(between) > 60

    def test_the_training_line_is_in_front(self) -> None:
        same = replace(self.DATA, scalars={"val_loss": self.DATA.series[0]})
        alone = draw_chart(self.DATA, ChartOptions(), 120 - len(" val_loss"), 20).lines
        both = draw_chart(same, ChartOptions(), 120, 20).lines
        assert dots_in(both, "median") == dots_in(alone, "median")


class TestFewSamples:
    def test_a_lone_sample_is_a_square_of_dots(self) -> None:
        data = losses({0: points([None] * 50 + [2.0])}, since=0, until=100)
        drawn = draw_chart(data, ChartOptions(), 60, 8)
        dots = [c for line in drawn.lines for c in plain(line) if "\u2800" < c <= "\u28ff"]
        assert [bin(ord(one) - 0x2800).count("1") for one in dots] == [4]

    def test_what_a_logarithmic_axis_has_no_place_for_is_left_out(self) -> None:
        values: list[float | None] = [5.0] * 40 + [-1.0] * 20 + [1.0] * 40
        data = losses({0: points(values)}, since=0, until=100)
        drawn = draw_chart(data, ChartOptions(logarithmic=True), 68, 8)
        assert drawn.scaling == "log scale"
        lines = [plain(line)[8:] for line in drawn.lines[:-1]]
        bare = [x for x in range(60) if not any("\u2800" < row[x] <= "\u28ff" for row in lines)]
        assert set(range(26, 34)) <= set(bare)
        below = losses({0: points([-1.0] * 100)}, since=0, until=100)
        assert "n/a" in draw_chart(below, ChartOptions(logarithmic=True), 60, 8).scaling


class TestRange:
    def test_single_spike_is_clipped_and_labeled(self) -> None:
        values = [2.0 + i / 100 for i in range(100)]
        _, high = value_range([*values, 1e6])
        assert high < 10
        data = losses({0: points([*values, 1e6])}, since=0, until=101)
        assert "peak 1.00e6 clipped" in plain(draw_chart(data, ChartOptions(), 300, 9).notes[0])

    def test_equal_values_have_room(self) -> None:
        assert value_range([0.0, 0.0]) == (-0.5, 0.5)
        assert value_range([]) == (0.0, 1.0)


class TestOutliersAndLabels:
    def test_a_long_label_moves_the_whole_axis(self) -> None:
        values: list[float | None] = [0.001034 - place * 2e-7 for place in range(30)]
        data = losses(series={0: points(values)}, since=0.0, until=30.0)
        lines = [plain(one) for one in draw_chart(data, ChartOptions(), 80, 12).lines]
        axis = {one.index(mark) for one in lines[:-1] for mark in "┤│" if mark in one}
        assert len(axis) == 1
        assert any(re.search(r"0\.0010\d\d ┤", one) for one in lines)


@pytest.mark.parametrize("rows", range(2, 30))
def test_the_ticks_of_a_value_axis_are_evenly_spaced(rows: int) -> None:
    for low, high in ((0.0, 1.0), (0.37, 4.1), (2.05, 2.31), (-3.0, 7.5), (0.0, 446.0), (11, 97)):
        axis = Scale(low, high, 4 * rows)
        found = sorted(tick_rows(axis, rows))
        assert 1 <= len(found) <= max(3, rows // 2 + 1)
        apart = {b - a for a, b in itertools.pairwise(found)}
        assert not apart or max(apart) - min(apart) <= (min(apart) >= 3), (low, high, found)
    full = [len(tick_rows(Scale(0.0, top, 4 * rows), rows)) for top in (1.0, 3.0, 4.1, 8.8)]
    assert rows < 5 or min(full) >= 2


def test_a_label_is_the_value_of_its_row() -> None:
    for high in (4.7, 4.8, 4.9, 5.0, 5.1):
        for rows in range(4, 20):
            axis = Scale(2.2, high, 4 * rows)
            for row, label in tick_rows(axis, rows).items():
                assert row == rows - 1 - axis.dot(float(label)) // 4, (high, rows, label)


class TestAStartThatFlattens:
    VALUES: list[float | None] = [90.0] * 3 + [80.0] * 3 + [2 + i % 5 / 50 for i in range(94)]

    def test_it_is_cut_off(self) -> None:
        data = losses({0: points(self.VALUES)}, since=0, until=100)
        drawn = draw_chart(data, ChartOptions(), 70, 8)
        lines = [plain(line) for line in drawn.lines]
        assert max(float(line.split("┤")[0]) for line in lines if "┤" in line) < 3, lines
        assert not re.search("[⠁-⣿]", lines[0][:11]), "no line along the edge"
        assert "peak 90" in plain(drawn.notes[0])

    def test_the_cursor_still_reads_it(self) -> None:
        data = losses({0: points(self.VALUES)}, since=0, until=100)
        found = draw_chart(data, ChartOptions(view=View(cursor=1.0)), 60, 8)
        assert found.reading is not None and "loss 90" in plain(found.reading.line(60))

    def test_an_even_fall_and_few_values_stay_as_they_are(self) -> None:
        even = [8 - i / 20 for i in range(100)]
        assert without_top(even) == even
        few = [9.0, 5.0, 2.0, 2.0, 2.0]
        assert without_top(few) == few


def test_samples_in_bursts_are_joined() -> None:
    times = [30.0 * burst + i for burst in range(20) for i in range(5)]
    values: list[float | None] = [2.0] * len(times)
    columns = bin_points(Points(times, values, values, values), 0, 600, 600)
    assert columns.max_gap >= 26


def test_a_job_that_becomes_slower_shows_it() -> None:
    times = [float(t) for t in range(200)]
    steps: list[int | None] = [int(10.8 * min(t, 100) + 4 * max(0, t - 100)) for t in times]
    one = Points(times, [1.0] * 200, [1.0] * 200, [1.0] * 200, step=steps, attempt=[0] * 200)
    found = rates(one)
    by_time = dict(zip(found.t, found.mean, strict=True))
    assert by_time[50.0] == pytest.approx(10.8, abs=0.1)
    assert by_time[199.0] == pytest.approx(4.0, abs=0.1)
    drawn = draw_chart(losses({0: one}, since=0, until=200), ChartOptions(), 60, 10, THROUGHPUT)
    rows = [plain(line) for line in drawn.lines]
    assert any(re.match(r" *10 ┤[⠁-⣿┈]", row) for row in rows), rows
    assert any(re.match(r" *0 ┤┈+$", row) for row in rows), "the axis begins at 0"
