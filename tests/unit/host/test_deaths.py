"""The order of exits is the kernel's, even if this process checks late."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time

import pytest

from ddptop_runner.host import exits, procs
from ddptop_runner.host.exits import ProcessWatch


@pytest.fixture
def sleepers():
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(6)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 10
    while procs.state_letter(process.pid) != "Z":
        assert time.monotonic() < deadline_s, "not dead after SIGKILL"


async def test_deaths_that_were_all_seen_late_keep_their_order(sleepers):
    watch = ProcessWatch(lambda *_: None)
    for process in sleepers:
        watch.watch(procs.identify(process.pid))
    order = [4, 1, 5, 0, 3, 2]
    for number in order:  # nothing is checked in between: the loop does not run
        kill(sleepers[number])
    assert all(watch.died_at_s(process.pid) is None for process in sleepers)
    while any(watch.died_at_s(process.pid) is None for process in sleepers):
        await asyncio.sleep(0.01)
    times = [watch.died_at_s(process.pid) or 0.0 for process in sleepers]
    assert sorted(range(6), key=times.__getitem__) == order
    assert len(set(times)) == 6


@pytest.mark.parametrize(("readable", "expected"), [(True, [0, 1]), (False, [None, 1])])
def test_a_status_of_0_is_believed_of_processes_that_may_be_read(monkeypatch, readable, expected):
    monkeypatch.setattr(procs, "written_bytes", lambda pid: 0 if readable else None)
    for command, status in zip(("true", "false"), expected, strict=True):
        with subprocess.Popen([command]) as process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert exits.status_of_zombie(process.pid) == status


async def test_what_is_gone_or_living_has_no_time(sleepers):
    watch = ProcessWatch(lambda *_: None)
    watch.watch(procs.identify(sleepers[0].pid))
    watch.watch(procs.identify(sleepers[0].pid))
    watch.watch(procs.identify(2**22 + 1))  # above any PID
    await asyncio.sleep(0)
    assert watch.died_at_s(sleepers[0].pid) is None
    assert watch.died_at_s(2**22 + 1) is None


def test_without_an_event_loop_nothing_is_watched(sleepers):
    watch = ProcessWatch(lambda *_: None)
    watch.watch(procs.identify(sleepers[0].pid))
    assert watch.died_at_s(sleepers[0].pid) is None
