"""Losses of all ranks together, and the steps of attempts, compared with the samples."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.model.snapshot import Event, RankSample
from ddptop_runner.store.history import HistoryReader, HistoryWriter
from ddptop_runner.store.history_reader import attempts_taken

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


def test_losses_of_all_ranks_are_the_lowest_the_median_and_the_highest(path: Path) -> None:
    losses = some_losses(385)
    writer = HistoryWriter(path)
    write(writer, range(385), losses)
    writer.close()
    reader = HistoryReader(path)
    seconds = reader.losses(START, START + 384, 400)
    assert seconds is not None and seconds.bucket_s == 1
    assert seconds.t == list(range(START, START + 385))
    each = [[losses[s, r] for r in range(RANKS)] for s in range(385)]
    assert seconds.min == list(map(min, each)) and seconds.max == list(map(max, each))
    assert seconds.mean == pytest.approx(list(map(statistics.median, each)))
    assert seconds.step == list(range(385)) and set(seconds.attempt) == {0}
    coarse = reader.losses(START, START + 384, 12)
    assert coarse is not None and len(coarse.t) <= 12
    first = each[: coarse.bucket_s]
    assert coarse.min[0] == min(map(min, first)) and coarse.max[0] == max(map(max, first))
    assert coarse.mean[0] == pytest.approx(statistics.mean(map(statistics.median, first)))


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
        assert [(one.attempt, one.taken) for one in taken] == [(0, 30), (1, 10), (2, None)]

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
        assert [one.taken for one in attempts_taken(reader, printed=True)] == [30, 30]


def test_no_file_is_an_empty_history(path: Path) -> None:
    assert HistoryReader(path).losses(0, START, 100) is None
    assert attempts_taken(HistoryReader(path)) == []
