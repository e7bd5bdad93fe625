"""The user's queue in Slurm, read beside everything else: its controller may take its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from ddptop.view.slurm_words import others
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.slurm_queue import INTERVAL_S, Queue, read_queue, with_jobs
from ddptop_runner.launch.slurm import SlurmJob


class SlurmSource:
    """What squeue printed last. Used by the collector's thread."""

    def __init__(self) -> None:
        self._queue: Queue | None = None
        self._asked_s = float("-inf")
        self._asking: threading.Thread | None = None

    def read(self, own: Iterable[JobView]) -> tuple[SlurmJob, ...]:
        """Slurm's jobs that are no jobs of ddptop's; empty on a machine without Slurm."""
        is_due = time.monotonic() - self._asked_s >= INTERVAL_S
        if is_due and (self._asking is None or not self._asking.is_alive()):
            self._asked_s = time.monotonic()
            self._asking = threading.Thread(target=self._ask, name="squeue", daemon=True)
            self._asking.start()
        return () if self._queue is None else tuple(others(with_jobs(self._queue, own) or []))

    def _ask(self) -> None:
        self._queue = read_queue()
