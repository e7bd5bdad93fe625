"""The sentence that says what a rank is doing, and since when it deviates."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ddptop.job.loss_trend import LossTrend, trend
from ddptop.job.ranks import Known, sentence
from ddptop.job.series import Points
from msgspec.structs import replace
from tests.support.fake_home import NOW, ago
from tests.support.own_views import rank

from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import RankSample


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


WELL = Known(RankDeviation(step_time=0.01), 8, NOW, True)


def running(**more: object) -> RankSample:
    values = {"state": "running", "step": 1203, "step_time_s": 0.3, "loss": 2.0}
    return rank(3, **{**values, **more})


def test_both_waits_are_shown_if_one_is_notable() -> None:
    both = running(step_time_s=0.2, data_wait_s=0.032, sync_s=0.096)
    waits = (
        "; it spends 16% of its time waiting for data and 48% of its time waiting for other ranks"
    )
    assert sentence(both, WELL)[0].endswith(waits)
    assert "waiting" not in sentence(running(data_wait_s=0.02, sync_s=0.02), WELL)[0]


def test_outlier_is_described_by_its_alert_without_repetition() -> None:
    apart = RankDeviation(is_slow=True)
    assert sentence(running(), replace(WELL, apart=apart)) == ("", "")


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (running(), "rank 3 is close to the median of all 8 ranks"),
        (
            running(sync_s=0.15),
            "rank 3 is close to the median of all 8 ranks; it spends 50% of its time waiting for "
            "other ranks",
        ),
        (
            running(loss=None, loss_state="nan", loss_bad_since=1200, loss_last_good=2.31),
            "rank 3's loss has been NaN since step 1,200; the last finite loss was 2.3100",
        ),
        (
            running(state="quiet", quiet_since=ago(90), stands_at="train.py:81 in step"),
            "rank 3 has not taken a step since 11:58:30 (quiet); last seen at train.py:81 in step",
        ),
        (
            running(state="paused", pid=71),
            "rank 3 is stopped by SIGSTOP; to resume it, run kill -CONT 71",
        ),
        (running(state="starting", step=None), "rank 3 has not taken a step yet"),
        (
            running(phase="evaluation", phase_since=ago(60)),
            "rank 3 is evaluating (since 11:59:00); this is normal",
        ),
        (running(state="failed", signal="SIGKILL"), "rank 3 was killed by SIGKILL at step 1,203"),
        (running(state="failed", exit_code=1), "rank 3 exited with status 1 at step 1,203"),
        (running(state="exited", exit_code=0), "rank 3 exited with status 0 at step 1,203"),
        (running(state="stopped"), "rank 3 was stopped with the others at step 1,203"),
        (rank(3, state="running"), "rank 3 is running; its steps and losses are unknown"),
    ],
)
def test_what_it_is_doing(one: RankSample, text: str) -> None:
    assert sentence(one, WELL)[0] == text


def test_foreign_rank_explains_why_nothing_is_known() -> None:
    known = replace(WELL, foreign=True)
    text = sentence(rank(3, state="running"), known)[0]
    assert text == "rank 3 is running; its steps and losses are unknown (not started by ddptop)"
    gone = sentence(rank(3, state="unknown"), replace(known, live=False))[0]
    assert gone == "rank 3 is gone; exit status unknown (not started by ddptop)"


def test_single_rank_is_not_compared() -> None:
    assert "no other rank" in sentence(running(), replace(WELL, ranks=1))[0]


@pytest.mark.parametrize(
    ("sync_s", "of_other_s", "said"),
    [
        (0.0, 0.06, "rank 3 is busy 300 ms of each step, 25% longer than the other rank"),
        (0.06, 0.0, "rank 3 is busy 240 ms of each step, 20% less than the other rank; it"),
        (0.01, 0.01, "rank 3 is close to the other rank"),
        (None, 0.01, "rank 3 is close to the other rank"),
    ],
)
def test_one_of_two_ranks_is_compared_with_the_other(
    sync_s: float | None, of_other_s: float, said: str
) -> None:
    other = running(sync_s=of_other_s)
    found = sentence(running(sync_s=sync_s), replace(WELL, ranks=2, other=other))
    assert found[0].startswith(said)
    assert "median" not in found[0]


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
