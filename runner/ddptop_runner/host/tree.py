"""Reads process trees, and measures their CPU time and memory.

`UsageMeter` measures the ranks of own and foreign jobs.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import ProcessId

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SEEN_LIMIT = 4096
"""Beyond this many, ended processes are discarded: a rank may start one every second."""
LISTED_PER_LOOK = 128
"""With more ranks, their children and I/O are read in turn, not in each reading."""
LOADER_NAME = "pt_data_worker"
"""The name that torch gives to processes of a data loader."""

Key = TypeVar("Key", bound=Hashable)


def children_of(pid: int) -> list[int]:
    """Pids of the direct children of every thread of `pid`."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - hot
                found.extend(int(child) for child in file.read().split())
        except OSError:
            continue
    return found


def descendants_of(pid: int, without: Collection[int] = ()) -> list[int]:
    """Pids of all living descendants of `pid`, parents before children.

    Args:
        pid: the process.
        without: processes to leave out, with their descendants.
    """
    found: list[int] = []
    frontier = [pid]
    while frontier:
        children = (child for parent in frontier for child in children_of(parent))
        frontier = [child for child in children if child not in without]
        found.extend(frontier)
    return found


def ancestors_of(pid: int) -> Iterator[int]:
    """Parent, grandparent, and so on, up to and including the first process."""
    seen = {pid}
    while pid > 1 and (fields := procs.stat_fields(pid)) is not None:
        pid = int(fields[1])
        if pid < 1 or pid in seen:  # in another namespace, or reused meanwhile
            return
        seen.add(pid)
        yield pid


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether a living process is a descendant of another."""
    return ancestor in ancestors_of(pid)


def launchers_of(ranks: Collection[int], everyone: Iterable[ProcessId]) -> list[int]:
    """The job's processes above its ranks that are not ranks themselves, topmost first."""
    ours = {process.pid for process in everyone}
    found: dict[int, None] = {}
    for rank in ranks:
        above = list(takewhile(ours.__contains__, ancestors_of(rank)))
        found.update(dict.fromkeys(pid for pid in reversed(above) if pid not in ranks))
    return list(found)


@dataclass(frozen=True)
class RankUsage:
    """A process with its tree at one moment."""

    cpu_percent: float | None
    """Share of one core since the previous reading; None in the first."""
    rss_bytes: int
    """Sum over the tree: pages shared between its processes count once for each."""
    state_letter: str
    """Of the process itself, as in ps(1)."""
    tree_pids: tuple[int, ...]
    """The process and its descendants."""
    cpu_s: float = 0.0
    """CPU time of the living tree since its processes started."""
    start_ticks: int = 0
    """When the process itself started."""
    children_rss_bytes: int = 0
    """The part of `rss_bytes` that its descendants have."""
    written_bytes: int | None = None
    """By the rank's own process, from /proc/<pid>/io; None if unreadable."""


class UsageMeter(Generic[Key]):
    """Measures CPU and memory of process trees between two readings."""

    def __init__(self) -> None:
        self.ticks: dict[int, tuple[int, int]] = {}
        """(start, CPU time) by pid of each process in the last reading."""
        self._looked_at_s: float | None = None

    def look(self, trees: Mapping[Key, Sequence[int]], now_s: float) -> dict[Key, RankUsage]:
        """The usage of each tree whose first process exists.

        Args:
            trees: pids, the process itself first.
            now_s: the time on a monotonic clock.
        """
        elapsed_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        before, self.ticks = self.ticks, {}
        found = {}
        for key, tree in trees.items():
            usage = self._of_tree(tuple(tree), before, elapsed_s)
            if usage is not None:
                found[key] = usage
        return found

    def _of_tree(
        self, tree: tuple[int, ...], before: Mapping[int, tuple[int, int]], elapsed_s: float
    ) -> RankUsage | None:
        own: list[str] | None = None
        used, total, rss_bytes = list[int](), 0, 0
        for pid in tree:
            fields = procs.stat_fields(pid)
            if fields is None:
                continue
            if pid == tree[0]:
                own = fields
            started, ticks = int(fields[19]), int(fields[11]) + int(fields[12])
            self.ticks[pid] = (started, ticks)
            total += ticks
            rss_bytes += int(fields[21]) * _PAGE_BYTES
            earlier = before.get(pid)
            if earlier is not None and earlier[0] == started:
                used.append(ticks - earlier[1])
        if own is None:
            return None
        percent = (
            100.0 * sum(used) / procs.TICKS_PER_S / elapsed_s if used and elapsed_s > 0 else None
        )
        cpu_s = total / procs.TICKS_PER_S
        return RankUsage(
            percent,
            rss_bytes,
            own[0],
            tree,
            cpu_s,
            start_ticks=int(own[19]),
            children_rss_bytes=rss_bytes - int(own[21]) * _PAGE_BYTES,
        )


class HostUsage:
    """Measures a job's ranks, and records all processes in their trees."""

    def __init__(self) -> None:
        self._meter = UsageMeter[int]()
        self.seen: dict[int, ProcessId] = {}
        """The processes found in ranks' trees, which may have to be ended with them."""
        self._trees: dict[int, tuple[int, ...]] = {}
        self._written: dict[int, int | None] = {}
        self._looks = 0

    def look(self, rank_pids: dict[int, int]) -> dict[int, RankUsage]:
        """The usage of each rank whose process exists.

        A rank that starts other ranks (the first of Lightning) is measured without them,
        `paths.LAUNCHER` with all its descendants.

        Args:
            rank_pids: {rank: pid} of the living ranks.
        """
        before, self._trees = self._trees, {}
        turns = -(-len(rank_pids) // LISTED_PER_LOOK)
        self._looks += 1
        ranks = {pid for rank, pid in rank_pids.items() if rank != LAUNCHER}
        listed = list[int]()
        for rank, pid in rank_pids.items():
            tree = before.get(rank)
            if tree is None or tree[0] != pid or (self._looks + rank) % turns == 0:
                without = () if rank == LAUNCHER else ranks
                tree = (pid, *descendants_of(pid, without))
                self._written[rank] = procs.written_bytes(pid)
                listed += tree
            self._trees[rank] = tree
        found = self._meter.look(self._trees, boottime_s())
        for pid in listed:  # in the other trees, another process may have taken a pid
            if pid not in self._meter.ticks:
                continue
            started = self._meter.ticks[pid][0]
            known = self.seen.get(pid)
            if known is None or known.start_ticks != started:
                self.seen[pid] = procs.identity(pid, started)
        if len(self.seen) > SEEN_LIMIT:
            self.seen = {p.pid: p for p in self.seen.values() if procs.is_alive(p)}
        return {
            rank: dataclasses.replace(usage, written_bytes=self._written[rank])
            for rank, usage in found.items()
        }


def data_loaders(tree_pids: Sequence[int]) -> list[int]:
    """The processes of a rank's data loader, in the tree of the rank."""
    named = {pid: procs.name_and_stat(pid) for pid in tree_pids[1:]}
    return [pid for pid, one in named.items() if one is not None and one[0] == LOADER_NAME]
