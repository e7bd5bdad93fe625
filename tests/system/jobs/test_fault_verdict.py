"""The fault kit's verdicts: each expectation must be able to fail."""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec
import pytest
from benchmarks.faults.kinds import BY_NAME
from benchmarks.faults.record import Step
from benchmarks.faults.verdict import Flood, Seen, missing, wrong

from ddptop_runner.model.snapshot import Event

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
BEFORE = Seen(
    "running",
    0,
    steps={0: 10, 1: 10},
    guarded=True,
    holders={"guardian": 1, "supervisor": 2, "agent": 3},
)


def event(type_: str, message: str = "", seq: int = 1, **fields: object) -> Event:
    return Event(ts=NOW, seq=seq, type=type_, message=message, **fields)


def after(**fields: object) -> Seen:
    return dataclasses.replace(BEFORE, steps={0: 20, 1: 20}, **fields)


def changed(one: Event, **fields: object) -> Event:
    return msgspec.structs.replace(one, **fields)


KILLED = event(
    "failure", "Rank 1 was the first to fail: killed by SIGKILL", rank=1, signal="SIGKILL"
)
EXITED = event("failure", "Rank 1 exited with status 7, the first to fail.", rank=1, exit_code=1)
RESTARTED = after(attempt=1, events=[KILLED, event("group_restart", "again")])


def test_restart_that_names_the_right_rank_passes() -> None:
    kill = BY_NAME["kill"]
    assert missing(kill, 1, BEFORE, RESTARTED) == []
    assert wrong(kill, 1, BEFORE, RESTARTED) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attempt": 0}, "attempt 1 is not training: the job is in attempt 0"),
        ({"steps": {0: 3, 1: 2}}, "no further steps from ranks [1]"),
        ({"steps": {}}, "no further steps"),
        ({"events": []}, "no failure event matching 'SIGKILL'"),
        ({"events": [event("failure", "Rank 1 raised", rank=1)]}, "no failure event"),
        ({"files_are_well": False}, "cannot be read"),
    ],
)
def test_events_that_did_not_happen_are_missing(change: dict[str, object], words: str) -> None:
    found = missing(BY_NAME["kill"], 1, BEFORE, dataclasses.replace(RESTARTED, **change))
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize(
    ("fault", "change", "words"),
    [
        ("kill", {"attempt": 2}, "reached attempt 2 instead of 1"),
        ("kill", {"state": "failed"}, "job state: failed"),
        ("kill", {"events": [changed(KILLED, rank=0)]}, "names rank 0 instead of 1"),
        ("kill", {"events": [changed(KILLED, signal="SIGTERM")]}, "instead of SIGKILL"),
        ("exit-code", {"events": [EXITED]}, "exit status 1 instead of 7"),
        ("tmux-killed", {"attempt": 0}, "failure event"),
    ],
)
def test_events_that_should_never_happen_are_wrong(
    fault: str, change: dict[str, object], words: str
) -> None:
    found = wrong(BY_NAME[fault], 1, BEFORE, dataclasses.replace(RESTARTED, **change))
    assert any(words in one for one in found), found


NEW = {"guardian": 11, "supervisor": 12, "agent": None}


@pytest.mark.parametrize(
    ("fault", "well", "ill"),
    [
        ("stop", after(was=frozenset({"paused"})), after()),
        (
            "supervisor-killed",
            after(holders=NEW, events=[event("supervisor_restarted")]),
            after(events=[event("supervisor_restarted")]),
        ),
        (
            "guardian-killed",
            after(holders=NEW, was=frozenset({"unguarded"})),
            after(was=frozenset({"unguarded"})),
        ),
        ("guardian-killed", after(holders=NEW, was=frozenset({"unguarded"})), after(holders=NEW)),
        (
            "agent-killed",
            after(holders=NEW, events=[event("alert", "the agent ended")]),
            after(events=[event("alert", "the agent ended")]),
        ),
        ("log-flood", after(flood=Flood(9, 5, True, 100)), after(flood=Flood(9, 5, False, 100))),
        ("log-flood", after(flood=Flood(9, 9, True, 1)), after(flood=Flood(9, 9, False, 1))),
        ("log-flood", after(flood=Flood(9, 9, True, 1)), after(flood=Flood(9, 9, True, 9 << 20))),
        ("log-flood", after(flood=Flood(9, 9, True, 1)), after()),
    ],
)
def test_requirements_specific_to_a_fault_are_checked(fault: str, well: Seen, ill: Seen) -> None:
    assert missing(BY_NAME[fault], 1, BEFORE, well) == []
    assert len(missing(BY_NAME[fault], 1, BEFORE, ill)) == 1


def steps(attempt: int, first: int, last: int, at: float) -> list[Step]:
    return [Step(attempt, n, 1.0, at + n - first) for n in range(first, last + 1)]
