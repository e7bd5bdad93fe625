"""Determines by pidfd when and how processes exit that are not children of this one.

The guardian reaps its own descendants, but an agent may be stopped or dead, and waitpid returns
several dead children in order of their start. A pidfd becomes readable when its process dies, and
the kernel returns ready descriptors in that order, from which `ProcessWatch` takes the times.

After the guardian is killed, nothing reaps the agent and the ranks, and `OrphanWatch` reports their
exits. Their status is in /proc until init reaps them. Otherwise it is unknown, which never counts
as 0.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import ProcessId

POLL_S = 0.1

OnExit = Callable[[ProcessId, "int | None"], None]


def status_of_zombie(pid: int) -> int | None:
    """The return code of a dead process that has not been reaped; None if unknown.

    /proc also shows 0 to users without permission, who cannot read `io` either.
    """
    fields = procs.stat_fields(pid)
    if fields is None or fields[0] != "Z" or len(fields) < 50:
        return None
    wait_status = int(fields[49])
    if not wait_status and procs.written_bytes(pid) is None:
        return None
    return os.waitstatus_to_exitcode(wait_status)


class ProcessWatch:
    """Reports once that a watched process has exited. Does nothing without a running event loop.

    Args:
        on_exit: called with the process and its return code, None if it is unknown.
    """

    def __init__(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._watched: set[ProcessId] = set()
        self._died_at_s: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, process: ProcessId) -> None:
        """Watch a process from now on; if it is already gone, it is reported at once."""
        if process in self._watched:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._watched.add(process)
        self._died_at_s.pop(process.pid, None)
        if (pidfd := _open(process)) is not None:
            loop.add_reader(pidfd, self._ended, loop, process, pidfd)
            return
        task = loop.create_task(self._poll(process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def died_at_s(self, pid: int) -> float | None:
        """CLOCK_BOOTTIME of the process's death; None if unknown."""
        return self._died_at_s.get(pid)

    def _ended(self, loop: asyncio.AbstractEventLoop, process: ProcessId, pidfd: int) -> None:
        self._died_at_s[process.pid] = boottime_s()
        loop.remove_reader(pidfd)
        os.close(pidfd)
        self._on_exit(process, status_of_zombie(process.pid))

    async def _poll(self, process: ProcessId) -> None:
        while procs.is_alive(process):
            await asyncio.sleep(POLL_S)
        self._on_exit(process, None)


class OrphanWatch:
    """Watches a job's processes that have lost their guardian, which would reap them.

    Args:
        on_exit: as for ProcessWatch.
    """

    def __init__(self, on_exit: OnExit) -> None:
        self._watch = ProcessWatch(on_exit)
        self._active = False
        self._guardian: ProcessId | None = None
        self._settled: set[ProcessId] = set()

    def begin(self, guardian: ProcessId | None) -> None:
        """Watch orphans from now on, which excludes descendants of `guardian`."""
        self._active, self._guardian = True, guardian
        self._settled.clear()

    def look(self, processes: Sequence[ProcessId]) -> None:
        """Watch the orphans among them that it does not watch yet."""
        new = [process for process in processes if process not in self._settled]
        if not self._active or not new:
            return
        collected = () if self._guardian is None else tree.descendants_of(self._guardian.pid)
        self._settled.update(new)
        for process in new:
            if process.pid not in collected:
                self._watch.watch(process)


def _open(process: ProcessId) -> int | None:
    """A pidfd of that process; None if it is gone or the kernel has no pidfds."""
    pidfd = procs.open_pidfd(process.pid)
    if pidfd is None or procs.start_ticks(process.pid) == process.start_ticks:
        return pidfd
    os.close(pidfd)  # of a later process with the same pid
    return None
