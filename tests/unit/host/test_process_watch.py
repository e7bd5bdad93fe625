"""Exits of processes that are not the watcher's children, and their status if it is reported."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest
from tests.support.programs import piped

from ddptop_runner.host import exits, procs
from ddptop_runner.host.exits import OrphanWatch, ProcessWatch
from ddptop_runner.model.snapshot import ProcessId

GRANDCHILD = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
child.stdin.write(b"\\n")
child.communicate()
input()
"""


@pytest.fixture
def parent():
    """A process with a child that exits with 0 when the parent receives a line."""
    process = piped(sys.executable, "-S", "-c", GRANDCHILD)
    yield process
    process.communicate()


def grandchild_of(parent: subprocess.Popen[str]) -> ProcessId:
    assert parent.stdout is not None
    return procs.identify(int(parent.stdout.readline()))


def let_it_finish(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin is not None
    parent.stdin.write("\n")
    parent.stdin.flush()


def end_of(process: ProcessId, end) -> int | None:
    """What a watch reports about a process that `end` ends."""

    async def body() -> int | None:
        told: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def on_exit(one: ProcessId, returncode: int | None) -> None:
            assert one == process
            told.set_result(returncode)  # fails if it is reported twice

        watch = ProcessWatch(on_exit)
        watch.watch(process)
        watch.watch(process)
        await asyncio.sleep(0.05)
        assert not told.done()
        end()
        return await asyncio.wait_for(told, 10)

    return asyncio.run(body())


def test_how_it_ended_is_known_or_unknown_but_never_invented(parent):
    process = grandchild_of(parent)
    returncode = end_of(process, lambda: os.kill(process.pid, signal.SIGKILL))
    assert returncode in (-signal.SIGKILL, None)
    parent.stdin.write("\n")


def test_who_may_not_know_believes_no_0(parent, monkeypatch):
    monkeypatch.setattr(procs, "written_bytes", lambda pid: None)
    process = grandchild_of(parent)
    assert end_of(process, lambda: let_it_finish(parent)) is None  # it was 0, which cannot be known


def test_the_status_of_one_that_is_not_reaped_yet_is_known():
    argv = [sys.executable, "-S", "-c", "input(); raise SystemExit(7)"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as child:
        assert end_of(procs.identify(child.pid), lambda: let_it_finish(child)) == 7


def test_without_pidfds_it_is_seen_all_the_same(parent, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    process = grandchild_of(parent)
    assert end_of(process, lambda: os.kill(process.pid, signal.SIGKILL)) is None
    parent.stdin.write("\n")


def test_one_whose_pid_a_later_process_has_is_gone(parent):
    gone = msgspec.structs.replace(grandchild_of(parent), start_ticks=1)

    async def body() -> int | None:
        told: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        watch = ProcessWatch(lambda _, returncode: told.set_result(returncode))
        watch.watch(gone)
        return await asyncio.wait_for(told, 10)

    assert asyncio.run(body()) is None
    parent.stdin.write("\n")


def test_only_those_that_no_guardian_collects_are_watched(parent, monkeypatch):
    watched: list[int] = []
    monkeypatch.setattr(
        exits.ProcessWatch, "watch", lambda self, process: watched.append(process.pid)
    )
    child = grandchild_of(parent)
    own = procs.identify(os.getpid())

    async def body() -> None:
        orphans = OrphanWatch(lambda *_: None)
        orphans.look([own, child])
        assert watched == []  # all have their guardian
        orphans.begin(procs.identify(parent.pid))
        orphans.look([own, child])
        orphans.look([own, child])
        assert watched == [own.pid]
        orphans.begin(None)  # it has died as well
        orphans.look([own, child])
        assert watched == [own.pid, own.pid, child.pid]

    asyncio.run(body())
    parent.stdin.write("\n")
