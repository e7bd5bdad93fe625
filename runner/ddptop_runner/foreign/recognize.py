"""Which processes form which training: pure, from facts alone.

The strongest evidence goes first, and what it took is left to no weaker one: variables of the
launchers, Lightning's children, the workers of one script, sockets, and at last single processes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ddptop_runner.clock import utc_from_unix
from ddptop_runner.devices.owners import user_name
from ddptop_runner.foreign.arguments import command_line, is_shell, is_wrapper, stem_of
from ddptop_runner.foreign.by_environment import jobs_by_environment, lightning_jobs
from ddptop_runner.foreign.by_workers import jobs_by_sockets, jobs_by_workers
from ddptop_runner.foreign.singles import launchers_without_ranks, pinned_jobs, single_jobs
from ddptop_runner.foreign.tree import JobDraft, RankDraft, Tree, start_order
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ProcessFacts, Unreadable
from ddptop_runner.foreign.unreadable import find_unreadable


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
    tree = Tree(facts, device_pids, own_pids)
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
    members = tree.members
    jobs: list[ForeignJob] = []
    for draft in drafts:
        root = _root(draft)
        if draft.ranks and any(
            job.root_pid == root.pid for job in jobs
        ):  # one program started several jobs
            root = draft.ranks[0].process
        started_at = utc_from_unix(boot_unix_s + root.start_ticks / ticks_per_s)
        jobs.append(_finish(tree, draft, root, members, started_at, user_of(root.uid)))
    jobs.sort(key=lambda job: (job.started_at, job.root_pid), reverse=True)
    return jobs, find_unreadable(tree, device_pids, uid, user_of)


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
    started_at: dt.datetime,
    user: str,
) -> ForeignJob:
    ranks = tuple(_rank(tree, rank, members) for rank in draft.ranks)
    known = {pid for rank in ranks for pid in (rank.pid, *rank.helpers)}
    launchers = [one for one in draft.launchers if one.pid not in known]
    loose = {process.pid for process in draft.extras}
    for launcher in (*launchers, *draft.extras):
        if not is_wrapper(launcher):
            below = tree.descendants(launcher.pid, stop=members)
            loose.update(one.pid for one in below if one.uid == root.uid)
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
