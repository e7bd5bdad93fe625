"""Watches processes that are not children of this one, and gets their exit status.

The guardian collects its own descendants. After it was killed, the agent and the ranks belong to
nobody who tells: then their ends are seen by pidfd (Linux 5.3; a poll elsewhere). How they ended is
told by the kernel where it can: PIDFD_GET_INFO since Linux 6.15, or /proc while a dead process
waits to be reaped. Elsewhere it stays unknown, and is never taken for 0.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ddptop_runner.host import procs, tree
from ddptop_runner.model.snapshot import ProcessId

POLL_S = 0.1
REAPED_WITHIN_S = 1.0
"""The kernel tells an exit status once somebody has reaped the process; init does within this."""

_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info, first version: mask, cgroup, eleven ids, exit code."""

OnExit = Callable[[ProcessId, "int | None"], None]


def returncode_of(wait_status: int) -> int:
    """A return code as subprocess has it, negative for a signal, from a wait status."""
    return os.waitstatus_to_exitcode(wait_status)


def status_by_pidfd(pidfd: int) -> int | None:
    """The return code of a process that was reaped; None where the kernel does not tell."""
    buffer = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, wait_status = _INFO.unpack(buffer)
    return returncode_of(wait_status) if mask & _PIDFD_INFO_EXIT else None


def status_of_zombie(pid: int) -> int | None:
    """The return code of a dead process that nobody has reaped yet; None where not told.

    /proc shows a 0 as well to those who may not know; they may not read `io` either.
    """
    fields = procs.stat_fields(pid)
    if fields is None or fields[0] != "Z" or len(fields) < 50:
        return None
    wait_status = int(fields[49])
    if not wait_status and procs.written_bytes(pid) is None:
        return None
    return returncode_of(wait_status)


class ProcessWatch:
    """Tells once of each watched process that it has ended. Lives in a running event loop.

    Args:
        on_exit: called with the process and its return code, None where nobody knows it.
    """

    def __init__(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._watched: dict[ProcessId, int | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, process: ProcessId) -> None:
        """Watch a process from now on; one that is gone already is told of at once."""
        if process in self._watched:
            return
        pidfd = _open(process)
        self._watched[process] = pidfd
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._ended, process, pidfd)
            return
        self._spawn(self._poll(process))

    def close(self) -> None:
        """Watch nothing any more."""
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
        self._spawn(self._tell_status(process, pidfd))

    async def _tell_status(self, process: ProcessId, pidfd: int) -> None:
        deadline_s = self._loop.time() + REAPED_WITHIN_S
        while True:
            returncode = status_by_pidfd(pidfd)
            if returncode is None:
                returncode = status_of_zombie(process.pid)
            letter = procs.state_letter(process.pid)
            if returncode is not None or letter is None or self._loop.time() > deadline_s:
                break
            await asyncio.sleep(0.02)
        if returncode is None:  # reaped between the two looks
            returncode = status_by_pidfd(pidfd)
        self._watched[process] = None
        os.close(pidfd)
        self._on_exit(process, returncode)

    async def _poll(self, process: ProcessId) -> None:
        while procs.is_alive(process):
            await asyncio.sleep(POLL_S)
        self._on_exit(process, None)


class OrphanWatch:
    """Watches those of a job's processes that no guardian collects: the one they had is dead.

    Args:
        on_exit: as of ProcessWatch.
    """

    def __init__(self, on_exit: OnExit) -> None:
        self._watch = ProcessWatch(on_exit)
        self._active = False
        self._guardian: ProcessId | None = None
        self._settled: set[ProcessId] = set()

    def begin(self, guardian: ProcessId | None) -> None:
        """There are orphans from now on; the descendants of `guardian` are none."""
        self._active, self._guardian = True, guardian
        self._settled.clear()

    def look(self, processes: Sequence[ProcessId]) -> None:
        """Watch those that are orphans and are not watched yet."""
        new = [process for process in processes if process not in self._settled]
        if not self._active or not new:
            return
        collected = () if self._guardian is None else tree.descendants_of(self._guardian.pid)
        self._settled.update(new)
        for process in new:
            if process.pid not in collected:
                self._watch.watch(process)


def _open(process: ProcessId) -> int | None:
    """A pidfd of that very process; None where it is gone or the kernel has none."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except AttributeError:  # no Linux
        return None
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.ENOSYS, errno.EINVAL, errno.EPERM):
            raise
        return None
    if procs.start_ticks(process.pid) != process.start_ticks:  # another one of the same pid
        os.close(pidfd)
        return None
    return pidfd
