"""Groups processes into training jobs, and lists unreadable processes that may be training. Pure.

The strongest evidence comes first, and weaker evidence only sees the processes that are left:
variables set by launchers, Lightning's children, workers of one script, sockets, single processes.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.foreign.arguments import (
    FRAMEWORKS,
    command_line,
    is_fork_server,
    is_helper,
    is_kernel,
    is_python,
    is_shell,
    is_shell_command,
    is_spawned,
    is_tool,
    is_wrapper,
    launched_script,
    launcher_kind,
    option_number,
    python_target,
    stem_of,
)
from ddptop_runner.foreign.environment import (
    Claim,
    Scheme,
    claim_of,
    node_rank,
    rendezvous_of,
    whole_number,
)
from ddptop_runner.foreign.process_table import is_distributed
from ddptop_runner.foreign.types import (
    ForeignJob,
    ForeignRank,
    Launcher,
    ProcessFacts,
    RankEvidence,
    Unreadable,
)
from ddptop_runner.host import procs
from ddptop_runner.store.log_clean import sanitize

MAX_ANCESTORS = 128
"""Ancestors examined per process: launchers are not nested deeper, but a fork chain may be."""


@dataclass
class JobDraft:
    """A job under construction."""

    launcher: Launcher
    ranks: list[ForeignRank]
    """Without their helpers."""
    launchers: list[ProcessFacts] = field(default_factory=list)
    """From the root down; empty without a launcher."""
    world_size: int | None = None
    rendezvous: str | None = None
    extras: list[ProcessFacts] = field(default_factory=list)
    """Helpers that do not descend from a rank."""
    notes: list[str] = field(default_factory=list)


class Tree:
    """One user's processes by pid and by parent, except those of ddptop's own jobs."""

    def __init__(
        self,
        everyone: Mapping[int, ProcessFacts],
        theirs: Iterable[ProcessFacts],
        device_pids: Mapping[int, Sequence[str]],
        own_pids: Collection[int] = (),
    ) -> None:
        """Only ancestors may be another user's: a daemon above shows that Slurm started them."""
        self._everyone = everyone
        self._children: dict[int, list[ProcessFacts]] = defaultdict(list)
        processes = sorted(theirs, key=start_order)
        for process in processes:
            if process.ppid != process.pid:
                self._children[process.ppid].append(process)
        self.own = set(own_pids)
        for pid in own_pids:
            self.own.update(process.pid for process in self.descendants(pid))
        self.by_pid = {one.pid: one for one in processes if one.pid not in self.own}
        self._device_pids = device_pids
        self._has_rank_workers: dict[int, bool] = {}
        self.members: set[int] = set()
        """Pids of all ranks and launchers of jobs found so far."""
        self._above: set[int] = set()
        """Members whose descendants cannot belong to another job."""

    def take(self, drafts: Iterable[JobDraft]) -> None:
        """Reserve the members of these jobs so that no other job gets them."""
        for draft in drafts:
            inner = {rank.pid for rank in draft.ranks}
            inner.update(process.pid for process in draft.extras)
            self.members |= inner | {process.pid for process in draft.launchers}
            if draft.launcher == "mp.spawn":  # its managers and pools are not training
                inner.update(process.pid for process in draft.launchers)
            self._above |= inner

    def is_taken(self, process: ProcessFacts) -> bool:
        """Whether it already belongs to a job or descends from a rank of one."""
        if process.pid in self.members:
            return True
        return any(above.pid in self._above for above in self.ancestors(process))

    def children(self, pid: int) -> list[ProcessFacts]:
        """The direct children, in order of start."""
        return self._children.get(pid, [])

    def descendants(self, pid: int, stop: Collection[int] = ()) -> Iterator[ProcessFacts]:
        """All processes below `pid`, parents first, except those in `stop` and below."""
        visited = {pid}  # a pid reused during the scan could close a cycle
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

    def pids_below(self, pid: int) -> list[int]:
        """Pids of the descendants that are not members of any job, in order of start."""
        return [one.pid for one in sorted(self.descendants(pid, self.members), key=start_order)]

    def ancestors(self, process: ProcessFacts) -> Iterator[ProcessFacts]:
        """Parent, grandparent, and so on, as far as visible."""
        visited = {process.pid}
        while (parent := self._everyone.get(process.ppid)) and parent.pid not in visited:
            if parent.pid in self.own or len(visited) > MAX_ANCESTORS:
                return
            visited.add(parent.pid)
            yield parent
            process = parent

    def devices(self, process: ProcessFacts) -> tuple[str, ...]:
        """UUIDs of the devices that the process holds."""
        return tuple(self._device_pids.get(process.pid, ()))

    def rank(
        self,
        process: ProcessFacts,
        rank: int,
        local_rank: int,
        evidence: RankEvidence,
        restart_count: int | None = None,
    ) -> ForeignRank:
        """The rank for a recognized process."""
        return ForeignRank(
            rank=rank,
            local_rank=local_rank,
            pid=process.pid,
            start_ticks=process.start_ticks,
            evidence=evidence,
            devices=self.devices(process),
            visible_devices=(process.environ or {}).get("CUDA_VISIBLE_DEVICES"),
            restart_count=restart_count,
        )

    def can_be_rank(self, process: ProcessFacts) -> bool:
        """Whether it could train: not a launcher, shell, wrapper, tracker, or tool."""
        if not is_python(process) and not (process.libraries or frozenset()) & FRAMEWORKS:
            return False
        if is_helper(process) or is_shell(process) or is_wrapper(process):
            return False
        return launcher_kind(process) is None

    def weight(self, process: ProcessFacts) -> tuple[bool, bool, bool, bool]:
        """Strength of the evidence that a process is the one that trains; compare with `max`."""
        return (
            process.state not in "ZX",
            is_distributed(process),
            bool(self.devices(process)),
            bool((process.libraries or frozenset()) & FRAMEWORKS),
        )

    def workers(self, parent: ProcessFacts) -> list[ProcessFacts]:
        """Children that multiprocessing started with the parent's program, oldest first.

        Includes spawned and forked children and those from its fork server, but not data loader
        workers and trackers.
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
        if parent.pid not in self._has_rank_workers:  # called for each of many children
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
        """The same user's launchers, runners, and shells above a rank, from the top down.

        Args:
            first_rank: where to start.
            any_program: whether a Python program that is not a known launcher counts as one, as
                some use torch elastic or `subprocess` themselves.
        """
        chain: list[ProcessFacts] = []
        certain = 0  # the number of those that are launchers or lead to one
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
        return [one for one in reversed(chain[:certain]) if one.uid == first_rank.uid]


def start_order(process: ProcessFacts) -> tuple[int, int]:
    """Sort key: the start of a process."""
    return (process.start_ticks, process.pid)


def is_copy(child: ProcessFacts, parent: ProcessFacts) -> bool:
    """Whether the child was forked from the parent and did not execute another program."""
    return bool(child.argv) and child.argv == parent.argv and child.program == parent.program


NO_LAUNCHER = "its launcher has exited: the ranks keep running unsupervised"

MAX_NAMED = 16
"""Most ranks without a process to list."""

_STARTED_BY: dict[Scheme, Launcher] = {
    "elastic": "torchrun",
    "horovod": "horovod",
    "deepspeed": "deepspeed",
    "mpi": "mpirun",
    "pmi": "mpirun",
    "slurm": "srun",
    "manual": "python",
    "lightning": "lightning",
    "tf_config": "MirroredStrategy",
}
_HAS_LAUNCHER: frozenset[Scheme] = frozenset({"elastic", "horovod", "deepspeed", "mpi", "pmi"})
"""Schemes whose ranks descend from a launcher on the same host."""


@dataclass(frozen=True)
class _Claimed:
    """A process that can be a rank, and its environment's claim."""

    process: ProcessFacts
    claim: Claim


