"""Every process of this host as facts, cheap enough to be read again each other second."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ddptop_runner.foreign.types import ProcessFacts


class ProcessTable:
    """Reads /proc, and keeps what is fixed for a process's life by (pid, start time)."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def scan(self, device_pids: Collection[int] = ()) -> list[ProcessFacts]:
        """All processes but kernel threads, by pid; never raises.

        State, parent and session are read anew each time. Threads, libraries and sockets are read
        only of processes that may be training: Python, a known launcher, rank variables in the
        environment, or a pid in `device_pids`; of all others they are None.
        """
        raise NotImplementedError
