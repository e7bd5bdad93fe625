"""Finds jobs without rank variables: workers of one script, and processes joined by sockets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ddptop_runner.foreign.arguments import is_spawned, option_number, python_target
from ddptop_runner.foreign.claims import claim_of, node_rank, rendezvous_of
from ddptop_runner.foreign.process_table import is_distributed
from ddptop_runner.foreign.tree import JobDraft, RankDraft, Tree, start_order
from ddptop_runner.foreign.types import ProcessFacts, RankEvidence
from ddptop_runner.foreign.variables import number

BY_ORDER = "ranks are numbered in start order: the actual rank numbers are not visible"
NO_SCRIPT = "the script that started them has exited: the ranks keep running unsupervised"
TOGETHER_TICKS = 1000
"""Ranks are started in one loop: a worker that comes later than this is none."""

_STORE_THREAD = "pt_tcpstore"


def jobs_by_workers(tree: Tree) -> list[JobDraft]:
    """Jobs of mp.spawn and its like; those of several hosts' scripts on this host are joined."""
    drafts: list[JobDraft] = []
    for parent in sorted(tree.by_pid.values(), key=start_order):
        if parent.environ is None or not tree.children(parent.pid):
            continue
        if not tree.can_be_rank(parent) or tree.is_taken(parent):
            continue
        if not tree.has_rank_workers(parent):
            continue
        draft = _draft_of_workers(tree, parent)
        other = next((one for one in drafts if _are_one(one, draft)), None)
        if other is None:
            drafts.append(draft)
        else:
            other.ranks = sorted([*other.ranks, *draft.ranks], key=lambda rank: rank.rank)
            other.launchers += draft.launchers
            other.rendezvous = other.rendezvous or draft.rendezvous
    return drafts


def _draft_of_workers(tree: Tree, parent: ProcessFacts) -> JobDraft:
    workers = ranks_among(tree, tree.workers(parent))
    node, nodes = _place(parent)
    first = (node or 0) * len(workers)
    told = {index: told for index, worker in enumerate(workers) if (told := _told(tree, worker))}
    offsets = {rank - index for index, (rank, _, _) in told.items()}
    if len(offsets) == 1:
        first = next(iter(offsets))
    draft = JobDraft(launcher="mp.spawn", ranks=[], launchers=[*tree.launch_chain(parent), parent])
    for index, worker in enumerate(workers):
        evidence: RankEvidence = "start order"
        rank = first + index
        if index in told:
            rank, evidence = told[index][0], "environment"
        draft.ranks.append(RankDraft(worker, rank, index, evidence))
    if len({rank.rank for rank in draft.ranks}) < len(draft.ranks):  # what was told contradicts
        for index, member in enumerate(draft.ranks):
            member.rank, member.evidence = first + index, "start order"
    if any(rank.evidence == "start order" for rank in draft.ranks):
        draft.notes.append(BY_ORDER)
    draft.ranks.sort(key=lambda rank: rank.rank)
    draft.world_size = next((size for _, size, _ in told.values() if size is not None), None)
    draft.rendezvous = next((place for _, _, place in told.values() if place), None)
    draft.rendezvous = draft.rendezvous or rendezvous_of(parent.environ)
    if draft.world_size is None and nodes is not None:
        draft.world_size = nodes * len(workers)
    elif draft.world_size is None and node is None and _has_store(workers):
        draft.world_size = len(workers)
    return draft


