"""The user's queue in Slurm, read beside everything else: its controller may take its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from ddptop.view.slurm_words import others
from ddptop_runner.job.registry import JobView
from ddptop_runner.jobs.slurm_queue import INTERVAL_S, Queue, as_queued, read_queue, with_jobs
from ddptop_runner.launch.slurm import SlurmJob


class SlurmSource:
    """What squeue printed last. Used by the collector's thread."""

    def __init__(self) -> None:
        self._queue: Queue | None = None
        self._asked_s = float("-inf")
        self._asking: threading.Thread | None = None

    def read(self, own: Iterable[JobView]) -> tuple[SlurmJob, ...]:
        """Slurm's jobs that are no jobs of ddptop's; empty on a machine without Slurm."""
        self._ask_if_due()
        return () if self._queue is None else tuple(others(with_jobs(self._queue, own) or []))

    def as_queued(self, own: list[JobView]) -> list[JobView]:
        """Jobs, `queued` those that Slurm has requeued and not started."""
        if any(view.state == "lost" and view.spec.slurm_job is not None for view in own):
            self._ask_if_due()
        return own if self._queue is None else [as_queued(view, self._queue) for view in own]

    def _ask_if_due(self) -> None:
        is_due = time.monotonic() - self._asked_s >= INTERVAL_S
        if is_due and (self._asking is None or not self._asking.is_alive()):
            self._asked_s = time.monotonic()
            self._asking = threading.Thread(target=self._ask, name="squeue", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        self._queue = read_queue()
