"""Saves evidence (the stacks of every rank, the ends of all logs) before any signal is sent.

Stacks come from faulthandler in the rank itself (SIGRTMIN+9, at C level, so it works while Python
holds the GIL in a collective, and needs no ptrace permission). The signal is sent only if the probe
reported that it registered the handler and the kernel shows the signal as caught; otherwise, it
would end the rank.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ddptop_runner.base.files import stamp
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.host import procs, tree
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.judge.training import workers
from ddptop_runner.model.snapshot import ProcessId, RankStacks
from ddptop_runner.store.evidence_folder import written_by

POLL_S = 0.01
SETTLE_S = 0.15
"""A dump whose end does not show is complete once its file has not grown for this long."""
STACKS_TIMEOUT_S = 2.0
RECORDS_TIMEOUT_S = 1.0
"""A probe checks every quarter of a second."""


@dataclass
class _Dump:
    """Stacks that a process was asked to append to a file."""

    process: ProcessId
    number: int
    """The signal that asks for them."""
    path: Path
    offset: int
    shows_end: bool
    """Whether the signal mask of the main thread, which handles the signal, shows when it ends."""
    size: int
    """Of the file, at the last look."""

    def is_complete(self, quiet_s: float) -> bool:
        """Whether nothing more is to come, after so long without growth of any dump."""
        if not procs.is_alive(self.process):
            return True
        if self.size <= self.offset:
            return False
        if self.shows_end:
            return not procs.awaits_signal(self.process.pid, self.number)
        return quiet_s >= SETTLE_S


LOADERS_SHOWN = 8
"""Number of a rank's data loader processes whose stacks are saved."""


def stacks_file(folder: RunFolder, attempt: int, rank: int) -> Path:
    """The file to which a rank's faulthandler writes."""
    return folder.evidence_dir / "stacks" / f"attempt-{attempt}-rank-{rank}.txt"


async def ask_for_records(folder: RunFolder, attempt: int, records: Sequence[RankRecord]) -> None:
    """Have living ranks write their flight records; returns within `RECORDS_TIMEOUT_S`.

    A rank whose interpreter is blocked does not answer; one that left has written its own.
    """
    asked_of = [one for one in records if one.reported.collectives and _may_answer(one)]
    if not asked_of:
        return
    asked = folder.evidence_dir / "stacks" / f"attempt-{attempt}-records-asked"
    try:
        asked.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        asked.touch(mode=0o600)
        since_ns = asked.stat().st_mtime_ns
    except OSError:
        return
    deadline_s = asyncio.get_running_loop().time() + RECORDS_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline_s:
        awaited = (one for one in asked_of if _may_answer(one))
        paths = (written_by(folder, attempt, one.rank, "flight.json") for one in awaited)
        if all((stamp(path) or 0) >= since_ns for path in paths):
            return
        await asyncio.sleep(0.02)


def _may_answer(record: RankRecord) -> bool:
    """Whether a rank lives on; one that lost its connection to a dead rank may end meanwhile."""
    return record.alive and not record.leaving


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def collect_stacks(
    folder: RunFolder, attempt: int, records: Sequence[RankRecord]
) -> list[RankStacks]:
    """The Python stacks of each living rank; returns within `STACKS_TIMEOUT_S`.

    Those of a rank's loader processes are included if it waits for them, or if it is the only one.
    """
    dumps: dict[int, _Dump] = {}
    stacks: list[RankStacks] = []
    by_rank = {record.rank: record for record in records}
    for record in records:
        note = _why_not(record)
        if note is None and record.process is not None and record.reported.stack_signal is not None:
            path = stacks_file(folder, attempt, record.rank)
            dump = _ask_for_dump(record.process, record.reported.stack_signal, path)
            if dump is not None:
                dumps[record.rank] = dump
                continue
            note = "the process has exited"
        stacks.append(RankStacks(rank=record.rank, pid=record.pid, note=note))
    await _settled(list(dumps.values()))
    for rank, dump in dumps.items():
        text = _read_from(dump.path, dump.offset)
        note = None if text else "the rank did not respond in time"
        stacks.append(RankStacks(rank=rank, pid=dump.process.pid, text=text, note=note))
    with_loaders = [
        msgspec.structs.replace(entry, loader=await _loader_stacks(folder, attempt, record))
        if (record := by_rank[entry.rank]).reported.phase == "data" or len(records) == 1
        else entry
        for entry in stacks
    ]
    return sorted(with_loaders, key=lambda entry: entry.rank)


async def _loader_stacks(folder: RunFolder, attempt: int, record: RankRecord) -> str | None:
    """The stacks of the rank's data loader processes; None without any, or if none answers.

    A process forked by the rank has the rank's handler and writes to its file.
    """
    loaders = [] if record.usage is None else tree.data_loaders(record.usage.tree_pids)
    number = record.reported.stack_signal
    if not loaders or number is None:
        return None
    path, parts = stacks_file(folder, attempt, record.rank), []
    for pid in loaders[:LOADERS_SHOWN]:
        known = procs.identify(pid)
        text = dump = None
        if tree.descends_from(pid, record.pid or 0) and procs.catches_signal(pid, number):
            dump = _ask_for_dump(known, number, path)
        if dump is not None:
            await _settled([dump])
            text = _read_from(path, dump.offset)
        fields = procs.stat_fields(pid)
        is_in_kernel = fields is not None and fields[0] == "D"
        parts.append(
            f"{workers.HEADER}{pid} {workers.IN_DISK_SLEEP if is_in_kernel else '---'}\n"
            + (text or "no stacks: the process is not responding")
        )
    return "\n".join(parts)


def _why_not(record: RankRecord) -> str | None:
    if not record.alive or record.pid is None:
        return "the rank has exited" if record.exit else "the rank has not started"
    if record.usage is not None and record.usage.state_letter in "Tt":
        return "the rank is paused (SIGSTOP) and cannot respond"
    if record.reported.stack_signal is None:
        return "this rank has no active probe"
    if not procs.catches_signal(record.pid, record.reported.stack_signal):
        return "the rank no longer handles the probe's signal"
    return None


def _ask_for_dump(process: ProcessId, number: int, path: Path) -> _Dump | None:
    """Ask for stacks at the end of a file; None if the process is gone."""
    size = _size(path)
    dump = _Dump(process, number, path, size, not procs.blocks_signal(process.pid, number), size)
    return dump if procs.signal_process(process, number) else None


async def _settled(dumps: Sequence[_Dump]) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + STACKS_TIMEOUT_S
    quiet_since_s = loop.time()
    while dumps and loop.time() < deadline_s:
        await asyncio.sleep(POLL_S)
        sizes = [_size(dump.path) for dump in dumps]
        if sizes != [dump.size for dump in dumps]:
            quiet_since_s = loop.time()
            for dump, size in zip(dumps, sizes, strict=True):
                dump.size = size
        elif all(dump.is_complete(loop.time() - quiet_since_s) for dump in dumps):
            return


def _read_from(path: Path, offset: int) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode("utf-8", "replace") or None
    except OSError:
        return None
