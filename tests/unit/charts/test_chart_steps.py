"""The loss by step: the run's own steps, of which the latest attempt's count."""

from __future__ import annotations

import pytest
from ddptop.charts.axis import View
from ddptop.charts.curves import ChartOptions, draw_curves
from ddptop.charts.plots import curves_of, no_steps
from ddptop.job.series import ChartData, Points, by_step, restarts
from ddptop.style import plain


def points(
    steps: list[int | None], attempt: int | None = 0, start: float = 0.0, value: float = 2.0
) -> Points:
    values: list[float | None] = [value] * len(steps)
    t = [start + place for place in range(len(steps))]
    return Points(t, values, values, values, step=steps, attempt=[attempt] * len(steps))


def joined(*parts: Points) -> Points:
    columns = ("t", "low", "mean", "high", "step", "attempt")
    return Points(**{name: [x for one in parts for x in getattr(one, name)] for name in columns})


def test_an_unknown_step_has_no_place_and_waiting_at_one_stays() -> None:
    assert by_step(points([1, None, 3])).t == [1, 3]
    assert by_step(points([7, 7, 8])).t == [7, 7, 8]


def test_an_attempt_that_resumed_replaces_what_it_repeats() -> None:
    both = by_step(joined(points([48, 49, 50]), points([49, 50, 51], 1, 100.0)))
    assert both.t == [48, 49, 50, 51]
    assert restarts(both) == [(49, 1)]


def test_steps_never_go_back() -> None:
    odd = joined(points([9, 90]), points([3, 4], 1, 100.0), points([1], None, 200.0))
    assert by_step(odd).t == [1]


def test_nan_stands_at_its_step() -> None:
    one = points(list(range(1, 101)))
    bad = Points(one.t, one.low, one.mean, one.high, [40.0], one.step, one.attempt)
    assert by_step(bad).not_finite == [41.0]


TWO = joined(points(list(range(1, 51))), points(list(range(41, 81)), 1, 100.0, value=9.0))
DATA = ChartData(middle=TWO, since=0, until=140, last_step=80)


def test_marks_stand_where_an_attempt_begins_and_no_curve_crosses_them() -> None:
    options = ChartOptions(view=View("step", cursor=60.0))
    for width in range(40, 200, 7):
        drawn = draw_curves(curves_of(DATA, options), options, width, 9)
        lines = [plain(line) for line in drawn.lines]
        assert any("┊" in line for line in lines)
        between = "".join(lines[2:6]).replace("│", "")
        assert not any("\u2800" < one <= "\u28ff" for one in between), width
    drawn = draw_curves(curves_of(DATA, options), options, 88, 7)
    assert drawn.area is not None and (drawn.area.first, drawn.area.last) == (0.0, 80.0)
    assert drawn.reading is not None
    assert plain(drawn.reading.line(60)) == "step 60  loss 9.0000"


@pytest.mark.parametrize("watched", [False, True])
def test_the_reason_for_no_steps_is_shown(watched: bool) -> None:
    silent = Points([1.0], [2.0], [2.0], [2.0], step=[None])
    assert no_steps(ChartData(middle=points([1]))) is None
    reason = no_steps(ChartData(middle=silent, watched=watched)) or ""
    assert ("ddptop did not start" in reason) is watched
    assert reason.startswith("by step: n/a (")
