"""What a job's monitors find becomes alerts, and events if it was not reported yet."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.builders import make_snapshot, make_spec
from tests.support.emitted import EmittedLog

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.node.alerts import JobAlerts, LastResort

SNAPSHOT = make_snapshot(make_spec())


def watcher(log: Any) -> JobAlerts:
    return JobAlerts(log, LastResort(log))


def test_alert_is_reported_once():
    log = EmittedLog()
    alerts = watcher(log)
    new = Finding("a", "warning", "disk low")
    known = Finding("b", "warning", "file damaged", has_event=True)
    hint = Finding("c", "info", "healthy again")
    for now_s in (100.0, 104.0):
        alerts.look(SNAPSHOT, [new, known, hint], now_s)
    assert [one.message for one in alerts.now] == ["disk low", "file damaged", "healthy again"]
    assert log.texts == ["disk low"]


def test_the_end_of_an_alert_is_told_even_by_a_supervisor_that_came_later():
    log = EmittedLog()
    found = [Finding("a", "warning", "disk low"), Finding("b", "info", "healthy again")]
    first, later = watcher(log), watcher(log)
    first.look(SNAPSHOT, found, 100.0)
    later.recall(first.now, first.reported)
    later.look(SNAPSHOT, found, 104.0)
    assert log.texts == ["disk low"]
    for number in range(4):  # a restored alert is kept for a few seconds
        later.look(SNAPSHOT, [], 108.0 + 4.0 * number)
    assert log.texts == ["disk low", "resolved: disk low"]
    later.record_end()
    assert len(log.texts) == 2, "it was over before the job was"


def test_a_watch_that_fails_leaves_the_alerts_as_they_were(monkeypatch):
    log = EmittedLog()
    alerts = watcher(log)
    alerts.look(SNAPSHOT, [Finding("p", "warning", "set aside")], 100.0)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(alerts._watch, "update", broken)
    alerts.look(SNAPSHOT, [], 104.0)
    assert [one.message for one in alerts.now] == ["set aside"]
    assert len(log.texts) == 2 and "internal error in ddptop" in log.texts[1]


def test_what_holds_until_the_job_ends_is_over_with_it():
    log = EmittedLog()
    found = [Finding("a", "warning", "disk low"), Finding("b", "warning", "GPU 1 is hot")]
    alerts = watcher(log)
    alerts.look(SNAPSHOT, found, 100.0)
    alerts.record_end()
    alerts.record_end()
    assert log.texts[2:] == ["still active when the job ended: disk low; GPU 1 is hot"]


@pytest.mark.parametrize(
    ("id_", "evidence", "rank"),
    [
        ("starved", {"data_wait_s": 0.1}, 2),
        ("straggler", {"data_wait_s": 0.1}, 2),
        ("straggler", {"busy_s": 0.1}, None),
    ],
)
def test_workers_are_looked_at_once_for_each_time_that_data_is_waited_for(
    id_: str, evidence: dict[str, float | None], rank: int | None
) -> None:
    alerts = watcher(EmittedLog())
    waits = [Finding(id_, "warning", "slow", (2, 3), evidence=evidence)]
    looked_at = []
    for now_s, found in ((100.0, waits), (101.0, waits), (102.0, []), (103.0, waits)):
        alerts.look(SNAPSHOT, found, now_s)
        looked_at.append(alerts.rank_to_look_at())
    assert looked_at == [rank, None, None, rank]
