"""How much one user's processes can cost who lists training, and that they hide nobody else's."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.foreign_toys import job_of, running
from tests.support.foreign_trees import (
    find,
    process,
    rank_environ,
    spawned,
    torch_process,
    torchrun,
)
from tests.support.foreign_watching import SLEEP
from tests.unit.foreign.test_process_table import put_process
from tests.unit.foreign.test_signals import view_of

from ddptop_runner.base.clock import utc_now
from ddptop_runner.foreign import actions, census, process_table, recognize, watch
from ddptop_runner.foreign.process_table import MAX_NUMBER, ProcessTable, kept_of, whole_number
from ddptop_runner.foreign.types import Census, ForeignJob, ProcessFacts
from ddptop_runner.foreign.watch import ForeignBook
from ddptop_runner.host import procs

MALLORY = 2001
ENDLESS = Path("/dev/zero")
MIB = 1 << 20


# --- numbers and values ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        (" 7\n", 7),
        (str(MAX_NUMBER), MAX_NUMBER),
        (str(MAX_NUMBER + 1), None),
        ("9" * 4500, None),
        ("-1", None),
        ("1e3", None),
        ("²", None),
        ("", None),
    ],
)
def test_number_from_another_user(text, value):
    assert whole_number(text) == value


def test_endless_values_are_not_kept():
    assert kept_of(b"RANK=1\0MASTER_ADDR=" + b"a" * 10**6) == {"RANK": "1"}


# --- what is read ----------------------------------------------------------------------------


def put_many(proc: Path, count: int) -> list[int]:
    """Processes of endless words, variables and mappings."""
    put_process(proc, 4096)
    pids = list(range(100, 100 + count))
    for pid in pids:
        folder = proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text((proc / "77" / "stat").read_text().replace("77", str(pid), 1))
        for name in ("cmdline", "environ", "maps"):
            (folder / name).symlink_to(ENDLESS)
    shutil.rmtree(proc / "77")
    return pids


def read_bytes() -> int:
    counts = Path("/proc/self/io").read_text().split()
    return int(counts[counts.index("rchar:") + 1])


def test_endless_words_variables_and_mappings_are_read_up_to_a_bound(tmp_path):
    put_many(tmp_path, 1)
    table = ProcessTable(tmp_path)
    before = read_bytes()
    (facts,) = table.scan()
    assert facts.libraries == frozenset()
    assert read_bytes() - before < 18 * MIB


def test_one_users_processes_cost_no_more_than_a_share_of_a_look(tmp_path, monkeypatch):
    pids = put_many(tmp_path, 12)
    for name in ("ENVIRON_BYTES", "ARGV_BYTES", "MAPS_BYTES"):
        monkeypatch.setattr(process_table, name, 1 << 14)
    monkeypatch.setattr(process_table, "LOOK_BYTES", MIB)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    table = ProcessTable(tmp_path)
    counts = [len(table.scan()) for _ in range(4)]
    assert 0 < counts[0] < 6 and counts == sorted(counts) and counts[-1] == len(pids)


def test_ones_own_are_read_whatever_they_cost(tmp_path, monkeypatch):
    pids = put_many(tmp_path, 4)
    monkeypatch.setattr(process_table, "LOOK_BYTES", 0)
    for name in ("ENVIRON_BYTES", "MAPS_BYTES"):
        monkeypatch.setattr(process_table, name, 1 << 14)
    assert {facts.pid for facts in ProcessTable(tmp_path).scan()} == set(pids)


# --- who gets a signal -----------------------------------------------------------------------


def test_all_four_users_of_a_process_count():
    status = "Name:\tUid:\nUid:\t{}\nGid:\t0\t0\t0\t0\n"
    assert procs.uid_in_status(status.format("5\t5\t5\t5").encode()) == 5
    for users in ("5\t0\t5\t5", "5\t5\t0\t5", "5\t5\t5\t0", "0\t5\t5\t5"):
        assert procs.uid_in_status(status.format(users).encode()) is None


def test_a_process_that_is_another_users_by_now_gets_no_signal(monkeypatch):
    """Nothing that a person confirmed reaches it: here the plan is for another user's process."""
    with running(*SLEEP) as sleeper:
        confirmed = actions.plan(view_of(job_of(sleeper.pid)), "kill")
        with monkeypatch.context() as patch:
            patch.setattr(actions, "KILL_GRACE_S", 0.05)
            outcome = actions.send(dataclasses.replace(confirmed, uid=os.getuid() + 1))
        assert outcome.left == (sleeper.pid,) and sleeper.poll() is None
        assert actions.send(confirmed).ended_by == "SIGKILL"


def test_a_job_has_no_process_of_another_user_in_any_place():
    """A service of root's is parent of a rank, and so is a rank of a third user's process."""
    elastic = rank_environ(0, 1)
    lightning = {"LOCAL_RANK": "1", "NODE_RANK": "0", "MASTER_ADDR": "l", "MASTER_PORT": "1"}
    for environ in (elastic, lightning):
        service = torch_process(10, 1, "python service.py", uid=0)
        rank = torch_process(11, 10, "python train.py", uid=MALLORY, environ=environ)
        worker = process(12, 11, "python train.py", uid=MALLORY)
        third = process(13, 11, "python train.py", uid=1000)
        fourth = process(14, 12, "sleep 9", uid=1000)
        jobs, _ = find([service, rank, worker, third, fourth])
        (job,) = (job for job in jobs if 11 in job.pids)
        assert (job.uid, job.root_pid, set(job.pids)) == (MALLORY, 11, {11, 12})


