"""Events as data: stored completely by the history, and folded into the job's state."""

from __future__ import annotations

import datetime as dt
import typing

import msgspec
import pytest
from tests.support.builders import make_spec
from tests.support.resuming import CAUSE, begin, fail, start
from tests.support.tables import table

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.event_log import EventLog, as_row
from ddptop_runner.job.event_text import text
from ddptop_runner.job.moment import rebuild
from ddptop_runner.judge.restarts import policy
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import SILENT, Alert, Event
from ddptop_runner.model.spec import Device
from ddptop_runner.store.history import HistoryReader, HistoryWriter

pytestmark = pytest.mark.usefixtures("ddptop_home")

NOW = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone.utc)
HOT = Alert(id="hot", severity="warning", message="GPU 1 is throttled", gpus=[1], since=NOW)
GPU = Device(index=1, uuid="GPU-1", name="H100")

SENTENCES = table(__file__, "events")
EVERY = [ev.from_data(one["data"]) for one in SENTENCES]


def test_every_kind_of_event_has_a_sentence_and_is_tested_here():
    silent = {kind for kind in typing.get_args(ev.JobEvent) if kind.TYPE == SILENT}
    assert {type(event) for event in EVERY} == set(typing.get_args(ev.JobEvent)) - silent
    for event, one in zip(EVERY, SENTENCES, strict=True):
        assert event.type == one["type"]
        assert text(event) == one.get("words", text(event)) != ""


def test_the_history_gives_every_event_back_as_it_was(tmp_path):
    writer = HistoryWriter(tmp_path / "history.db")
    for event in EVERY:
        writer.event(as_row(event))
    writer.close(final=True)
    rows = HistoryReader(tmp_path / "history.db").events()
    assert [ev.from_data(row.data) for row in rows] == EVERY


def test_events_without_a_sentence_leave_no_gap_in_the_numbers(tmp_path):
    writer = HistoryWriter(tmp_path / "history.db")
    silent = ev.RunningAssumed(attempt=0)
    for event in (silent, EVERY[0], silent, silent, EVERY[1], silent, EVERY[2]):
        writer.event(as_row(event))
    writer.close(final=True)
    reader = HistoryReader(tmp_path / "history.db")
    assert [row.seq for row in reader.events()] == [1, 2, 3]
    assert [row.seq for row in reader.events(1)] == [2, 3]
    assert [row.seq for row in reader.events(limit=1)] == [3]
    assert [row.seq for row in reader.events(silent=True)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("data", table(__file__, "not_understood"))
def test_data_that_is_not_understood_leaves_the_sentence(data):
    row = Event(ts=NOW, type="rank_exited", message="as written", attempt=0, rank=1, data=data)
    assert ev.of_row(row) == ev.Untyped(attempt=0, text="as written")


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


async def test_a_supervisor_that_finds_its_snapshot_damaged_counts_no_restart_twice(monkeypatch):
    monkeypatch.setattr(policy, "BACKOFF_BASE_S", 0.1)

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
