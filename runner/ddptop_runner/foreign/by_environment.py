"""Finds jobs whose ranks have their numbers in the environment, the strongest evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from ddptop_runner.foreign.arguments import is_shell, is_tool, is_wrapper, launcher_kind
from ddptop_runner.foreign.claims import Claim, Scheme, claim_of, node_rank
from ddptop_runner.foreign.tree import JobDraft, RankDraft, Tree, start_order
from ddptop_runner.foreign.types import Launcher, ProcessFacts, RankEvidence
from ddptop_runner.foreign.variables import whole_number
from ddptop_runner.store.log_clean import sanitize

NO_LAUNCHER = "its launcher has exited: the ranks keep running, but nothing restarts or stops them"

MAX_NAMED = 16
"""At most this many ranks without a process are listed."""

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
"""Schemes whose ranks stand below a launcher on their own host."""


@dataclass(frozen=True)
class _Claimed:
    """A process that can be a rank, and what its environment says."""

    process: ProcessFacts
    claim: Claim


def jobs_by_environment(tree: Tree) -> list[JobDraft]:
    """Jobs of every scheme but Lightning's, which leaves its first rank without variables."""
    groups: dict[tuple[object, ...], list[_Claimed]] = defaultdict(list)
    for process in tree.by_pid.values():
        claim = claim_of(process)
        if claim is None or claim.scheme == "lightning" or not tree.can_be_rank(process):
            continue
        if claim.scheme == "manual" and _leads_ranks(tree, process):
            continue  # the variables are its host's; its workers are the ranks
        anchor = claim.job or (_launcher_pid(tree, process),)
        groups[claim.scheme, process.uid, anchor].append(_Claimed(process, claim))
    drafts = []
    for group in groups.values():
        for part in _parts(tree, _first_of_each_chain(tree, group)):
            draft = _draft(tree, part)
            if draft is not None:
                drafts.append(draft)
    return drafts


def _leads_ranks(tree: Tree, process: ProcessFacts) -> bool:
    """Whether this process, or one above it, starts ranks as its workers."""
    return any(tree.has_rank_workers(one) for one in (process, *tree.ancestors(process)))


def _launcher_pid(tree: Tree, process: ProcessFacts) -> int:
    """The launcher above, or what else ranks of one job have in common."""
    above = (one.pid for one in tree.ancestors(process) if launcher_kind(one) is not None)
    return next(above, process.session)


def _first_of_each_chain(tree: Tree, group: Iterable[_Claimed]) -> list[_Claimed]:
    """Without those below a process of the same rank, who have only inherited its variables."""
    ranks = {one.process.pid: one.claim.rank for one in group}
    return [
        one
        for one in group
        if all(ranks.get(above.pid) != one.claim.rank for above in tree.ancestors(one.process))
    ]


def _parts(tree: Tree, tops: Sequence[_Claimed]) -> list[dict[int, list[_Claimed]]]:
    """The claims by rank; several parts where two launchers started the same rank.

    Several agents of one job have different ranks. The same rank under two launchers is two jobs of
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
        return None  # the variables are the batch script's: nobody started a second process
    any_program = claim.scheme == "elastic" or (claim.scheme == "manual" and len(chosen) > 1)
    launchers, without = _launchers(tree, chosen, any_program)
    draft = JobDraft(
        launcher=_launcher_name(chosen[0], launchers),
        ranks=[
            RankDraft(
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
        name = (chosen[0].process.environ or {})["DDPTOP_JOB_ID"].rpartition("@")[0]
        draft.notes.append(f"ddptop job {sanitize(name[:80])} in another state folder")
    draft.notes += _missing(chosen)
    return draft


def _launchers(
    tree: Tree, chosen: Sequence[_Claimed], any_program: bool
) -> tuple[list[ProcessFacts], list[_Claimed]]:
    """All launchers above the ranks, that of the lowest rank first, and the ranks without one."""
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
    """Guardian, supervisor and agent of a ddptop job, from the guardian down."""
    chain = []
    for process in tree.ancestors(rank):
        if (process.environ or {}).get("DDPTOP_JOB_ID") != job_id:
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
        # an accelerate that is gone left its settings; with torchrun there they prove nothing
        return "accelerate" if "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"
    if scheme == "manual" and kinds:
        return kinds[-1]
    return _STARTED_BY[scheme]


def _partly_gone(without: Sequence[_Claimed]) -> str:
    numbers = ", ".join(str(one.claim.rank) for one in without)
    ranks = f"rank{'s' if len(without) > 1 else ''} {numbers}"
    return f"the launcher for {ranks} has exited: nothing restarts or stops them"


def _missing(chosen: Sequence[_Claimed]) -> list[str]:
    """Ranks that should be on this host, and that have no process."""
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
    """Lightning's: rank 0 is the script that the person started, and parent of the other ranks."""
    groups: dict[tuple[object, ...], list[_Claimed]] = defaultdict(list)
    for process in tree.by_pid.values():
        claim = claim_of(process)
        if claim is None or claim.scheme != "lightning" or tree.is_taken(process):
            continue
        if tree.can_be_rank(process):
            groups[process.uid, claim.job].append(_Claimed(process, claim))
    drafts = []
    for group in groups.values():
        ranks = _lightning_ranks(tree, _first_of_each_chain(tree, group))
        if not ranks:
            continue
        first = ranks[0]
        claim = group[0].claim
        draft = JobDraft(
            launcher="lightning",
            ranks=ranks,
            launchers=tree.launch_chain(first.process),
            world_size=claim.world_size,
            rendezvous=claim.rendezvous,
        )
        if all(rank.local_rank != 0 for rank in ranks):
            draft.notes.append("its first rank, which started the others, has exited")
        drafts.append(draft)
    return drafts


def _lightning_ranks(tree: Tree, tops: Sequence[_Claimed]) -> list[RankDraft]:
    """The children with variables, and their parents as the first rank of each host."""
    found: dict[tuple[int, int], RankDraft] = {}
    per_host = 1 + max((one.claim.local_rank for one in tops), default=0)
    leaders = set()
    for one in tops:
        parent = tree.by_pid.get(one.process.ppid)
        if parent is None or parent.uid != one.process.uid:
            continue
        if tree.can_be_rank(parent) and not is_tool(parent):
            leaders.add(parent.pid)
    for one in sorted(tops, key=lambda one: start_order(one.process)):
        node = node_rank(one.process.environ) or 0
        local = one.claim.local_rank
        if local == 0 and one.process.ppid in leaders:
            continue  # a data loader worker of the first rank, which sets these variables itself
        found.setdefault((node, local), _lightning_rank(one.process, node, local, per_host))
        parent = tree.by_pid.get(one.process.ppid)
        if local and parent is not None and parent.pid in leaders:
            port = (one.claim.rendezvous or "").rpartition(":")[2]
            listens = parent.listens or frozenset()
            by_port = whole_number(port) in listens
            found.setdefault(
                (node, 0),
                _lightning_rank(parent, node, 0, per_host, "sockets" if by_port else "start order"),
            )
    if all(local == 0 for _, local in found):
        return []  # one process with a few variables set
    return [rank for _, rank in sorted(found.items())]


def _lightning_rank(
    process: ProcessFacts,
    node: int,
    local: int,
    per_host: int,
    evidence: RankEvidence = "environment",
) -> RankDraft:
    return RankDraft(process, node * per_host + local, local, evidence)
