"""A history that is written, left, taken up again and read."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import sqlite3
from pathlib import Path

import pytest

from ddptop_runner import history, history_reader
from ddptop_runner.clock import utc_from_unix
from ddptop_runner.errors import DamagedFileError
from ddptop_runner.history import HistoryReader, HistoryWriter, Series
from ddptop_runner.history_schema import RANK, TIERS
from ddptop_runner.model import Event, GpuSample, RankSample

START = 1_767_225_600
SAMPLES = Path(__file__).parents[1] / "samples"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def rank(number: int = 0, **fields) -> RankSample:
    return RankSample(rank=number, local_rank=number, host="node", **fields)


def event(type_: str = "alert", at: float = START, **fields) -> Event:
    return Event(ts=utc_from_unix(at), type=type_, message=f"a {type_}", **fields)


def write_losses(path: Path, losses: dict[int, float], step_s: int = 1) -> None:
    """One rank's losses, by second after START."""
    writer = HistoryWriter(path, batch_s=60)
    for second, loss in losses.items():
        writer.add(START + second, 0, [rank(loss=loss, step=second)], [])
    writer.close()


def dump(path: Path) -> dict[str, list[tuple]]:
    with sqlite3.connect(path) as db:
        tables = [f"{kind}_{tier.name}" for kind in ("rank", "gpu") for tier in TIERS]
        found = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    db.close()
    return found


# --- series ----------------------------------------------------------------------------------


def test_what_was_added_is_read(path):
    writer = HistoryWriter(path)
    for second in range(3):
        ranks = [rank(r, loss=float(second + r), rss_bytes=10**10 + r) for r in range(2)]
        gpus = [GpuSample(index=5, util_percent=50.5 + second)]
        writer.add(utc_from_unix(START + second), 0, ranks, gpus)
    reader = HistoryReader(path)
    values = [1.0, 2.0, 3.0]
    assert reader.rank_series("loss", 0, START + 9, 100)[1] == Series(
        bucket_s=1,
        t=[START, START + 1, START + 2],
        min=values,
        mean=values,
        max=values,
        last=values,
        attempt=[0, 0, 0],
    )
    assert reader.rank_series("rss_bytes", 0, START + 9, 100)[0].last == [10**10] * 3
    assert list(reader.gpu_series("util_percent", 0, START + 9, 100)) == [5]
    assert reader.gpu_series("util_percent", 0, START + 9, 100)[5].mean == [50.5, 51.5, 52.5]
    assert reader.span() == (START, START + 2)
    writer.close()


def test_what_is_not_known_has_no_point(path):
    writer = HistoryWriter(path)
    writer.add(START, 0, [rank(0, loss=1.0), rank(1)], [])
    writer.add(START + 5, 0, [rank(0, loss=2.0), rank(1)], [])
    writer.close()
    series = HistoryReader(path).rank_series("loss", START, START + 5, 100)
    assert list(series) == [0]
    assert series[0].t == [START, START + 5]
    assert HistoryReader(path).rank_series("cpu_percent", START, START + 5, 100) == {}


@pytest.mark.parametrize("fields", [{"loss": float("nan")}, {"loss_state": "inf"}])
def test_a_loss_that_is_not_finite_is_a_marked_gap(path, fields):
    writer = HistoryWriter(path)
    for second in range(4):
        writer.add(START + second, 0, [rank(**(fields if second == 2 else {"loss": 1.0}))], [])
    writer.close()
    series = HistoryReader(path).rank_series("loss", START, START + 5, 100)[0]
    assert series.t == [START, START + 1, START + 3]
    assert series.last == [1.0] * 3
    assert series.nonfinite_t == [START + 2]


def test_a_rank_that_was_never_finite_has_marks_and_no_points(path):
    writer = HistoryWriter(path)
    writer.add(START, 0, [rank(loss_state="nan")], [])
    writer.close()
    series = HistoryReader(path).rank_series("loss", START, START, 100)[0]
    assert (series.t, series.nonfinite_t) == ([], [START])


def test_samples_of_one_second_become_one_point(path):
    writer = HistoryWriter(path)
    for offset, loss in ((0.0, 1.0), (0.4, 5.0), (0.8, 3.0), (1.2, 7.0)):
        writer.add(START + offset, 0, [rank(loss=loss)], [])
    writer.close()
    series = HistoryReader(path).rank_series("loss", START, START + 5, 100)[0]
    assert (series.t, series.min, series.mean) == ([START, START + 1], [1.0, 7.0], [3.0, 7.0])
    assert (series.max, series.last) == ([5.0, 7.0], [3.0, 7.0])


