"""The loss by step: attempts follow each other, and nothing is invented."""

from __future__ import annotations

import pytest
from ddptop.charts.loss import ChartOptions, draw_chart
from ddptop.charts.steps import by_step, no_steps, step_times, steps_of
from ddptop.charts.window import View
from ddptop.job.series import AttemptSteps, ChartData, Points
from ddptop.style import plain


def points(
    steps: list[int | None], attempt: int | None = 0, start: float = 0.0, value: float = 2.0
) -> Points:
    values: list[float | None] = [value] * len(steps)
    t = [start + place for place in range(len(steps))]
    return Points(t, values, values, values, step=steps, attempt=[attempt] * len(steps))


def joined(*parts: Points) -> Points:
    return Points(
        *[
            [x for one in parts for x in getattr(one, name)]
            for name in ("t", "low", "mean", "high")
        ],
        step=[x for one in parts for x in one.step],
        attempt=[x for one in parts for x in one.attempt],
    )


TWO = (AttemptSteps(0, 0.0, 0), AttemptSteps(1, 100.0, 50))


class TestPlaces:
    def test_a_sample_of_one_step_lies_at_it(self) -> None:
        assert steps_of(points([1, 2, 2, 3])) == [1, 2, 2, 3]

    def test_a_sample_of_several_lies_in_their_middle(self) -> None:
        # its loss is that of steps 6 to 10
        assert steps_of(points([5, 10])) == [5, 8]

    def test_an_unknown_step_has_no_place(self) -> None:
        assert steps_of(points([1, None, 3])) == [1, None, 2.5]

    def test_an_attempt_stands_behind_the_one_before(self) -> None:
        both = joined(points([48, 49, 50]), points([1, 2], 1, 100.0))
        assert steps_of(both, TWO) == [48, 49, 50, 51, 52]

    def test_printed_steps_that_went_back_to_a_checkpoint_are_not_counted_twice(self) -> None:
        told = (AttemptSteps(0, 0.0, 0), AttemptSteps(1, 100.0, 50, first=40))
        both = joined(points([49, 50]), points([40, 41], 1, 100.0))
        assert steps_of(both, told) == [49, 50, 50, 51]

    def test_without_attempts_a_step_that_went_back_is_counted_on(self) -> None:
        both = joined(points([9, 10], None), points([1, 2], None, 50.0))
        assert steps_of(both) == [9, 10, 11, 12]

    def test_places_never_go_back(self) -> None:
        odd = joined(points([9, 90]), points([3, 4], 1, 100.0), points([1], None, 200.0))
        places = [place or 0.0 for place in steps_of(odd, TWO)]
        assert places == sorted(places)


class TestByStep:
    def test_marks_stand_where_an_attempt_begins(self) -> None:
        both = joined(points(list(range(1, 51))), points(list(range(1, 31)), 1, 100.0))
        data = ChartData({0: both}, since=0, until=130, attempts=TWO, last_step=80)
        stepped = by_step(data)
        assert stepped.marks == ((50.5, "attempt 1"),), "between the last step and the next"
        assert stepped.extent == (0.0, 80.0)
        lines = [plain(line) for line in draw_chart(stepped, ChartOptions(), 88, 7).lines]
        assert lines[0].index("┊") == 8 + 50
        assert lines[-1].split() == ["0", "10", "20", "30", "40", "50", "60", "70", "80"]

    def test_no_curve_goes_from_one_attempt_to_the_next(self) -> None:
        far = joined(points(list(range(1, 51))), points(list(range(1, 31)), 1, 100.0, value=9.0))
        stepped = by_step(ChartData({0: far}, since=0, until=130, attempts=TWO, last_step=80))
        for width in range(40, 200, 7):
            lines = [plain(line) for line in draw_chart(stepped, ChartOptions(), width, 9).lines]
            between = "".join(lines[2:6])
            assert not any("\u2800" < one <= "\u28ff" for one in between), width

    def test_the_cursor_tells_the_attempt_and_its_own_step(self) -> None:
        both = joined(points(list(range(1, 51))), points(list(range(1, 31)), 1, 100.0))
        stepped = by_step(ChartData({0: both}, since=0, until=130, attempts=TWO, last_step=80))
        view = View("step", cursor=60.0)
        reading = draw_chart(stepped, ChartOptions(view=view), 88, 7).reading
        assert reading is not None
        assert plain(reading.line(60)) == "attempt 1 step 10  loss 2.0000"

    def test_nan_stands_at_its_step(self) -> None:
        one = points(list(range(1, 101)))
        bad = Points(one.t, one.low, one.mean, one.high, [40.5], one.step, one.attempt)
        assert by_step(ChartData({0: bad}, since=0, until=100)).series[0].not_finite == [41.0]

    def test_reason_is_shown(self) -> None:
        silent = Points([1.0], [2.0], [2.0], [2.0], step=[None])
        assert no_steps(ChartData({0: points([1])})) is None
        assert no_steps(ChartData({0: silent})) == (
            "by step: n/a (step numbers are unknown for these losses)"
        )
        assert "ddptop did not start" in (no_steps(ChartData({0: silent}, watched=True)) or "")


class TestWhatIsRead:
    DATA = ChartData(
        {0: points(list(range(1, 1001)))}, since=0, until=1000, whole=(0, 1000), last_step=1000,
        attempts=(AttemptSteps(0, 0.0, 0),),
    )  # fmt: skip

    def test_everything(self) -> None:
        assert step_times(self.DATA, View("step")) == (None, None)

    def test_the_newest_steps_go_on(self) -> None:
        window_s, until = step_times(self.DATA, View("step", 200.0))
        assert until is None
        assert window_s == pytest.approx(200, abs=5)

    def test_steps_in_the_middle(self) -> None:
        window_s, until = step_times(self.DATA, View("step", 200.0, 600.0))
        assert until == pytest.approx(600, abs=5)
        assert window_s == pytest.approx(200, abs=8)

    def test_more_than_is_at_hand_is_guessed_from_the_ends(self) -> None:
        part = ChartData(
            {0: points(list(range(501, 601)), start=500.0)}, since=500, until=600, whole=(0, 1000),
            last_step=1000, attempts=(AttemptSteps(0, 0.0, 0),),
        )  # fmt: skip
        window_s, until = step_times(part, View("step", 400.0, 700.0))
        assert until == pytest.approx(700, abs=5)
        assert window_s == pytest.approx(400, abs=8)
