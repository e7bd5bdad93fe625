"""The processes of a host as a tree, with the jobs found so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddptop_runner.foreign.arguments import (
    FRAMEWORKS,
    is_fork_server,
    is_helper,
    is_python,
    is_shell,
    is_shell_command,
    is_spawned,
    is_tool,
    is_wrapper,
    launcher_kind,
)
from ddptop_runner.foreign.process_table import is_distributed
from ddptop_runner.foreign.types import Launcher, ProcessFacts, RankEvidence

MAX_ANCESTORS = 128
"""Looked at of one process: nobody's launchers stand deeper, but a chain of forks may."""


@dataclass
class RankDraft:
    """A rank that was recognised."""

    process: ProcessFacts
    rank: int
    local_rank: int
    evidence: RankEvidence
    restart_count: int | None = None


@dataclass
class JobDraft:
    """A job while it is put together."""

    launcher: Launcher
    ranks: list[RankDraft]
    launchers: list[ProcessFacts] = field(default_factory=list)
    """From the root down; empty when no launcher is there."""
    world_size: int | None = None
    rendezvous: str | None = None
    extras: list[ProcessFacts] = field(default_factory=list)
    """Helpers that stand below no rank."""
    notes: list[str] = field(default_factory=list)


class Tree:
    """The host's processes by pid and by parent, without ddptop's own."""

    def __init__(
        self,
        facts: Iterable[ProcessFacts],
        device_pids: Mapping[int, Sequence[str]],
        own_pids: Collection[int] = (),
    ) -> None:
        by_pid = {process.pid: process for process in facts}
        children: dict[int, list[ProcessFacts]] = defaultdict(list)
        for process in sorted(by_pid.values(), key=start_order):
            if process.ppid != process.pid:
                children[process.ppid].append(process)
        self._children = children
        own = set(own_pids)
        for pid in own_pids:
            own.update(process.pid for process in self.descendants(pid))
        self.by_pid = {pid: process for pid, process in by_pid.items() if pid not in own}
        self.own = own
        self._device_pids = device_pids
        self._has_rank_workers: dict[int, bool] = {}
        self._members: set[int] = set()
        self._above: set[int] = set()
        """Members below whom no other job can stand."""

    def take(self, drafts: Iterable[JobDraft]) -> None:
        """Remember the members of these jobs, so that no other job gets them."""
        for draft in drafts:
            inner = {rank.process.pid for rank in draft.ranks}
            inner.update(process.pid for process in draft.extras)
            self._members |= inner | {process.pid for process in draft.launchers}
            if draft.launcher == "mp.spawn":  # its managers and pools are no trainings
                inner.update(process.pid for process in draft.launchers)
            self._above |= inner

    def is_taken(self, process: ProcessFacts) -> bool:
        """Whether it belongs to a job already, or stands below a rank of one."""
        if process.pid in self._members:
            return True
        return any(above.pid in self._above for above in self.ancestors(process))

    @property
    def members(self) -> frozenset[int]:
        """Pids of all ranks and launchers that were taken."""
        return frozenset(self._members)

    def children(self, pid: int) -> list[ProcessFacts]:
        """The direct children in the order of their start."""
        return self._children.get(pid, [])

    def descendants(self, pid: int, stop: Collection[int] = ()) -> Iterator[ProcessFacts]:
        """All below `pid`, parents first; those in `stop` and what is below them left out."""
        visited = {pid}  # a pid that was reused during the scan could close a circle
        frontier = [pid]
        while frontier:
            below = []
            for parent in frontier:
                for child in self.children(parent):
                    if child.pid not in visited and child.pid not in stop:
                        visited.add(child.pid)
                        below.append(child.pid)
                        yield child
            frontier = below

    def ancestors(self, process: ProcessFacts) -> Iterator[ProcessFacts]:
        """Parent, grandparent and so on, as far as they can be seen."""
        visited = {process.pid}
        while (parent := self.by_pid.get(process.ppid)) is not None and parent.pid not in visited:
            if len(visited) > MAX_ANCESTORS:
                return
            visited.add(parent.pid)
            yield parent
            process = parent

    def devices(self, process: ProcessFacts) -> tuple[str, ...]:
        """UUIDs of the devices that the process holds."""
        return tuple(self._device_pids.get(process.pid, ()))

    def can_be_rank(self, process: ProcessFacts) -> bool:
        """Whether it could train at all: no launcher, shell, wrapper, tracker or tool."""
        if not is_python(process) and not (process.libraries or frozenset()) & FRAMEWORKS:
            return False
        if is_helper(process) or is_shell(process) or is_wrapper(process):
            return False
        return launcher_kind(process) is None

    def weight(self, process: ProcessFacts) -> tuple[bool, bool, bool, bool]:
        """How much speaks for a process as the one that trains; compare with `max`."""
        return (
            process.state not in "ZX",
            is_distributed(process),
            bool(self.devices(process)),
            bool((process.libraries or frozenset()) & FRAMEWORKS),
        )

    def workers(self, parent: ProcessFacts) -> list[ProcessFacts]:
        """Children that run the parent's own program as multiprocessing starts them, oldest first.

        Spawned ones, copies by fork, and what its fork server forked; data loader workers and
        trackers are left out.
        """
        found = []
        for child in self.children(parent.pid):
            if child.pid in self.own or is_helper(child):
                continue
            if is_fork_server(child):
                found += [
                    worker
                    for worker in self.children(child.pid)
                    if worker.argv == child.argv and not is_helper(worker)
                ]
            elif is_spawned(child) or is_copy(child, parent):
                found.append(child)
        return sorted(found, key=start_order)

    def has_rank_workers(self, parent: ProcessFacts) -> bool:
        """Whether its workers are the ranks: they train, and it does not."""
        if parent.pid not in self._has_rank_workers:  # each of many children asks
            self._has_rank_workers[parent.pid] = self._look_for_rank_workers(parent)
        return self._has_rank_workers[parent.pid]

    def _look_for_rank_workers(self, parent: ProcessFacts) -> bool:
        if is_distributed(parent) or not is_python(parent) or launcher_kind(parent) is not None:
            return False
        workers = self.workers(parent)
        if any(is_distributed(worker) for worker in workers):
            return True
        on_device = sum(bool(self.devices(worker)) for worker in workers)
        return on_device >= 2 and not self.devices(parent)

    def launch_chain(
        self, first_rank: ProcessFacts, any_program: bool = False
    ) -> list[ProcessFacts]:
        """Launchers, runners and shells above a rank, from the topmost down.

        Args:
            first_rank: where to start.
            any_program: whether a Python program that is no known launcher counts as one: those
                who use torch elastic or `subprocess` themselves.
        """
        chain: list[ProcessFacts] = []
        certain = 0  # so many of them are launchers, or lead to one
        for process in self.ancestors(first_rank):
            kind = launcher_kind(process)
            if kind == "srun" and certain:
                break  # it started the batch script, not the ranks
            if kind is not None:
                chain.append(process)
                certain = len(chain)
            elif is_wrapper(process):
                chain.append(process)
                certain = len(chain) if certain == len(chain) - 1 else certain
            elif is_shell_command(process) or is_spawned(process):
                chain.append(process)
            elif is_shell(process) and not certain:
                chain.append(process)  # mpirun bash run.sh
            elif any_program and not certain and is_python(process) and not is_tool(process):
                chain.append(process)
                certain = len(chain)
            else:
                break
        return chain[:certain][::-1]


def start_order(process: ProcessFacts) -> tuple[int, int]:
    """Sorts processes by their start."""
    return (process.start_ticks, process.pid)


def is_copy(child: ProcessFacts, parent: ProcessFacts) -> bool:
    """Whether the child was forked from the parent and executed nothing else."""
    return bool(child.argv) and child.argv == parent.argv and child.program == parent.program