def test_points_carry_the_attempt_and_a_step_is_only_its_last(path):
    writer = HistoryWriter(path)
    for second in range(20):
        writer.add(START + second, second // 15, [rank(step=second % 15)], [])
    writer.close()
    series = HistoryReader(path).rank_series("step", START, START + 19, 3)[0]
    assert series.attempt == [0, 1] and series.last == [9, 4] and series.bucket_s == 10


def test_a_metric_that_is_not_kept_is_refused(path):
    with pytest.raises(ValueError, match="no 'accuracy' per rank"):
        HistoryReader(path).rank_series("accuracy", 0, 1, 10)


def brute_force(losses: dict[int, float], since: int, until: int, width: int) -> Series:
    """What a series must say, from every sample there was."""
    since -= (START + since) % width
    buckets: dict[int, list[float]] = {}
    for second, loss in losses.items():
        if since <= second <= until:
            at = START + second
            buckets.setdefault(at - at % width, []).append(loss)
    return Series(
        bucket_s=width,
        t=list(buckets),
        min=[min(values) for values in buckets.values()],
        mean=[pytest.approx(sum(values) / len(values)) for values in buckets.values()],
        max=[max(values) for values in buckets.values()],
        last=[values[-1] for values in buckets.values()],
        attempt=[0] * len(buckets),
    )


def test_any_span_from_any_tier_says_what_the_samples_said(path):
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
        series = reader.rank_series("loss", START + since, START + until, most)[0]
        widths.add(series.bucket_s)
        assert len(series.t) <= most
        assert all(t % series.bucket_s == 0 for t in series.t)
        last_whole = until if series.bucket_s < 10 or until == length - 1 else None
        if last_whole is not None:
            assert series == brute_force(losses, since, until, series.bucket_s)
        else:  # a span may end inside a stored bucket, which then counts as a whole
            expected = brute_force(losses, since, length - 1, series.bucket_s)
            whole = len(series.t) - 1
            assert series.min[:whole] == expected.min[:whole]
            assert series.mean[:whole] == expected.mean[:whole]
    assert 1 in widths and any(width % 600 == 0 for width in widths)


def test_points_stay_where_they_are_when_the_window_moves(path):
    write_losses(path, {second: float(second % 17) for second in range(1200)})
    reader = HistoryReader(path)
    before = reader.rank_series("loss", START + 100, START + 1000, 60)[0]
    after = reader.rank_series("loss", START + 101, START + 1001, 60)[0]
    assert before.bucket_s == after.bucket_s > 1
    assert before.t[1:-1] == after.t[1:-1] and before.mean[1:-1] == after.mean[1:-1]


def test_the_newest_sample_shows_at_once_in_the_coarsest_view(path):
    writer = HistoryWriter(path)
    for second in range(4000):
        writer.add(START + second, 0, [rank(loss=float(second))], [])
        if second in (2399, 2400, 3999):
            series = HistoryReader(path).rank_series("loss", 0, START + 10**6, 4)[0]
            assert series.last[-1] == float(second) and series.bucket_s >= 600
    writer.close()


def test_a_writer_that_goes_on_during_a_read_tears_no_gap(path, monkeypatch):
    writer = HistoryWriter(path, batch_s=60)

    def write(seconds: range) -> None:
        for second in seconds:
            writer.add(START + second, 0, [rank(loss=1.0)], [])
        writer.flush()

    def gather_slowly(self, db, tier, start, end):
        gather(self, db, tier, start, end)
        while ahead:
            write(ahead.pop())

    ahead = [range(1500, 2500)]
    write(range(1500))
    before = HistoryReader(path).rank_series("loss", 0, START + 9999, 10)
    assert before[0].bucket_s > 60 and before[0].t[-1] + before[0].bucket_s > START + 1500
    gather = history_reader._Points._gather
    monkeypatch.setattr(history_reader._Points, "_gather", gather_slowly)
    assert HistoryReader(path).rank_series("loss", 0, START + 9999, 10) == before
    writer.close()


def test_a_span_of_weeks_is_read_from_the_coarsest_tier(path):
    write_losses(path, dict.fromkeys(range(0, 14 * 86400, 300), 1.0))
    series = HistoryReader(path).rank_series("loss", 0, START + 10**9, 240)[0]
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
    """1300 seconds; at second `cut` the writer leaves and another one goes on."""
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
def test_a_second_writer_goes_on_as_if_there_had_been_one(path, uninterrupted, cut, final):
    write_run(path, cut, final)
    assert dump(path) == uninterrupted


def test_a_writer_that_comes_back_in_the_same_second_adds_to_it(path):
    for offset, loss in ((0.1, 4.0), (0.6, 2.0)):
        writer = HistoryWriter(path)
        writer.add(START + offset, 0, [rank(loss=loss)], [])
        writer.close()
    series = HistoryReader(path).rank_series("loss", START, START, 10)[0]
    assert (series.min, series.mean, series.max, series.last) == ([2.0], [3.0], [4.0], [2.0])


def test_a_clock_that_is_set_back_loses_nothing(path):
    writer = HistoryWriter(path)
    for second in range(100):
        writer.add(START + second, 0, [rank(loss=1.0)], [])
    writer.add(START + 97, 0, [rank(loss=9.0)], [])  # a little: counts as the newest second
    for second in range(100):
        writer.add(START - 7200 + second, 0, [rank(loss=2.0)], [])
    writer.close()
    assert (writer.problem, writer.lost_writes) == (None, 0)
    series = HistoryReader(path).rank_series("loss", START - 7200, START + 100, 10_000)[0]
    assert len(series.t) == 200 and sorted(series.t) == series.t
    assert series.max[-1] == 9.0 and series.t[-1] == START + 99
    assert series.max[:100] == [2.0] * 100
    tens = {row[0]: row for row in dump(path)["rank_10s"]}
    highest = RANK.columns.index("loss_max")
    assert tens[START + 90][highest] == 9.0
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


def test_times_of_events_keep_their_microseconds(path):
    writer = HistoryWriter(path)
    rng = random.Random(3)
    told = [
        writer.event(
            Event(
                ts=dt.datetime(2026, 5, 1, tzinfo=dt.timezone.utc)
                + dt.timedelta(microseconds=rng.randrange(10**13)),
                type="alert",
                message="",
            )
        )
        for _ in range(50)
    ]
    writer.close()
    assert HistoryReader(path).events() == told


# --- nothing there, and old files ------------------------------------------------------------


def test_no_file_and_an_empty_one_read_as_nothing(path):
    for _ in range(2):
        reader = HistoryReader(path)
        assert reader.span() is None
        assert reader.events() == [] and reader.attempt_starts() == []
        assert reader.rank_series("loss", 0, START, 10) == {}
        assert reader.gpu_series("power_w", 0, START, 10) == {}
        path.touch()
    HistoryWriter(path).close()
    assert HistoryReader(path).span() is None


@pytest.mark.parametrize(
    "sample", sorted(SAMPLES.glob("v*/history.db")), ids=lambda p: p.parent.name
)
def test_samples_of_every_version_read(sample):
    reader = HistoryReader(sample)
    assert reader.span() == (START, START + 89)
    story = reader.events()
    assert [(one.seq, one.type) for one in story] == [
        (1, "launched"),
        (2, "attempt_started"),
        (3, "rank_exited"),
        (4, "attempt_started"),
        (5, "finished"),
    ]
    assert story[2] == Event(
        ts=dt.datetime(2026, 1, 1, 0, 0, 45, 250_000, tzinfo=dt.timezone.utc),
        seq=3,
        type="rank_exited",
        attempt=0,
        rank=1,
        pid=4711,
        signal="SIGKILL",
        message="rank 1 was ended by SIGKILL",
        evidence="evidence/attempt-0-failure",
    )
    assert reader.attempt_starts() == [(0, START + 0.25), (1, START + 50.25)]
    loss = reader.rank_series("loss", 0, START + 100, 1000)[1]
    assert loss.t == [START + s for s in range(90) if s != 20 and not 45 <= s < 50]
    assert loss.last == [5.0 - s / 32 for s in range(90) if s != 20 and not 45 <= s < 50]
    assert loss.nonfinite_t == [START + 20]
    assert loss.attempt == [0] * 44 + [1] * 40
    assert reader.gpu_series("mem_used_bytes", 0, START + 100, 2)[0].max[0] == 2**33
    assert list(sample.parent.glob("history.db-*")) == []


def test_the_sample_of_this_version_can_still_be_made(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SAMPLES))
        import make_samples
    made = tmp_path / "history.db"
    make_samples.make_history(made)
    assert dump(made) == dump(SAMPLES / f"v{make_samples.VERSION}" / "history.db")


