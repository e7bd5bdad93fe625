"""Groups processes into training jobs, and lists unreadable processes that may be training. Pure.

Workers of one script come first, then processes with variables set by launchers, and then single
processes; each step sees only the processes that are left.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.foreign.arguments import (
    command_line,
    is_helper,
    is_kernel,
    is_python,
    is_shell,
    is_spawned,
    is_tool,
    is_wrapper,
    launched_script,
    launcher_of,
    stem_of,
)
from ddptop_runner.foreign.process_table import (
    Claim,
    Scheme,
    claim_of,
    is_distributed,
    rendezvous_of,
)
from ddptop_runner.foreign.types import (
    ForeignJob,
    ForeignRank,
    Launcher,
    ProcessFacts,
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
        self.members: set[int] = set()
        """Pids of all ranks and launchers of jobs found so far."""
        self._above: set[int] = set()
        """Members whose descendants cannot belong to another job."""

    def reserve(self, drafts: Iterable[JobDraft]) -> None:
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
        parents = [pid]
        for parent in parents:  # which grows
            for child in self.children(parent):
                if child.pid not in visited and child.pid not in stop:
                    visited.add(child.pid)
                    parents.append(child.pid)
                    yield child

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
        restart_count: int | None = None,
    ) -> ForeignRank:
        """The rank for a recognized process."""
        return ForeignRank(
            rank=rank,
            local_rank=local_rank,
            pid=process.pid,
            start_ticks=process.start_ticks,
            devices=self.devices(process),
            restart_count=restart_count,
        )

    def can_be_rank(self, process: ProcessFacts) -> bool:
        """Whether it could train: not a launcher, shell, wrapper, tracker, or tool."""
        if not is_python(process) and not process.libraries:
            return False
        if is_helper(process) or is_shell(process) or is_wrapper(process):
            return False
        return launcher_of(process.argv) is None

    def workers(self, parent: ProcessFacts) -> list[ProcessFacts]:
        """Children that multiprocessing started with the parent's program, oldest first.

        Includes spawned and forked children, but not data loader workers and trackers.
        """
        found = []
        for child in self.children(parent.pid):
            if child.pid in self.own or is_helper(child):
                continue
            if is_spawned(child) or is_copy(child, parent):
                found.append(child)
        return sorted(found, key=start_order)

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
        length = 0  # without shells that lead to no launcher
        for process in self.ancestors(first_rank):
            kind = launcher_of(process.argv)
            if kind == "srun" and length:
                break  # it started the batch script, not the ranks
            chain.append(process)
            is_program = any_program and not length and is_python(process) and not is_tool(process)
            if kind is not None or (is_wrapper(process) and length == len(chain) - 1) or is_program:
                length = len(chain)
            elif is_wrapper(process) or is_spawned(process) or (is_shell(process) and not length):
                continue  # mpirun bash run.sh
            else:
                break
        return [one for one in reversed(chain[:length]) if one.uid == first_rank.uid]


def start_order(process: ProcessFacts) -> tuple[int, int]:
    """Sort key: the start of a process."""
    return (process.start_ticks, process.pid)


def is_copy(child: ProcessFacts, parent: ProcessFacts) -> bool:
    """Whether the child was forked from the parent and did not execute another program."""
    return bool(child.argv) and child.argv == parent.argv and child.program == parent.program


NO_LAUNCHER = "its launcher has exited: the ranks keep running unsupervised"
_HAS_LAUNCHER: frozenset[Scheme] = frozenset({"elastic", "horovod", "mpi"})
"""Schemes whose ranks descend from a launcher on the same host."""
_STARTED_BY: dict[Scheme, Launcher] = {
    "elastic": "torchrun",
    "horovod": "horovod",
    "mpi": "mpirun",
    "manual": "python",
    "slurm": "srun",
}
"""What started the ranks if no launcher is visible."""


@dataclass(frozen=True)
class _Claimed:
    """A process that can be a rank, and its environment's claim."""

    process: ProcessFacts
    claim: Claim


def jobs_by_environment(tree: Tree) -> list[JobDraft]:
    """Jobs whose ranks have variables with their numbers, one for each launcher."""
    groups: dict[tuple[object, ...], list[_Claimed]] = defaultdict(list)
    for process in tree.by_pid.values():
        claim = claim_of(process)
        if claim is not None and tree.can_be_rank(process) and not tree.is_taken(process):
            anchor = _anchor(tree, process, claim)
            groups[claim.scheme, claim.job, anchor].append(_Claimed(process, claim))
    return [_draft(tree, _first_of_each_chain(tree, group)) for group in groups.values()]


def _anchor(tree: Tree, process: ProcessFacts, claim: Claim) -> int:
    """The pid of the launcher above; without one, what else only ranks of one job share."""
    above = (one.pid for one in tree.ancestors(process) if launcher_of(one.argv) is not None)
    return next(above, 0 if claim.rendezvous else process.session)


