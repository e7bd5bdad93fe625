"""Determines whether the kernel killed a process because memory ran out."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddptop_runner.base.units import size
from ddptop_runner.host import cgroup_memory, procs
from ddptop_runner.host.cgroup_memory import MemoryGroup
from ddptop_runner.host.kernel_log import KernelLine, KernelLog

_KILLED = re.compile(
    r"(?P<where>Memory cgroup out of memory|Out of memory[^:]*): Killed process (?P<pid>\d+)"
    r" \((?P<name>.+?)\)(?:.*?anon-rss:(?P<rss_kb>\d+)kB)?"
)

TRAINING_NAMES = ("python", "pt_")
"""How the kernel names the processes of a training: torch renames its own."""

NOT_COUNTED = "The kernel log shows no OOM kill of this process"
SOMETHING_ELSE = "something else killed it (kill -9, a batch system, an OOM daemon)"

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the namespace that the kernel's log counts pids in."""


@dataclass(frozen=True)
class OomFinding:
    """What the kernel says of a process that SIGKILL ended."""

    killed: bool
    """Whether memory was the reason."""
    words: str
    """A sentence."""


@dataclass(frozen=True)
class Kill:
    """An out-of-memory kill that the kernel's log tells of."""

    pid: int
    name: str
    held_bytes: int | None
    by_limit: bool
    """Whether a cgroup's limit was reached; False: the whole machine had no memory left."""

    @property
    def why(self) -> str:
        """In words."""
        return (
            "its cgroup's memory limit was reached"
            if self.by_limit
            else "the machine ran out of memory"
        )


def kills_in(lines: Iterable[KernelLine]) -> list[Kill]:
    """The kills in the kernel's log, in order."""
    found = [match for line in lines if (match := _KILLED.search(line.text))]
    return [
        Kill(
            pid=int(kill["pid"]),
            name=kill["name"],
            held_bytes=int(kill["rss_kb"]) * 1024 if kill["rss_kb"] else None,
            by_limit=kill["where"].startswith("Memory cgroup"),
        )
        for kill in found
    ]


def by_log(kills: Sequence[Kill], pids: Collection[int], *, own_pids: bool) -> OomFinding | None:
    """What the kernel's log says of one of these processes; None where it says nothing.

    Args:
        kills: since the attempt began.
        pids: as this process sees them.
        own_pids: whether the kernel's log counts pids as this process does: not so in a container.
    """
    sure = [kill for kill in kills if own_pids and kill.pid in pids]
    if sure:
        kill = sure[-1]
        return OomFinding(True, f"Out of memory: the kernel killed {_held(kill)}: {kill.why}.")
    if own_pids and kills:
        return OomFinding(
            False, "The kernel log shows no OOM kill of this process, only of others."
        )
    likely = [kill for kill in kills if kill.name.startswith(TRAINING_NAMES)]
    if not likely:
        return None
    kill = likely[-1]
    return OomFinding(
        True,
        f"Probably out of memory: during this attempt, the kernel killed {_held(kill)}: {kill.why} "
        "(from the kernel log, which uses different PIDs).",
    )


def _held(kill: Kill) -> str:
    which = f"process {kill.pid} ({kill.name})"
    return which if kill.held_bytes is None else f"{which}, which used {size(kill.held_bytes)}"


def by_counts(before: Sequence[MemoryGroup], now: Sequence[MemoryGroup]) -> OomFinding | None:
    """What the counts of the job's cgroup and of those above it say; None when none is readable.

    The kernel counts a kill in the victim's own cgroup, whatever ran out; version 2 counts it in
    those above as well, where it may be another job's.
    """
    old = {group.path: group.kills for group in before}
    grown = []
    for depth, group in enumerate(now):
        was = old.get(group.path)
        if group.kills is not None and was is not None and group.kills > was:
            grown.append((depth, group, group.kills - was))
    limits = [group.limit_bytes for group in now if group.limit_bytes is not None]
    limit = f" (limit: {size(min(limits))})" if limits else ""
    if grown and grown[0][0] == 0:
        count = grown[0][2]
        many = f"{count} processes" if count > 1 else "a process"
        return OomFinding(
            True, f"Out of memory: the kernel killed {many} in the job's cgroup{limit}."
        )
    if grown:
        return OomFinding(
            True,
            "Probably out of memory: the kernel killed a process in a parent cgroup of the "
            f"job{limit}.",
        )
    own = now[0] if now else None
    if own is None or own.kills is None or old.get(own.path) is None:
        return None
    return OomFinding(False, f"{NOT_COUNTED}: {SOMETHING_ELSE}.")


class OomWatch:
    """Remembers the kernel's counts from before an attempt, to compare with after a SIGKILL.

    Args:
        groups: reads the memory cgroups of this process, which the ranks share.
        log: the kernel's log.
        own_pids: whether that log counts pids as this process does; None: find out.
    """

    def __init__(
        self,
        groups: Callable[[], list[MemoryGroup]] = cgroup_memory.groups_of,
        log: KernelLog | None = None,
        own_pids: bool | None = None,
    ) -> None:
        if own_pids is None:
            own_pids = procs.pid_namespace() == _FIRST_PID_NAMESPACE
        self._own_pids = own_pids
        self._groups = groups
        self.log = KernelLog() if log is None else log
        self._before: list[MemoryGroup] = []
        self._since_s = time.monotonic()

    def begin_attempt(self) -> None:
        """Note the counts of now."""
        self._before = self._groups()
        self._since_s = time.monotonic()
        self.log.begin()

    def explain(self, pids: Collection[int]) -> OomFinding | None:
        """Why the kernel killed one of these processes; None when nothing readable says anything.

        Args:
            pids: processes that SIGKILL ended.
        """
        finding = by_log(kills_in(self.log.lines()), pids, own_pids=self._own_pids)
        if finding is None:
            finding = by_counts(self._before, self.groups())
        if finding is None and self._own_pids and self.log.readable:
            finding = OomFinding(False, f"{NOT_COUNTED}: {SOMETHING_ELSE}.")
        return finding

    def groups(self) -> list[MemoryGroup]:
        """The memory cgroups of now."""
        return self._groups()

    def remember(self) -> dict[str, Any]:
        """What the watch of a supervisor that is started again has to know."""
        kills = {group.path: group.kills for group in self._before}
        return {"since_s": self._since_s, "kills": kills}

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on with what `remember` gave; anything malformed is left out."""
        since_s, kills = memory.get("since_s"), memory.get("kills")
        if isinstance(kills, dict):
            self._before = [
                MemoryGroup(path, 0, count)
                for path, count in kills.items()
                if isinstance(path, str) and isinstance(count, int)
            ]
        if isinstance(since_s, int | float) and since_s <= time.monotonic():
            self._since_s = float(since_s)
            self.log.begin(self._since_s)
