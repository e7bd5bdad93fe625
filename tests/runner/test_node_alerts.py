"""What the watchers of a job find becomes alerts, and events where nothing told it yet."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runner.builders import make_snapshot, make_spec
from tests.runner.emitted import EmittedLog

from ddptop_runner.judge.alerts import Finding
from ddptop_runner.node import alerts as node_alerts
from ddptop_runner.node.alerts import JobAlerts
from ddptop_runner.node.last_resort import LastResort


def make_driver(findings: Sequence[Finding] = ()) -> Any:
    return SimpleNamespace(
        attempt=SimpleNamespace(number=0, hangs=SimpleNamespace(is_on=True)),
        devices=SimpleNamespace(look=lambda report, aside: list(findings)),
        job=SimpleNamespace(set_aside=[]),
    )


def look(*findings: Finding) -> tuple[list[str], list[str]]:
    story: Any = EmittedLog()
    driver = make_driver()
    keeper: Any = SimpleNamespace(look=lambda attempt, now_s: list(findings))
    alerts = JobAlerts(driver, keeper, story, LastResort(story))
    alerts.look(make_snapshot(make_spec()), None)
    return [alert.message for alert in alerts.now], story.texts


def test_an_alert_is_told_once() -> None:
    new = Finding("a", "warning", "disk low")
    known = Finding("b", "warning", "file damaged", is_told=True)
    hint = Finding("c", "info", "healthy again")
    shown, told = look(new, known, hint)
    assert shown == ["disk low", "file damaged", "healthy again"]
    assert told == ["disk low"]


def test_the_end_of_an_alert_is_told_even_by_a_supervisor_that_came_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(100.0, 4.0)
    monkeypatch.setattr(node_alerts, "boottime_s", lambda: next(clock))
    story: Any = EmittedLog()
    found = [Finding("a", "warning", "disk low"), Finding("b", "info", "healthy again")]
    driver = make_driver()
    keeper: Any = SimpleNamespace(look=lambda attempt, now_s: found)

    def watcher() -> JobAlerts:
        return JobAlerts(driver, keeper, story, LastResort(story))

    first, later, snapshot = watcher(), watcher(), make_snapshot(make_spec())
    first.look(snapshot, None)
    later.recall(first.now, json.loads(json.dumps(first.remember())))
    later.look(snapshot, None)
    assert story.texts == ["disk low"]
    found.clear()
    for _ in range(4):  # a recalled alert stays for a few seconds
        later.look(snapshot, None)
    assert story.texts == ["disk low", "resolved: disk low"]
    driver.before_end()
    assert len(story.texts) == 2, "it was over before the job was"


def test_what_holds_until_the_job_ends_is_over_with_it() -> None:
    story: Any = EmittedLog()
    driver = make_driver()
    found = [Finding("a", "warning", "disk low"), Finding("b", "warning", "GPU 1 is hot")]
    keeper: Any = SimpleNamespace(look=lambda attempt, now_s: found)
    alerts = JobAlerts(driver, keeper, story, LastResort(story))
    alerts.look(make_snapshot(make_spec()), None)
    driver.before_end()
    driver.before_end()
    assert story.texts[2:] == ["still active when the job ended: disk low; GPU 1 is hot"]


def test_a_watcher_that_fails_costs_the_others_nothing() -> None:
    story: Any = EmittedLog()

    def broken(*args: object) -> list[Finding]:
        raise KeyError("x")

    driver = make_driver([Finding("p", "warning", "set aside")])
    alerts = JobAlerts(driver, SimpleNamespace(look=broken), story, LastResort(story))
    alerts.look(make_snapshot(make_spec()), None)
    assert [alert.message for alert in alerts.now] == ["set aside"]
    assert len(story.texts) == 2 and "internal error in ddptop" in story.texts[0]
