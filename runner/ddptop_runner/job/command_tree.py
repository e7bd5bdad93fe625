"""The current processes of a launched command, and ending them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping

from ddptop_runner.host import procs, stopping, tree
from ddptop_runner.job import sweep
from ddptop_runner.model.snapshot import ProcessId

Everyone = Callable[[], list[ProcessId]]
"""Every process of the job that is left: what it started, whoever its parent is now."""


async def end(
    everyone: Everyone, ranks: Mapping[int, Collection[str]], grace_s: float
) -> list[ProcessId]:
    """End a command and all that it started, as `stopping.plan` has it; what could not be ended.

    Args:
        everyone: tells who is left.
        ranks: by pid, the frameworks of each living rank.
        grace_s: how long ranks may take; 0 kills at once.
    """
    own = os.getpid()
    known = everyone()
    by_pid = {process.pid: process for process in known if process.pid != own}
    ranks = {pid: frameworks for pid, frameworks in ranks.items() if pid in by_pid}
    for step in stopping.plan(ranks, tree.launchers_of(ranks, known), grace_s):
        if step.until and not sweep.alive(by_pid[pid] for pid in step.until):
            continue
        theirs = everyone() if step.pids is None else [by_pid[pid] for pid in step.pids]
        for number in step.signals:
            procs.signal_all(theirs, number)
        awaited = theirs if step.until is None else [by_pid[pid] for pid in step.until]
        await sweep.wait_for(awaited, step.wait_s)
    left = everyone()
    procs.signal_all(left, signal.SIGKILL)
    return await sweep.wait_for(left, sweep.KILL_WAIT_S)
