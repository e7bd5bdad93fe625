"""Groups processes into training jobs, and names what may be one but cannot be read. Pure.

The strongest evidence goes first, and what it took is left to no weaker one: variables of the
launchers, Lightning's children, the workers of one script, sockets, and at last single processes.
"""

from __future__ import annotations

import dataclasses
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
    Tree,
    jobs_by_environment,
    jobs_by_sockets,
    jobs_by_workers,
    launchers_without_ranks,
    lightning_jobs,
    pinned_jobs,
    single_jobs,
)
from ddptop_runner.foreign.process_table import is_distributed
from ddptop_runner.foreign.types import ForeignJob, ProcessFacts, Unreadable
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


def _find_unreadable(tree: Tree, reason: str, user: str) -> list[Unreadable]:
    """Those of no job whose environment is hidden. All jobs are taken from the tree."""
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
    for process in candidates:  # of the others the topmost: its workers add nothing
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
        # else its ranks are named; srun starts anything
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
    user_of: Callable[[int], str] = user_name,
) -> tuple[list[ForeignJob], list[Unreadable]]:
    """The foreign jobs, newest first, and the processes that may be training but cannot be read.

    Each user's processes are looked at by themselves: another user's join no job, and whatever they
    show, they hide none.

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
        if draft.ranks and root.pid in roots:  # one program started several jobs
            root = tree.by_pid[draft.ranks[0].pid]
        roots.add(root.pid)
        for one in (*draft.launchers, *draft.extras):
            if one.pid not in below and not is_wrapper(one):  # once, however many jobs it starts
                below[one.pid] = tree.pids_below(one.pid)
        started_at = utc_from_unix(boot_unix_s + root.start_ticks / ticks_per_s)
        jobs.append(_finish(tree, draft, root, below, started_at, user))
    return jobs


def _root(tree: Tree, draft: JobDraft) -> ProcessFacts:
    """The topmost launcher that is more than a wrapper; without one the first rank."""
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
        dataclasses.replace(rank, helpers=tuple(tree.pids_below(rank.pid))) for rank in draft.ranks
    )
    known = {pid for rank in ranks for pid in (rank.pid, *rank.helpers)}
    launchers = [one.pid for one in draft.launchers if one.pid not in known]
    loose = {process.pid for process in draft.extras}
    for pid in [*launchers, *loose]:
        loose.update(below.get(pid, ()))
    first = tree.by_pid[ranks[0].pid] if ranks else root
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
        launcher_pids=tuple(launchers),
        helper_pids=tuple(sorted(loose - known - set(launchers))),
        rendezvous=draft.rendezvous,
        notes=tuple(draft.notes),
    )
