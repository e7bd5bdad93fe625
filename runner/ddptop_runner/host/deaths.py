"""The order in which ranks exit, by pidfd, whoever collects their exit status.

An agent polls, may be stopped or dead, and a guardian's waitpid gives several dead children in the
order of their births. A pidfd becomes readable as its process dies, and the kernel hands ready
descriptors out in that order, also when this process looks late.
"""

from __future__ import annotations

import asyncio
import os

from ddptop_runner.base.clock import boottime_s


class DeathWatch:
    """Stamps the deaths of processes of this machine. Costs nothing where there is no pidfd."""

    def __init__(self) -> None:
        self._died_at_s: dict[int, float] = {}
        self._fds: dict[int, int] = {}

    def watch(self, pid: int) -> None:
        """Watch a process from now on, in the running event loop; None of its threads are seen."""
        if pid in self._fds:
            return
        try:
            loop = asyncio.get_running_loop()
            fd = os.pidfd_open(pid)
        except (AttributeError, OSError, RuntimeError):  # no Linux, gone already, or no loop
            return
        self._died_at_s.pop(pid, None)
        self._fds[pid] = fd
        loop.add_reader(fd, self._died, loop, pid)

    def died_at_s(self, pid: int) -> float | None:
        """CLOCK_BOOTTIME of the process's death; None where it was not seen."""
        return self._died_at_s.get(pid)

    def close(self) -> None:
        """Watch nothing any more, and forget."""
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
