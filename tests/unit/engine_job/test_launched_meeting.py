"""Which process of a launched command is which rank."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ddptop_runner.host import procs, tree
from ddptop_runner.job.ranks import CommandRanks
from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import ProcessId


class Reports(NamedTuple):
    """What a process reports."""

    pid: int
    rank: int | None
    steps: int | None = 1


def process_of(pid: int) -> ProcessId:
    return ProcessId(host="h", boot_id=None, pid_ns=None, pid=pid, start_ticks=None)


DEAD = {90}
PARENTS = {11: 10, 12: 11}
CASES = {
    "the first of its rank is that rank": ([Reports(10, 1)], {1: 10}),
    "one that was known speaks for itself": ([Reports(10, 0), Reports(10, 0)], {0: 10}),
    "also when it has forgotten its rank": ([Reports(10, 0), Reports(10, None)], {0: 10}),
    "one that learns another rank moves": ([Reports(10, 0), Reports(10, 3)], {3: 10}),
    "a new process of a dead rank replaces it": ([Reports(90, 0), Reports(20, 0)], {0: 20}),
    "a stranger does not replace a living one": ([Reports(10, 0), Reports(20, 0)], {0: 10}),
    "a child of a rank is no other": ([Reports(10, 0), Reports(11, 0)], {0: 10}),
    "nor if the rank never stepped": ([Reports(10, 0, None), Reports(11, 0)], {0: 10}),
    "a parent takes the rank that its child had": ([Reports(11, 0), Reports(10, 0)], {0: 10}),
    "rank -1 is no rank": ([Reports(20, -1)], {0: 20}),
    "the only one that knows no rank is rank 0": ([Reports(20, None)], {0: 20}),
    "it is nobody beside those that do": ([Reports(10, 3), Reports(20, None)], {3: 10}),
    "but it is one once they are gone": ([Reports(90, 0), Reports(20, None)], {0: 20}),
    "a child that knows no rank speaks for its parent": (
        [Reports(10, 4, None), Reports(11, None)],
        {4: 10},
    ),
    "a second one comes after the first": ([Reports(20, None), Reports(10, None)], {0: 20, 1: 10}),
    "one that knows its rank takes it from one that was only numbered": (
        [Reports(10, None), Reports(20, 0)],
        {0: 20},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_who_is_who(case, monkeypatch):
    reports, expected = case
    monkeypatch.setattr(tree, "descends_from", lambda pid, other: PARENTS.get(pid) == other)
    monkeypatch.setattr(procs, "identify", process_of)
    monkeypatch.setattr(procs, "is_alive", lambda process: process.pid not in DEAD)
    table = CommandRanks(0.0)
    for seq, one in enumerate(reports):
        message = ProbeMessage(
            v=1, seq=seq, t=1.0, attempt=0, pid=one.pid, rank=one.rank, steps=one.steps,
            last_step_t=1.0,
        )  # fmt: skip
        table.receive(message, attempt=0)
    assert {record.rank: record.pid for record in table} == expected


def test_a_child_reports_for_a_rank_that_never_stepped(monkeypatch):
    monkeypatch.setattr(tree, "descends_from", lambda pid, other: PARENTS.get(pid) == other)
    monkeypatch.setattr(procs, "identify", process_of)
    monkeypatch.setattr(procs, "is_alive", lambda process: True)
    table = CommandRanks(0.0)
    for pid, rank, steps in ((10, 0, None), (11, 0, 5), (12, None, 7)):
        message = ProbeMessage(
            v=1, seq=1, t=1.0, attempt=0, pid=pid, rank=rank, steps=steps, last_step_t=1.0
        )
        table.receive(message, attempt=0)
    assert (table[0].pid, table[0].steps) == (10, 5)
