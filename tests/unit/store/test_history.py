"""A history that is written, abandoned, continued, and read."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
from pathlib import Path

import pytest
from tests.support.histories import START, dump, event, rank, write_losses

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.model.snapshot import SILENT, GpuSample, RankSample
from ddptop_runner.store import history, history_reader
from ddptop_runner.store.history import (
    HistoryReader,
    HistoryWriter,
    Series,
    merge_rows,
    rank_row,
)
from ddptop_runner.store.history_schema import GPU, RANK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


# --- series ----------------------------------------------------------------------------------


def test_what_was_added_is_read(path):
    writer = HistoryWriter(path)
    for second in range(3):
        ranks = [rank(r, loss=float(second + r), rss_bytes=10**10 + r) for r in range(2)]
        gpus = [GpuSample(index=5, util_percent=50.5 + second)]
        writer.add(utc_from_unix(START + second), 0, ranks, gpus)
    reader = HistoryReader(path)
    values = [1.0, 2.0, 3.0]
    assert reader.series(RANK, "loss", 0, START + 9, 100)[1] == Series(
        bucket_s=1,
        t=[START, START + 1, START + 2],
        min=values,
        mean=values,
        max=values,
        last=values,
        attempt=[0, 0, 0],
        step=[None, None, None],
    )
    assert reader.series(RANK, "rss_bytes", 0, START + 9, 100)[0].last == [10**10] * 3
    assert list(reader.series(GPU, "util_percent", 0, START + 9, 100)) == [5]
    assert reader.series(GPU, "util_percent", 0, START + 9, 100)[5].mean == [50.5, 51.5, 52.5]
    assert reader.span() == (START, START + 2)
    writer.close()


def test_an_impossible_time_extends_no_span(path):
    with contextlib.closing(HistoryWriter(path)) as writer:
        writer.add(START, 0, [rank(0, loss=1.0)], [])
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for t in (-(2**62), 2**62):
            db.execute("INSERT INTO rank_1s (t, rank, loss_last) VALUES (?, 0, 1.0)", (t,))
    assert HistoryReader(path).span() == (START, START)


@pytest.mark.parametrize("fields", [{"loss": float("nan")}, {"loss_state": "inf"}])
def test_a_loss_that_is_not_finite_is_a_marked_gap(path, fields):
    writer = HistoryWriter(path)
    for second in range(4):
        writer.add(START + second, 0, [rank(**(fields if second == 2 else {"loss": 1.0}))], [])
    writer.close()
    series = HistoryReader(path).series(RANK, "loss", START, START + 5, 100)[0]
    assert series.t == [START, START + 1, START + 3]
    assert series.last == [1.0] * 3
    assert series.nonfinite_t == [START + 2]


def brute_force(losses: dict[int, float], since: int, until: int, width: int) -> Series:
    """What a series must contain, computed from all samples."""
    since -= (START + since) % width
    buckets: dict[int, list[float]] = {}
    steps: dict[int, int | None] = {}
    for second, loss in losses.items():
        if since <= second <= until:
            at = START + second
            buckets.setdefault(at - at % width, []).append(loss)
            steps[at - at % width] = second
    return Series(
        bucket_s=width,
        t=list(buckets),
        min=[min(values) for values in buckets.values()],
        mean=[pytest.approx(sum(values) / len(values)) for values in buckets.values()],
        max=[max(values) for values in buckets.values()],
        last=[values[-1] for values in buckets.values()],
        attempt=[0] * len(buckets),
        step=list(steps.values()),
    )


def test_any_span_from_any_tier_matches_the_samples(path):
    rng = random.Random(7)
    length = 3 * 3600
    losses = {second: rng.random() for second in range(length)}
    write_losses(path, losses)
    reader = HistoryReader(path)
    widths = set()
    for _ in range(60):
        since = rng.choice([0, rng.randrange(length)])
        until = rng.choice([length - 1, rng.randrange(since, length)])
        most = rng.choice([rng.randrange(2, 400), 5000])
        series = reader.series(RANK, "loss", START + since, START + until, most)[0]
        widths.add(series.bucket_s)
        assert len(series.t) <= most
        assert all(t % series.bucket_s == 0 for t in series.t)
        last_whole = until if series.bucket_s < 10 or until == length - 1 else None
        if last_whole is not None:
            assert series == brute_force(losses, since, until, series.bucket_s)
        else:  # a span may end inside a stored bucket, which is then included completely
            expected = brute_force(losses, since, length - 1, series.bucket_s)
            whole = len(series.t) - 1
            assert series.min[:whole] == expected.min[:whole]
            assert series.mean[:whole] == expected.mean[:whole]
    assert 1 in widths and any(width % 600 == 0 for width in widths)


def test_concurrent_writer_leaves_no_gap_in_a_read(path, monkeypatch):
    writer = HistoryWriter(path, batch_s=60)

    def write(seconds: range) -> None:
        for second in seconds:
            writer.add(START + second, 0, [rank(loss=float(second))], [])
        writer.flush()

    def find_slowly(*arguments, **options):
        found = parts(*arguments, **options)
        while ahead:
            write(ahead.pop())
        return found

    ahead = [range(1500, 2500)]
    write(range(1500))
    before = HistoryReader(path).series(RANK, "loss", 0, START + 9999, 10)
    assert before[0].bucket_s > 60 and before[0].t[-1] + before[0].bucket_s > START + 1500
    parts = history_reader._parts
    monkeypatch.setattr(history_reader, "_parts", find_slowly)
    assert HistoryReader(path).series(RANK, "loss", 0, START + 9999, 10) == before
    writer.close()


def test_a_span_of_weeks_is_read_from_the_coarsest_tier(path):
    write_losses(path, dict.fromkeys(range(0, 14 * 86400, 300), 1.0))
    series = HistoryReader(path).series(RANK, "loss", 0, START + 10**9, 240)[0]
    assert series.bucket_s % 600 == 0 and 200 <= len(series.t) <= 240


# --- retention -------------------------------------------------------------------------------


def test_fine_tiers_are_pruned_and_coarse_ones_kept(path):
    write_losses(path, dict.fromkeys(range(0, 26 * 3600, 10), 1.0))
    rows = dump(path)
    end = START + 26 * 3600
    assert rows["rank_1s"][0][0] >= end - 3600 - 120
    assert len(rows["rank_10s"]) == pytest.approx(8640, abs=200)
    assert rows["rank_60s"][0][0] == rows["rank_600s"][0][0] == START
    assert len(rows["rank_60s"]) == 26 * 60 - 1
    assert HistoryReader(path).span() == (START, end - 10)


def test_a_backlog_is_pruned_in_small_batches(path):
    write_losses(path, dict.fromkeys(range(3000), 1.0))
    writer = HistoryWriter(path)
    later = START + 10 * 86_400
    counts = []
    for second in range(0, 600, 10):
        writer.add(later + second, 0, [rank(loss=2.0)], [])
        counts.append(len(dump(path)["rank_1s"]))
    writer.close()
    steps = [before - after for before, after in itertools.pairwise(counts)]
    assert max(steps) <= history.PRUNE_BUCKETS
    assert counts[-1] == 60
    assert len(dump(path)["rank_60s"]) == 50 + 9


# --- reopening -------------------------------------------------------------------------------


def write_run(path: Path, cut: int | None = None, final: bool = False) -> None:
    """1,300 seconds; at second `cut`, one writer stops and another continues."""
    writer = HistoryWriter(path, batch_s=7)
    for second in range(1300):
        if second == cut:
            writer.close(final=final)
            writer = HistoryWriter(path, batch_s=7)
        ranks = [rank(r, loss=second * 0.5 + r, step=second) for r in range(2)]
        gpus = [GpuSample(index=0, util_percent=second % 100, mem_used_bytes=second)]
        writer.add(START + second + 0.3, 0, ranks, gpus)
    writer.close()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, list[tuple]]:
    path = tmp_path_factory.mktemp("whole") / "history.db"
    write_run(path)
    return dump(path)


@pytest.mark.parametrize(
    ("cut", "final"), [(3, True), (10, False), (59, True), (60, False), (601, True), (1234, False)]
)
def test_second_writer_continues_like_the_first(path, uninterrupted, cut, final):
    write_run(path, cut, final)
    assert dump(path) == uninterrupted


def test_a_clock_that_is_set_back_loses_nothing(path):
    writer = HistoryWriter(path)
    for second in range(100):
        writer.add(START + second, 0, [rank(loss=1.0)], [])
    writer.add(START + 97, 0, [rank(loss=9.0)], [])  # slightly: counts as the newest second
    for second in range(100):
        writer.add(START - 7200 + second, 0, [rank(loss=2.0)], [])
    writer.close()
    assert writer.problem is None
    series = HistoryReader(path).series(RANK, "loss", START - 7200, START + 100, 10_000)[0]
    assert len(series.t) == 200 and sorted(series.t) == series.t
    assert series.max[-1] == 9.0 and series.t[-1] == START + 99
    assert series.max[:100] == [2.0] * 100
    tens = {row[0]: row for row in dump(path)["rank_10s"]}
    highest = RANK.columns.index("loss_max")
    assert tens[START + 80][highest] == 1.0
    assert {tens[START - 7200 + second][highest] for second in range(0, 90, 10)} == {2.0}


# --- events ----------------------------------------------------------------------------------


def test_events_are_stored_at_once_whole_and_in_order(path):
    writer = HistoryWriter(path)
    told = [
        writer.event(event("launched", START + 0.123456)),
        writer.event(event("attempt_started", START + 1, attempt=0)),
        writer.event(
            event(
                "rank_exited",
                START + 2,
                attempt=0,
                rank=3,
                pid=77,
                exit_code=1,
                signal="SIGKILL",
                evidence="evidence/x",
            )
        ),
        writer.event(event("attempt_started", START + 3, attempt=1)),
    ]
    reader = HistoryReader(path)
    assert [one.seq for one in told] == [1, 2, 3, 4]
    assert reader.events() == told
    assert reader.events(after_seq=2) == told[2:]
    assert reader.events(limit=2) == told[2:]
    assert reader.events(after_seq=1, limit=1) == told[3:]
    assert reader.events(after_seq=4) == []
    assert reader.attempt_starts() == [(0, START + 1), (1, START + 3)]
    writer.close()
    writer = HistoryWriter(path)
    assert writer.event(event()).seq == 5
    writer.close()


def test_a_look_at_the_latest_events_costs_no_more_in_a_long_history(tmp_path, monkeypatch):
    """Also internal events: a screen reads every second, and a job may run for months."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def check(reader: HistoryReader, db: sqlite3.Connection) -> sqlite3.Connection:
        db.set_progress_handler(count, 100)
        return db

    costs = []
    for length in (100, 3000):
        path = tmp_path / f"{length}.db"
        writer = HistoryWriter(path)
        with monkeypatch.context() as patch:
            patch.setattr(writer, "flush", lambda: None)
            told = [
                writer.event(event("alert" if i % 3 else SILENT, START + i)) for i in range(length)
            ]
        writer.close()
        news = [one for one in told if one.type != SILENT]
        reader = HistoryReader(path)
        assert [one.seq for one in reader.events()] == list(range(1, len(news) + 1))
        with monkeypatch.context() as patch:
            patch.setattr(HistoryReader, "_check", check)
            steps = 0
            assert [one.ts for one in reader.events(len(news) - 1)] == [news[-1].ts]
            latest = reader.events(limit=10)
        assert [one.ts for one in latest] == [one.ts for one in news[-10:]]
        costs.append(steps)
    assert costs[1] < 2 * costs[0] + 10


