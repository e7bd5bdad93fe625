"""A job at a past moment: from its events, and from the oldest tier that covers it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.support.builders import make_snapshot, make_spec
from tests.support.histories import START, rank
from tests.support.rows import row

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.moment import MomentReader
from ddptop_runner.job.state import JobState
from ddptop_runner.job.transition import NOTICE_S, fold
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, Event, GpuSample, RankSample
from ddptop_runner.store.history import HistoryWriter


def told(at: float, type_: str, message: str = "", **fields) -> Event:
    return row(utc_from_unix(START + at), type_, message or type_, **fields)


STORY = [
    told(0.2, "launched"),
    told(1.5, "attempt_started", attempt=0),
    told(1.6, "rank_started", attempt=0, rank=0, pid=70),
    told(1.6, "rank_started", attempt=0, rank=1, pid=71),
    told(4.0, "training", attempt=0),
    told(9.0, "checkpoint", attempt=0, rank=0, step=21),
    told(12.0, "hang_suspected", "no rank made progress", attempt=0),
    told(20.0, "rank_exited", attempt=0, rank=1, pid=71, exit_code=1),
    told(20.5, "rank_exited", attempt=0, rank=0, pid=70, signal="SIGTERM", by_us=True),
    told(21.0, "failure", "Rank 1 raised.", attempt=0, rank=1, exit_code=1, evidence="/x/a-0"),
    told(21.1, "group_restart", attempt=0),
    told(25.0, "attempt_started", attempt=1),
    told(25.1, "rank_started", attempt=1, rank=0, pid=80),
    told(25.1, "rank_started", attempt=1, rank=1, pid=81),
    told(30.0, "training", attempt=1),
    told(40.0, "hang", "The job hung.", attempt=1, rank=0),
    told(40.1, "group_restart", attempt=1, used=2),
    told(41.0, "rank_exited", attempt=1, rank=0, pid=80, signal="SIGKILL", by_us=True),
    told(45.0, "stopping", attempt=1),
    told(46.0, "stopped", attempt=1),
]


def state_at(rows: list[Event], second: float) -> JobState:
    end = utc_from_unix(START + second)
    return fold((one.ts, ev.of_row(one)) for one in rows if one.ts < end)


def at(second: float) -> JobState:
    return state_at(STORY, second)


def alerts_at(rows: list[Event], second: float) -> list[str]:
    shown = state_at(rows, second).alerts_at(utc_from_unix(START + second))
    return [alert.message for alert in shown]


@pytest.mark.parametrize(
    ("second", "state", "attempt", "restarts"),
    [
        (0, "starting", None, 0),
        (2, "starting", 0, 0),
        (5, "running", 0, 0),
        (21.05, "running", 0, 0),
        (22, "restarting", 0, 1),
        (26, "starting", 1, 1),
        (31, "running", 1, 1),
        (40.05, "hung", 1, 1),
        (41, "restarting", 1, 2),
        (45.5, "stopping", 1, 2),
        (60, "stopped", 1, 2),
    ],
)
def test_the_state_is_what_the_events_up_to_then_say(second, state, attempt, restarts):
    story = at(second)
    assert (story.phase, story.attempt, story.budget.used) == (state, attempt, restarts)


def test_ranks_end_by_themselves_or_are_ended():
    failed, ended = at(22).ranks[1], at(22).ranks[0]
    assert failed.state("running") == "failed" and failed.status == 1
    assert ended.state("running") == "stopped" and ended.status == -15
    assert {one.state("starting") for one in at(26).ranks.values()} == {"starting"}
    assert at(40.05).ranks[0].state("quiet") == "hung"
    assert at(40.05).ranks[0].state("paused") == "paused"
    assert at(40.05).ranks[1].state("running") == "running"


@pytest.mark.parametrize("lasted_s", [30, 5 * NOTICE_S])
def test_an_alert_is_shown_as_long_as_it_held(lasted_s):
    slow, hot = "rank 5 is slow: 46 %", "GPU 5 is throttled"
    events = [
        *STORY[:5],
        told(50, "alert", slow, attempt=0, seq=1),
        told(50, "alert", hot, attempt=0, seq=2),
        told(50 + lasted_s, "alert_over", messages={slow: slow}, attempt=0),
        told(60 + lasted_s, "alert", slow, attempt=0, seq=3),
        told(90 + lasted_s, "alert_over", messages={hot: hot, slow: slow}, attempt=0),
    ]

    def shown(second):
        return set(alerts_at(events, second))

    assert shown(51) == shown(49 + lasted_s) == {slow, hot}
    assert shown(55 + lasted_s) == {hot}
    assert shown(61 + lasted_s) == {slow, hot}, "it came back"
    assert shown(91 + lasted_s) == set()


# --- figures ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "runs" / "train")
    found.evidence_dir.mkdir(parents=True)
    return found


def reader_of(folder: RunFolder) -> MomentReader:
    return MomentReader(folder, make_spec(created_at=utc_from_unix(START)))


def write(folder: RunFolder, seconds: range, events: list[Event] = (), **fields) -> None:
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for second in seconds:
        attempt = 0 if second < 25 else 1
        ranks = [
            rank(r, step=second * 2, loss=9.0 - second / 8, cpu_percent=50.0 + r, **fields)
            for r in range(2)
        ]
        gpus = [GpuSample(index=r, util_percent=80.0 + r, power_w=300.0) for r in range(2)]
        writer.add(START + second, attempt, ranks, gpus)
    for event in events:
        writer.event(event)
    writer.close(final=True)


def test_a_moment_shows_what_was_sampled_then(folder):
    write(folder, range(1, 60), STORY, log_bytes=77, sync_s=0.5, compute_s=0.25)
    moment = reader_of(folder).read(START + 11.4)
    assert moment.width_s == 1
    one = moment.snapshot.ranks[1]
    assert (one.step, one.loss, one.cpu_percent, one.pid) == (22, 9.0 - 11 / 8, 51.0, 71)
    assert (one.log_bytes, one.sync_s, one.compute_s, one.state) == (77, 0.5, 0.25, "running")
    assert one.steps_per_s == pytest.approx(2.0)
    assert moment.snapshot.step == 22 and moment.snapshot.state == "running"
    assert [gpu.util_percent for gpu in moment.snapshot.gpus] == [80.0, 81.0]
    assert one.rss_bytes is None and moment.snapshot.gpus[0].temperature_c is None
    assert [event.type for event in moment.events][-1] == "checkpoint"


WHY = "waiting for rank 1"
STALL = "no rank made progress for 62 s (allowed: 180 s); rank 1 did not enter collective 9"


def test_moment_without_steps_is_replayed_as_it_was(folder):
    story = [*STORY[:6], told(172.0, "hang_suspected", STALL, attempt=0, reason=WHY)]
    story += [told(190.0, "hang", "The job hung.", attempt=0, rank=1)]
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for second in range(1, 200):
        step = min(second, 30) if second < 60 else min(60, 110) if second < 70 else 110
        writer.add(START + second, 0, [rank(r, step=step) for r in range(2)], [])
    for event in story:
        writer.event(event)
    writer.close(final=True)
    reader = reader_of(folder)

    def seen(second):
        pause = reader.read(START + second).snapshot.pause
        if pause is None:
            return None
        return pause.state, pause.since.timestamp() - START, pause.reason

    assert seen(20) is None, "steps come"
    assert seen(44) is None, "not for long enough"
    assert seen(50) == ("no_step", 30, None)
    assert seen(62) is None, "they come again"
    assert seen(160) == ("no_step", 70, None)
    assert seen(180) == ("stalled", 70, WHY)
    assert seen(195) == ("hung", 70, WHY)
    assert [one.message for one in reader.read(START + 180).snapshot.alerts] == [STALL]
    assert not reader.read(START + 160).snapshot.alerts


def test_where_nothing_was_recorded_nothing_is_known(folder):
    write(folder, [*range(1, 10), *range(30, 50)], STORY)
    reader = reader_of(folder)
    gap = reader.read(START + 20)
    assert gap.width_s is None
    assert all(one.step is None and one.loss is None for one in gap.snapshot.ranks)
    assert reader.read(START + 11).snapshot.ranks[0].step == 18, "a second may be left out"
    assert reader.recorded(100) == [(START + 1, START + 12), (START + 30, START + 50)]


def test_older_moments_are_known_less_exactly(folder):
    write(folder, range(0, 300))
    with contextlib.closing(sqlite3.connect(folder.history_db)) as db, db:
        for kind in ("rank", "gpu"):
            db.execute(f"DELETE FROM {kind}_1s WHERE t < ?", (START + 200,))
    db.close()
    reader = reader_of(folder)
    assert reader.span() == (START, START + 299)
    late, early = reader.read(START + 250), reader.read(START + 103)
    assert (late.width_s, early.width_s) == (1, 10)
    assert early.snapshot.ranks[0].step == 2 * 109, "the last sample of its ten seconds"
    assert early.snapshot.ranks[0].steps_per_s is None
    assert reader.recorded(20) == [(START, START + 300)]
    assert reader.recorded(1000) == [(START, START + 300)], "the finest tier begins later"


def test_ranks_that_start_long_after_the_job_are_recorded_all_the_same(folder):
    writer = HistoryWriter(folder.history_db, batch_s=1e9)
    for second in range(0, 3000, 10):
        ranks = [rank(0, step=second)] if second >= 1300 else []
        writer.add(START + second, 0, ranks, [GpuSample(index=0, uuid="GPU-0")])
    writer.close(final=True)
    with contextlib.closing(sqlite3.connect(folder.history_db)) as db, db:
        for kind in ("rank", "gpu"):
            db.execute(f"DELETE FROM {kind}_1s WHERE t < ?", (START + 2500,))
    assert reader_of(folder).recorded(100)[0][0] == START + 1300


def test_a_moment_joins_what_never_changes(folder):
    write(folder, range(1, 60), STORY)
    last = make_snapshot(
        make_spec(),
        attempt=1,
        ts=utc_from_unix(START + 60),
        ranks=[RankSample(rank=r, local_rank=r, host="n", gpu=r, rss_bytes=5) for r in range(2)],
        gpus=[GpuSample(index=r, name="H100", mem_total_bytes=80, xid=[79]) for r in range(2)],
        alerts=[
            Alert(id="a", severity="error", message=text, since=utc_from_unix(START + since))
            for text, since in (("known then", 30), ("later", 50))
        ],
        total_steps=500,
    )
    snapshot = reader_of(folder).read(START + 39, last).snapshot
    assert (snapshot.ranks[1].gpu, snapshot.ranks[1].gpu_util_percent) == (1, 81.0)
    assert snapshot.ranks[1].rss_bytes is None, "that was not recorded"
    gpu = snapshot.gpus[0]
    assert (gpu.name, gpu.mem_total_bytes, gpu.xid) == ("H100", 80, None)
    assert snapshot.total_steps == 500
    assert [alert.message for alert in snapshot.alerts] == ["known then"]


def test_what_was_printed_by_then_is_known_and_nothing_later(folder):
    lines = [f"epoch {n // 10}/3 step {n % 10 + 1}/10 loss {9 - n / 10:.2f}\n" for n in range(30)]
    lines[9] += "epoch 0 val_loss: 4.50\n"
    lines[19] += "epoch 1 val_loss: 3.50\n"
    log = folder.log_file(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(lines))
    writer = HistoryWriter(folder.history_db)
    for second in range(1, 31):
        size = len("".join(lines[:second]))
        writer.add(START + second, 0, [rank(0, step=second, log_bytes=size), rank(1)], [])
    for event in STORY[:6]:
        writer.event(event)
    writer.close(final=True)
    spec = make_spec(created_at=utc_from_unix(START), args=["--epochs", "3"])
    reader = MomentReader(folder, spec)

    def seen(second):
        snapshot = reader.read(START + second, make_snapshot(spec, attempt=0)).snapshot
        known = snapshot.progress
        assert known is not None
        return known.epoch, known.epochs, known.step, known.total, snapshot.ranks[0].metrics

    assert seen(6) == (0, 3, 6, 10, {})
    assert seen(13) == (1, 3, 3, 10, {"validation loss": 4.5})
    assert seen(20) == (1, 3, 10, 10, {"validation loss": 3.5})
    early, late = (reader.read(START + at).snapshot.progress.fraction for at in (6, 13))
    assert (early, late) == (pytest.approx(6 / 30), pytest.approx(13 / 30))