def jobs_by_environment(tree: Tree) -> list[JobDraft]:
    """Jobs of every scheme except Lightning's, which sets no variables for its first rank."""
    groups: dict[tuple[object, ...], list[_Claimed]] = defaultdict(list)
    for process in tree.by_pid.values():
        claim = claim_of(process)
        if claim is None or claim.scheme == "lightning" or not tree.can_be_rank(process):
            continue
        if claim.scheme == "manual" and _leads_ranks(tree, process):
            continue  # its variables are the host's; its workers are the ranks
        anchor = claim.job or (_launcher_pid(tree, process),)
        groups[claim.scheme, anchor].append(_Claimed(process, claim))
    drafts = []
    for group in groups.values():
        for part in _parts(tree, _first_of_each_chain(tree, group)):
            draft = _draft(tree, part)
            if draft is not None:
                drafts.append(draft)
    return drafts


def _leads_ranks(tree: Tree, process: ProcessFacts) -> bool:
    """Whether this process or an ancestor starts ranks as its workers."""
    return any(tree.has_rank_workers(one) for one in (process, *tree.ancestors(process)))


def _launcher_pid(tree: Tree, process: ProcessFacts) -> int:
    """The launcher above, or whatever else the ranks of one job have in common."""
    above = (one.pid for one in tree.ancestors(process) if launcher_kind(one) is not None)
    return next(above, process.session)


def _first_of_each_chain(tree: Tree, group: Iterable[_Claimed]) -> list[_Claimed]:
    """The group without descendants of the same rank, which only inherited its variables."""
    ranks = {one.process.pid: one.claim.rank for one in group}
    return [
        one
        for one in group
        if all(ranks.get(above.pid) != one.claim.rank for above in tree.ancestors(one.process))
    ]