def ranks_among(tree: Tree, workers: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """Those of a script's workers that are its ranks, in the order of their start.

    The first one at work, or the one that owns the store, is the first rank: what was started
    before is a manager or the like. Whoever was started right after a rank is one too, although it
    may not be at work yet.
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


def _has_store(workers: Sequence[ProcessFacts]) -> bool:
    """Whether the first rank of all is among them."""
    return any(_owns_store(worker) for worker in workers)


def _place(parent: ProcessFacts) -> tuple[int | None, int | None]:
    """(which host this is, how many hosts) as arguments or environment say."""
    target = python_target(parent.argv)
    args = () if target is None else target.args
    nodes = option_number(args, "--nnodes", "--num-nodes", "--nodes", "--num-machines")
    node = option_number(args, "--node-rank", "--machine-rank", "--nr", "-nr", "--node-id")
    if node is None:
        rank = option_number(args, "--rank")  # of the host, where the script counts hosts
        hosts = option_number(args, "--world-size")
        if rank is not None and hosts is not None and rank < hosts:
            return rank, hosts
        claim = claim_of(parent)
        if claim is not None and claim.scheme == "manual":
            return claim.rank, claim.world_size
        node = node_rank(parent.environ)
    return node, nodes


def _told(tree: Tree, worker: ProcessFacts) -> tuple[int, int | None, str | None] | None:
    """(rank, world size, rendezvous) from the environment of what the worker has executed.

    A worker that sets RANK for itself shows nothing, but the processes that it starts do.
    """
    if "RANK" in (worker.environ or {}):
        return None  # inherited from above: of the host
    for process in tree.descendants(worker.pid):
        environ = process.environ or {}
        rank = number(environ, "RANK")
        if rank is not None:
            return rank, number(environ, "WORLD_SIZE"), rendezvous_of(environ)
    return None


def _are_one(one: JobDraft, other: JobDraft) -> bool:
    """Whether two scripts' workers are ranks of one job: connected, and of different numbers."""
    if {rank.rank for rank in one.ranks} & {rank.rank for rank in other.ranks}:
        return False
    return any(
        _are_connected(mine.process, theirs.process) for mine in one.ranks for theirs in other.ranks
    )


def _are_connected(one: ProcessFacts, other: ProcessFacts) -> bool:
    """Whether one is connected to a port that the other listens on; never of two users."""
    return one.uid == other.uid and bool(
        (one.connected or frozenset()) & (other.listens or frozenset())
        or (other.connected or frozenset()) & (one.listens or frozenset())
    )


def jobs_by_sockets(tree: Tree) -> list[JobDraft]:
    """Jobs of processes that were started one by one without any variable."""
    rest = [
        process
        for process in sorted(tree.by_pid.values(), key=start_order)
        if is_distributed(process) and tree.can_be_rank(process) and not tree.is_taken(process)
    ]
    by_port: dict[tuple[str, int, int], list[ProcessFacts]] = defaultdict(list)
    for process in rest:
        for side, ports in (("listens", process.listens), ("connected", process.connected)):
            for port in ports or ():
                by_port[side, process.uid, port].append(process)
    drafts, seen = [], set()
    for first in rest:
        group = [] if first.pid in seen else [first]
        seen.add(first.pid)
        for member in group:  # grows while it is walked through
            near = [
                other
                for side, ports in (("listens", member.connected), ("connected", member.listens))
                for port in ports or ()
                for other in by_port.pop((side, member.uid, port), ())
            ]
            for other in sorted(near, key=start_order):
                if other.pid not in seen:
                    seen.add(other.pid)
                    group.append(other)
        if len(group) > 1:
            drafts.append(_draft_of_connected(tree, group))
    return drafts


def _draft_of_connected(tree: Tree, group: Sequence[ProcessFacts]) -> JobDraft:
    """Ranks by their arguments; else the store's owner first, then by start."""
    options = [_rank_argument(process) for process in group]
    if None not in options and len(set(options)) == len(group):
        numbered = [
            RankDraft(process, rank, rank, "arguments")
            for process, rank in zip(group, options, strict=True)
            if rank is not None
        ]
        notes = []
    else:
        ordered = sorted(group, key=lambda one: (not _owns_store(one), *start_order(one)))
        numbered = [RankDraft(one, rank, rank, "sockets") for rank, one in enumerate(ordered)]
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
