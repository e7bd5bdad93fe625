"""What is computed from losses. Pure functions."""

from __future__ import annotations

import pytest
from ddptop.job.attempts import offsets_of
from ddptop.job.compare import LossCurve, better, least
from ddptop.job.series import Points


def of(*rows: tuple[float, int | None, float | None, int]) -> LossCurve:
    """Samples as (seconds, step, loss, attempt); None for a loss that was not finite."""
    times, steps, losses, attempts = zip(*rows, strict=True) if rows else ((), (), (), ())
    bad = [t for t, loss in zip(times, losses, strict=True) if loss is None]
    return LossCurve(Points(times, losses, losses, losses, bad, steps, attempts))


def curve(*losses: float | None) -> LossCurve:
    """A sample per second with ten steps each."""
    return of(*((float(i), i * 10, loss, 0) for i, loss in enumerate(losses)))


def test_the_last_common_point_is_that_of_the_shorter_one() -> None:
    short, long = curve(4, 3, 2), curve(4, 3, 2, 1, 0.5)
    assert least([one.last_step for one in (short, long)]) == 20
    assert least([one.last_s for one in (short, long)]) == 2.0
    without = of((1.0, None, 2.0, 0), (2.0, None, 1.0, 0))
    assert (without.last_step, without.last_s) == (None, 2.0)
    assert least([1, None]) is None
    assert least([]) is None


def test_a_loss_between_two_samples_lies_between_them() -> None:
    found = curve(4.0, 2.0)
    assert found.loss_at_step(5) == pytest.approx(3.0)
    assert (found.loss_at_step(0), found.loss_at_step(10)) == (4.0, 2.0)
    assert found.loss_at_step(11) is None
    assert of((5.0, 50, 1.0, 0)).loss_at_step(10) is None
    assert LossCurve().loss_at_step(0) is None


def test_a_loss_is_the_median_of_the_last_steps_and_not_one_batch() -> None:
    found = of(*((float(i), i, 90.0 if i == 995 else 1.0, 0) for i in range(1001)))
    assert found.loss_at_step(995) == 1.0


def test_what_is_not_finite_is_no_loss() -> None:
    found = curve(4.0, 3.0, None, None)
    assert found.last_step == 10
    assert found.bad_since is not None
    assert (found.bad_since.step, found.bad_since.at_s) == (20, 2.0)
    assert found.last == 3.0
    assert curve(4.0, None, 3.0).bad_since is None
    best = curve(4.0, 1.0, None, 2.0).best()
    assert best is not None
    assert (best.loss, best.step, best.at_s) == (1.0, 10, 1.0)
    assert LossCurve().best() is None


def test_an_attempt_that_went_back_counts_from_there() -> None:
    first = [(float(i), i * 10, 5.0, 0) for i in range(5)]
    second = [(10.0 + i, 20 + i * 10, 2.0, 1) for i in range(4)]
    found = of(*first, *second)
    assert list(found.by_step.t) == [0, 10, 20, 30, 40, 50]
    assert found.loss_at_step(40) == 2.0
    assert found.last_step == 50
    # the time between attempts does not count as training
    assert found.step_time_s() == pytest.approx(7 / 70)


def test_without_two_samples_the_step_time_is_unknown() -> None:
    assert LossCurve().step_time_s() is None
    assert curve(1.0).step_time_s() is None


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
