"""A job's elapsed time and the age of its snapshot, however the wall clock is changed."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.support.builders import gone, make_snapshot, make_spec, put_job

from ddptop_runner.base.clock import boottime_s, utc_now
from ddptop_runner.host import procs
from ddptop_runner.job import registry
from ddptop_runner.job.event_text import text
from ddptop_runner.job.registry import elapsed_s, read_job
from ddptop_runner.model.protocol import GuardianHello
from ddptop_runner.node import process
from ddptop_runner.node.process import JobClock, recover

HOUR = dt.timedelta(hours=1)
NOW = utc_now()
HERE = {"boot_id": procs.boot_id(), "pid_ns": procs.pid_namespace()}


def set_wall_clock(monkeypatch, by: dt.timedelta) -> None:
    """As if a user, or NTP, had set it."""
    for module in (process, registry):
        monkeypatch.setattr(module, "utc_now", lambda: utc_now() + by)


@pytest.mark.parametrize("by", [HOUR, -HOUR, -24 * 365 * HOUR], ids=["forward", "back", "far back"])
def test_a_clock_that_is_set_changes_no_duration(monkeypatch, ddptop_home, by):
    clock = JobClock(NOW)
    set_wall_clock(monkeypatch, by)
    now_s = boottime_s()
    assert clock.lived_s(now_s + 60.0) == pytest.approx(60.0, abs=30.0)
    guardian = procs.identify(1)
    state = {**HERE, "ts": NOW, "ran_s": 100.0, "boottime_s": now_s - 7.0, "guardian": guardian}
    view = read_job(put_job("train", {**state, "state": "running"}))
    assert view.snapshot_age_s == pytest.approx(7.0, abs=30.0)
    assert elapsed_s(view, view.read_at) == pytest.approx(107.0, abs=6.0)
    ended = read_job(put_job("ended", {**state, "state": "finished", "ended_at": NOW}))
    assert elapsed_s(ended, ended.read_at) == 100.0


@pytest.mark.parametrize(
    ("before", "alive_since", "lived_s"),
    [
        # its supervisor was gone for 10 s
        ({"state": "running", "ran_s": 50.0, **HERE}, True, 60.0),
        ({"state": "running", "ran_s": 50.0, **HERE}, False, 50.0),  # lost, then restarted
        ({"state": "running", "ran_s": 50.0, "boot_id": "another"}, True, 50.0),
        # the time in between does not count
        ({"state": "finished", "ran_s": 50.0, **HERE}, False, 50.0),
    ],
)
def test_the_time_between_an_end_and_a_restart_is_not_counted(before, alive_since, lived_s):
    clock = JobClock(NOW)
    previous = make_snapshot(make_spec(), boottime_s=boottime_s() - 10.0, **before)
    clock.continue_from(previous, alive_since=alive_since)
    assert clock.started_at == previous.started_at
    assert clock.lived_s(boottime_s()) == pytest.approx(lived_s, abs=5.0)


HELLO = {"attempt": 0, "agent_pid": None, "guardian_pid": 1}
PASTS = {
    # previous snapshot, hello -> (continues, type of the event, words in it)
    "launched": (None, {}, (False, None, "")),
    "ended": ({"state": "finished"}, {}, (False, None, "")),
    "supervisor killed": (
        {"state": "running"},
        {"supervisor_restarts": 1},
        (True, "supervisor_restarted", "nothing was lost"),
    ),
    "guardian killed": (
        {"state": "running"},
        {"adopted": True},
        (True, "guardian_restarted", "a new one adopted the job"),
    ),
    "and then its supervisor": (
        {"state": "running"},
        {"adopted": True, "supervisor_restarts": 2},
        (True, "supervisor_restarted", "nothing was lost"),
    ),
    "started again, and its first supervisor killed at once": (
        {"state": "finished", "attempt": 2},
        {"attempt": 3, "supervisor_restarts": 1},
        (False, None, ""),
    ),
    "reboot": (
        {"state": "running", "boot_id": "another", "attempt": 2},
        {},
        (False, "lost", "attempt 2 was lost: the machine rebooted; last seen "),
    ),
    "all killed": (
        {"state": "running", "boot_id": procs.boot_id(), "attempt": 2},
        {},
        (False, "lost", "attempt 2 was lost: all its processes had exited"),
    ),
}


@pytest.mark.parametrize(("snapshot", "hello", "expected"), PASTS.values(), ids=list(PASTS))
def test_what_a_supervisor_finds(ddptop_home, snapshot, hello, expected):
    folder = put_job("train", None if snapshot is None else {**snapshot, "guardian": gone()})
    past = recover(folder, GuardianHello(**{**HELLO, **hello}))
    has_continued, type_, words = expected
    assert past.has_continued is has_continued
    assert (None if past.event is None else past.event.type) == type_
    assert past.event is None or words in text(past.event)
    assert past.event is None or past.event.attempt == past.snapshot.attempt


def test_a_snapshot_from_the_future_does_not_keep_a_job_starting(ddptop_home):
    spec = make_spec(created_at=utc_now() + HOUR)
    view = registry.JobView(put_job("train"), spec, None, read_at=utc_now())
    assert view.state == "lost"
