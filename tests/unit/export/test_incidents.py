"""Which events lead to messages."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from ddptop.export.incidents import Incidents, Notice

from ddptop_runner.job.event_log import as_row
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import Alert, Cause, Event

BEGAN = dt.datetime(2026, 3, 1, 3, 0, tzinfo=dt.timezone.utc)
KILLED = Cause(kind="signal", rank=1, headline="rank 1 was killed by SIGKILL", summary="A long one")
FAILED = ev.FailureJudged(attempt=0, cause=KILLED)
RESTART = ev.RestartDecided(attempt=0, used=1, limit=3)
TRAINS = ev.TrainingStarted(attempt=1, after_s=2.0)
IDLE = Alert(id="starved", severity="warning", message="all ranks wait for data", since=BEGAN)


def at(seconds: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=seconds)


class Log:
    """A job's events, folded as they come."""

    def __init__(self) -> None:
        self.incidents = Incidents()
        self.seq = 0

    def add(self, seconds: float, *events: ev.JobEvent) -> list[Notice]:
        rows = list[Event]()
        for event in events:
            self.seq += 1
            rows.append(msgspec.structs.replace(as_row(event), ts=at(seconds), seq=self.seq))
        # what a restarted notifier reads back
        data = msgspec.json.encode(self.incidents)
        self.incidents = msgspec.json.decode(data, type=Incidents)
        return [*self.incidents.fold(rows), *self.incidents.due(at(seconds))]


def texts(notices: list[Notice]) -> list[str]:
    return [f"{one.kind}: {one.text}" for one in notices]


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_quick_restart_is_one_message(log: Log) -> None:
    assert log.add(0, FAILED, RESTART) == []
    (notice,) = log.add(12, TRAINS)
    assert texts([notice]) == [
        "restarted: rank 1 was killed by SIGKILL (restart 1 of 3); training again after 12 s"
    ]
    assert (notice.rank, notice.attempt, notice.is_over) == (1, 0, False)
    assert log.add(900, TRAINS) == []


def test_a_slow_restart_is_reported_and_then_its_end(log: Log) -> None:
    log.add(0, FAILED, RESTART)
    assert texts(log.add(61)) == [
        "restarted: rank 1 was killed by SIGKILL (restart 1 of 3); restarting"
    ]
    assert log.add(90, FAILED, RESTART) == [], "the same incident goes on"
    (over,) = log.add(240, TRAINS)
    assert over.is_over
    assert over.text.endswith("training again after 4 min")


def test_a_hang_is_named_by_its_verdict(log: Log) -> None:
    suspected = Alert(id="stalled", severity="warning", message="no steps", since=BEGAN)
    log.add(0, ev.AlertRaised(alert=suspected))
    assert log.add(700) == [], "a suspicion is no verdict"
    hang = Cause(kind="hang", headline="rank 3 never arrived in all_reduce", summary="s")
    log.add(701, ev.HangJudged(attempt=0, cause=hang), RESTART)
    (notice,) = log.add(720, TRAINS)
    assert notice.kind == "hung"
    assert "rank 3 never arrived" in notice.text


def test_a_finding_is_reported_once_it_has_lasted_and_when_it_ends(log: Log) -> None:
    raised = ev.AlertRaised(alert=IDLE)
    cleared = ev.AlertsCleared(messages={"starved": "over"})
    assert [*log.add(0, raised), *log.add(599), *log.add(599, cleared), *log.add(700)] == []
    log.add(1000, ev.AlertRaised(alert=msgspec.structs.replace(IDLE, since=at(1000))))
    assert texts(log.add(1600)) == ["finding: all ranks wait for data (for 10 min)"]
    (over,) = log.add(2200, cleared)
    assert over.is_over
    assert over.text == "all ranks wait for data; over after 20 min"


@pytest.mark.parametrize(
    ("alert_id", "kind"), [("disk-full@node2", "disk"), ("loss-nan", "nan"), ("loss-inf", "nan")]
)
def test_what_cannot_wait_is_reported_at_once(log: Log, alert_id: str, kind: str) -> None:
    alert = Alert(id=alert_id, severity="error", message="m", since=BEGAN)
    assert [one.kind for one in log.add(1, ev.AlertRaised(alert=alert))] == [kind]


def test_information_is_not_reported(log: Log) -> None:
    alert = Alert(id="x", severity="info", message="m", since=BEGAN)
    assert [*log.add(0, ev.AlertRaised(alert=alert)), *log.add(1e5)] == []


def test_ends(log: Log) -> None:
    log.add(0, ev.AlertRaised(alert=IDLE), FAILED, RESTART)
    failed = log.add(30, ev.JobEnded(state="failed", cause=KILLED))
    assert texts(failed) == ["failed: rank 1 was killed by SIGKILL"]
    assert failed[0].is_end
    assert log.add(1e4) == [], "nothing else is open"
    log.add(1e4, ev.Launched(target="train.py"))
    assert not log.incidents.is_ended
    assert [one.kind for one in log.add(2e4, ev.JobEnded(state="finished"))] == ["finished"]
    assert log.add(3e4, ev.JobEnded(state="stopped")) == [], "its owner stopped it"
    (preempted,) = log.add(4e4, ev.JobLost(requeued=True))
    assert (preempted.kind, preempted.is_end) == ("preempted", False)


def test_a_job_without_any_process_is_lost_once(log: Log) -> None:
    assert log.incidents.gone(at(0)) == []
    assert log.incidents.gone(at(14)) == []
    assert [one.kind for one in log.incidents.gone(at(16))] == ["lost"]
    assert log.incidents.gone(at(60)) == []
