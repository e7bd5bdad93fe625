"""Bands over all ranks, and the steps of attempts, compared with the samples."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.model.snapshot import Event, RankSample
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_reader import Band, BandReader, attempts_taken, width_of

START = 1_767_225_600
"""A multiple of every bucket's width."""

RANKS = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def sample(rank: int, loss: float | None, step: int, bad: bool = False) -> RankSample:
    return RankSample(
        rank=rank,
        local_rank=rank,
        host="node-a",
        step=step,
        loss=loss,
        loss_state="nan" if bad else "ok",
    )


def write(writer: HistoryWriter, seconds: range, losses: dict[tuple[int, int], float]) -> None:
    for second in seconds:
        ranks = [sample(r, losses[second, r], second) for r in range(RANKS)]
        writer.add(utc_from_unix(START + second), 0, ranks, [])


def some_losses(seconds: int) -> dict[tuple[int, int], float]:
    chance = random.Random(3)
    return {(s, r): chance.random() for s in range(seconds) for r in range(RANKS)}


def brute_force(
    losses: dict[tuple[int, int], float], width_s: int, since: int, until: int, without: tuple = ()
) -> Band:
    band = Band(bucket_s=width_s)
    for start in range(since - since % width_s, until + 1, width_s):
        means = []
        for rank in (r for r in range(RANKS) if r not in without):
            inside = [losses[s, rank] for s in range(start, start + width_s) if (s, rank) in losses]
            if inside:
                means.append(sum(inside) / len(inside))
        if means:
            band.t.append(START + start)
            band.low.append(pytest.approx(min(means)))
            band.median.append(pytest.approx(statistics.median(means)))
            band.high.append(pytest.approx(max(means)))
            band.ranks.append(len(means))
            last = max(s for s, _ in losses if start <= s < start + width_s)
            band.step.append(last)
            band.attempt.append(0)
    return band


def same(band: Band, expected: Band) -> bool:
    return all(getattr(band, name) == getattr(expected, name) for name in Band.__struct_fields__)


@pytest.mark.parametrize("most", [400, 40, 12, 3])
@pytest.mark.parametrize("without", [(), (2,), (2, 5)])
def test_band_matches_the_samples(path: Path, most: int, without: tuple) -> None:
    losses = some_losses(385)
    writer = HistoryWriter(path)
    write(writer, range(385), losses)
    writer.close()
    band = BandReader(HistoryReader(path)).read("loss", START, START + 384, most, without)
    assert band.bucket_s == width_of(START, START + 384, most)
    assert len(band.t) <= most
    assert same(band, brute_force(losses, band.bucket_s, 0, 384, without))


def test_what_is_new_is_added_and_what_is_over_is_not_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddptop_runner.store import history_reader

    losses = some_losses(200)
    writer = HistoryWriter(path, batch_s=0)
    bands = BandReader(HistoryReader(path))
    starts: list[int] = []
    real = history_reader._source

    def counted(db, metric, start, *rest):
        starts.append(start - START)
        return real(db, metric, start, *rest)

    monkeypatch.setattr(history_reader, "_source", counted)
    for until in range(100, 200, 7):
        write(writer, range(0 if until == 100 else until - 7, until), losses)
        band = bands.read("loss", START, START + until - 1, 50)
        known = {key: loss for key, loss in losses.items() if key[0] < until}
        assert same(band, brute_force(known, 5, 0, until - 1))
    writer.close()
    assert starts[0] == 0
    assert all(start > 80 for start in starts[1:])


def test_new_width_or_earlier_start_is_read_again(path: Path) -> None:
    losses = some_losses(120)
    writer = HistoryWriter(path)
    write(writer, range(120), losses)
    writer.close()
    bands = BandReader(HistoryReader(path))
    for since, most in ((60, 400), (0, 400), (0, 20), (60, 20)):
        band = bands.read("loss", START + since, START + 119, most)
        assert same(band, brute_force(losses, band.bucket_s, since, 119)), (since, most)


def test_some_ranks_alone(path: Path) -> None:
    losses = some_losses(100)
    writer = HistoryWriter(path)
    write(writer, range(100), losses)
    writer.close()
    few = HistoryReader(path).few_ranks("loss", [1, 5], START, START + 99, 10)
    assert sorted(few) == [1, 5]
    assert few[5].t == [START + t for t in range(0, 100, 10)]
    first = [losses[s, 5] for s in range(10)]
    assert few[5].mean[0] == pytest.approx(sum(first) / 10)
    assert (few[5].min[0], few[5].max[0]) == (min(first), max(first))
    assert few[5].step[0] == 9