def _parts(tree: Tree, tops: Sequence[_Claimed]) -> list[dict[int, list[_Claimed]]]:
    """The claims by rank, in several parts if two launchers started the same rank.

    Agents of one job have different ranks. The same rank under two launchers means two jobs with
    the same address, as in two containers.
    """
    by_root: dict[int, dict[int, list[_Claimed]]] = defaultdict(lambda: defaultdict(list))
    for one in tops:
        chain = tree.launch_chain(one.process, any_program=one.claim.scheme == "elastic")
        by_root[chain[0].pid if chain else 0][one.claim.rank].append(one)
    parts: list[dict[int, list[_Claimed]]] = []
    for _, ranks in sorted(by_root.items()):
        host = next((part for part in parts if not part.keys() & ranks.keys()), None)
        if host is None:
            parts.append(dict(ranks))
        else:
            host.update(ranks)
    return parts


def _draft(tree: Tree, by_rank: dict[int, list[_Claimed]]) -> JobDraft | None:
    chosen = [
        max(claimed, key=lambda one: (tree.weight(one.process), -one.process.start_ticks))
        for _, claimed in sorted(by_rank.items())
    ]
    claim = chosen[0].claim
    if claim.scheme == "slurm" and not claim.job[1] and len(chosen) == 1:
        return None  # the variables are the batch script's: it started no second process
    any_program = claim.scheme == "elastic" or (claim.scheme == "manual" and len(chosen) > 1)
    launchers, without = _launchers(tree, chosen, any_program)
    draft = JobDraft(
        launcher=_launcher_name(chosen[0], launchers),
        ranks=[
            tree.rank(
                one.process,
                one.claim.rank,
                one.claim.local_rank,
                "environment",
                one.claim.restart_count,
            )
            for one in chosen
        ],
        launchers=launchers,
        extras=[
            other.process
            for claimed in by_rank.values()
            for other in claimed
            if other not in chosen
        ],
        world_size=claim.world_size,
        rendezvous=next((one.claim.rendezvous for one in chosen if one.claim.rendezvous), None),
    )
    if claim.scheme in _HAS_LAUNCHER and without:
        draft.notes.append(NO_LAUNCHER if len(without) == len(chosen) else _partly_gone(without))
    if draft.launcher == "ddptop":
        name, _, nonce = (chosen[0].process.environ or {})["DDPTOP_JOB_ID"].rpartition("@")
        where = "in another state folder"
        if "." in nonce:  # a node's part
            where = "on several machines: attach to it where it was launched"
        draft.notes.append(f"ddptop job {sanitize(name[:80])} {where}")
        known = {one.pid for one in (*launchers, *(claimed.process for claimed in chosen))}
        below = [one for above in launchers for one in tree.children(above.pid)]
        draft.extras += [
            one for one in below if one.pid not in known
        ]  # the process that forks ranks
    draft.notes += _missing(chosen)
    return draft


def _launchers(
    tree: Tree, chosen: Sequence[_Claimed], any_program: bool
) -> tuple[list[ProcessFacts], list[_Claimed]]:
    """(launchers above the ranks, the lowest rank's first; the ranks without a launcher)."""
    found: dict[int, ProcessFacts] = {}
    without = []
    for one in chosen:
        job_id = (one.process.environ or {}).get("DDPTOP_JOB_ID")
        if job_id is None:
            chain = tree.launch_chain(one.process, any_program)
        else:
            chain = _guards(tree, one.process, job_id)
        if all(is_wrapper(process) or is_shell(process) for process in chain):
            without.append(one)
        found.update({process.pid: process for process in chain})
    return list(found.values()), without


def _guards(tree: Tree, rank: ProcessFacts, job_id: str) -> list[ProcessFacts]:
    """Guardian, supervisor, and agent of a ddptop job, from the guardian down."""
    chain = []
    for process in tree.ancestors(rank):
        if process.uid != rank.uid or (process.environ or {}).get("DDPTOP_JOB_ID") != job_id:
            break
        chain.append(process)
    return chain[::-1]


def _launcher_name(first: _Claimed, launchers: Sequence[ProcessFacts]) -> Launcher:
    environ = first.process.environ or {}
    if "DDPTOP_JOB_ID" in environ:
        return "ddptop"
    kinds = [kind for process in launchers if (kind := launcher_kind(process)) is not None]
    scheme = first.claim.scheme
    if scheme in ("mpi", "pmi"):
        outer: tuple[Launcher, ...] = ("horovod", "deepspeed", "accelerate")
        return next((kind for kind in outer if kind in kinds), "mpirun")
    if scheme == "elastic":
        if kinds:
            return next((kind for kind in reversed(kinds) if kind != "srun"), "torchrun")
        # an ended accelerate leaves its settings; if torchrun is there, they prove nothing
        return "accelerate" if "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"
    if scheme == "manual" and kinds:
        return kinds[-1]
    return _STARTED_BY[scheme]


