"""Events as data: stored completely by the history, and folded into the job's state."""

from __future__ import annotations

import datetime as dt
import typing

import msgspec
import pytest
from tests.support.builders import make_spec
from tests.support.resuming import CAUSE, begin, fail, run, start, state_of_the_log

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.event_log import EventLog, as_row
from ddptop_runner.job.event_text import text
from ddptop_runner.job.moment import rebuild
from ddptop_runner.judge.restarts import policy
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import SILENT, Alert, Checkpoint, Event
from ddptop_runner.model.spec import Device
from ddptop_runner.store.history import HistoryReader, HistoryWriter

pytestmark = pytest.mark.usefixtures("ddptop_home")

NOW = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone.utc)
SAVED = Checkpoint(path="/ck/a.pt", at=NOW, rank=0, attempt=0, step=21, size_bytes=2560, took_s=0.1)
HOT = Alert(id="hot", severity="warning", message="GPU 1 is throttled", gpus=[1], since=NOW)
GPU = Device(index=1, uuid="GPU-1", name="H100")

EVERY: list[tuple[ev.JobEvent, str, str]] = [
    (
        ev.Launched(attempt=0, target="train.py", nproc=2),
        "launched",
        "launched train.py with 2 ranks on CPU",
    ),
    (
        ev.Launched(attempt=0, target="torchrun x.py", devices=[GPU]),
        "launched",
        "launched torchrun x.py on GPU 1",
    ),
    (ev.Queued(waits_for="waits for 2 GPUs"), "queued", "queued: waits for 2 GPUs"),
    (ev.AttemptStarted(attempt=1, world=2), "attempt_started", "attempt 1: 2 ranks started"),
    (
        ev.AttemptStarted(attempt=0, world=1, launcher_pid=7),
        "attempt_started",
        "attempt 0: the command started (pid 7)",
    ),
    (ev.RankStarted(attempt=0, rank=1, pid=71), "rank_started", "rank 1 started (pid 71)"),
    (ev.TrainingStarted(attempt=0, after_s=4.04), "training", "first step after 4.0 s"),
    (
        ev.CheckpointRequested(attempt=0, signals={"SIGUSR1": [0, 1]}, flag_file=True),
        "checkpoint_asked",
        "checkpoint requested by sending SIGUSR1 to ranks 0, 1 and creating the flag file",
    ),
    (
        ev.CheckpointSaved(attempt=0, checkpoint=SAVED, more_before=2),
        "checkpoint",
        "rank 0 saved a.pt at step 21 of attempt 0 (2 KiB in 0.1 s); 2 more since the last report",
    ),
    (
        ev.RankExited(attempt=0, rank=1, pid=71, status=-9, at_s=9.5),
        "rank_exited",
        "rank 1 was killed by SIGKILL",
    ),
    (
        ev.LauncherExited(attempt=0, pid=7, status=1, by_us=True),
        "launcher_exited",
        "the command exited with status 1",
    ),
    (
        ev.HangSuspected(attempt=0, found="no rank made progress", ranks=[1]),
        "hang_suspected",
        "no rank made progress",
    ),
    (ev.FailureJudged(attempt=0, cause=CAUSE), "failure", "Rank 1 was killed."),
    (ev.HangJudged(attempt=0, cause=CAUSE), "hang", "Rank 1 was killed."),
    (
        ev.RestartDecided(attempt=0, used=1, limit=3, delay_s=10.0, at_s=99.0, reason="it got far"),
        "group_restart",
        "restarting all ranks as attempt 1 (restart 1 of 3); it got far",
    ),
    (
        ev.RestartRequested(attempt=0, used=0, limit=3, devices_back=[GPU]),
        "group_restart",
        "restarting all ranks as attempt 1, as requested, with GPU 1 back in use",
    ),
    (
        ev.RestartHurried(attempt=0, used=0, limit=3),
        "group_restart",
        "starting attempt 1 now, as requested",
    ),
    (
        ev.StopRequested(attempt=0, grace_s=2.5, kill_at_s=12.0, by="ada"),
        "stopping",
        "stop requested by ada (grace period 2.5 s)",
    ),
    (ev.StopRequested(attempt=0, grace_s=0.0), "stopping", "kill requested"),
    (
        ev.JobEnded(attempt=0, state="finished"),
        "finished",
        "finished in attempt 0: all ranks exited with status 0",
    ),
    (ev.JobEnded(attempt=0, state="stopped", in_queue=True), "stopped", "stopped in the queue"),
    (
        ev.JobEnded(attempt=2, state="failed", cause=CAUSE, reason="no restarts left"),
        "failed",
        "failed in attempt 2: no restarts left",
    ),
    (ev.JobLost(attempt=1, rebooted=True, last_seen=NOW), "lost", ""),
    (
        ev.JobLost(attempt=1, requeued=True, last_seen=NOW),
        "requeued",
        "Slurm ended attempt 1 and requeued the job",
    ),
    (
        ev.StopRequested(attempt=0, grace_s=0.0, by=ev.CANCELLED_BY),
        "stopping",
        "cancelled with scancel",
    ),
    (
        ev.AgentLost(attempt=0, status=-9, ranks=2),
        "alert",
        "the agent was killed by SIGKILL; 2 ranks continue without it",
    ),
    (
        ev.SupervisorRestarted(attempt=0),
        "supervisor_restarted",
        "the supervisor restarted; nothing was lost",
    ),
    (
        ev.GuardianRestarted(attempt=0),
        "guardian_restarted",
        "the guardian had exited; a new one adopted the job",
    ),
    (ev.AlertRaised(attempt=0, alert=HOT), "alert", "GPU 1 is throttled"),
    (
        ev.AlertsCleared(attempt=0, messages={"hot": HOT.message}),
        "alert_over",
        "resolved: GPU 1 is throttled",
    ),
    (
        ev.GpuMemoryAwaited(attempt=0, seconds=3.0, found="waited 3.0 s"),
        "gpu_memory",
        "waited 3.0 s",
    ),
    (
        ev.ProcessesStuck(attempt=0, pids=[7, 8]),
        "alert",
        "cannot kill pid 7, 8: stuck in the kernel",
    ),
    (ev.SnapshotDamaged(attempt=0, damage="damaged"), "alert", "damaged"),
    (ev.SocketsRecreated(folder="/x"), "alert", ""),
    (ev.SocketsFailed(error="no"), "alert", ""),
    (ev.InternalError(error="KeyError", place="a.py:7"), "alert", ""),
    (ev.Noticed(text="a log was cut"), "alert", "a log was cut"),
    (
        ev.NodeUnreachable(attempt=0, node="b", why="no route to host"),
        "node",
        "b cannot be reached: no route to host; its ranks may still be training",
    ),
    (ev.NodeReachable(attempt=0, node="b"), "node", "b can be reached again"),
    (
        ev.NodesAwaited(attempt=0, nodes=["b", "c"], seconds=15.0),
        "node",
        "waiting up to 15 s for b, c before attempt 1",
    ),
    (
        ev.NodeLost(attempt=0, node="b", why="no route to host"),
        "node",
        "gave up on b: no route to host",
    ),
    (ev.Untyped(text="of another version"), "alert", "of another version"),
]


