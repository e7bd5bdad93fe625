"""The alerts of a job, and since when each holds."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from tests.support.tables import table

from ddptop_runner.judge.alerts import AlertBook, Finding, find, lost
from ddptop_runner.model.snapshot import GpuSample, RankSample

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


FINDINGS = table(__file__, "findings")


@pytest.mark.parametrize("case", FINDINGS.values(), ids=list(FINDINGS))
def test_find(case):
    ranks = msgspec.convert(case["ranks"], list[RankSample])
    found = [*find(ranks), *lost(msgspec.convert(case["gpus"], list[GpuSample]))]
    if any(isinstance(one, str) for one in case["found"]):
        assert [finding.id for finding in found] == case["found"]
    else:
        assert found == msgspec.convert(case["found"], list[Finding])


def at(second: int) -> dt.datetime:
    return NOON + dt.timedelta(seconds=second)


NAN = Finding("loss-nan", "error", "the loss on rank 1 is NaN", (1,))
NAN_ALL = Finding("loss-nan", "error", "the loss on ranks 0, 1 is NaN", (0, 1))
QUIET = Finding("quiet", "info", "rank 0 took no step", (0,))


def test_alert_keeps_its_time_while_it_holds_and_gets_a_new_one_later():
    book = AlertBook()
    alerts, new = book.update([NAN], at(0))
    assert [(alert.id, alert.since) for alert in new] == [("loss-nan", at(0))]
    alerts, new = book.update([NAN_ALL, QUIET], at(1))
    assert [(alert.id, alert.since) for alert in alerts] == [("loss-nan", at(0)), ("quiet", at(1))]
    assert [alert.id for alert in new] == ["quiet"]
    assert alerts[0].ranks == [0, 1]  # its message is current
    alerts, new = book.update([], at(2))
    assert alerts == [] and new == []
    alerts, new = book.update([NAN], at(3))
    assert [alert.since for alert in new] == [at(3)]


STRAY = Finding("stray-context-0", "warning", "rank 1 holds ...", (1,), (0,), hold_s=10)


def shown(book: AlertBook, found: list[Finding], second: float) -> tuple[list[str], list[str]]:
    """(ids of the alerts that hold, ids of new ones) at that second of its own clock."""
    alerts, new = book.update(found, NOON, second)
    return [alert.id for alert in alerts], [alert.id for alert in new]


def test_a_finding_that_has_to_hold_is_shown_when_it_has_and_dates_from_its_beginning():
    book = AlertBook()
    book.update([], at(0))
    for second in range(1, 11):
        assert book.update([STRAY], at(second)) == ([], [])
    (alert,), new = book.update([STRAY], at(11))
    assert (alert.id, alert.since) == ("stray-context-0", at(1))
    assert new == [alert]
    assert book.update([STRAY], at(12)) == ([alert], [])


def test_time_in_which_nobody_looked_does_not_count():
    book = AlertBook()
    assert shown(book, [STRAY], 0) == ([], [])
    assert shown(book, [STRAY], 3600) == ([], [])  # the machine was suspended
    assert shown(book, [STRAY], 3602) == ([], [])
    assert shown(book, [STRAY], 3605) == ([STRAY.id], [STRAY.id])


def test_the_worst_alerts_come_first():
    book = AlertBook()
    assert shown(book, [QUIET, STRAY], 0) == ([QUIET.id], [QUIET.id])
    for second in range(1, 11):
        shown(book, [QUIET, STRAY], second)
    assert shown(book, [QUIET, NAN], 11) == ([NAN.id, STRAY.id, QUIET.id], [NAN.id])


def test_alerts_of_a_supervisor_that_died_are_neither_new_nor_of_now():
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    held = Finding("idle", "warning", "a GPU idles", gpus=(1,), hold_s=30.0)
    now = Finding("paused", "warning", "rank 1 is paused", ranks=(1,))
    first = AlertBook()
    first.update([held, now], start, 0.0)
    for second in range(5, 40, 5):
        shown, _ = first.update([held, now], start + dt.timedelta(seconds=second), float(second))
    assert [alert.id for alert in shown] == ["idle", "paused"]
    book, later = AlertBook(), start + dt.timedelta(seconds=50)
    book.recall(shown)
    again, new = book.update([now], later, 50.0)
    assert new == []
    assert {alert.id: alert.since for alert in again} == {"idle": start, "paused": start}
    # an alert that has to hold takes time to return; one that is over clears soon
    for second in range(55, 80, 5):
        again, new = book.update([], later, float(second))
    assert ([alert.id for alert in again], new) == (["idle"], [])
    again, new = book.update([held], later, 80.0)
    assert ([alert.since for alert in again], new) == ([start], [])