# --- size ------------------------------------------------------------------------------------


def test_a_week_of_eight_ranks_and_devices_stays_below_100_mib(path):
    """Bytes per row are measured, the rows of a week are counted from the tiers."""
    rng = random.Random(5)
    ticks = 2400
    writer = HistoryWriter(path, batch_s=10)
    for second in range(ticks):
        ranks = [
            rank(
                r,
                step=second,
                loss=rng.random(),
                step_time_s=rng.random(),
                data_wait_s=rng.random(),
                cpu_percent=rng.random() * 100,
                rss_bytes=rng.randrange(10**10),
            )
            for r in range(8)
        ]
        gpus = [
            GpuSample(
                index=g,
                util_percent=rng.random() * 100,
                mem_used_bytes=rng.randrange(10**11),
                temperature_c=rng.random() * 90,
                power_w=rng.random() * 700,
            )
            for g in range(8)
        ]
        writer.add(START + second, 0, ranks, gpus)
    writer.close(final=True)
    written = sum(len(rows) for rows in dump(path).values())
    week_s = 7 * 86_400
    week = sum(16 * min(week_s, tier.keep_s or week_s) // tier.width_s for tier in TIERS)
    assert path.stat().st_size / written * week < 100 * 2**20


# --- trouble ---------------------------------------------------------------------------------


def test_a_newer_schema_is_left_alone(path):
    HistoryWriter(path).close(final=True)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    db.close()
    content = path.read_bytes()
    for use in (HistoryWriter, lambda p: HistoryReader(p).span()):
        with pytest.raises(DamagedFileError, match=r"schema 99, .*; upgrade ddptop"):
            use(path)
    assert path.read_bytes() == content


def test_a_file_that_is_no_history_is_set_aside(path):
    for number in (1, 2):
        content = b"not a database, for sure" * 100 * number
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"history\.db is not a readable history"):
            HistoryReader(path).events()
        writer = HistoryWriter(path)
        assert writer.damaged_file == path.with_name(f"history.db.damaged-{number}")
        assert writer.damaged_file.read_bytes() == content
        assert writer.event(event()).seq == 1
        writer.close(final=True)
        assert writer.problem is None
        assert len(HistoryReader(path).events()) == 1