def _partly_gone(without: Sequence[_Claimed]) -> str:
    numbers = ", ".join(str(one.claim.rank) for one in without)
    if len(without) > 1:
        return f"ranks {numbers} keep running unsupervised: their launcher has exited"
    return f"rank {numbers} keeps running unsupervised: its launcher has exited"


def _missing(chosen: Sequence[_Claimed]) -> list[str]:
    """Ranks that should be on this host but have no process."""
    local = chosen[0].claim.local_world_size
    if local is None or any(one.claim.local_world_size != local for one in chosen):
        return []
    hosts = {one.claim.rank - one.claim.local_rank for one in chosen}
    here = {one.claim.rank for one in chosen}
    expected = (first + index for first in sorted(hosts) for index in range(local))
    gone = list(islice((rank for rank in expected if rank not in here), MAX_NAMED + 1))
    if not gone:
        return []
    numbers = ", ".join(map(str, gone[:MAX_NAMED])) + (", and more" if gone[MAX_NAMED:] else "")
    names = f"rank{'s' if len(gone) > 1 else ''} {numbers}"
    return [f"no process for {names}: not started yet, or already exited"]


def lightning_jobs(tree: Tree) -> list[JobDraft]:
    """Lightning's jobs: rank 0 is the user's script and the parent of the other ranks."""
    groups: dict[tuple[str, ...], list[_Claimed]] = defaultdict(list)
    for process in tree.by_pid.values():
        claim = None if process.pid in tree.members else claim_of(process)
        if claim is None or claim.scheme != "lightning" or tree.is_taken(process):
            continue
        if tree.can_be_rank(process):
            groups[claim.job].append(_Claimed(process, claim))
    drafts = []
    for group in groups.values():
        ranks = _lightning_ranks(tree, _first_of_each_chain(tree, group))
        if all(rank.local_rank == 0 for rank in ranks):
            continue  # a single process with a few variables set
        claim = group[0].claim
        draft = JobDraft(
            launcher="lightning",
            ranks=ranks,
            launchers=tree.launch_chain(tree.by_pid[ranks[0].pid]),
            world_size=claim.world_size,
            rendezvous=claim.rendezvous,
        )
        if all(rank.local_rank != 0 for rank in ranks):
            draft.notes.append("its first rank, which started the others, has exited")
        drafts.append(draft)
    return drafts


def _lightning_ranks(tree: Tree, tops: Sequence[_Claimed]) -> list[ForeignRank]:
    """The children with variables, and their parents as the first rank on each host."""
    found: dict[int, ForeignRank] = {}
    per_host = 1 + max((one.claim.local_rank for one in tops), default=0)
    parents = (tree.by_pid.get(one.process.ppid) for one in tops)
    leaders = {
        parent.pid: parent
        for parent in parents
        if parent is not None and tree.can_be_rank(parent) and not is_tool(parent)
    }
    for one in sorted(tops, key=lambda one: start_order(one.process)):
        first = (node_rank(one.process.environ) or 0) * per_host
        local, leader = one.claim.local_rank, leaders.get(one.process.ppid)
        if local == 0 and leader is not None:
            continue  # a data loader worker of the first rank, which sets these variables itself
        rank = tree.rank(one.process, first + local, local, "environment")
        found.setdefault(rank.rank, rank)
        if leader is not None:
            port = whole_number((one.claim.rendezvous or "").rpartition(":")[2])
            by_port = port in (leader.listens or ())
            rank = tree.rank(leader, first, 0, "sockets" if by_port else "start order")
            found.setdefault(first, rank)
    return [rank for _, rank in sorted(found.items())]


BY_ORDER = "ranks are numbered in start order: the actual rank numbers are not visible"
NO_SCRIPT = "the script that started them has exited: the ranks keep running unsupervised"
TOGETHER_TICKS = 1000
"""Ranks are started in one loop, so a worker that starts later than this is not one."""

_STORE_THREAD = "pt_tcpstore"


def jobs_by_workers(tree: Tree) -> list[JobDraft]:
    """Jobs of mp.spawn and the like; scripts for several nodes on this host are joined."""
    drafts: list[JobDraft] = []
    for parent in tree.by_pid.values():
        if parent.environ is None or not tree.children(parent.pid):
            continue
        if not tree.can_be_rank(parent) or tree.is_taken(parent):
            continue
        if not tree.has_rank_workers(parent):
            continue
        draft = _draft_of_workers(tree, parent)
        other = next((one for one in drafts if _are_one(tree, one, draft)), None)
        if other is None:
            drafts.append(draft)
        else:
            other.ranks = sorted([*other.ranks, *draft.ranks], key=lambda rank: rank.rank)
            other.launchers += draft.launchers
    return drafts


