"""Finds processes that may be training but that this user cannot inspect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddptop_runner.foreign.arguments import (
    command_line,
    is_helper,
    is_python,
    is_wrapper,
    launcher_kind,
    python_target,
)
from ddptop_runner.foreign.process_table import is_distributed
from ddptop_runner.foreign.tree import Tree, start_order
from ddptop_runner.foreign.types import ProcessFacts, Unreadable

FIRST_PERSON_UID = 1000
"""Below are the machine's own services, but for root."""

SMALLEST_MIB = 128
"""A process that has loaded a framework takes more."""

_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib/", "/snap/", "/opt/")

HIDDEN = (
    "the driver reports this pid, but the process is not visible: it is in another container, or"
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
        return "cannot be inspected although it is yours: it has elevated privileges (needs root)"
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
