"""Fetches logs and evidence from other hosts, through the job's head.

The head writes them to the usual paths (`node.fetch`) when they are requested, so log readers read
local files and call `want_log` now and then. For a job on one machine, that does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.model import protocol as pt
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node import control

RENEW_S = 1.0
"""How often requests to the head are repeated; each fetches what is new."""
FORGET_S = 10.0
"""How long after the last call of `want_log` a log is still requested."""
ANSWER_S = 8.0


class Far(msgspec.Struct, frozen=True):
    """What is known about a job whose ranks run on several hosts."""

    attempt: int
    """The latest attempt."""
    ranks: tuple[int, ...] = ()
    """The ranks of that attempt."""
    hosts: tuple[str, ...] = ()
    """The hosts of these ranks, in the same order."""
    clocks: tuple[float, ...] = ()
    """For each of these ranks, how many seconds its host's clock is ahead of this one's."""
    silent: tuple[str, ...] = ()
    """Why hosts did not answer the last request for files."""
    folders: tuple[str | None, ...] = ()
    """Each rank's run folder; `HOST:PATH` if it is not on this file system; None if unknown."""

    def left_there(self, attempt: int, rank: int) -> str | None:
        """Where the rest of a log may be, if it was not fetched, and how to get it."""
        folder = dict(zip(self.ranks, self.folders, strict=False)).get(rank)
        if folder is None:
            return None
        log = RunFolder(Path(folder)).log_file(attempt, rank)
        host, is_away, path = str(log).partition(":/")
        return f"may be on {host}: ssh {host} cat /{path}" if is_away else f"may be in {log}"


class _FarJob(msgspec.Struct):
    """A job whose logs are being read."""

    wanted: dict[tuple[int | None, int | None], float]
    """By attempt (None for the latest) and rank (None for all), when that log was last wanted."""
    far: Far | None = None
    is_far: bool | None = None
    """Whether the job runs on several machines; None if not known yet."""


class FarFiles:
    """Requests files in its own thread, so that no reader waits for a link."""

    def __init__(self) -> None:
        self._jobs: dict[RunFolder, _FarJob] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def want_log(self, folder: RunFolder, attempt: int | None, rank: int | None) -> Far | None:
        """Keep fetching a log for the next few seconds.

        Args:
            folder: the job's run folder.
            attempt: the log's attempt; None for the latest.
            rank: the log's rank; None for all ranks.

        Returns:
            What is known so far about a job on several hosts; None for a job on one.
        """
        with self._lock:
            job = self._jobs.setdefault(folder, _FarJob({}))
            if job.is_far is False:
                return None
            is_new = (attempt, rank) not in job.wanted
            job.wanted[attempt, rank] = time.monotonic()
        if is_new:
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="far files", daemon=True)
            self._thread.start()
        return job.far

    def fetch_log(
        self, folder: RunFolder, attempt: int | None, ranks: Sequence[int] | None
    ) -> Far | None:
        """As `want_log`, but waits for the first request to complete."""
        for rank in [None] if ranks is None else ranks:
            self.want_log(folder, attempt, rank)
        job = self._jobs[folder]
        if job.is_far is not False:
            self._ask(folder, job)
        return job.far

    def _run(self) -> None:
        while True:
            self._wake.wait(RENEW_S)
            self._wake.clear()
            for folder, job in list(self._jobs.items()):
                if job.wanted:
                    self._ask(folder, job)

    def _ask(self, folder: RunFolder, job: _FarJob) -> None:
        with self._lock:
            since_s = time.monotonic() - FORGET_S
            job.wanted = {key: at_s for key, at_s in job.wanted.items() if at_s > since_s}
            wanted = list(job.wanted)
        try:
            view = read_job(folder)
        except DdptopError:
            return
        job.is_far = view.spec.placement is not None
        if not job.is_far:
            job.wanted = {}
            return
        job.far = far = _far(view, job.far)
        if not view.is_live:
            return
        by_attempt: dict[int, list[int | None]] = {}
        for attempt, rank in wanted:
            by_attempt.setdefault(far.attempt if attempt is None else attempt, []).append(rank)
        for attempt, of in by_attempt.items():
            named = [rank for rank in of if rank is not None]
            for ranks in [*([named] if named else []), *([None] if None in of else [])]:
                silent = _request(folder, pt.FetchLogs(attempt=attempt, ranks=ranks))
                job.far = msgspec.structs.replace(far, silent=silent)


def fetch_evidence(view: JobView, name: str) -> None:
    """Fetch the nodes' evidence of that name; does nothing for a job on one machine."""
    if view.spec.placement is not None and view.is_live:
        _request(view.folder, pt.FetchEvidence(name=name))


def _request(folder: RunFolder, message: pt.FetchLogs | pt.FetchEvidence) -> tuple[str, ...]:
    """Send a request to the head; returns why hosts, or the head itself, did not answer."""
    try:
        silent = control.request(folder, message, pt.SilentHosts, 3 * ANSWER_S)
    except DdptopError as error:
        return (str(error),)
    return tuple(silent.why.values())


def _far(view: JobView, before: Far | None) -> Far:
    snapshot = view.snapshot
    if snapshot is None:
        return before or Far(0)
    folders = _folders(view.spec)
    ahead = {node.host: node.clock_offset_s or 0.0 for node in snapshot.nodes}
    return Far(
        attempt=snapshot.attempt or 0,
        ranks=tuple(rank.rank for rank in snapshot.ranks),
        hosts=tuple(rank.host for rank in snapshot.ranks),
        clocks=tuple(ahead.get(rank.host, 0.0) for rank in snapshot.ranks),
        silent=() if before is None else before.silent,
        folders=tuple(folders.get(rank.host) for rank in snapshot.ranks),
    )


def _folders(spec: JobSpec) -> dict[str, str]:
    """By host, the run folder of the node's part; `HOST:PATH` if only that host has it."""
    from ddptop_runner.launch.ssh import is_here
    from ddptop_runner.node.remote import node_job_id

    placement = spec.placement
    assert placement is not None  # the job is on several machines
    found = {}
    for index, node in enumerate(placement.nodes):
        if node.members is not None:
            path = f"{node.members}/{node_job_id(spec.job_id, index)}"
            is_away = placement.by == "ssh" and not is_here(node.host)
            found[node.host] = f"{node.host}:{path}" if is_away else path
    return found


FAR = FarFiles()
"""This process's instance."""
