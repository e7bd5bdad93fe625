"""A process's memory cgroup: its limits, and its count of OOM kills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
_NO_LIMIT_BYTES = 2**62
"""Version 1 says "no limit" with a number near 2**63."""


@dataclass(frozen=True)
class MemoryGroup:
    """One memory cgroup at one moment; None where it does not tell."""

    path: str
    """Where its files are."""
    version: int
    kills: int | None
    """Processes that the kernel has killed for memory: in version 2 also those of groups below."""
    limit_bytes: int | None = None
    used_bytes: int | None = None
    peak_bytes: int | None = None


def groups_of(pid: int | str = "self", proc: Path = PROC) -> list[MemoryGroup]:
    """The memory cgroup of a process and all above it, innermost first; empty where none is seen.

    Args:
        pid: the process.
        proc: where /proc is mounted.
    """
    try:
        membership = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
        mounts = (proc / str(pid) / "mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    for version, own in _memberships(membership):
        for root, point in _mounts(mounts, version):
            found = _read_up(Path(point), _below(own, root), version)
            if any(group.kills is not None for group in found):
                return found
    return []


def _memberships(text: str) -> list[tuple[int, str]]:
    """(version, path in its hierarchy) of each memory cgroup, version 1 first."""
    first, second = [], []
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if "memory" in parts[1].split(","):
            first.append((1, parts[2]))
        elif parts[0] == "0" and not parts[1]:
            second.append((2, parts[2]))
    return first + second


def _mounts(text: str, version: int) -> list[tuple[str, str]]:
    """(root within the hierarchy, mount point) of each mount of the memory controller."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        first = kind[0] == "cgroup" and "memory" in kind[2].split(",")
        if first if version == 1 else kind[0] == "cgroup2":
            found.append((fields[3], fields[4]))
    return found


def _below(own: str, root: str) -> PurePosixPath:
    """Where the group lies below the mount: containers mount their own group as the root."""
    try:
        return PurePosixPath(own).relative_to(root)
    except ValueError:
        return PurePosixPath()


def _read_up(point: Path, below: PurePosixPath, version: int) -> list[MemoryGroup]:
    parts = [part for part in below.parts if part not in ("/", "..")]
    found = []
    for depth in range(len(parts), -1, -1):
        folder = point.joinpath(*parts[:depth])
        if folder.is_dir():
            found.append(read(folder, version))
    return found


def read(folder: Path, version: int) -> MemoryGroup:
    """The figures of one cgroup.

    Args:
        folder: where its files are.
        version: 1 or 2.
    """
    if version == 2:
        kills = _table(folder / "memory.events").get("oom_kill")
        limit, used, peak = "memory.max", "memory.current", "memory.peak"
    else:
        kills = _table(folder / "memory.oom_control").get("oom_kill")
        limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        peak = "memory.max_usage_in_bytes"
    limit_bytes = _number(folder / limit)
    if limit_bytes is not None and limit_bytes >= _NO_LIMIT_BYTES:
        limit_bytes = None
    return MemoryGroup(
        path=str(folder),
        version=version,
        kills=kills,
        limit_bytes=limit_bytes,
        used_bytes=_number(folder / used),
        peak_bytes=_number(folder / peak),
    )


def _table(path: Path) -> Mapping[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
