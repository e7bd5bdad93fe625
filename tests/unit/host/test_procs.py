"""Identifying processes, using real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.programs import piped

from ddptop_runner.base.exit_status import split_status
from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import ProcessId

Start = Callable[..., subprocess.Popen[str]]
WAIT = "import sys; sys.stdin.read()"


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(code, *argv, env=…)`: a Python process that has printed a line; ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = piped(
            *[sys.executable, "-S", "-c", f"print(1, flush=True)\n{code}"],
            *argv,
            env={**os.environ, **(env or {})},
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def test_a_process_is_alive_until_it_ends_and_a_zombie_is_not(start, wait_until):
    process = start(WAIT)
    identity = procs.identify(process.pid)
    assert (identity.pid, identity.host) == (process.pid, procs.host_name())
    assert procs.is_here(identity) and procs.is_alive(identity)
    process.kill()
    wait_until(lambda: procs.state_letter(process.pid) == "Z")
    assert not procs.is_alive(identity)
    assert not procs.signal_process(identity, signal.SIGTERM)
    process.wait()
    assert procs.state_letter(process.pid) is None
    assert not procs.is_alive(identity)


CHANGES = {
    "a later process of the same pid": {"start_ticks": 7},
    "another host's": {"host": "elsewhere"},
    "from before the reboot": {"boot_id": "0000"},
    "in another pid namespace": {"pid_ns": 1},
    "gone when it was identified": {"start_ticks": None},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=list(CHANGES))
def test_what_is_not_that_very_process_is_neither_alive_nor_signalled(start, changes):
    process = start(WAIT)
    other = msgspec.structs.replace(procs.identify(process.pid), **changes)
    assert not procs.is_alive(other)
    assert not procs.signal_process(other, signal.SIGKILL)
    assert process.poll() is None


def test_nobody_is_not_alive():
    assert not procs.is_alive(None)


def test_a_pid_that_does_not_exist():
    free = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    assert procs.identify(free).start_ticks is None
    assert procs.stat_fields(free) is None
    assert procs.state_letter(free) is None
    assert procs.environ_value(free, "HOME") is None
    assert procs.argv(free) == []
    assert tree.children_of(free) == []
    assert not procs.catches_signal(free, signal.SIGTERM)


def test_signals_reach_all_that_are_still_the_same(start):
    first, second = start(WAIT), start(WAIT)
    both = [procs.identify(first.pid), procs.identify(second.pid)]
    reused = msgspec.structs.replace(both[1], start_ticks=1)
    open_files = len(os.listdir("/proc/self/fd"))
    assert procs.signal_all(both, signal.SIGKILL, os.geteuid() + 1) == 0, "of another user"
    assert procs.signal_all([both[0], reused], signal.SIGKILL) == 1
    assert first.wait(10) == -signal.SIGKILL
    assert second.poll() is None
    assert len(os.listdir("/proc/self/fd")) == open_files


NEXT_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.mark.skipif(not os.access(NEXT_PID, os.W_OK), reason="only root can choose a pid")
def test_a_process_that_takes_the_pid_after_the_check_is_not_signalled(start, monkeypatch):
    victim, later = start(WAIT), []

    def is_alive(process: ProcessId) -> bool:
        """Its state at first; the process exits right after, and another one takes its PID."""
        victim.kill()
        victim.wait(10)
        for _ in range(100):  # others may take it first
            NEXT_PID.write_text(str(process.pid - 1))
            later.append(start(WAIT))
            if later[-1].pid == process.pid:
                return True
        pytest.skip("another process took the pid")

    monkeypatch.setattr(procs, "is_alive", is_alive)
    assert not procs.signal_process(procs.identify(victim.pid), signal.SIGKILL)
    assert later[-1].poll() is None


def test_a_signal_without_pidfd(start, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    process = start(WAIT)
    assert procs.signal_process(procs.identify(process.pid), signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM


def test_a_name_with_parentheses_and_spaces_is_read_past(start):
    code = "open('/proc/self/comm', 'w').write(') R 1 ('); print(2, flush=True); " + WAIT
    process = start(code)
    assert process.stdout is not None
    process.stdout.readline()
    fields = procs.stat_fields(process.pid)
    assert fields is not None
    assert fields[0] in "SR"
    assert int(fields[1]) == os.getpid()


def test_environment_and_command_line_as_started(start):
    odd = b"\xff=\n".decode("utf-8", "surrogateescape")
    process = start(WAIT, "", "two words", env={"DDPTOP_X": odd, "DDPTOP_XY": "no"})
    assert procs.environ_value(process.pid, "DDPTOP_X") == odd
    assert procs.environ_value(process.pid, "DDPTOP_") is None
    assert procs.argv(process.pid)[-2:] == ["", "two words"]


def test_the_processes_of_a_job_are_found_whoever_their_parent_is(start, wait_until):
    job_id = f"train@{os.getpid():08x}"
    orphans = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        sys.stdin.read()
    os._exit(0)
os.wait()
"""
    assert procs.pids_of_job(job_id) == []
    parent = start(orphans + WAIT, env={"DDPTOP_JOB_ID": job_id})
    start(WAIT, env={"DDPTOP_JOB_ID": job_id + "0"})
    start(WAIT, env={"DDPTOP_JOB": job_id})
    found = wait_until(lambda: len(procs.pids_of_job(job_id)) == 2 and procs.pids_of_job(job_id))
    assert parent.pid in found
    (orphan,) = set(found) - {parent.pid}
    wait_until(lambda: orphan not in tree.descendants_of(parent.pid), what="the orphan's parent")
    parent.kill()
    wait_until(lambda: procs.pids_of_job(job_id) == [orphan], what="the zombie not to count")
    assert parent.stdin is not None
    parent.stdin.close()
    wait_until(lambda: procs.pids_of_job(job_id) == [], what="the orphan to end")


def test_whether_a_signal_is_caught(start):
    code = f"""
import signal
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGRTMIN + 9, lambda *_: None)
print(2, flush=True)
{WAIT}"""
    process = start(code)
    assert process.stdout is not None
    process.stdout.readline()
    caught = {
        number: procs.catches_signal(process.pid, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGRTMIN + 9)
    }
    assert caught == {
        signal.SIGUSR1: True,
        signal.SIGUSR2: False,
        signal.SIGHUP: False,  # ignored is not caught
        signal.SIGRTMIN + 9: True,
    }


@pytest.mark.parametrize(
    ("returncode", "status"),
    [
        (0, (0, None)),
        (93, (93, None)),
        (-9, (None, "SIGKILL")),
        (-15, (None, "SIGTERM")),
        (-70, (None, "signal 70")),
    ],
)
def test_split_status(returncode, status):
    assert split_status(returncode) == status
