"""States of real processes, and states that only occur with kernel problems."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.foreign.toys import running, stop_and_wait, wait_for_state

from ddptop_runner.foreign.job_record import ProcessStatus, StateWatch
from ddptop_runner.host import procs

BUSY = (sys.executable, "-c", "print(1, flush=True)\nwhile True: pass")
IDLE = (sys.executable, "-c", "import time; print(1, flush=True); time.sleep(1000)")


def look(watch: StateWatch, pid: int, now_s: float, helpers: tuple[int, ...] = ()) -> ProcessStatus:
    ticks = procs.start_ticks(pid)
    assert ticks is not None
    return watch.scan({pid: (ticks, helpers)}, now_s)[pid]


def test_a_stopped_process_is_paused_and_runs_again(wait_until) -> None:
    with running(*IDLE) as process:
        watch = StateWatch()
        assert look(watch, process.pid, 0.0).state == ("running", None)
        stop_and_wait(process.pid, wait_until)
        state, reason = look(watch, process.pid, 1.0).state
        assert state == "paused"
        assert reason is not None and "SIGCONT" in reason
        os.kill(process.pid, signal.SIGCONT)
        wait_for_state(process.pid, "RS", wait_until)
        assert look(watch, process.pid, 2.0).state[0] == "running"


def test_zombie_is_shown_as_such(wait_until) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    try:
        wait_for_state(process.pid, "Z", wait_until)
        state, reason = look(StateWatch(), process.pid, 0.0).state
        assert state == "zombie"
        assert reason is not None and "parent" in reason
    finally:
        process.wait()


def cpu_s(pid: int) -> float:
    fields = procs.stat_fields(pid)
    assert fields is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_cpu_and_memory_of_a_process_and_its_helpers(wait_until) -> None:
    pipe = subprocess.PIPE
    with running(*BUSY, stdout=pipe) as process, running(*BUSY, stdout=pipe) as helper:
        for one in (process, helper):
            one.stdout.readline()  # its interpreter is loaded
        before = cpu_s(process.pid), cpu_s(helper.pid)
        watch = StateWatch()
        assert look(watch, process.pid, 0.0, (helper.pid,)).usage.cpu_percent is None
        first = cpu_s(process.pid), cpu_s(helper.pid)
        wait_until(lambda: cpu_s(process.pid) > first[0] + 0.1)
        wait_until(lambda: cpu_s(helper.pid) > first[1] + 0.1)
        least_s = cpu_s(process.pid) + cpu_s(helper.pid) - sum(first)
        used_s = look(watch, process.pid, 10.0, (helper.pid,)).usage.cpu_percent / 100 * 10.0
        most_s = cpu_s(process.pid) + cpu_s(helper.pid) - sum(before)
        assert least_s - 0.001 < used_s < most_s + 0.001
        alone = look(StateWatch(), process.pid, 0.0)
        both = look(StateWatch(), process.pid, 0.0, (helper.pid,))
        assert both.usage.rss_bytes > 1.5 * alone.usage.rss_bytes > 0


def test_a_process_of_that_pid_that_began_later_is_another() -> None:
    with running(*IDLE) as process:
        ticks = procs.start_ticks(process.pid)
        assert ticks is not None
        assert StateWatch().scan({process.pid: (ticks + 1, ())}, 0.0) == {}
    assert StateWatch().scan({process.pid: (ticks, ())}, 0.0) == {}


class FakeProc:
    """The /proc of one process whose state the test chooses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "7").mkdir()

    def put(self, letter: str) -> None:
        fields = [letter, "1", "7", "7", *["0"] * 15, "55", "0", "100", *["0"] * 28]
        (self.root / "7" / "stat").write_text(f"7 (a (b) c) {' '.join(fields)}\n")

    def look(self, watch: StateWatch, now_s: float) -> ProcessStatus:
        return watch.scan({7: (55, ())}, now_s)[7]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    monkeypatch.setattr(procs, "_PROC", tmp_path)
    return FakeProc(tmp_path)


def test_uninterruptible_sleep_counts_only_when_it_lasts(fake: FakeProc) -> None:
    watch = StateWatch()
    fake.put("D")
    assert [fake.look(watch, t).state[0] for t in (0.0, 2.0, 4.0)] == ["running"] * 3
    state, reason = fake.look(watch, 6.0).state
    assert state == "blocked"
    assert reason is not None and "for 6 s" in reason
    fake.put("S")
    assert fake.look(watch, 7.0).state[0] == "running"
    fake.put("D")
    assert fake.look(watch, 10.0).state[0] == "running"  # it starts over
    assert fake.look(watch, 15.0).state[0] == "blocked"


@pytest.mark.parametrize(("letter", "state"), [("T", "paused"), ("t", "paused"), ("Z", "zombie")])
def test_process_that_cannot_run(fake: FakeProc, letter: str, state: str) -> None:
    fake.put(letter)
    assert fake.look(StateWatch(), 0.0).state[0] == state


def test_process_that_was_gone_is_read_again(fake: FakeProc) -> None:
    watch = StateWatch()
    fake.put("S")
    fake.look(watch, 0.0)
    watch.scan({}, 1.0)
    assert fake.look(watch, 100.0).state == ("running", None)