def _first_of_each_chain(tree: Tree, group: Iterable[_Claimed]) -> list[_Claimed]:
    """The group without descendants of the same rank, which only inherited its variables."""
    ranks = {one.process.pid: one.claim.rank for one in group}
    return [
        one
        for one in group
        if all(ranks.get(above.pid) != one.claim.rank for above in tree.ancestors(one.process))
    ]


def _draft(tree: Tree, claimed: Sequence[_Claimed]) -> JobDraft:
    by_rank: dict[int, _Claimed] = {}
    for one in sorted(claimed, key=lambda one: (one.process.is_zombie, *start_order(one.process))):
        by_rank.setdefault(one.claim.rank, one)
    chosen = [one for _, one in sorted(by_rank.items())]
    claim, environ = chosen[0].claim, chosen[0].process.environ or {}
    any_program = claim.scheme in ("elastic", "manual")
    chains = [tree.launch_chain(one.process, any_program) for one in chosen]
    draft = JobDraft(
        launcher=_STARTED_BY[claim.scheme],
        ranks=[
            tree.rank(
                one.process,
                one.claim.rank,
                one.claim.local_rank,
                one.claim.restart_count,
            )
            for one in chosen
        ],
        launchers=list({above.pid: above for chain in chains for above in chain}.values()),
        extras=[one.process for one in claimed if one not in chosen],
        world_size=claim.world_size,
        rendezvous=claim.rendezvous,
    )
    kinds = _kinds(chains[0])
    if "DDPTOP_JOB_ID" in environ:
        _complete_ddptop(tree, draft, environ["DDPTOP_JOB_ID"])
    elif kinds:
        draft.launcher = kinds[-1]
    elif claim.scheme in _HAS_LAUNCHER and all(map(is_wrapper, draft.launchers)):
        draft.notes.append(NO_LAUNCHER)
    return draft


def _kinds(chain: Iterable[ProcessFacts]) -> list[Launcher]:
    """The launchers in the chain; srun may have started only a batch script."""
    kinds = (launcher_of(one.argv) for one in chain)
    return [kind for kind in kinds if kind is not None and kind != "srun"]


def _complete_ddptop(tree: Tree, draft: JobDraft, job_id: str) -> None:
    """Make it a ddptop job of another state folder or host, with all processes of that ID."""
    name, _, nonce = job_id.rpartition("@")
    draft.launcher = "ddptop"
    ranks = {rank.pid for rank in draft.ranks}
    above = {one.pid for pid in ranks for one in tree.ancestors(tree.by_pid[pid])}
    of_job = [
        one
        for one in sorted(tree.by_pid.values(), key=start_order)
        if (one.environ or {}).get("DDPTOP_JOB_ID") == job_id and one.pid not in ranks
    ]
    draft.launchers = [one for one in of_job if one.pid in above]
    # the process that forks ranks; what descends from a rank is taken as its helper
    draft.extras = [one for one in of_job if one.ppid in {up.pid for up in draft.launchers}]
    where = "in another state folder"
    if "." in nonce:  # a node's part
        where = "on several machines: attach to it where it was launched"
    draft.notes.append(f"ddptop job {sanitize(name[:80])} {where}")


BY_ORDER = "ranks are numbered in start order: the actual rank numbers are not visible"
TOGETHER_TICKS = 1000
"""Ranks are started in one loop, so a worker that starts later than this is not one."""


def jobs_by_workers(tree: Tree) -> list[JobDraft]:
    """Jobs of mp.spawn and the like: the workers train, and the script that started them waits."""
    drafts: list[JobDraft] = []
    for parent in tree.by_pid.values():
        environ = parent.environ
        if environ is None or "DDPTOP_JOB_ID" in environ or not tree.can_be_rank(parent):
            continue
        if is_distributed(parent) or tree.is_taken(parent):
            continue
        ranks = _ranks_among(tree, tree.workers(parent), alone=bool(tree.devices(parent)))
        if not ranks:
            continue
        draft = JobDraft(
            launcher="mp.spawn",
            ranks=[tree.rank(one, index, index) for index, one in enumerate(ranks)],
            launchers=[*tree.launch_chain(parent), parent],
            world_size=len(ranks) if any(map(_owns_store, ranks)) else None,
            rendezvous=rendezvous_of(environ),
            notes=[BY_ORDER],
        )
        tree.reserve([draft])
        drafts.append(draft)
    return drafts


def _ranks_among(tree: Tree, workers: Sequence[ProcessFacts], alone: bool) -> list[ProcessFacts]:
    """Those of a script's workers that are its ranks, in order of start.

    A rank that is not training yet counts if it was started right after the first one. What was
    started before that is a manager or the like.

    Args:
        tree: all processes.
        workers: in order of start.
        alone: whether the script holds a device, so that workers with one prove nothing.
    """
    training = [one for one in workers if is_distributed(one)]
    if not training and not alone:
        training = [one for one in workers if tree.devices(one)]
        training = training if len(training) > 1 else []
    if not training:
        return []
    first = training[0].start_ticks
    return [
        one
        for one in workers
        if one in training or first <= one.start_ticks <= first + TOGETHER_TICKS
    ]


