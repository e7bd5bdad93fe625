"""Zoom, pan and cursor; the axis under every chart; smoothing."""

from __future__ import annotations

import itertools

import pytest
from ddptop.charts.axis import (
    TIME_SPANS,
    Area,
    View,
    axis_line,
    cursor_moved,
    exact_label,
    panned,
    step_label,
    ticks,
    visible,
    zoomed,
)
from ddptop.charts.curves import WEIGHTS, next_weight, smoothed
from ddptop.job.series import Frame
from ddptop.style import plain

HOUR = Area(left=8, cells=100, since=0.0, until=3600.0, first=0.0, last=3600.0)


def area_of(view: View, first: float = 0.0, last: float = 3600.0) -> Area:
    since, until = visible(view, first, last)
    return Area(8, 100, since, until, first, last)


class TestZoom:
    def test_without_a_cursor_the_right_edge_stays_and_follows(self) -> None:
        view = zoomed(View(), HOUR, 1)
        assert view == View(span=1200)
        assert visible(view, 0, 3600) == (2400, 3600)
        assert visible(view, 0, 4000) == (2800, 4000), "it goes on with what is newest"

    def test_the_cursor_stays_where_it_is(self) -> None:
        view = View(cursor=900.0)
        for _ in range(4):
            before = area_of(view)
            view = zoomed(view, before, 1)
            after = area_of(view)
            assert after.width < before.width
            assert before.cell(900.0) == after.cell(900.0)

    def test_the_pointer_wins_over_the_cursor(self) -> None:
        view = zoomed(View(cursor=100.0), HOUR, 1, at=1800.0)
        assert area_of(view).cell(1800.0) == HOUR.cell(1800.0)

    def test_out_again_is_everything(self) -> None:
        view = View(cursor=900.0)
        for _ in range(9):
            view = zoomed(view, area_of(view), 1)
        assert view.span == TIME_SPANS[0]
        for _ in range(9):
            view = zoomed(view, area_of(view), -1)
        assert (view.span, view.right) == (None, None)

    def test_a_short_run_is_zoomed_too(self) -> None:
        short = Area(8, 100, 0, 45, 0, 45)
        assert zoomed(View(), short, 1).span == 20
        assert zoomed(View(), Area(8, 100, 0, 9, 0, 9), 1) == View()

    def test_steps_have_spans_of_their_own(self) -> None:
        steps = Area(8, 100, 0, 3000, 0, 3000)
        assert zoomed(View("step"), steps, 1).span == 2000


class TestPan:
    def test_everything_stays(self) -> None:
        assert panned(View(), HOUR, -25) == View()

    def test_back_and_to_the_newest_again(self) -> None:
        view = panned(View(span=600), area_of(View(span=600)), -50)
        assert view == View(span=600, right=3300.0)
        view = panned(view, area_of(view), 50)
        assert view == View(span=600), "at the end it follows what is newest"

    def test_not_beyond_the_beginning(self) -> None:
        view = panned(View(span=600, right=700.0), area_of(View(span=600, right=700.0)), -99)
        assert visible(view, 0, 3600) == (0, 600)


class TestCursor:
    def test_it_begins_at_an_edge(self) -> None:
        assert HOUR.cell(cursor_moved(View(), HOUR, -1).cursor or -1) == 99
        assert HOUR.cell(cursor_moved(View(), HOUR, 1).cursor or -1) == 0

    def test_one_cell_at_a_time(self) -> None:
        view = View(cursor=HOUR.at(50))
        cells = []
        for _ in range(3):
            view = cursor_moved(view, HOUR, -1)
            cells.append(HOUR.cell(view.cursor or 0))
        assert cells == [49, 48, 47]

    def test_past_the_edge_it_takes_the_view_along(self) -> None:
        view = View(span=600, right=2000.0, cursor=1401.0)
        moved = cursor_moved(view, area_of(view), -1)
        assert visible(moved, 0, 3600)[0] == pytest.approx(1394.0)
        assert area_of(moved).cell(moved.cursor or 0) == 0

    def test_it_stops_at_the_ends_of_everything(self) -> None:
        view = View(cursor=HOUR.at(99))
        assert cursor_moved(view, HOUR, 5) == view