# --- one process, one job, one user hides no other -------------------------------------------


def two_users() -> list[ProcessFacts]:
    mine = torchrun(100, 0, 1)
    other = {"uid": MALLORY, "environ": rank_environ(0, 1, port=3)}
    return [*mine, torch_process(10, 1, "python a.py", **other)]


def test_unreadable_user_hides_no_other(monkeypatch):
    real = recognize.claim_of

    def fails(process: ProcessFacts) -> Any:
        if process.argv[1:] == ("odd.py",):
            raise RecursionError
        return real(process)

    monkeypatch.setattr(recognize, "claim_of", fails)
    odd = torch_process(11, 1, "python odd.py", uid=MALLORY, comm="o\x1b]0;x\x07dd")
    jobs, unreadable = find([odd, *two_users()])
    assert [(job.uid, job.root_pid) for job in jobs] == [(1000, 100)]
    (told,) = unreadable
    assert (told.pid, told.user, told.reason) == (11, f"user{MALLORY}", recognize.ODD)
    assert told.command is not None and told.command.isprintable()


def test_a_process_that_cannot_be_read_hides_no_other(tmp_path, monkeypatch):
    pids = put_many(tmp_path, 2)
    for name in ("ENVIRON_BYTES", "MAPS_BYTES"):
        monkeypatch.setattr(process_table, name, 1 << 14)
    real = ProcessTable._argv

    def fails(self: ProcessTable, pid: int, uid: int) -> Any:
        if pid == pids[0]:
            raise ValueError
        return real(self, pid, uid)

    monkeypatch.setattr(ProcessTable, "_argv", fails)
    assert [facts.pid for facts in ProcessTable(tmp_path).scan()] == pids[1:]


@pytest.fixture
def book() -> Iterator[ForeignBook]:
    opened = ForeignBook()
    yield opened
    opened.close()


def test_a_job_that_nothing_can_be_made_of_hides_no_other(book, monkeypatch):
    real = watch.JobRecord._alive

    def fails(self: watch.JobRecord, *what: Any) -> Any:
        if self.foreign.uid == MALLORY:
            raise ValueError
        return real(self, *what)

    monkeypatch.setattr(watch.JobRecord, "_alive", fails)
    jobs, _ = find(two_users())
    views = {view.job: view for view in book.update(Census(jobs=tuple(jobs)), [], utc_now())}
    assert views.keys() == {"train:100", "a:10"}
    assert "ValueError" in (views["a:10"].output or "")
    assert "ValueError" not in (views["train:100"].output or "")
    told = watch.read_outputs(Census(jobs=tuple(jobs)), [], utc_now())
    assert told.keys() == views.keys()


# --- floods ----------------------------------------------------------------------------------


def flood(count: int, uid: int = MALLORY, first: int = 1000) -> list[ProcessFacts]:
    return [
        torch_process(
            pid, 1, "python train.py", uid=uid, environ=rank_environ(0, 2, port=pid), session=pid
        )
        for pid in range(first, first + count)
    ]


def jobs_of(*facts: ProcessFacts) -> tuple[ForeignJob, ...]:
    return tuple(find(facts)[0])


def test_so_many_processes_of_another_user_are_looked_at(monkeypatch):
    monkeypatch.setattr(census, "MAX_OF_USER", 3)
    mine, many = flood(5, os.geteuid(), 10), flood(5)
    facts, (told,) = census._within_bounds([*mine, *many], held={1004})
    assert {one.pid for one in facts} == {one.pid for one in mine} | {1000, 1001, 1004}
    assert (told.pid, told.reason[:31]) == (1002, "2 more of this user's processes")
    assert census._within_bounds(mine, held=()) == (mine, [])


def calls_of(look: Callable[[], Any]) -> int:
    """How much Python does, in calls."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        look()
    finally:
        sys.setprofile(None)
    return calls


def copies(count: int) -> list[ProcessFacts]:
    parent = torch_process(10, 1, "python x.py", uid=MALLORY)
    return [
        parent,
        *(
            torch_process(
                pid, 10, "python x.py", uid=MALLORY, environ={"RANK": "0", "WORLD_SIZE": "2"}
            )
            for pid in range(1000, 1000 + count)
        ),
    ]


def chain(count: int) -> list[ProcessFacts]:
    return [
        torch_process(pid, pid - 1, f"python x{pid}.py", uid=MALLORY)
        for pid in range(1000, 1000 + count)
    ]


@pytest.mark.parametrize(("shape", "times"), [(copies, 20), (chain, 20)])
def test_ten_times_the_processes_cost_about_ten_times_as_much(shape, times, monkeypatch):
    monkeypatch.setattr(recognize, "MAX_ANCESTORS", 4)
    few, many = (calls_of(partial(find, shape(count))) for count in (20, 200))
    assert many < times * few


def test_ten_times_the_jobs_cost_about_ten_times_as_much():
    def cost(count: int) -> int:
        book, found = ForeignBook(), Census(jobs=jobs_of(*flood(count)))
        book.update(found, [], utc_now())
        return calls_of(lambda: book.update(found, [], utc_now()))

    assert cost(200) < 20 * cost(20)


def test_spawned_workers_of_another_user_are_not_the_parents():
    service = process(10, 1, "python service.py", uid=0)
    workers = [spawned(11 + i, 10, uid=MALLORY, threads={"pt_gloo"}) for i in range(2)]
    jobs, _ = find([service, *workers])
    assert all(10 not in job.pids and job.uid == MALLORY for job in jobs)
