"""Groups processes into trainings. Pure.

The strongest evidence goes first, and what it took is left to no weaker one: variables of the
launchers, Lightning's children, the workers of one script, sockets, and at last single processes.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.devices.owners import user_name
from ddptop_runner.foreign.arguments import command_line, is_shell, is_wrapper, stem_of
from ddptop_runner.foreign.by_environment import jobs_by_environment, lightning_jobs
from ddptop_runner.foreign.by_workers import jobs_by_sockets, jobs_by_workers
from ddptop_runner.foreign.singles import launchers_without_ranks, pinned_jobs, single_jobs
from ddptop_runner.foreign.tree import JobDraft, RankDraft, Tree, start_order
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ProcessFacts, Unreadable
from ddptop_runner.foreign.unreadable import find_unreadable
from ddptop_runner.store.log_clean import sanitize

_Found = tuple[list[ForeignJob], list[Unreadable]]

ODD = "its process data cannot be interpreted; it may be training"


def find_jobs(
    facts: Iterable[ProcessFacts],
    device_pids: Mapping[int, Sequence[str]],
    own_pids: Collection[int] = (),
    *,
    boot_unix_s: float,
    ticks_per_s: int = 100,
    pinned: Collection[int] = (),
    uid: int = 0,
    user_of: Callable[[int], str] = user_name,
) -> tuple[list[ForeignJob], list[Unreadable]]:
    """The foreign jobs, newest first, and the processes that may be training but cannot be read.

    Args:
        facts: every process of the host.
        device_pids: UUIDs of the devices that a pid holds, by NVML.
        own_pids: processes of ddptop's own jobs, left out with their descendants.
        boot_unix_s: when the host was started, in seconds since 1970.
        ticks_per_s: the unit of `start_ticks`.
        pinned: processes that are a job because a person says so.
        uid: of the user who looks; it decides which permission would help.
        user_of: the name of a uid.
    """
    known = list(facts)

    def find(some: Iterable[ProcessFacts]) -> _Found:
        tree = Tree(some, device_pids, own_pids)
        drafts = _drafts(tree, pinned)
        jobs = _jobs(tree, drafts, boot_unix_s, ticks_per_s, user_of)
        return jobs, find_unreadable(tree, device_pids, uid, user_of)

    try:
        jobs, unreadable = find(known)
    except Exception:  # whatever one process shows, the others are told
        jobs, unreadable = _find_by_user(known, find, user_of)
    jobs.sort(key=lambda job: (job.started_at, job.root_pid), reverse=True)
    return jobs, unreadable


def _find_by_user(
    facts: Iterable[ProcessFacts],
    find: Callable[[Iterable[ProcessFacts]], _Found],
    user_of: Callable[[int], str],
) -> _Found:
    """Each user's jobs, without the processes that nothing can be found with."""
    of_user: dict[int, list[ProcessFacts]] = defaultdict(list)
    for process in facts:
        of_user[process.uid].append(process)
    jobs: list[ForeignJob] = []
    unreadable: list[Unreadable] = []
    for uid, some in of_user.items():
        odd = [process for process in some if _try(find, [process]) is None]
        strange = {process.pid for process in odd}
        found = _try(find, [process for process in some if process.pid not in strange])
        if found is None:
            found, odd = ([], []), some
        pids = {process.pid for process in some}
        jobs += found[0]
        unreadable += [one for one in found[1] if one.pid in pids]
        unreadable += [
            Unreadable(process.pid, user_of(uid), sanitize(process.comm), reason=ODD)
            for process in odd
        ]
    return jobs, unreadable


def _try(
    find: Callable[[Iterable[ProcessFacts]], _Found], some: Iterable[ProcessFacts]
) -> _Found | None:
    try:
        return find(some)
    except Exception:  # as above
        return None


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
        found = [_of_one_user(draft) for draft in step(tree)]
        tree.take(found)
        drafts += found
    return drafts


def _jobs(
    tree: Tree,
    drafts: Iterable[JobDraft],
    boot_unix_s: float,
    ticks_per_s: int,
    user_of: Callable[[int], str],
) -> list[ForeignJob]:
    members = tree.members
    jobs: list[ForeignJob] = []
    roots: set[int] = set()
    below: dict[int, list[ProcessFacts]] = {}
    for draft in drafts:
        root = _root(draft)
        if draft.ranks and root.pid in roots:  # one program started several jobs
            root = draft.ranks[0].process
        roots.add(root.pid)
        for one in (*draft.launchers, *draft.extras):
            if one.pid not in below and not is_wrapper(one):  # once, however many jobs it starts
                below[one.pid] = list(tree.descendants(one.pid, stop=members))
        started_at = utc_from_unix(boot_unix_s + root.start_ticks / ticks_per_s)
        jobs.append(_finish(tree, draft, root, members, below, started_at, user_of(root.uid)))
    return jobs


def _of_one_user(draft: JobDraft) -> JobDraft:
    """Without what is another user's: Slurm's daemon above the ranks, or somebody who pretends."""
    uid = draft.ranks[0].process.uid if draft.ranks else draft.launchers[-1].uid
    draft.ranks = [rank for rank in draft.ranks if rank.process.uid == uid]
    draft.launchers = [one for one in draft.launchers if one.uid == uid]
    draft.extras = [one for one in draft.extras if one.uid == uid]
    return draft


def _root(draft: JobDraft) -> ProcessFacts:
    """The topmost launcher that is more than a wrapper; without one the first rank."""
    real = (one for one in draft.launchers if not is_wrapper(one) and not is_shell(one))
    return next(real, None) or draft.ranks[0].process


def _finish(
    tree: Tree,
    draft: JobDraft,
    root: ProcessFacts,
    members: frozenset[int],
    below: Mapping[int, Sequence[ProcessFacts]],
    started_at: dt.datetime,
    user: str,
) -> ForeignJob:
    ranks = tuple(_rank(tree, rank, members) for rank in draft.ranks)
    known = {pid for rank in ranks for pid in (rank.pid, *rank.helpers)}
    launchers = [one for one in draft.launchers if one.pid not in known]
    loose = {process.pid for process in draft.extras}
    for launcher in (*launchers, *draft.extras):
        loose.update(one.pid for one in below.get(launcher.pid, ()) if one.uid == root.uid)
    loose -= known | {one.pid for one in launchers}
    first = draft.ranks[0].process if draft.ranks else root
    named_by = root if draft.launcher == "mp.spawn" else first  # a worker runs its parent's script
    typed = first if draft.launcher == "ddptop" else root  # its guardian was typed by nobody
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
        launcher_pids=tuple(one.pid for one in launchers),
        helper_pids=tuple(sorted(loose)),
        rendezvous=draft.rendezvous,
        notes=tuple(draft.notes),
    )


def _rank(tree: Tree, rank: RankDraft, members: frozenset[int]) -> ForeignRank:
    process = rank.process
    own = (one for one in tree.descendants(process.pid, stop=members) if one.uid == process.uid)
    below = sorted(own, key=start_order)
    return ForeignRank(
        rank=rank.rank,
        local_rank=rank.local_rank,
        pid=process.pid,
        start_ticks=process.start_ticks,
        evidence=rank.evidence,
        devices=tree.devices(process),
        visible_devices=(process.environ or {}).get("CUDA_VISIBLE_DEVICES"),
        helpers=tuple(one.pid for one in below),
        restart_count=rank.restart_count,
    )