def test_another_programs_database_is_no_history(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url)")
    db.close()
    with pytest.raises(DamagedFileError, match="not a readable history"):
        HistoryReader(path).span()
    assert HistoryWriter(path).damaged_file is not None


def test_damage_found_while_opening_or_writing_costs_no_sample_of_now(path):
    write_losses(path, dict.fromkeys(range(1000), 1.0))
    content = bytearray(path.read_bytes())
    for page in range(4096, len(content), 4096):  # every page but the first
        content[page : page + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        HistoryReader(path).events()
    writer = HistoryWriter(path)
    assert writer.damaged_file is not None and writer.damaged_file.exists()
    writer.add(START + 1000, 0, [rank(loss=3.0)], [])
    writer.close()
    assert HistoryReader(path).rank_series("loss", 0, START + 2000, 10)[0].last == [3.0]


def test_damage_while_writing_begins_anew_and_events_count_on(path):
    writer = HistoryWriter(path)
    for _ in range(3):
        writer.event(event())
    writer._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer._disconnect()
    path.write_bytes(b"\0" * 50_000)
    assert writer.event(event("hang")).seq == 4
    assert writer.event(event("failure")).seq == 5
    writer.close()
    assert writer.damaged_file is not None
    assert [(e.seq, e.type) for e in HistoryReader(path).events()] == [(4, "hang"), (5, "failure")]


def test_what_cannot_be_written_waits_and_is_written_later(tmp_path):
    folder = tmp_path / "not-there-yet"
    writer = HistoryWriter(folder / "history.db")
    for second in range(30):
        writer.add(START + second, 0, [rank(loss=1.0)], [])
    writer.event(event())
    assert writer.problem is not None and "history.db cannot be written" in writer.problem
    folder.mkdir()
    writer.add(START + 30, 0, [rank(loss=1.0)], [])
    assert (writer.problem, writer.lost_writes) == (None, 0)
    writer.close()
    reader = HistoryReader(folder / "history.db")
    assert len(reader.rank_series("loss", 0, START + 100, 1000)[0].t) == 31
    assert len(reader.events()) == 1


def test_a_writer_that_can_never_write_gives_up_the_oldest(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MAX_PENDING_ROWS", 20)
    writer = HistoryWriter(tmp_path / "missing" / "history.db")
    for second in range(100):
        writer.add(START + second, 0, [rank(loss=1.0)], [])
    assert writer.lost_writes == 80
    writer.close(final=True)


def test_a_file_that_is_locked_by_someone_is_written_later(path):
    writer = HistoryWriter(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer.add(START, 0, [rank(loss=1.0)], [])
    assert writer.problem is not None and "locked" in writer.problem
    other.execute("ROLLBACK")
    other.close()
    writer.add(START + 1, 0, [rank(loss=1.0)], [])
    assert writer.problem is None
    writer.close()
    assert len(HistoryReader(path).rank_series("loss", 0, START + 9, 100)[0].t) == 2
