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
ANSWER_S = 8.0


class Far(msgspec.Struct, frozen=True):
    """What is known about a job whose ranks run on several hosts."""

    attempt: int
    """The latest attempt."""
    ranks: tuple[int, ...] = ()
    """The ranks of that attempt."""
    hosts: tuple[str, ...] = ()
    """The hosts of these ranks, in the same order."""
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


class FarFiles:
    """Requests files in threads of their own, so that no reader waits for a link."""

    def __init__(self) -> None:
        self._known: dict[RunFolder, Far | None] = {}
        """None for a job on one machine."""
        self._due_s: dict[tuple[RunFolder, int | None, int | None], float] = {}
        """By folder, attempt, and rank, when that log may be requested again."""

    def want_log(self, folder: RunFolder, attempt: int | None, rank: int | None) -> Far | None:
        """Fetch what is new in a log, at most once a second; returns at once.

        Args:
            folder: the job's run folder.
            attempt: the log's attempt; None for the latest.
            rank: the log's rank; None for all ranks.

        Returns:
            What is known so far about a job on several hosts; None for a job on one.
        """
        known = self._known.get(folder)
        is_due = time.monotonic() >= self._due_s.get((folder, attempt, rank), 0.0)
        if is_due and (known is not None or folder not in self._known):
            self._due_s[folder, attempt, rank] = float("inf")

            def fetch() -> None:
                try:
                    self.fetch_log(folder, attempt, None if rank is None else [rank])
                finally:
                    self._due_s[folder, attempt, rank] = time.monotonic() + RENEW_S

            threading.Thread(target=fetch, name="far files", daemon=True).start()
        return known

    def fetch_log(
        self, folder: RunFolder, attempt: int | None, ranks: Sequence[int] | None
    ) -> Far | None:
        """Fetch what is new in logs; returns once that is done, with what is known then.

        Args:
            folder: the job's run folder.
            attempt: the attempt; None for the latest.
            ranks: the ranks; None for all.
        """
        far = self._known.get(folder)
        try:
            view = read_job(folder)
        except DdptopError:
            return far
        if view.spec.placement is None:
            far = None
        else:
            far = _far(view, far)
            if view.is_live:
                asked = pt.FetchLogs(
                    attempt=far.attempt if attempt is None else attempt,
                    ranks=None if ranks is None else list(ranks),
                )
                far = msgspec.structs.replace(far, silent=_request(folder, asked))
        self._known[folder] = far
        return far


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
    return Far(
        attempt=snapshot.attempt or 0,
        ranks=tuple(rank.rank for rank in snapshot.ranks),
        hosts=tuple(rank.host for rank in snapshot.ranks),
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
