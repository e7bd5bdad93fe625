"""Finds a job's processes: those with its ID, those seen in a rank's tree, and orphans."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ddptop_runner.base.start import own_words
from ddptop_runner.host import procs, stopping, tree
from ddptop_runner.host.handover import AGENT_MAIN, NOTIFIER_MODULE, PUMP_MAIN
from ddptop_runner.host.tree import HostUsage
from ddptop_runner.job.event_log import EventLog
from ddptop_runner.model import events as ev
from ddptop_runner.model.snapshot import ProcessId

SAMPLER_MODULE = "ddptop_runner.devices.sampler"
_OWN = frozenset({str(AGENT_MAIN), str(PUMP_MAIN), SAMPLER_MODULE, NOTIFIER_MODULE})
LEFTOVER_GRACE_S = 2.0
"""For processes that a rank left behind when it ended, such as data loaders and shells."""


def rank_processes(job_id: str, owner: int | None = None) -> list[ProcessId]:
    """Every living process of the job that is a rank or was started by one.

    Args:
        job_id: the value of their DDPTOP_JOB_ID.
        owner: see `procs.pids_of_job`.
    """
    own = os.getpid()
    return [
        procs.identify(pid)
        for pid in procs.pids_of_job(job_id, owner)
        if pid != own and procs.environ_value(pid, "DDPTOP_ATTEMPT") is not None
    ]


def agent_processes(job_id: str, owner: int | None = None) -> list[ProcessId]:
    """The job's agents, their forks (store keepers, zygotes), pumps, and samplers.

    A shell that the user opened in the job's tmux session has the job's ID too, but is not ours to
    end.
    """
    pids = procs.pids_of_job(job_id, owner)
    return [procs.identify(pid) for pid in pids if _OWN & set(procs.argv(pid))]


def _orphans() -> list[ProcessId]:
    """What has left the ranks' trees: the guardian, this process's parent, has become its parent.

    It may have cleared its environment, and has a session of its own.
    """
    guardian = os.getppid()
    if own_words(procs.argv(guardian))[:1] != ["guardian"]:
        return []  # it was killed
    found = list[int]()
    for pid in tree.children_of(guardian):
        if pid != os.getpid() and not _OWN & set(procs.argv(pid)):
            found += [pid, *tree.descendants_of(pid)]
    return [procs.identify(pid) for pid in found]


def alive(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """The processes that are still alive."""
    return [process for process in processes if procs.is_alive(process)]


class JobProcesses:
    """All processes that a job's ranks started.

    Args:
        job_id: the value of their DDPTOP_JOB_ID.
        usage: remembers each process seen in a rank's tree.
        log: receives processes that cannot be ended.
    """

    def __init__(self, job_id: str, usage: HostUsage, log: EventLog) -> None:
        self._job_id = job_id
        self._usage = usage
        self._log = log

    def everything_started(self) -> list[ProcessId]:
        """Ranks and all that they started: by job ID, in their trees, and orphaned."""
        found = {process.pid: process for process in rank_processes(self._job_id)}
        for process in [*alive(self._usage.seen.values()), *_orphans()]:
            found.setdefault(process.pid, process)
        return list(found.values())

    def is_living(self, pid: int) -> bool:
        """Whether the pid is a living process that was seen in a rank's tree."""
        process = self._usage.seen.get(pid)
        return process is not None and procs.is_alive(process)

    def all_but_guards(self) -> list[ProcessId]:
        """Every process of the job, even store keepers, except guardian, supervisor, sampler."""
        own = set(tree.descendants_of(os.getpid()))
        others = [found for found in agent_processes(self._job_id) if found.pid not in own]
        return [*self.everything_started(), *others]

    async def end_leftovers(self, attempt: int, with_agent: bool = False) -> None:
        """End the remaining processes of an attempt whose ranks have ended.

        Args:
            attempt: its number.
            with_agent: also end an agent and its store keeper.
        """
        find = self.all_but_guards if with_agent else self.everything_started
        left = await stopping.end(find, LEFTOVER_GRACE_S)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            text = f"cannot kill pid {pids}: stuck in the kernel"
            self._log.emit(ev.Noticed(attempt=attempt, text=text))