class TestAxis:
    @pytest.mark.parametrize("cells", [8, 20, 57, 111, 300])
    @pytest.mark.parametrize("span", [9.0, 61.0, 754.0, 3600.0, 90_000.0, 4e6])
    @pytest.mark.parametrize("kind", ["whole", "window", "panned", "step"])
    def test_labels_never_touch(self, cells: int, span: float, kind: str) -> None:
        first = 50_000.0 if kind == "panned" else 0.0
        area = Area(8, cells, first, first + span, 0.0, first + span)
        axis = Frame(by_step=kind == "step"), View(span=1.0 if kind == "window" else None)
        text = plain(axis_line(area, *axis))[8:]
        assert len(text) == cells
        labels = [label for _, label in ticks(area, *axis)]
        assert all(word in labels or word in ("first", "seen") for word in text.split()), text

    def test_labels_stand_where_they_belong(self) -> None:
        text = plain(axis_line(HOUR, Frame(), View()))[8:]
        assert text.split() == ["start", "10m", "20m", "30m", "40m", "50m", "1h"]
        assert abs(text.index("30m") + 1 - 50) <= 1

    def test_ticks_are_one_two_or_five(self) -> None:
        for span in (7, 33, 480, 1900, 75_000, 3e6):
            places = [
                at for at, _ in ticks(Area(8, 90, 0, span, 0, span), Frame(by_step=True), View())
            ]
            apart = {round(b - a, 6) for a, b in itertools.pairwise(places)}
            assert len(apart) == 1
            assert f"{apart.pop():.0e}"[0] in "125"

    def test_a_panned_axis_is_as_exact_as_its_ticks(self) -> None:
        assert exact_label(3725, 10) == "1:02:05"
        assert exact_label(3720, 60) == "1h02"
        assert exact_label(90_000 + 60, 60) == "1d01:01"
        assert exact_label(65, 10) == "1m05"

    def test_steps_are_short(self) -> None:
        assert [step_label(step, 500) for step in (0, 500, 1500, 9500)] == [
            "0", "500", "1,500", "9,500"
        ]  # fmt: skip
        assert step_label(20_000, 5000) == "20k"
        assert step_label(12_500, 500) == "12.5k"
        assert step_label(1_500_000, 500_000) == "1.5M"

    def test_the_cursor_is_marked_and_no_label_covers_it(self) -> None:
        text = plain(axis_line(HOUR, Frame(), View(cursor=1800.0)))[8:]
        assert text[50] == "▲"
        assert "30m" not in text


class TestSmoothing:
    def test_the_first_values_are_not_drawn_to_zero(self) -> None:
        assert smoothed([4.0, 4.0, 4.0], 0.97) == pytest.approx([4.0, 4.0, 4.0])

    def test_it_is_the_debiased_average(self) -> None:
        # of TensorBoard: last = last * w + (1 - w) * x, divided by 1 - w ** n
        values, weight, last = [1.0, 2.0, 0.0, 5.0], 0.6, 0.0
        expected = []
        for number, value in enumerate(values, 1):
            last = last * weight + (1 - weight) * value
            expected.append(last / (1 - weight**number))
        assert smoothed(list(values), weight) == pytest.approx(expected)

    def test_a_missing_value_stays_missing_and_changes_nothing(self) -> None:
        assert smoothed([1.0, None, 3.0], 0.6)[1] is None
        assert smoothed([1.0, None, 3.0], 0.6)[2] == smoothed([1.0, 3.0], 0.6)[1]

    def test_new_attempt_starts_over(self) -> None:
        assert smoothed([9.0, 9.0, 1.0, 1.0], 0.9, {2})[2:] == pytest.approx([1.0, 1.0])

    def test_the_weights_go_round(self) -> None:
        found = [0.0]
        for _ in WEIGHTS:
            found.append(next_weight(found[-1]))
        assert found == [0.0, 0.6, 0.9, 0.97, 0.0]
        assert smoothed([1.0, 5.0], 0.0) == [1.0, 5.0]


def test_a_history_fills_the_chart_from_its_first_sample() -> None:
    assert visible(View(span=900), 1000, 1120) == (1000, 1120)
    assert visible(View(span=900, right=1500), 1000, 2000) == (600, 1500)
