"""What is computed from losses. Pure functions."""

from __future__ import annotations

import pytest
from ddptop.job.compare import LossCurve, Sample, better, common_s, common_step, offsets_of


def curve(*losses: float | None, every: int = 10, attempt: int = 0) -> LossCurve:
    """A sample per second with this many steps each; None for a loss that was not finite."""
    return LossCurve(
        tuple(
            Sample(float(place), place * every, loss, attempt, is_bad=loss is None)
            for place, loss in enumerate(losses)
        )
    )


def test_the_last_common_step_is_that_of_the_shorter_one() -> None:
    short, long = curve(4, 3, 2), curve(4, 3, 2, 1, 0.5)
    assert common_step([short, long]) == 20
    assert common_s([short, long]) == 2.0
    assert common_step([short, LossCurve()]) is None
    assert common_step([]) is None
    without = LossCurve((Sample(1.0, None, 2.0), Sample(2.0, None, 1.0)))
    assert common_step([short, without]) is None
    assert common_s([short, without]) == 2.0


def test_a_loss_between_two_samples_lies_between_them() -> None:
    found = curve(4.0, 2.0)
    assert found.loss_at_step(5) == pytest.approx(3.0)
    assert (found.loss_at_step(0), found.loss_at_step(10)) == (4.0, 2.0)
    assert found.loss_at_step(11) is None
    assert LossCurve((Sample(5.0, 50, 1.0),)).loss_at_step(10) is None
    assert LossCurve().loss_at_step(0) is None


def test_a_loss_is_the_median_of_the_last_steps_and_not_one_batch() -> None:
    samples = [Sample(float(i), i, 1.0, 0) for i in range(1001)]
    samples[995] = Sample(995.0, 995, 90.0, 0)
    assert LossCurve(tuple(samples)).loss_at_step(995) == 1.0


def test_what_is_not_finite_is_no_loss() -> None:
    found = curve(4.0, 3.0, None, None)
    assert found.last_step == 10
    assert found.bad_since is found.samples[2]
    assert found.last is found.samples[3]
    assert curve(4.0, None, 3.0).bad_since is None
    best = curve(4.0, 1.0, None, 2.0).best()
    assert best is not None
    assert (best.loss, best.step, best.at_s) == (1.0, 10, 1.0)
    assert LossCurve().best() is None


def test_an_attempt_that_went_back_counts_from_there() -> None:
    first = [Sample(float(i), i * 10, 5.0, 0) for i in range(5)]
    second = [Sample(10.0 + i, 20 + i * 10, 2.0, 1) for i in range(4)]
    found = LossCurve((*first, *second))
    assert [one.step for one in found.by_step] == [0, 10, 20, 30, 40, 50]
    assert [one.attempt for one in found.by_step] == [0, 0, 1, 1, 1, 1]
    assert found.loss_at_step(40) == 2.0
    assert found.last_step == 50
    # the time between attempts does not count as training
    assert found.steps_per_s() == pytest.approx(70 / 7)


def test_pace_and_time_per_step_are_of_the_same_samples() -> None:
    at = [0.0, 1.0, 2.0, 3.0, 4.0]  # buckets of a second contain 5 or 8 steps
    found = LossCurve(tuple(Sample(at[i], n, 1.0, 0) for i, n in enumerate([0, 5, 10, 18, 26])))
    assert found.steps_per_s() == pytest.approx(26 / 4)
    assert found.step_time_s() == pytest.approx(4 / 26)
    assert LossCurve().step_time_s() is None
    assert curve(1.0).steps_per_s() is None


def test_samples_of_one_step_stay() -> None:
    waits = LossCurve(tuple(Sample(float(i), 7, 1.0, 0) for i in range(3)))
    assert len(waits.by_step) == 3


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.0, 1.0], (1, 0.5)),
        ([1.0, 4.0, 2.0], (0, 0.5)),
        ([1.0, 1.0], None),
        ([1.0, None], None),
        ([1.0], None),
        ([-3.0, -1.0], (0, 2.0)),
        ([0.0, -1.0], None),
    ],
)
def test_who_is_better(losses: list[float | None], expected: tuple[int, float] | None) -> None:
    assert better(losses) == expected


def test_attempts_continue_counting_unless_their_start_is_known() -> None:
    taken = [(0, 100), (1, 30), (2, 50)]
    assert offsets_of(taken, {}, printed=False) == {0: 0, 1: 100, 2: 130}
    assert offsets_of(taken, {1: 80}, printed=False) == {0: 0, 1: 80, 2: 110}
    assert offsets_of(taken, {}, printed=True) == {0: 0, 1: 0, 2: 0}
    assert offsets_of([], {0: 5}, printed=False) == {0: 5}
