"""Ends processes: only those that carry the job's ID or were seen in a rank's tree."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable

from ddptop_runner.host import procs, tree
from ddptop_runner.host.agent_launch import AGENT_MAIN, PUMP_MAIN, SPARE_MAIN
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import ProcessId

SAMPLER_MODULE = "ddptop_runner.devices.sampler"
POLL_S = 0.05
LEFTOVER_GRACE_S = 2.0
"""For what a rank left behind when it ended: data loaders, shells."""
ROUNDS = 3
"""How often to look again for what was started by a process that was just being ended."""
KILL_WAIT_S = 10.0
"""After SIGKILL a process may hang in the kernel (a lost GPU, a dead mount) for longer."""


def rank_processes(job_id: str, owner: int | None = None) -> list[ProcessId]:
    """Every living process of the job that is a rank or was started by one.

    Args:
        job_id: what they carry.
        owner: as in `procs.pids_of_job`.
    """
    own = os.getpid()
    return [
        procs.identify(pid)
        for pid in procs.pids_of_job(job_id, owner)
        if pid != own and procs.environ_value(pid, "DDPTOP_ATTEMPT") is not None
    ]


def agent_processes(job_id: str, owner: int | None = None) -> list[ProcessId]:
    """The job's agents, store keepers (forks of an agent), pumps, spare interpreters and samplers.

    A shell that a person opened in the job's tmux session carries the job's id too, and is not
    ours to end.
    """
    ours = {str(AGENT_MAIN), str(SPARE_MAIN), str(PUMP_MAIN), SAMPLER_MODULE}
    pids = procs.pids_of_job(job_id, owner)
    return [procs.identify(pid) for pid in pids if ours & set(procs.argv(pid))]


def alive(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Those that still are."""
    return [process for process in processes if procs.is_alive(process)]


async def end(
    processes: Iterable[ProcessId],
    grace_s: float,
) -> list[ProcessId]:
    """SIGCONT and SIGTERM, then after `grace_s` SIGKILL; those that could not be ended.

    Args:
        processes: what is to end.
        grace_s: seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
    """
    left = alive(processes)
    if grace_s > 0:
        procs.signal_all(left, signal.SIGTERM)
        procs.signal_all(left, signal.SIGCONT)
        left = await wait_for(left, grace_s)
    procs.signal_all(left, signal.SIGKILL)
    return await wait_for(left, KILL_WAIT_S)


async def end_all(find: Callable[[], list[ProcessId]], grace_s: float) -> list[ProcessId]:
    """End what is found, and what it started while it was asked to end; what could not be ended.

    Args:
        find: tells who is there now.
        grace_s: as in `end`, for each round.
    """
    left: list[ProcessId] = []
    for _ in range(1 + ROUNDS):
        found = [process for process in find() if process not in left]
        if not found:
            break
        left += await end(found, grace_s)
    return left


async def wait_for(processes: Iterable[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Wait until they have ended; those that live after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    left = alive(processes)
    while left and loop.time() < deadline_s:
        await asyncio.sleep(POLL_S)
        left = alive(left)
    return left


class JobProcesses:
    """All that a job's ranks started.

    Args:
        job_id: what they carry as DDPTOP_JOB_ID.
        usage: remembers each process seen in a rank's tree.
        log: gets what cannot be ended.
    """

    def __init__(self, job_id: str, usage: HostUsage, log: EventLog) -> None:
        self._job_id = job_id
        self._usage = usage
        self._log = log

    def everything_started(self) -> list[ProcessId]:
        """Ranks and all that they started, by job id and by what was seen in their trees."""
        found = {process.pid: process for process in rank_processes(self._job_id)}
        for process in alive(self._usage.seen.values()):
            found.setdefault(process.pid, process)
        return list(found.values())

    def is_living(self, pid: int) -> bool:
        """Whether that pid is a living process that was seen in a rank's tree."""
        process = self._usage.seen.get(pid)
        return process is not None and procs.is_alive(process)

    def all_but_guards(self) -> list[ProcessId]:
        """Every process of the job but guardian, supervisor and its sampler: store keepers too."""
        own = set(tree.descendants_of(os.getpid()))
        others = [found for found in agent_processes(self._job_id) if found.pid not in own]
        return [*self.everything_started(), *others]

    async def end_leftovers(self, attempt: int, with_agent: bool = False) -> None:
        """End what is left of an attempt whose ranks have ended.

        Args:
            attempt: its number.
            with_agent: also end an agent and its store keeper.
        """
        find = self.all_but_guards if with_agent else self.everything_started
        left = await end_all(find, LEFTOVER_GRACE_S)
        if left:
            pids = [process.pid for process in left]
            self._log.emit(ev.ProcessesStuck(attempt=attempt, pids=pids))
