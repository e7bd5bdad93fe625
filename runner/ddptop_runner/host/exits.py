"""Determines by pidfd when and how processes exit that are not children of this one.

The guardian reaps its own descendants, but an agent may be stopped or dead, and waitpid returns
several dead children in order of their start. A pidfd becomes readable when its process dies, and
the kernel returns ready descriptors in that order, from which `DeathWatch` takes the times.

After the guardian is killed, nothing reaps the agent and the ranks, and `OrphanWatch` reports their
exits. Their status is in /proc until init reaps them. Otherwise it is unknown, which never counts
as 0.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import ProcessId


class DeathWatch:
    """Records the times at which processes of this machine die. Does nothing without pidfds."""

    def __init__(self) -> None:
        self._died_at_s: dict[int, float] = {}
        self._fds: dict[int, int] = {}

    def watch(self, pid: int) -> None:
        """Watch a process, not its threads, from now on, in the running event loop."""
        if pid in self._fds:
            return
        try:
            loop = asyncio.get_running_loop()
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError, RuntimeError):  # not Linux, already gone, or no loop
            return
        self._died_at_s.pop(pid, None)
        self._fds[pid] = fd
        loop.add_reader(fd, self._died, loop, pid)

    def died_at_s(self, pid: int) -> float | None:
        """CLOCK_BOOTTIME of the process's death; None if unknown."""
        return self._died_at_s.get(pid)

    def close(self) -> None:
        """Stop watching and discard the times."""
        for pid in list(self._fds):
            self._drop(asyncio.get_running_loop(), pid)
        self._died_at_s.clear()

    def _died(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        self._died_at_s[pid] = boottime_s()
        self._drop(loop, pid)

    def _drop(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        fd = self._fds.pop(pid)
        loop.remove_reader(fd)
        os.close(fd)


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
    """Reports once that a watched process has exited. Needs a running event loop.

    Args:
        on_exit: called with the process and its return code, None if it is unknown.
    """

    def __init__(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._watched: dict[ProcessId, int | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, process: ProcessId) -> None:
        """Watch a process from now on; if it is already gone, it is reported at once."""
        if process in self._watched:
            return
        pidfd = _open(process)
        self._watched[process] = pidfd
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._ended, process, pidfd)
            return
        self._spawn(self._poll(process))

    def close(self) -> None:
        """Stop watching."""
        for pidfd in self._watched.values():
            if pidfd is not None:
                self._loop.remove_reader(pidfd)
                os.close(pidfd)
        self._watched.clear()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, process: ProcessId, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._watched[process] = None
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
    try:
        pidfd = os.pidfd_open(process.pid)
    except AttributeError:  # not Linux
        return None
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.ENOSYS, errno.EINVAL, errno.EPERM):
            raise
        return None
    if (
        procs.start_ticks(process.pid) != process.start_ticks
    ):  # a different process with the same pid
        os.close(pidfd)
        return None
    return pidfd