def _owns_store(process: ProcessFacts) -> bool:
    return any(name.startswith("pt_tcpstore") for name in process.threads or ())


NO_RANK = "no ranks yet, or between attempts"


def single_jobs(tree: Tree) -> list[JobDraft]:
    """A job for each process that trains by itself and belongs to no other job."""
    candidates = {
        process.pid: process
        for process in tree.by_pid.values()
        if _may_be_single(tree, process) and not tree.is_taken(process)
    }
    chosen: dict[int, ProcessFacts] = {}
    for process in candidates.values():
        if any(above.pid in chosen for above in tree.ancestors(process)):
            continue
        below = (one for one in tree.descendants(process.pid) if one.pid in candidates)
        if tree.devices(process) or not any(tree.devices(one) for one in below):
            chosen[process.pid] = process
        # else it starts training, as a sweep does: those are the jobs
    return [_single(tree, process) for process in chosen.values()]


def _may_be_single(tree: Tree, process: ProcessFacts) -> bool:
    if process.is_zombie or process.environ is None or not tree.can_be_rank(process):
        return False  # without its environment, it may also be one of many ranks
    if tree.devices(process):
        return True
    return bool(process.libraries) and not is_kernel(process)


def _single(tree: Tree, process: ProcessFacts) -> JobDraft:
    chain = tree.launch_chain(process)
    kinds = _kinds(chain)
    draft = JobDraft(
        launcher=kinds[-1] if kinds else "python",
        ranks=[tree.rank(process, 0, 0)],
        launchers=[one for one in chain if is_wrapper(one) or launcher_of(one.argv)],
        world_size=1,
    )
    held, libraries = len(tree.devices(process)), process.libraries or frozenset()
    if not kinds and held > 1 and libraries & {"torch", "tensorflow"}:
        draft.launcher = "DataParallel" if "torch" in libraries else "MirroredStrategy"
    if not kinds and held > 1:
        draft.notes.append(f"one process uses {held} devices: no per-device loss")
    return draft


def launchers_without_ranks(tree: Tree) -> list[JobDraft]:
    """A job for each launcher without ranks: it is starting or between attempts."""
    waiting = {
        process.pid: process
        for process in tree.by_pid.values()
        if _launches_training(process)
        and process.environ is not None
        and not process.is_zombie
        and not tree.is_taken(process)
        and not any(one.pid in tree.members for one in tree.descendants(process.pid))
    }
    return [
        JobDraft(
            launcher=launcher_of(process.argv) or "python",
            ranks=[],
            launchers=[*tree.launch_chain(process), process],
            notes=[NO_RANK],
        )
        for process in waiting.values()
        if not any(above.pid in waiting for above in tree.ancestors(process))
    ]


def _launches_training(process: ProcessFacts) -> bool:
    kind = launcher_of(process.argv)
    if kind in ("mpirun", "srun"):  # those launch anything
        return kind == "mpirun" and launched_script(process.argv) is not None
    return kind is not None


def _find_unreadable(tree: Tree, reason: str, user: str) -> list[Unreadable]:
    """Processes that hold a device and whose environment is hidden."""
    return [
        Unreadable(
            pid=process.pid,
            user=user,
            command=command_line(process.argv) or process.comm,
            gpus=tree.devices(process),
            reason=reason,
        )
        for process in tree.by_pid.values()
        if process.environ is None
        and not process.is_zombie
        and tree.devices(process)
        and not tree.is_taken(process)
    ]


def _reason(owner: int, uid: int, name: str) -> str:
    if uid == 0:
        return "this container lacks CAP_SYS_PTRACE"
    who = "root" if owner in (0, uid) else f"{name} or root"
    return f"owned by {name}; run ddptop as {who} to inspect it"


ODD = "this user's /proc data cannot be parsed: it may include training processes"


def find_jobs(
    facts: Iterable[ProcessFacts],
    device_pids: Mapping[int, Sequence[str]],
    own_pids: Collection[int] = (),
    *,
    boot_unix_s: float,
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
            found = _jobs(tree, _drafts(tree), user, boot_unix_s)
            unreadable += _find_unreadable(tree, _reason(owner, uid, user), user)
            jobs += found
        except Exception:
            comm = sanitize(theirs[0].comm)
            unreadable.append(Unreadable(theirs[0].pid, user, comm, reason=ODD))
    jobs.sort(key=lambda job: (job.started_at, job.root_pid), reverse=True)
    return jobs, sorted(unreadable, key=lambda one: one.pid)


def _drafts(tree: Tree) -> list[JobDraft]:
    drafts: list[JobDraft] = []
    steps = (
        jobs_by_workers,  # first, because their workers may have variables of their own
        jobs_by_environment,
        single_jobs,
        launchers_without_ranks,
    )
    for step in steps:
        found = step(tree)
        tree.reserve(found)
        drafts += found
    return drafts


def _jobs(
    tree: Tree, drafts: Iterable[JobDraft], user: str, boot_unix_s: float
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
        started_at = utc_from_unix(boot_unix_s + root.start_ticks / procs.TICKS_PER_S)
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
