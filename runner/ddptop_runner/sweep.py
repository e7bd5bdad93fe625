"""Ending processes: only those that carry the job's id or were seen in a rank's tree."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable

from ddptop_runner import procs
from ddptop_runner.model import ProcessId

POLL_S = 0.05
KILL_WAIT_S = 10.0
"""After SIGKILL a process may hang in the kernel (a lost GPU, a dead mount) for longer."""


def rank_processes(job_id: str) -> list[ProcessId]:
    """Every living process of the job that is a rank or was started by one."""
    own = os.getpid()
    return [
        procs.identify(pid)
        for pid in procs.pids_of_job(job_id)
        if pid != own and procs.environ_value(pid, "DDPTOP_ATTEMPT") is not None
    ]


def alive(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Those that still are."""
    return [process for process in processes if procs.is_alive(process)]


async def end(processes: Iterable[ProcessId], grace_s: float) -> list[ProcessId]:
    """SIGCONT and SIGTERM, then after `grace_s` SIGKILL; those that could not be ended.

    Args:
        processes: what is to end.
        grace_s: seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
    """
    left = alive(processes)
    if grace_s > 0:
        procs.signal_all(left, signal.SIGTERM)
        procs.signal_all(left, signal.SIGCONT)
        left = await _wait(left, grace_s)
    procs.signal_all(left, signal.SIGKILL)
    return await _wait(left, KILL_WAIT_S)


async def _wait(processes: list[ProcessId], timeout_s: float) -> list[ProcessId]:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    left = alive(processes)
    while left and loop.time() < deadline_s:
        await asyncio.sleep(POLL_S)
        left = alive(left)
    return left
