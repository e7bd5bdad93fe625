"""CPU and resident memory of each rank with its descendants, from /proc."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.base.paths import LAUNCHER
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import ProcessId

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SEEN_LIMIT = 4096
"""Beyond this many, processes that ended are forgotten: a rank may start one every second."""


LOADER_NAME = "pt_data_worker"
"""What torch names the processes of a data loader."""


@dataclass(frozen=True)
class LoaderUsage:
    """A rank's data loader processes at one moment."""

    pids: tuple[int, ...]
    cpu_s: float
    """CPU time since they started."""
    io_bytes: int | None
    """Read and written since then; None where it cannot be read of all of them."""
    waits_for_disk: bool
    """Whether one of them is in uninterruptible sleep."""


@dataclass(frozen=True)
class RankUsage:
    """One rank at one moment."""

    cpu_percent: float | None
    """Of one core, over the time since the last look; None at the first."""
    rss_bytes: int
    """Sum over the tree: pages shared between its processes count once for each."""
    state_letter: str
    """Of the rank's own process, as in ps(1)."""
    tree_pids: tuple[int, ...]
    """The rank and its descendants."""
    cpu_s: float = 0.0
    """CPU time of the living tree since its processes started."""
    written_bytes: int | None = None
    """By the rank's own process, from /proc/<pid>/io; None where that cannot be read."""
    loader: LoaderUsage | None = None
    """Only looked at while the rank waits for its data loader; None where that has no processes."""


class HostUsage:
    """Remembers CPU ticks between looks, and every process seen in a rank's tree."""

    def __init__(self) -> None:
        self._ticks: dict[int, tuple[int, int]] = {}
        self._looked_at_s: float | None = None
        self.seen: dict[int, ProcessId] = {}
        """The processes seen in ranks' trees: what may have to be ended with them."""

    def look(
        self, rank_pids: dict[int, int], loading: Collection[int] = ()
    ) -> dict[int, RankUsage]:
        """Usage by rank; ranks whose process is gone are left out.

        A rank that started others (Lightning's first) is told without them; `model.LAUNCHER` with
        all that it started.

        Args:
            rank_pids: {rank: pid} of the living ranks.
            loading: ranks that wait for their data loader.
        """
        now_s = boottime_s()
        elapsed_s = None if self._looked_at_s is None else now_s - self._looked_at_s
        self._looked_at_s = now_s
        ticks: dict[int, tuple[int, int]] = {}
        usage = {}
        ranks = {pid for rank, pid in rank_pids.items() if rank != LAUNCHER}
        for rank, pid in rank_pids.items():
            others = frozenset() if rank == LAUNCHER else ranks
            tree = (pid, *procs.descendants_of(pid, without=others))
            found = self._look_at_tree(tree, ticks, elapsed_s)
            if found is not None and rank in loading:
                found = dataclasses.replace(found, loader=_loader_of(tree))
            if found is not None:
                usage[rank] = found
        self._ticks = ticks
        if len(self.seen) > SEEN_LIMIT:
            self.seen = {p.pid: p for p in self.seen.values() if procs.is_alive(p)}
        return usage

    def _look_at_tree(
        self, tree: tuple[int, ...], ticks: dict[int, tuple[int, int]], elapsed_s: float | None
    ) -> RankUsage | None:
        used_ticks = tree_ticks = 0
        rss_bytes = 0
        letter = None
        known_before = False
        for pid in tree:
            fields = procs.stat_fields(pid)
            if fields is None:
                continue
            if pid == tree[0]:
                letter = fields[0]
            started, total = int(fields[19]), int(fields[11]) + int(fields[12])
            tree_ticks += total
            rss_bytes += int(fields[21]) * _PAGE_BYTES
            ticks[pid] = (started, total)
            self._remember(pid, started)
            before = self._ticks.get(pid)
            if before is not None and before[0] == started:
                used_ticks += total - before[1]
                known_before = True
        if letter is None:
            return None
        cpu_percent = None
        if known_before and elapsed_s:
            cpu_percent = 100.0 * used_ticks / _TICKS_PER_S / elapsed_s
        return RankUsage(
            *(cpu_percent, rss_bytes, letter, tree),
            cpu_s=tree_ticks / _TICKS_PER_S,
            written_bytes=procs.written_bytes(tree[0]),
        )

    def _remember(self, pid: int, started: int) -> None:
        known = self.seen.get(pid)
        if known is None or known.start_ticks != started:
            self.seen[pid] = ProcessId(
                host=procs.host_name(),
                boot_id=procs.boot_id(),
                pid_ns=procs.pid_namespace(),
                pid=pid,
                start_ticks=started,
            )


def _loader_of(tree: Sequence[int]) -> LoaderUsage | None:
    pids, ticks, io = [], 0, list[int | None]()
    waits_for_disk = False
    for pid in tree[1:]:
        named = procs.name_and_stat(pid)
        if named is None or named[0] != LOADER_NAME:
            continue
        fields = named[1]
        pids.append(pid)
        ticks += int(fields[11]) + int(fields[12])
        io.append(procs.io_bytes(pid))
        waits_for_disk |= fields[0] == "D"
    if not pids:
        return None
    known = [one for one in io if one is not None]
    io_bytes = sum(known) if len(known) == len(pids) else None
    return LoaderUsage(tuple(pids), ticks / _TICKS_PER_S, io_bytes, waits_for_disk)
