"""Groups processes into training jobs, and names what may be one but cannot be read. Pure.

The strongest evidence goes first, and what it took is left to no weaker one: variables of the
launchers, Lightning's children, the workers of one script, sockets, and at last single processes.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ddptop_runner.base.clock import utc_from_unix
from ddptop_runner.devices.owners import user_name
from ddptop_runner.foreign.arguments import (
    command_line,
    is_helper,
    is_python,
    is_shell,
    is_wrapper,
    launcher_kind,
    python_target,
    stem_of,
)
from ddptop_runner.foreign.drafts import (
    JobDraft,
    RankDraft,
    Tree,
    jobs_by_environment,
    jobs_by_sockets,
    jobs_by_workers,
    launchers_without_ranks,
    lightning_jobs,
    pinned_jobs,
    single_jobs,
    start_order,
)
from ddptop_runner.foreign.process_table import is_distributed
from ddptop_runner.foreign.types import ForeignJob, ForeignRank, ProcessFacts, Unreadable
from ddptop_runner.store.log_clean import sanitize

FIRST_PERSON_UID = 1000
"""Below are the machine's own services, but for root."""

SMALLEST_MIB = 128
"""A process that has loaded a framework takes more."""

_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib/", "/snap/", "/opt/")

HIDDEN = (
    "the driver reports this PID, but the process is not visible: it is in another container, or"
    " hidden by hidepid; run ddptop on the host or as root"
)


def find_unreadable(
    tree: Tree,
    device_pids: Mapping[int, Sequence[str]],
    uid: int,
    user_of: Callable[[int], str],
) -> list[Unreadable]:
    """Those of no job whose environment is hidden, and pids of devices that are not here at all.

    Args:
        tree: the host, with all jobs taken.
        device_pids: UUIDs of the devices that a pid holds, by NVML.
        uid: of the user who looks.
        user_of: the name of a uid.
    """
    candidates = [
        process
        for process in sorted(tree.by_pid.values(), key=start_order)
        if process.environ is None
        and process.state not in "ZX"
        and not tree.is_taken(process)
        and _may_train(tree, process)
    ]
    chosen = {process.pid: process for process in candidates if tree.devices(process)}
    covered = {above.pid for process in chosen.values() for above in tree.ancestors(process)}
    for process in candidates:  # of the others the topmost: its workers add nothing
        above = {one.pid for one in tree.ancestors(process)}
        if process.pid not in covered and not above & chosen.keys():
            chosen[process.pid] = process
    found = [
        Unreadable(
            pid=process.pid,
            user=user_of(process.uid),
            command=command_line(process.argv) or process.comm,
            devices=tree.devices(process),
            reason=_reason(process.uid, uid, user_of),
        )
        for _, process in sorted(chosen.items())
    ]
    hidden = [
        Unreadable(pid=pid, user=None, command=None, devices=tuple(uuids), reason=HIDDEN)
        for pid, uuids in sorted(device_pids.items())
        if pid not in tree.by_pid and pid not in tree.own
    ]
    return [*found, *hidden]


def _reason(owner: int, uid: int, user_of: Callable[[int], str]) -> str:
    if uid == 0:
        return "cannot be inspected, even by root: this container lacks CAP_SYS_PTRACE"
    if owner == uid:
        return "cannot be inspected, although you own it: it has elevated privileges (needs root)"
    name = user_of(owner)
    who = "root" if owner == 0 else f"{name} or root"
    return f"owned by {name}; run ddptop as {who} to inspect it"


def _may_train(tree: Tree, process: ProcessFacts) -> bool:
    if is_helper(process) or is_wrapper(process):
        return False
    if tree.devices(process):
        return True
    if launcher_kind(process) is not None:
        return not tree.children(process.pid)  # else its ranks are named
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


_Found = tuple[list[ForeignJob], list[Unreadable]]

ODD = "its /proc data cannot be parsed; it may be a training process"


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
        pinned: processes that are a job because the user named them.
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
    except Exception:  # whatever one process shows, the others are reported
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
