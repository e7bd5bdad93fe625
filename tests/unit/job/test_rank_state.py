"""The sentence that says what a rank is doing, and since when it deviates."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest
from ddptop.job import record
from ddptop.job.ranks import sentence, step_parts
from ddptop.job.series import LossTrend, Points, trend
from msgspec.structs import replace
from tests.support import fake_foreign
from tests.support.fake_home import NOW, ago
from tests.support.own_views import rank, view_of
from tests.support.tables import table

from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import RankSample


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def others(*sync_s: float | None) -> list[RankSample]:
    """Ranks 4, 5, ..., whose steps take 0.3 s."""
    return [rank(4 + at, step_time_s=0.3, sync_s=one) for at, one in enumerate(sync_s)]


THREE = others(0.1, 0.0, 0.1)
CLOSE = RankDeviation(step_time=0.01)


def said(
    one: RankSample, others: list[RankSample] = THREE, apart: RankDeviation = CLOSE, **job: object
) -> str:
    """The sentence about a rank beside other ranks."""
    view = replace(view_of(ranks=[one, *others]), **job)
    return sentence(one, view, apart, NOW)[0]


def running(**more: object) -> RankSample:
    values = {"state": "running", "step": 1203, "step_time_s": 0.3, "loss": 2.0}
    return rank(3, **{**values, **more})


def test_outlier_is_described_by_its_alert_without_repetition() -> None:
    assert said(running(), apart=RankDeviation(is_slow=True)) == ""


@pytest.mark.parametrize("case", table(__file__, "sentences"), ids=lambda case: case[1][7:30])
def test_what_it_is_doing(case: list[object]) -> None:
    fields, text = case
    one = running(**fields)
    assert said(msgspec.convert(msgspec.to_builtins(one), RankSample)) == text


def test_what_it_is_doing_before_its_first_step() -> None:
    assert said(running(state="starting", step=None)) == "rank 3 has not taken a step yet"
    unknown = "rank 3 is running; its steps and losses are unknown"
    assert said(rank(3, state="running")) == unknown


def test_foreign_rank_explains_why_nothing_is_known() -> None:
    job = record.foreign_job(fake_foreign.healthy())
    text = sentence(rank(3, state="running"), job, CLOSE, NOW)[0]
    assert text == "rank 3 is running; its steps and losses are unknown (not started by ddptop)"
    gone = sentence(rank(3, state="unknown"), replace(job, state="gone"), CLOSE, NOW)[0]
    assert gone == "rank 3 is gone; exit status unknown (not started by ddptop)"


def test_single_rank_is_not_compared() -> None:
    assert "no other rank" in said(running(), [])


@pytest.mark.parametrize(
    ("sync_s", "of_other_s", "text"),
    [
        (0.0, 0.06, "rank 3 is busy 300 ms of each step, 25% longer than the other rank"),
        (0.06, 0.0, "rank 3 waits 20% of a step for the other rank"),
        (0.01, 0.01, "rank 3 is busy as long as the other rank"),
        (0.01, None, "rank 3 is training; how long it waits for the others is unknown"),
    ],
)
def test_one_of_two_ranks_is_compared_with_the_other(
    sync_s: float, of_other_s: float | None, text: str
) -> None:
    assert said(running(sync_s=sync_s), others(of_other_s)) == text


class TestTrend:
    def values(self, *losses: float) -> Points:
        return Points([10.0 * place for place in range(len(losses))], losses, losses, losses)

    def test_a_loss_that_goes_down_or_up(self) -> None:
        falling = trend(self.values(*(2.0 - 0.01 * n for n in range(20))))
        assert falling == LossTrend("falling", 190.0, pytest.approx(-0.0512, abs=1e-3))
        rising = trend(self.values(*(2.0 + 0.01 * n for n in range(20))))
        assert rising is not None and rising.way == "rising"

    def test_noise_is_no_trend(self) -> None:
        noisy = trend(self.values(*[2.3, 1.7] * 11, 2.3, 2.3))
        assert noisy is not None and noisy.way == "flat"
        assert noisy.ratio == pytest.approx(0.025), "its halves differ, by chance"

    def test_less_than_half_a_percent_is_flat(self) -> None:
        slowly = trend(self.values(*(2.0 - 0.0005 * n for n in range(16))))
        assert slowly is not None and slowly.way == "flat"

    def test_too_few_points_say_nothing(self) -> None:
        assert trend(self.values(3, 2, 1)) is None

    def test_a_loss_around_zero_has_no_percent(self) -> None:
        about = trend(self.values(*([0.0] * 8), *(-0.1 * n for n in range(1, 9))))
        assert about == LossTrend("falling", 150.0, None)


def test_the_parts_of_a_step_do_not_overlap() -> None:
    parts = {"input_s": 0.012, "forward_s": 0.045, "backward_s": 0.081}
    shown = "step time: backward 81 ms, forward 33 ms, input 12 ms"
    assert step_parts(replace(rank(0), **parts)) == shown
    assert step_parts(replace(rank(0), forward_s=0.045)) == "step time: forward 45 ms"
    assert step_parts(None) == "step time"
    asleep = {"optimizer_s": 0.001, "data_wait_s": 0.010, "step_time_s": 0.200}
    shown = "step time: backward 81 ms, other 63 ms, forward 33 ms, input 12 ms"
    assert step_parts(replace(rank(0), **parts, **asleep)) == shown
    shown = "step time: backward 81 ms, forward 33 ms, input 12 ms"
    assert step_parts(replace(rank(0), **parts, **asleep | {"step_time_s": 0.15})) == shown


def test_ranks_that_step_together_are_shown_at_one_step() -> None:
    ranks = [
        rank(number, state="running", step=step, step_time_s=0.05, last_progress_at=ago(age_s))
        for number, step, age_s in [(0, 100, 0.6), (1, 103, 0.45)]
    ]
    job = view_of(ranks=ranks)
    past = record.past_job(job, replace(job.snapshot, ranks=ranks), NOW)
    for shown in (job, past):
        assert [one.step for one in shown.snapshot.ranks] == [100, 100]
