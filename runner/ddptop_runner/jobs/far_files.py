"""Logs and evidence that lie on other hosts: asks the job's head to bring them here.

The head writes them to the usual paths (`node.fetch`) for as long as they are asked for, so readers
of logs read local files and call `want_log` now and then. On one machine that does nothing.
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
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.node import control

RENEW_S = 5.0
"""How often the head is asked again; what it was asked for, it follows for longer."""
FORGET_S = 10.0
"""What a reader has not wanted for so long is not asked for again."""
ANSWER_S = 8.0


class Far(msgspec.Struct, frozen=True):
    """What is known of a job whose ranks run on several hosts."""

    attempt: int
    """The latest."""
    ranks: tuple[int, ...] = ()
    """Of that attempt."""
    hosts: tuple[str, ...] = ()
    """Of these ranks, in their order."""
    clocks: tuple[float, ...] = ()
    """By how many seconds each of these hosts' clocks is ahead of this one's."""
    silent: tuple[str, ...] = ()
    """Why hosts did not answer when their files were asked for."""
    folders: tuple[str | None, ...] = ()
    """Where each of these ranks writes; `HOST:PATH` if not on this file system; None: unknown."""

    def left_there(self, attempt: int, rank: int) -> str | None:
        """Where the part of a log that was not fetched may be, and how to get it."""
        folder = dict(zip(self.ranks, self.folders, strict=False)).get(rank)
        if folder is None:
            return None
        log = RunFolder(Path(folder)).log_file(attempt, rank)
        host, is_away, path = str(log).partition(":/")
        return f"may be on {host}: ssh {host} cat /{path}" if is_away else f"may be in {log}"


class _Wish(msgspec.Struct):
    """What readers of one job's logs want."""

    wanted: dict[tuple[int | None, int | None], float]
    """By attempt (None: the latest) and rank (None: all), when that was wanted last."""
    far: Far | None = None
    is_far: bool | None = None
    """Whether the job is on several machines; None until that is known."""


class FarFiles:
    """Asks in a thread of its own, so that no reader waits for a link."""

    def __init__(self) -> None:
        self._wishes: dict[RunFolder, _Wish] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def want_log(self, folder: RunFolder, attempt: int | None, rank: int | None) -> Far | None:
        """Want a log for some seconds from now on.

        Args:
            folder: the job's.
            attempt: of the log; None is the latest.
            rank: whose; None is that of every rank.

        Returns:
            What is known by now of a job on several hosts; None of a job on one.
        """
        with self._lock:
            wish = self._wishes.setdefault(folder, _Wish({}))
            if wish.is_far is False:
                return None
            is_new = (attempt, rank) not in wish.wanted
            wish.wanted[attempt, rank] = time.monotonic()
        if is_new:
            self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="far files", daemon=True)
            self._thread.start()
        return wish.far

    def fetch_log(
        self, folder: RunFolder, attempt: int | None, ranks: Sequence[int] | None
    ) -> Far | None:
        """As `want_log`, but waits until there is a first look."""
        for rank in [None] if ranks is None else ranks:
            self.want_log(folder, attempt, rank)
        wish = self._wishes[folder]
        if wish.is_far is not False:
            self._ask(folder, wish)
        return wish.far

    def _run(self) -> None:
        while True:
            self._wake.wait(RENEW_S)
            self._wake.clear()
            for folder, wish in list(self._wishes.items()):
                if wish.wanted:
                    self._ask(folder, wish)

    def _ask(self, folder: RunFolder, wish: _Wish) -> None:
        with self._lock:
            since_s = time.monotonic() - FORGET_S
            wish.wanted = {key: at_s for key, at_s in wish.wanted.items() if at_s > since_s}
            wanted = list(wish.wanted)
        try:
            view = read_job(folder)
        except DdptopError:
            return
        wish.is_far = view.spec.placement is not None
        if not wish.is_far:
            wish.wanted = {}
            return
        wish.far = far = _far(view, wish.far)
        if not view.is_live:
            return
        by_attempt: dict[int, list[int | None]] = {}
        for attempt, rank in wanted:
            by_attempt.setdefault(far.attempt if attempt is None else attempt, []).append(rank)
        for attempt, of in by_attempt.items():
            alone = [rank for rank in of if rank is not None]
            for ranks in [*([alone] if alone else []), *([None] if None in of else [])]:
                silent = _request(folder, "fetch_log", attempt=attempt, ranks=ranks)
                wish.far = msgspec.structs.replace(far, silent=silent)


def fetch_evidence(view: JobView, name: str) -> None:
    """Bring what nodes kept under that name below `evidence/`; nothing of a job on one machine."""
    if view.spec.placement is not None and view.is_live:
        _request(view.folder, "fetch_evidence", name=name)


def _request(folder: RunFolder, op: str, **arguments: object) -> tuple[str, ...]:
    """Why hosts are silent, or the head."""
    try:
        answer = control.request(folder, op, 3 * ANSWER_S, **arguments)
    except DdptopError as error:
        return (str(error),)
    silent = answer.get("silent")
    return tuple(map(str, silent.values())) if isinstance(silent, dict) else ()


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
    """By host, the run folder of a node's part; `HOST:PATH` where only its host has it."""
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
"""Of this process."""
