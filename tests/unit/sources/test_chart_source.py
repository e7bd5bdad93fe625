"""A job's losses as read for the chart: all, part, by step, and of very many ranks."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from ddptop.charts.axis import View
from ddptop.charts.curves import ChartOptions, draw_curves
from ddptop.charts.plots import curves_of, no_steps
from ddptop.job.record import Job
from ddptop.job.series import ChartData, Points
from ddptop.sources import history
from ddptop.sources.history import ChartQuery, JobHistory, at_new_steps, away_from_median
from ddptop.style import plain
from tests.support import fake_home
from tests.support.fake_home import HOST, NOW
from tests.support.own_views import read

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.model.snapshot import Alert, Event, RankSample
from ddptop_runner.store.history import HistoryWriter

NOW_S = NOW.timestamp()
SECONDS = 300


def many_ranks(home: Path, ranks: int = 9) -> Job:
    """A live job with two attempts; rank 5 drifts away, and rank 7 once had NaN."""
    spec = fake_home.spec_of("many", ranks, SECONDS)
    folder = fake_home.make_folder(home, spec)
    samples = tuple(
        RankSample(rank=rank, local_rank=rank, host=HOST, step=1) for rank in range(ranks)
    )
    alert = Alert(
        id="straggler", severity="warning", ranks=[5], message="m", since=fake_home.ago(60)
    )
    fake_home.write_snapshot(folder, fake_home.snapshot_of(spec, ranks=samples, alerts=[alert]))
    chance = random.Random(5)
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for attempt, second in ((0, 0), (1, 200)):
        at = utc_from_unix(NOW_S - SECONDS + second)
        began = Event(ts=at, seq=0, type="attempt_started", attempt=attempt, message="began")
        writer.event(began)
    for second in range(SECONDS):
        attempt, step = (0, second + 1) if second < 200 else (1, second - 199)
        row = []
        for rank in range(ranks):
            loss = 2 + 4 * math.exp(-second / 60) + chance.gauss(0, 0.02)
            if rank == 5 and second > 100:
                loss *= 2
            bad = (rank, second) == (7, 150)
            row.append(
                RankSample(
                    rank=rank,
                    local_rank=rank,
                    host=HOST,
                    step=step,
                    loss=None if bad else loss,
                    loss_state="nan" if bad else "ok",
                )
            )
        writer.add(utc_from_unix(NOW_S - SECONDS + second), attempt, row, [])
    writer.close()
    return read(folder)


def chart_of(view: Job, query: ChartQuery) -> ChartData:
    return JobHistory(view.folder.history_db).chart(view, query, NOW_S)


@pytest.fixture
def view(frozen: Path) -> Job:
    return many_ranks(frozen)


class TestVeryMany:
    @pytest.fixture(autouse=True)
    def few_are_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "MANY_RANKS", 8)

    def test_they_are_a_band_and_odd_ones_are_alone(self, view: Job) -> None:
        chart = chart_of(view, ChartQuery(rank=2))
        assert chart.middle is not None
        assert chart.number == 9
        assert sorted(chart.series) == [2, 5], "the chosen and the odd one"
        assert chart.apart == {5: pytest.approx(1.0, abs=0.1)}
        assert chart.middle.mean[-1] < 2.5 < chart.middle.high[-1]
        assert chart.middle.not_finite

    def test_its_chart_is_that_of_the_ranks_themselves(
        self, view: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = ChartOptions()
        band = draw_curves(curves_of(chart_of(view, ChartQuery()), options), options, 80, 14)
        monkeypatch.setattr(history, "MANY_RANKS", 64)
        ranks = draw_curves(curves_of(chart_of(view, ChartQuery()), options), options, 80, 14)
        assert plain(ranks.notes[0]) == f"rank 7 ✕ NaN  {plain(band.notes[0])}"
        assert ranks.lines == band.lines
        text = "\n".join(map(plain, band.lines))
        assert "rank 5" in text and "✕" in text

    def test_the_band_knows_steps(self, view: Job) -> None:
        options = ChartOptions(view=View("step"))
        stepped = curves_of(chart_of(view, ChartQuery()), options)
        assert stepped.by_step
        assert stepped.marks == ((202, "attempt 1"),)
        assert stepped.extent == (0.0, 300.0)

    def test_the_same_chart_while_nothing_can_look_different(self, view: Job) -> None:
        of_job = JobHistory(view.folder.history_db)
        first = of_job.chart(view, ChartQuery(), NOW_S)
        assert of_job.chart(view, ChartQuery(), NOW_S + 0.5) is first
        assert of_job.chart(view, ChartQuery(rank=3), NOW_S + 0.6) is not first


class TestWithoutSnapshot:
    """A job whose history is there, but not its snapshot."""

    @pytest.fixture
    def view(self, frozen: Path) -> Job:
        seen = many_ranks(frozen)
        seen.folder.node_file(HOST).unlink()
        return read(seen.folder)

    def test_the_launch_says_how_many_ranks_there_are(
        self, view: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert chart_of(view, ChartQuery()).number == 9
        monkeypatch.setattr(history, "MANY_RANKS", 8)
        assert sorted(chart_of(view, ChartQuery(rank=2)).series) == [2]

    def test_there_is_no_trend(self, view: Job) -> None:
        assert JobHistory(view.folder.history_db).trend(view, NOW_S) is None


class TestParts:
    def test_a_part_in_the_middle(self, view: Job) -> None:
        part = ChartQuery(span=60.0, right=NOW_S - 100)
        chart = chart_of(view, part)
        assert (chart.since, chart.until) == (NOW_S - 160, NOW_S - 100)
        assert chart.whole == (NOW_S - SECONDS, NOW_S)
        assert chart.series[0].t[0] >= NOW_S - 161
        assert chart.series[0].t[-1] <= NOW_S - 99

    def test_attempts_and_steps(self, view: Job) -> None:
        chart = chart_of(view, ChartQuery())
        assert chart.last_step == 300
        assert no_steps(chart) is None
        assert chart.series[0].step[-1] == 300

    def test_some_steps_are_read_by_the_time_that_they_took(self, view: Job) -> None:
        chart = chart_of(view, ChartQuery(axis="step", span=50.0, right=120.0))
        assert chart.since - (NOW_S - SECONDS) == pytest.approx(70, abs=3)
        assert chart.until - (NOW_S - SECONDS) == pytest.approx(120, abs=3)

    def test_no_sample_yet(self, frozen: Path) -> None:
        folder = fake_home.make_folder(frozen, fake_home.spec_of("new", 2, 5))
        chart = chart_of(read(folder), ChartQuery())
        assert chart.series == {}
        assert no_steps(chart)


def test_how_far_an_outlier_is_from_the_median() -> None:
    band = Points(t=list(range(20)), mean=[9.0] * 8 + [2.0] * 12)
    assert away_from_median(Points(t=list(range(20)), mean=[4.0] * 20), band) == 1.0
    assert away_from_median(Points(), band) is None
    assert away_from_median(Points(t=[30], mean=[4.0]), band) is None


def test_losses_without_steps_end_where_they_changed_last() -> None:
    values: list[float | None] = [3.0, 2.5, 2.5, 2.0, 2.0, 2.0]
    points = Points([float(i) for i in range(6)], values, values, values)
    assert list(at_new_steps(points).t) == [0, 1, 2, 3]
    same: list[float | None] = [2.0] * 6
    whole = Points(points.t, same, same, same)
    assert at_new_steps(whole).t == whole.t, "a loss that never changes is not cut"
