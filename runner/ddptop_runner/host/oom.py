"""Determines whether the kernel killed a process because memory ran out, from its counters.

The counters are those of the job's memory cgroup and those above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddptop_runner.base.units import size

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 2**62
"""Version 1 represents "no limit" as a number near 2**63."""


@dataclass(frozen=True)
class MemoryGroup:
    """A memory cgroup at one moment; None if unknown."""

    path: str
    """The folder with its files."""
    version: int
    kills: int | None
    """Number of processes killed for memory; in version 2, this includes groups below."""
    limit_bytes: int | None = None


def groups_of(proc: Path = PROC, cgroups: Path = CGROUPS) -> list[MemoryGroup]:
    """This process's memory cgroup and all above it, innermost first; empty if none is visible.

    Args:
        proc: where /proc is mounted.
        cgroups: where cgroups are mounted.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if "memory" in controllers.split(","):
            version, mount = 1, cgroups / "memory"
        elif number == "0" and not controllers:
            version, mount = 2, cgroups
        else:
            continue
        parts = [part for part in PurePosixPath(own).parts if part not in ("/", "..")]
        while parts and not mount.joinpath(*parts).is_dir():
            del parts[0]  # a container mounts its own group in place of the root
        depths = range(len(parts), -1, -1)
        found = [read_group(mount.joinpath(*parts[:depth]), version) for depth in depths]
        if any(group.kills is not None for group in found):
            return found
    return []


def read_group(folder: Path, version: int) -> MemoryGroup:
    """Read one cgroup.

    Args:
        folder: the folder with its files.
        version: 1 or 2.
    """
    counters, limit = "memory.oom_control", "memory.limit_in_bytes"
    if version == 2:
        counters, limit = "memory.events", "memory.max"
    return MemoryGroup(
        path=str(folder),
        version=version,
        kills=_table(folder / counters).get("oom_kill"),
        limit_bytes=_limit(folder / limit),
    )


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Memory that this process's cgroup can still take; None if unknown.

    The page cache, which the kernel may drop, counts as available.
    """
    lines = _text(proc / "meminfo").splitlines()
    left = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    for group in groups_of(proc=proc, cgroups=cgroups):
        name = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
        used = _limit(Path(group.path) / name)
        if group.limit_bytes is not None and used is not None:
            stat = _table(Path(group.path) / "memory.stat")
            cached = stat.get("inactive_file" if group.version == 2 else "total_inactive_file", 0)
            left.append(max(0, group.limit_bytes - used + cached))
    return min(left, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _table(path: Path) -> Mapping[str, int]:
    pairs = [line.split() for line in _text(path).splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _limit(path: Path) -> int | None:
    """None for `max`, the number that stands for no limit, or without the file."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() and int(text) < NO_LIMIT else None


@dataclass(frozen=True)
class OomFinding:
    """The kernel's information on a process that was killed by SIGKILL."""

    killed: bool
    """Whether it was killed for memory."""
    words: str
    """A sentence."""


def by_counts(before: Sequence[MemoryGroup], now: Sequence[MemoryGroup]) -> OomFinding | None:
    """What the counters of the job's cgroup and those above it say; None if none is readable.

    The kernel counts a kill in the victim's own cgroup, whatever ran out. Version 2 also counts it
    in those above, where it may belong to another job.
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
    return OomFinding(
        False,
        "The kernel counted no OOM kill in the job's cgroup: something else killed it (kill -9, a "
        "batch system, an OOM daemon).",
    )


class OomWatch:
    """Records the kernel's counters before an attempt, for comparison after a SIGKILL.

    Args:
        groups: reads the memory cgroups of this process, which the ranks share.
    """

    def __init__(self, groups: Callable[[], list[MemoryGroup]] = groups_of) -> None:
        self.groups = groups
        """Reads the present memory cgroups."""
        self._before: list[MemoryGroup] = []

    def begin_attempt(self) -> None:
        """Record the present counters."""
        self._before = self.groups()

    def explain(self) -> OomFinding | None:
        """Whether the kernel has killed a process for its memory since; None if unknown."""
        return by_counts(self._before, self.groups())

    def remember(self) -> dict[str, int | None]:
        """Each cgroup's count, for a restarted supervisor."""
        return {group.path: group.kills for group in self._before}

    def recall(self, kills: Mapping[str, int | None]) -> None:
        """Restore the result of `remember`."""
        self._before = [MemoryGroup(path, 0, count) for path, count in kills.items()]
