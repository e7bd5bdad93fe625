"""Which jobs there are: run folders, and Slurm's queue. Used by the collector's thread alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from ddptop.view.slurm_words import others
from ddptop_runner.base.errors import DamagedFileError
from ddptop_runner.base.paths import RunFolder, runs_dir
from ddptop_runner.job.registry import JobView, read_job, require_own_name
from ddptop_runner.jobs.slurm_queue import INTERVAL_S, Queue, as_queued, read_queue, with_jobs
from ddptop_runner.launch.slurm import SlurmJob


class JobSource:
    """All jobs; one that has ended is not read again until its files change."""

    def __init__(self) -> None:
        self._ended: dict[Path, tuple[tuple[int | None, int | None], JobView]] = {}
        self.damaged: list[DamagedFileError] = []
        """Why run folders could not be read at the last look."""

    def read(self) -> list[JobView]:
        """Every readable job, with its state already checked."""
        self.damaged = []
        try:
            paths = list(runs_dir().iterdir())
        except OSError:
            return []
        return [view for path in paths if (view := self._read_one(path)) is not None]

    def _read_one(self, path: Path) -> JobView | None:
        folder = RunFolder(path)
        if (known := self._ended.get(path)) is not None:
            if known[0] == self._key(folder, known[1]):
                return known[1]
            del self._ended[path]
        if _stamp(folder.spec_file) is None:  # there is none, or it is somebody else's
            return None
        try:
            view = require_own_name(read_job(folder))
        except DamagedFileError as error:
            if _stamp(folder.spec_file) is not None:  # it was not removed this moment
                error.job = folder.job
                self.damaged.append(error)
            return None
        key = self._key(folder, view)
        # what looks at files and processes is asked here, once: the properties remember it
        _ = view.user
        if not view.is_live and view.guarded is not True:
            self._ended[path] = (key, view)
        return view

    @staticmethod
    def _key(folder: RunFolder, view: JobView) -> tuple[int | None, int | None]:
        return _stamp(folder.spec_file), _stamp(folder.node_file(view.spec.host))


def _stamp(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None


def history_stamps(path: Path) -> tuple[int | None, int | None]:
    """When a history changed last."""
    return _stamp(path), _stamp(path.with_name(path.name + "-wal"))


class SlurmSource:
    """What squeue printed last, asked beside everything else: Slurm may take its time."""

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