def test_a_loss_that_is_not_finite_names_its_rank_and_bucket(path: Path) -> None:
    writer = HistoryWriter(path)
    for second in range(30):
        ranks = [sample(r, 1.0, second, bad=(second, r) == (17, 4)) for r in range(RANKS)]
        writer.add(utc_from_unix(START + second), 0, ranks, [])
    writer.close()
    bands = BandReader(HistoryReader(path))
    band = bands.read("loss", START, START + 29, 400)
    assert band.nonfinite_t == [START + 17]
    assert bands.not_finite_ranks(band) == (4,)
    assert band.ranks[17] == RANKS - 1


def test_recent_values_by_bucket_and_rank(path: Path) -> None:
    losses = some_losses(100)
    writer = HistoryWriter(path)
    write(writer, range(100), losses)
    writer.close()
    recent = BandReader(HistoryReader(path)).recent("loss", START + 99, 2, points=3)
    assert sorted(recent) == [START + 94, START + 96, START + 98]
    expected = (losses[98, 3] + losses[99, 3]) / 2
    assert recent[START + 98][3] == pytest.approx(expected)


def test_file_removed_meanwhile_is_reported(path: Path) -> None:
    writer = HistoryWriter(path)
    write(writer, range(5), some_losses(5))
    writer.close()
    reader = HistoryReader(path)
    with pytest.raises(DdptopError, match=r"cannot be read \(No such file"), reader.open():
        path.unlink()
        path.stat()


def test_no_file_is_an_empty_band(path: Path) -> None:
    bands = BandReader(HistoryReader(path))
    assert bands.read("loss", 0, START, 100).t == []
    assert bands.recent("loss", START, 1) == {}
    assert HistoryReader(path).few_ranks("loss", [0], 0, START, 10) == {}
    assert attempts_taken(HistoryReader(path)) == []


def began(at: float, attempt: int) -> Event:
    return Event(
        ts=utc_from_unix(at), seq=0, type="attempt_started", attempt=attempt, message="began"
    )


class TestSteps:
    def write(self, path: Path, attempts: list[tuple[int, int, range]]) -> HistoryReader:
        """Attempts as (start, seconds until the first step, steps)."""
        writer = HistoryWriter(path)
        for number, (start, wait, steps) in enumerate(attempts):
            writer.event(began(START + start, number))
            for second, step in enumerate(steps):
                at = utc_from_unix(START + start + wait + second)
                writer.add(at, number, [sample(r, 1.0, step) for r in range(2)], [])
        writer.close()
        return HistoryReader(path)

    def test_attempts_count_from_their_starts(self, path: Path) -> None:
        reader = self.write(path, [(0, 2, range(1, 31)), (40, 3, range(1, 11)), (60, 0, range(0))])
        taken = attempts_taken(reader)
        assert [(one.attempt, one.before, one.taken) for one in taken] == [
            (0, 0, 30),
            (1, 30, 10),
            (2, 40, None),
        ]

    def test_attempts_that_had_ended_are_not_asked_again(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ddptop_runner.store import history_reader

        reader = self.write(path, [(0, 0, range(1, 31)), (40, 0, range(1, 11)), (60, 0, range(5))])
        known = attempts_taken(reader)
        asked: list[int] = []
        real = history_reader._last_step

        def counted(db, attempt, end):
            asked.append(attempt)
            return real(db, attempt, end)

        monkeypatch.setattr(history_reader, "_last_step", counted)
        assert attempts_taken(reader, known=known) == known
        assert asked == [2]
        assert attempts_taken(reader, known=known[:2]) == known
        assert asked == [2, 1, 2], "it may have gone on since"

    def test_a_long_pause_between_attempts(self, path: Path) -> None:
        reader = self.write(path, [(0, 0, range(1, 31)), (9000, 0, range(1, 11))])
        assert [one.taken for one in attempts_taken(reader)] == [30, 10]

    def test_printed_steps_continue_from_the_checkpoint(self, path: Path) -> None:
        reader = self.write(path, [(0, 0, range(0, 31)), (40, 0, range(20, 51))])
        first, second = attempts_taken(reader, printed=True)
        assert (first.before, first.taken, first.first) == (0, 30, 0)
        assert (second.before, second.taken, second.first) == (30, 30, 20)