def _draft_of_workers(tree: Tree, parent: ProcessFacts) -> JobDraft:
    workers = ranks_among(tree, tree.workers(parent))
    node, nodes = _place(parent)
    first = (node or 0) * len(workers)
    world_size = None if nodes is None else nodes * len(workers)
    if world_size is None and node is None and any(map(_owns_store, workers)):
        world_size = len(workers)
    return JobDraft(
        launcher="mp.spawn",
        ranks=[
            tree.rank(worker, first + index, index, "start order")
            for index, worker in enumerate(workers)
        ],
        launchers=[*tree.launch_chain(parent), parent],
        world_size=world_size,
        rendezvous=rendezvous_of(parent.environ),
        notes=[BY_ORDER],
    )


def ranks_among(tree: Tree, workers: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """Those of a script's workers that are its ranks, in order of start.

    The first worker that trains or owns the store is the first rank; anything before it is a
    manager or the like. Workers that start right after a rank are ranks too, even if not training
    yet.
    """
    at_work = [bool(is_distributed(one) or tree.devices(one)) for one in workers]
    owner = next((i for i, one in enumerate(workers) if _owns_store(one)), None)
    start = next((i for i, works in enumerate(at_work) if works), 0)
    found: list[ProcessFacts] = []
    for index, worker in enumerate(workers):
        if index < start or (owner is not None and index < owner and not at_work[index]):
            continue
        late = found and worker.start_ticks - found[-1].start_ticks > TOGETHER_TICKS
        if at_work[index] or not late:
            found.append(worker)
    return found


def _owns_store(process: ProcessFacts) -> bool:
    return any(name.startswith(_STORE_THREAD) for name in process.threads or ())


def _place(parent: ProcessFacts) -> tuple[int | None, int | None]:
    """(this host's number, number of hosts) from the arguments or environment."""
    target = python_target(parent.argv)
    args = () if target is None else target.args
    nodes = option_number(args, "--nnodes", "--num-nodes", "--nodes", "--num-machines")
    node = option_number(args, "--node-rank", "--machine-rank", "--nr", "-nr", "--node-id")
    if node is None:
        rank = option_number(args, "--rank")  # the host's, if the script counts hosts
        hosts = option_number(args, "--world-size")
        if rank is not None and hosts is not None and rank < hosts:
            return rank, hosts
        claim = claim_of(parent)
        if claim is not None and claim.scheme == "manual":
            return claim.rank, claim.world_size
        node = node_rank(parent.environ)
    return node, nodes


def _are_one(tree: Tree, one: JobDraft, other: JobDraft) -> bool:
    """Whether two scripts' workers are ranks of one job: connected, with different numbers."""
    if {rank.rank for rank in one.ranks} & {rank.rank for rank in other.ranks}:
        return False
    return _connects(tree, one, other) or _connects(tree, other, one)


def _connects(tree: Tree, one: JobDraft, other: JobDraft) -> bool:
    """Whether a rank of one is connected to a port on which a rank of the other listens."""
    connected = {port for rank in one.ranks for port in tree.by_pid[rank.pid].connected or ()}
    listens = {port for rank in other.ranks for port in tree.by_pid[rank.pid].listens or ()}
    return not connected.isdisjoint(listens)


def jobs_by_sockets(tree: Tree) -> list[JobDraft]:
    """Jobs whose processes were started one by one without any variables.

    All ranks are connected to the port of the first rank's store.
    """
    by_port: dict[int, list[ProcessFacts]] = defaultdict(list)
    for process in tree.by_pid.values():
        if is_distributed(process) and tree.can_be_rank(process) and not tree.is_taken(process):
            for port in (process.listens or frozenset()) | (process.connected or frozenset()):
                by_port[port].append(process)
    drafts: list[JobDraft] = []
    seen: set[int] = set()
    for port, members in sorted(by_port.items(), key=lambda item: -len(item[1])):
        group = [one for one in members if one.pid not in seen]
        if len(group) > 1 and any(port in (one.listens or ()) for one in group):
            seen.update(one.pid for one in group)
            drafts.append(_draft_of_connected(tree, group))
    return drafts


def _draft_of_connected(tree: Tree, group: Sequence[ProcessFacts]) -> JobDraft:
    """The job, with ranks from the arguments, or else the store's owner first, then by start."""
    options = [_rank_argument(process) for process in group]
    if None not in options and len(set(options)) == len(group):
        numbered = [
            tree.rank(process, rank, rank, "arguments")
            for process, rank in zip(group, options, strict=True)
            if rank is not None
        ]
        notes = []
    else:
        ordered = sorted(group, key=lambda one: (not _owns_store(one), *start_order(one)))
        numbered = [tree.rank(one, rank, rank, "sockets") for rank, one in enumerate(ordered)]
        notes = [BY_ORDER]
    numbered.sort(key=lambda rank: rank.rank)
    sizes = {option_number(process.argv, "--world-size") for process in group}
    size = sizes.pop() if len(sizes) == 1 else None
    launchers = {
        launcher.pid: launcher for process in group for launcher in tree.launch_chain(process)
    }
    spawned = all(is_spawned(process) for process in group)
    if spawned:
        notes.append(NO_SCRIPT)
    return JobDraft(
        launcher="mp.spawn" if spawned else "python",
        ranks=numbered,
        launchers=list(launchers.values()),
        world_size=size if size is not None and size >= len(group) else None,
        notes=notes,
    )


def _rank_argument(process: ProcessFacts) -> int | None:
    target = python_target(process.argv)
    args = () if target is None else target.args
    rank = option_number(args, "--rank", "--global-rank")
    return option_number(args, "--local-rank") if rank is None else rank


ONE_PROCESS = "accelerate started a single process, so there is one rank"
NO_RANK = "no ranks yet, or between attempts"
NOT_RECOGNIZED = "not recognized as training; shown because you specified its PID"
NOT_READABLE = (
    "shown because you specified its PID; its environment is not readable, so its rank is unknown"
)


def single_jobs(tree: Tree) -> list[JobDraft]:
    """A job for each process that trains by itself and belongs to no other job."""
    candidates = {
        process.pid: process
        for process in tree.by_pid.values()
        if _may_be_single(tree, process) and not tree.is_taken(process)
    }
    drafts: list[JobDraft] = []
    covered: set[int] = set()
    for process in candidates.values():
        if covered & {process.pid, *(above.pid for above in tree.ancestors(process))}:
            continue
        below = [one for one in tree.descendants(process.pid) if one.pid in candidates]
        holders = [] if tree.devices(process) else [one for one in below if tree.devices(one)]
        if not holders:
            drafts.append(_single(tree, process, tree.launch_chain(process)))
            covered.add(process.pid)
        elif any(_runs_the_same(tree, holder, process) for holder in holders):
            chain = [*tree.launch_chain(process), process]
            drafts.append(_single(tree, holders[0], chain))
            covered.add(process.pid)
        # else it starts training with other scripts, as a sweep does: those are the jobs
    return drafts


def _may_be_single(tree: Tree, process: ProcessFacts) -> bool:
    if process.state in "ZX" or process.environ is None or not tree.can_be_rank(process):
        return False  # without its environment, it may also be one of many ranks
    if tree.devices(process):
        return True
    return bool(FRAMEWORKS & (process.libraries or frozenset())) and not is_kernel(process)


def _runs_the_same(tree: Tree, worker: ProcessFacts, parent: ProcessFacts) -> bool:
    """Whether multiprocessing started `worker` for `parent`."""
    return any(worker.pid == one.pid for one in tree.workers(parent)) or is_copy(worker, parent)


def _single(tree: Tree, process: ProcessFacts, chain: Sequence[ProcessFacts]) -> JobDraft:
    launcher, notes = _kind(tree, process, chain)
    # a batch script's shell and the daemon above it are not part of the training
    batch = [index for index, one in enumerate(chain) if launcher_kind(one) == "srun"]
    below = chain[batch[-1] + 1 :] if batch else chain
    launchers = [one for one in below if is_wrapper(one) or is_python(one) or launcher_kind(one)]
    return JobDraft(
        launcher=launcher,
        ranks=[tree.rank(process, 0, 0, "single")],
        launchers=launchers,
        world_size=1,
        rendezvous=None if launcher == "python" else rendezvous_of(process.environ),
        notes=notes,
    )


def _kind(
    tree: Tree, process: ProcessFacts, chain: Sequence[ProcessFacts]
) -> tuple[Launcher, list[str]]:
    kinds = [kind for one in chain if (kind := launcher_kind(one)) not in (None, "srun")]
    held = len(tree.devices(process))
    libraries = process.libraries or frozenset()
    notes = [f"one process uses {held} devices: no per-device loss"]
    if kinds and kinds[-1] is not None:
        return kinds[-1], [ONE_PROCESS] if kinds[-1] == "accelerate" else []
    if held < 2:
        return "python", []
    if "torch" in libraries:
        return "DataParallel", notes
    if "tensorflow" in libraries or _has_tensorflow_threads(process):
        return "MirroredStrategy", notes
    return "python", notes


def _has_tensorflow_threads(process: ProcessFacts) -> bool:
    return any(
        name.startswith(("tf_", "collective_ops", "tensorflow")) for name in process.threads or ()
    )


def launchers_without_ranks(tree: Tree) -> list[JobDraft]:
    """A job for each launcher without ranks: it is starting or between attempts."""
    waiting = {
        process.pid: process
        for process in tree.by_pid.values()
        if _launches_training(process)
        and process.environ is not None
        and process.state not in "ZX"
        and not tree.is_taken(process)
        and not any(one.pid in tree.members for one in tree.descendants(process.pid))
    }
    return [
        JobDraft(
            launcher=launcher_kind(process) or "python",
            ranks=[],
            launchers=[*tree.launch_chain(process), process],
            notes=[NO_RANK],
        )
        for process in waiting.values()
        if not any(above.pid in waiting for above in tree.ancestors(process))
    ]


def _launches_training(process: ProcessFacts) -> bool:
    kind = launcher_kind(process)
    if kind in ("mpirun", "srun"):  # those launch anything
        return kind == "mpirun" and launched_script(process.argv) is not None
    return kind is not None


def pinned_jobs(tree: Tree, pinned: Collection[int]) -> list[JobDraft]:
    """A job for each of these processes that has none."""
    drafts = []
    for pid in sorted(pinned):
        process = tree.by_pid.get(pid)
        if process is None or tree.is_taken(process):
            continue
        drafts.append(
            JobDraft(
                launcher="python",
                ranks=[tree.rank(process, 0, 0, "single")],
                notes=[NOT_RECOGNIZED if process.environ is not None else NOT_READABLE],
            )
        )
    return drafts


FIRST_PERSON_UID = 1000
"""Lower uids, except root, belong to system services."""

SMALLEST_MIB = 128
"""A process that has loaded a framework uses more."""

_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib/", "/snap/", "/opt/")

HIDDEN = (
    "the driver reports this PID, but the process is not visible: it is in another container, or"
    " hidden by hidepid; run ddptop on the host or as root"
)


def _find_unreadable(tree: Tree, reason: str, user: str) -> list[Unreadable]:
    """Processes outside of all jobs whose environment is hidden; call it after finding all jobs."""
    candidates = [
        process
        for process in tree.by_pid.values()
        if process.environ is None
        and process.state not in "ZX"
        and not tree.is_taken(process)
        and _may_train(tree, process)
    ]
    chosen = {process.pid: process for process in candidates if tree.devices(process)}
    covered = {above.pid for process in chosen.values() for above in tree.ancestors(process)}
    for process in candidates:  # only the topmost: its workers add nothing
        above = {one.pid for one in tree.ancestors(process)}
        if process.pid not in covered and not above & chosen.keys():
            chosen[process.pid] = process
    return [
        Unreadable(
            pid=process.pid,
            user=user,
            command=command_line(process.argv) or process.comm,
            devices=tree.devices(process),
            reason=reason,
        )
        for process in chosen.values()
    ]


def _reason(owner: int, uid: int, name: str) -> str:
    if uid == 0:
        return "cannot be inspected, even by root: this container lacks CAP_SYS_PTRACE"
    if owner == uid:
        return "cannot be inspected, although you own it: it has elevated privileges (needs root)"
    who = "root" if owner == 0 else f"{name} or root"
    return f"owned by {name}; run ddptop as {who} to inspect it"


def _may_train(tree: Tree, process: ProcessFacts) -> bool:
    if is_helper(process) or is_wrapper(process):
        return False
    if tree.devices(process):
        return True
    if (kind := launcher_kind(process)) is not None:
        # otherwise its ranks are listed; srun starts anything
        return kind != "srun" and not tree.children(process.pid)
    if not is_python(process):
        return False
    if any(launcher_kind(above) is not None for above in tree.ancestors(process)):
        return True
    if is_distributed(process):
        return True
    if 0 < process.uid < FIRST_PERSON_UID:
        return False
    if process.resident_mib is not None and process.resident_mib < SMALLEST_MIB:
        return False
    target = python_target(process.argv)
    return target is None or not target.name.startswith(_SYSTEM_FOLDERS)


ODD = "this user's /proc data cannot be parsed: it may include training processes"


def find_jobs(
    facts: Iterable[ProcessFacts],
    device_pids: Mapping[int, Sequence[str]],
    own_pids: Collection[int] = (),
    *,
    boot_unix_s: float,
    ticks_per_s: int = 100,
    pinned: Collection[int] = (),
    uid: int = 0,
    user_of: Callable[[int], str] = procs.user_name,
) -> tuple[list[ForeignJob], list[Unreadable]]:
    """(foreign jobs, newest first; processes that may be training but cannot be read).

    Each user's processes are examined separately: they cannot join or hide another user's jobs.

    Args:
        facts: every process of the host.
        device_pids: UUIDs of the devices that a pid holds, according to NVML.
        own_pids: processes of ddptop's own jobs, excluded with their descendants.
        boot_unix_s: Unix time of the host's boot.
        ticks_per_s: the unit of `start_ticks`.
        pinned: processes that are jobs because the user named them.
        uid: the viewer's; it decides which permission would help.
        user_of: returns the name of a uid.
    """
    everyone = {process.pid: process for process in facts}
    jobs: list[ForeignJob] = []
    unreadable: list[Unreadable] = []
    of_user: dict[int, list[ProcessFacts]] = defaultdict(list)
    for process in everyone.values():
        of_user[process.uid].append(process)
    for owner, theirs in of_user.items():
        user = user_of(owner)
        try:
            tree = Tree(everyone, theirs, device_pids, own_pids)
            found = _jobs(tree, _drafts(tree, pinned), user, boot_unix_s, ticks_per_s)
            unreadable += _find_unreadable(tree, _reason(owner, uid, user), user)
            jobs += found
        except Exception:
            comm = sanitize(theirs[0].comm)
            unreadable.append(Unreadable(theirs[0].pid, user, comm, reason=ODD))
    jobs.sort(key=lambda job: (job.started_at, job.root_pid), reverse=True)
    hidden = [
        Unreadable(pid=pid, user=None, command=None, devices=tuple(uuids), reason=HIDDEN)
        for pid, uuids in sorted(device_pids.items())
        if pid not in everyone and pid not in own_pids
    ]
    return jobs, [*sorted(unreadable, key=lambda one: one.pid), *hidden]


def _drafts(tree: Tree, pinned: Collection[int]) -> list[JobDraft]:
    drafts: list[JobDraft] = []
    steps = (
        jobs_by_environment,
        lightning_jobs,
        jobs_by_workers,
        jobs_by_sockets,
        single_jobs,
        launchers_without_ranks,
        lambda tree: pinned_jobs(tree, pinned),
    )
    for step in steps:
        found = step(tree)
        tree.take(found)
        drafts += found
    return drafts


def _jobs(
    tree: Tree, drafts: Iterable[JobDraft], user: str, boot_unix_s: float, ticks_per_s: int
) -> list[ForeignJob]:
    jobs: list[ForeignJob] = []
    roots: set[int] = set()
    below: dict[int, list[int]] = {}
    for draft in drafts:
        root = _root(tree, draft)
        if draft.ranks and root.pid in roots:  # a program that started several jobs
            root = tree.by_pid[draft.ranks[0].pid]
        roots.add(root.pid)
        for one in (*draft.launchers, *draft.extras):
            if one.pid not in below and not is_wrapper(
                one
            ):  # only once for all jobs that it starts
                below[one.pid] = tree.pids_below(one.pid)
        started_at = utc_from_unix(boot_unix_s + root.start_ticks / ticks_per_s)
        jobs.append(_finish(tree, draft, root, below, started_at, user))
    return jobs


def _root(tree: Tree, draft: JobDraft) -> ProcessFacts:
    """The topmost launcher that is not a wrapper, or else the first rank."""
    real = (one for one in draft.launchers if not is_wrapper(one) and not is_shell(one))
    return next(real, None) or tree.by_pid[draft.ranks[0].pid]


def _finish(
    tree: Tree,
    draft: JobDraft,
    root: ProcessFacts,
    below: Mapping[int, Sequence[int]],
    started_at: dt.datetime,
    user: str,
) -> ForeignJob:
    ranks = tuple(
        msgspec.structs.replace(rank, helpers=tuple(tree.pids_below(rank.pid)))
        for rank in draft.ranks
    )
    known = {pid for rank in ranks for pid in (rank.pid, *rank.helpers)}
    launchers = [one.pid for one in draft.launchers if one.pid not in known]
    loose = {process.pid for process in draft.extras}
    for pid in [*launchers, *loose]:
        loose.update(below.get(pid, ()))
    first = tree.by_pid[ranks[0].pid] if ranks else root
    named_by = root if draft.launcher == "mp.spawn" else first  # workers run the parent's script
    typed = first if draft.launcher == "ddptop" else root  # no one typed its guardian's command
    return ForeignJob(
        name=f"{stem_of(named_by)}:{root.pid}",
        launcher=draft.launcher,
        root_pid=root.pid,
        root_start_ticks=root.start_ticks,
        uid=root.uid,
        user=user,
        command=command_line(typed.argv) or typed.comm,
        started_at=started_at,
        world_size=draft.world_size,
        ranks=ranks,
        launcher_pids=tuple(launchers),
        helper_pids=tuple(sorted(loose - known - set(launchers))),
        rendezvous=draft.rendezvous,
        notes=tuple(draft.notes),
    )