def test_every_kind_of_event_has_a_sentence_and_is_tested_here():
    silent = {kind for kind in typing.get_args(ev.JobEvent) if kind.TYPE == SILENT}
    assert {type(event) for event, _, _ in EVERY} == set(typing.get_args(ev.JobEvent)) - silent
    for event, type_, words in EVERY:
        assert event.type == type_
        assert text(event) == words or (words == "" and text(event))


def test_the_history_gives_every_event_back_as_it_was(tmp_path):
    writer = HistoryWriter(tmp_path / "history.db")
    for event, _, _ in EVERY:
        writer.event(as_row(event))
    writer.close(final=True)
    rows = HistoryReader(tmp_path / "history.db").events()
    assert [ev.from_data(row.data) for row in rows] == [event for event, _, _ in EVERY]


def test_events_without_a_sentence_leave_no_gap_in_the_numbers(tmp_path):
    writer = HistoryWriter(tmp_path / "history.db")
    silent = ev.RunningAssumed(attempt=0)
    for event in (silent, EVERY[0][0], silent, silent, EVERY[1][0], silent, EVERY[2][0]):
        writer.event(as_row(event))
    writer.close(final=True)
    reader = HistoryReader(tmp_path / "history.db")
    assert [row.seq for row in reader.events()] == [1, 2, 3]
    assert [row.seq for row in reader.events(1)] == [2, 3]
    assert [row.seq for row in reader.events(limit=1)] == [3]
    assert [row.seq for row in reader.events(silent=True)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "of a newer version"},
        {"kind": "rank_exited", "rank": "one"},
        {},
        {"kind": "lost", "last_seen": "0001-01-01T00:00:00Z"},
        {"kind": "restart_decided", "used": 1, "limit": 3, "delay_s": 1e300},
    ],
)
def test_data_that_is_not_understood_leaves_the_sentence(data):
    row = Event(ts=NOW, type="rank_exited", message="as written", attempt=0, rank=1, data=data)
    assert ev.of_row(row) == ev.Untyped(attempt=0, text="as written")


def test_a_restart_that_is_hurried_is_given_back_in_the_log_as_well(monkeypatch):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 60.0)

    async def scenario() -> None:
        driver, around = begin()
        start(driver)
        fail(driver)
        assert driver.job.budget.used == state_of_the_log().budget.used == 1
        driver.restart()
        assert driver.job.budget.used == state_of_the_log().budget.used == 0
        assert state_of_the_log() == around.log.state
        around.die()

    run(scenario)


def test_the_cause_of_a_failure_is_read_whole_from_its_event():
    cause = msgspec.structs.replace(CAUSE, kind="exception", exception="ValueError", place="a.py:7")
    for event in (
        ev.FailureJudged(attempt=0, cause=cause),
        ev.HangJudged(attempt=0, cause=cause),
        ev.JobEnded(attempt=0, state="failed", cause=cause, reason="no restarts left"),
    ):
        assert ev.cause_in(as_row(event)) == cause


def test_the_loss_of_the_agent_is_recorded_beside_another_alert(tmp_path):
    """Both have the type `alert` and the same attempt."""
    history = HistoryWriter(tmp_path / "history.db")
    log = EventLog(history, lambda line: None)
    log.emit(ev.AlertRaised(attempt=0, alert=HOT))
    for _ in range(2):
        log.emit(ev.AgentLost(attempt=0, status=-9, ranks=2))
    messages = [row.message for row in HistoryReader(history.path).events()]
    assert len(messages) == 2 and messages[1].startswith("the agent was killed by SIGKILL")
    history.close()


def test_a_supervisor_that_finds_its_snapshot_damaged_counts_no_restart_twice(monkeypatch):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 0.1)

    async def scenario() -> None:
        driver, around = begin()
        start(driver)
        fail(driver)
        pending = driver.job.restart
        around.die()
        driver, around = begin(rebuild(run_folder("train"), make_spec(), "damaged"))
        assert (driver.job.phase, driver.job.budget.used) == ("restarting", 1)
        assert driver.job.restart == pending
        assert driver.attempt.started_s <= boottime_s()
        fail(driver, question=2)  # the agent asks again
        assert driver.job.budget.used == 1
        around.history.close()

    run(scenario)
