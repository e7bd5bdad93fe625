"""Ending processes that comply, ignore signals, or are stopped, and whole trees; never unrelated
ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.support.emitted import EmittedLog
from tests.support.programs import piped

from ddptop_runner.host import procs, stopping, tree
from ddptop_runner.host.handover import AGENT_MAIN
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job import processes as job_processes
from ddptop_runner.job.processes import JobProcesses, agent_processes, rank_processes
from ddptop_runner.model.snapshot import ProcessId

Start = Callable[..., subprocess.Popen[str]]
POLITE = "input()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(2, flush=True); input()"
SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(0.2)
    sys.exit(7)
signal.signal(signal.SIGTERM, save)
print(2, flush=True)
input()
"""


@pytest.fixture
def job_id() -> str:
    return f"processes@{os.getpid():08x}"


@pytest.fixture
def start(job_id) -> Iterator[Start]:
    """`start(code, *argv, rank=0)`: a process of the job that is ready; with `rank=None`, not a
    rank."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *argv: str, rank: int | None = 0) -> subprocess.Popen[str]:
        env = {**os.environ, "DDPTOP_JOB_ID": job_id}
        if rank is not None:
            env["DDPTOP_ATTEMPT"] = "0"
        if "print" not in code:
            code = f"print(2, flush=True)\n{code}"
        process = piped(sys.executable, "-S", "-c", code, *argv, env=env)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ids(*processes: subprocess.Popen[str]) -> list[ProcessId]:
    return [procs.identify(process.pid) for process in processes]


async def end(processes: list[ProcessId], grace_s: float) -> tuple[ProcessId, ...]:
    return await stopping.end(lambda: processes, grace_s)


async def test_a_rank_gets_its_grace_to_save(start):
    process = start(SAVES)
    assert await end(ids(process), 30.0) == ()
    assert process.wait() == 7


async def test_the_deaf_are_killed_after_the_grace(start):
    polite, deaf = start(POLITE), start(DEAF)
    began = time.monotonic()
    assert await end(ids(polite, deaf), 0.3) == ()
    assert time.monotonic() - began >= 0.3
    assert (polite.wait(), deaf.wait()) == (-signal.SIGTERM, -signal.SIGKILL)


async def test_a_stopped_process_is_continued_so_that_it_can_save(start, wait_until):
    process = start(SAVES)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: procs.state_letter(process.pid) == "T")
    assert await end(ids(process), 30.0) == ()
    assert process.wait() == 7


async def test_a_later_process_of_the_same_pid_is_not_touched(start):
    process = start(POLITE)
    (identity,) = ids(process)
    reused = msgspec.structs.replace(identity, start_ticks=identity.start_ticks - 1)
    assert await end([reused], 0.0) == ()
    assert process.poll() is None


def test_ranks_are_distinguished_from_other_processes_with_the_jobs_id(start, job_id):
    rank, other = start(POLITE), start(POLITE, rank=None)
    assert [found.pid for found in rank_processes(job_id)] == [rank.pid]
    assert other.pid in procs.pids_of_job(job_id)
    assert rank_processes(f"{job_id}x") == []


def test_agents_keepers_and_samplers_are_distinguished_from_a_users_shell(start, job_id):
    agent = start(POLITE, str(AGENT_MAIN), rank=None)
    keeper = start(  # a fork of the agent, orphaned
        "import os, sys\npid = os.fork()\nprint(2, flush=True) if pid else None\ninput()",
        str(AGENT_MAIN),
        rank=None,
    )
    sampler = start(POLITE, "-m", "ddptop_runner.devices.sampler", rank=None)
    shell = start(POLITE, rank=None)
    (forked,) = tree.children_of(keeper.pid)
    found = {process.pid for process in agent_processes(job_id)}
    assert found == {agent.pid, keeper.pid, forked, sampler.pid}
    assert shell.pid not in found
    os.kill(forked, signal.SIGKILL)


SPAWNS = """
import os, subprocess, sys
hidden = {key: value for key, value in os.environ.items() if not key.startswith("DDPTOP")}
child = subprocess.Popen([sys.executable, "-S", "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print(3, flush=True); input()"],
    env=hidden, start_new_session=True, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def story() -> EmittedLog:
    return EmittedLog()


def spawner(start: Start) -> tuple[subprocess.Popen[str], ProcessId]:
    """A rank, and a child that ignores signals, in its own session without the job's variables."""
    rank = start("print(2, flush=True)\n" + SPAWNS)
    assert rank.stdout is not None
    return rank, procs.identify(int(rank.stdout.readline()))


async def test_leftovers_of_a_dead_rank_are_ended_even_without_the_jobs_variables(
    start, job_id, story, monkeypatch
):
    monkeypatch.setattr(job_processes, "LEFTOVER_GRACE_S", 0.2)
    rank, child = spawner(start)
    usage = HostUsage()
    processes = JobProcesses(job_id, usage, story)
    assert [found.pid for found in processes.everything_started()] == [rank.pid]
    usage.look({0: rank.pid})
    assert {found.pid for found in processes.everything_started()} == {rank.pid, child.pid}
    rank.kill()
    rank.wait()
    shell = start(POLITE, rank=None)
    await processes.end_leftovers(0, with_agent=True)
    assert not procs.is_alive(child)
    assert shell.poll() is None
    assert story.lines == []


async def test_what_a_process_starts_while_it_is_asked_to_end_goes_too(start, job_id, story):
    cleans_up = """
import os, signal, subprocess, sys
def clean_up(*_):
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    os.write(1, b"%d\\n" % child.pid)  # print() may be interrupted
    os._exit(0)
signal.signal(signal.SIGTERM, clean_up)
print(2, flush=True)
input()
"""
    rank = start(cleans_up)
    assert rank.stdout is not None
    await JobProcesses(job_id, HostUsage(), story).end_leftovers(0)
    assert not procs.is_alive(procs.identify(int(rank.stdout.readline())))
    assert story.lines == []


async def test_the_agent_goes_only_when_asked(start, job_id, story, monkeypatch):
    # the agent is the guardian's child; here, it is this process's
    monkeypatch.setattr(tree, "descendants_of", lambda pid: [])
    agent = start(POLITE, str(AGENT_MAIN), rank=None)
    processes = JobProcesses(job_id, HostUsage(), story)
    await processes.end_leftovers(0)
    assert agent.poll() is None
    await processes.end_leftovers(0, with_agent=True)
    assert agent.wait(10) == -signal.SIGTERM


async def test_the_supervisors_own_sampler_is_spared(start, job_id, story, monkeypatch):
    sampler = start(POLITE, "-m", "ddptop_runner.devices.sampler", rank=None)
    processes = JobProcesses(job_id, HostUsage(), story)
    assert processes.all_but_guards() == []  # it is a child of this process
    monkeypatch.setattr(tree, "descendants_of", lambda pid: [])
    assert [found.pid for found in processes.all_but_guards()] == [sampler.pid]


async def test_process_stuck_in_the_kernel_is_reported(start, job_id, story, monkeypatch):
    rank = start(POLITE)
    monkeypatch.setattr(procs, "signal_process", lambda process, number, uid=None: False)
    monkeypatch.setattr(stopping, "KILL_WAIT_S", 0.1)
    monkeypatch.setattr(job_processes, "LEFTOVER_GRACE_S", 0.1)
    await JobProcesses(job_id, HostUsage(), story).end_leftovers(4)
    assert story.lines == [("alert", f"cannot kill pid {rank.pid}: stuck in the kernel")]
