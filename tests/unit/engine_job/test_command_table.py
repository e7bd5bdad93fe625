"""The ranks of a command, as reported by probes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.builders import put_exit

from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.job.ranks import CommandRanks
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.probe_message import ProbeMessage

OWN = os.getpid()


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Three child processes of this one that are otherwise unrelated."""
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def table() -> CommandRanks:
    made = CommandRanks(0.0)
    made.started(LAUNCHER, 0, OWN)
    return made


def receive(table: CommandRanks, pid: int, rank: int | None, **fields: Any) -> int | None:
    message = ProbeMessage(
        **{"v": 1, "pid": pid, "rank": rank, "attempt": 0, "seq": 1, "t": 1.0} | fields
    )
    record = table.receive(message, attempt=0)
    return None if record is None else record.rank


def ranks_of(table: CommandRanks) -> dict[int, int | None]:
    return {record.rank: record.pid for record in table}


def test_the_attempt_lives_in_its_launcher(table, pids):
    receive(table, pids[0], 0, world_size=2)
    assert [record.rank for record in table.alive()] == [LAUNCHER]
    assert table.of_pid(OWN) is table.launcher
    put_exit(table[0], RankExit(0, pids[0], 1, 5.0))
    assert table.launcher.exit is None
    put_exit(table.launcher, RankExit(LAUNCHER, OWN, 0, 6.0))
    assert table.alive() == [] and [record.rank for record in table] == [0]


def test_ranks_appear_in_any_order_and_are_new_once(table, pids):
    assert receive(table, pids[1], 1, world_size=2, local_rank=1) == 1
    assert receive(table, pids[0], 0, world_size=2, local_rank=0) == 0
    assert ranks_of(table) == {0: pids[0], 1: pids[1]}
    assert [record.rank for record in table.new] == [1, 0]
    table.new = []
    assert receive(table, pids[1], 1, steps=3, last_step_t=2.0) == 1
    assert (table.new, table.world_size, table[1].steps) == ([], 2, 3)


def test_a_launcher_that_restarts_its_ranks(table, pids):
    receive(table, pids[0], 0, steps=9, last_step_t=1.0)
    put_exit(table[0], RankExit(0, pids[0], -9, 5.0))
    assert receive(table, pids[1], 0, steps=1, last_step_t=6.0) == 0
    assert (table[0].pid, table[0].steps, table[0].exit) == (pids[1], 1, None)
    assert receive(table, pids[0], 0, steps=10, last_step_t=6.0) is None  # its last message, late
    assert table[0].steps == 1


def test_what_a_launcher_has_restarted_has_trained_all_the_same(table, pids):
    assert table.most_steps() is None
    receive(table, pids[0], 0, steps=900, last_step_t=1.0)
    put_exit(table[0], RankExit(0, pids[0], -9, 5.0))
    receive(table, pids[1], 0)
    assert (table[0].steps, table.most_steps()) == (None, 900)
    after = CommandRanks(0.0)
    after.recall(table.discovered)
    assert after.most_steps() == 900


def test_processes_without_a_rank_are_numbered_as_they_report(table, pids):
    for pid in pids:
        receive(table, pid, None, steps=1, last_step_t=1.0)
    assert ranks_of(table) == dict(enumerate(pids))
    assert table.world_size == 3
    # it joined a group, so its rank is now known
    assert receive(table, pids[0], 0, world_size=1) == 0


def test_ranks_without_a_number_replace_the_command_that_prints(table, pids):
    table.assume_rank()
    table.assume_rank()
    assert ranks_of(table) == {0: OWN}  # the parent of all
    for pid in pids:
        receive(table, pid, None, steps=1, last_step_t=1.0)
    assert ranks_of(table) == dict(enumerate(pids))


def test_a_command_that_prints_may_report_itself(table, pids):
    table.assume_rank()
    assert (table[0].rank_source, [record.rank for record in table.new]) == ("single", [0])
    assert receive(table, OWN, 1, world_size=2) == 1
    assert ranks_of(table) == {1: OWN}
    table.assume_rank()
    assert ranks_of(table) == {1: OWN}


def test_launcher_that_continues_with_fewer_ranks(table, pids):
    for rank in (0, 1):
        receive(table, pids[rank], rank, world_size=2)
        put_exit(table[rank], RankExit(rank, pids[rank], -9, 5.0))
    assert receive(table, pids[2], 0, world_size=1) == 0
    assert (ranks_of(table), table.world_size) == ({0: pids[2]}, 1)


def test_the_next_supervisor_knows_whose_number_is_not_their_own(table, pids):
    first, second, third = pids
    for pid in (first, second):
        receive(table, pid, None, steps=1, last_step_t=1.0)
    after = CommandRanks(0.0)
    after.started(LAUNCHER, 0, OWN)
    for record in table:
        assert record.pid is not None
        after.restore(record.sample(probe=True), record.pid)
    after.recall(table.discovered)
    assert after.world_size == 2
    assert receive(after, third, None, steps=1, last_step_t=3.0) == 2
    assert ranks_of(after) == {0: first, 1: second, 2: third}