def rank_sample(**fields) -> RankSample:
    return RankSample(rank=3, local_rank=3, host="node", **fields)


def of(kind, row) -> dict:
    return dict(zip(kind.columns, row, strict=True))


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": None, "loss_state": "nan"},
        {"loss": None, "loss_state": "inf"},
        {"loss": float("nan"), "loss_state": None},
        {"loss": float("-inf"), "loss_state": "ok"},
    ],
)
def test_a_loss_that_is_not_finite_is_counted_and_left_out(fields):
    row = of(RANK, rank_row(7, 0, rank_sample(**fields)))
    assert row["loss_nonfinite"] == 1
    assert [row[f"loss_{a}"] for a in ("min", "mean", "max", "last")] == [None] * 4


def test_merging_takes_extremes_mean_last_and_sum():
    rows = [
        rank_row(10, 0, rank_sample(step=1, loss=4.0, rss_bytes=10)),
        rank_row(11, 0, rank_sample(step=2, loss_state="nan", rss_bytes=13)),
        rank_row(12, 1, rank_sample(step=0, loss=1.0)),
    ]
    row = of(RANK, merge_rows(RANK, 10, rows))
    assert (row["t"], row["rank"], row["attempt"], row["step"]) == (10, 3, 1, 0)
    assert [row[f"loss_{a}"] for a in ("min", "mean", "max", "last")] == [1.0, 2.5, 4.0, 1.0]
    assert row["loss_nonfinite"] == 1
    assert row["rss_bytes_mean"] == 12 and isinstance(row["rss_bytes_mean"], int)
    assert row["cpu_percent_mean"] is None
