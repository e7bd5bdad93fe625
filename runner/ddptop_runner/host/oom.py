"""Whether the kernel killed a process because memory ran out: by its log and its counts.

The log is /dev/kmsg, if this user can read it. The counts are those of the memory cgroup of the
job, which also has limits and usage for the evidence.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ddptop_runner.base.units import size
from ddptop_runner.host import procs

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""The kernel refuses a read that is shorter than a record."""
MOST_LINES = 2000
"""Kept of one attempt; an out-of-memory kill alone writes a hundred."""
MOST_RECORDS = 20_000
"""Read at one go."""

_RECORD = re.compile(rb"^(?P<level>\d+),(?P<seq>\d+),(?P<us>\d+),[^;]*;(?P<text>[^\n]*)")


@dataclass(frozen=True)
class KernelLine:
    """One line of the kernel's log."""

    at_s: float
    """Seconds after boot, without the time that the machine was suspended."""
    text: str

    def __str__(self) -> str:
        return f"[{self.at_s:12.6f}] {self.text}"


def parse_record(record: bytes) -> KernelLine | None:
    """One record of /dev/kmsg; None for what is none."""
    found = _RECORD.match(record)
    if found is None:
        return None
    return KernelLine(int(found["us"]) / 1e6, found["text"].decode("utf-8", "replace"))


class KernelLog:
    """What the kernel wrote since `begin`.

    Args:
        path: the log's device, or a file of such records.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._fd: int | None = None
        self._since_s = 0.0
        self._lines: deque[KernelLine] = deque(maxlen=MOST_LINES)

    @property
    def readable(self) -> bool:
        """Whether there is a log that this process may read."""
        return self._fd is not None

    def begin(self, since_s: float | None = None) -> None:
        """Begin anew.

        Args:
            since_s: as `time.monotonic()` had it then, of what was begun by a process that is gone;
                None: now.
        """
        self.close()
        self._lines.clear()
        self._since_s = time.monotonic() if since_s is None else since_s
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if since_s is None:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def lines(self) -> list[KernelLine]:
        """All lines since then, oldest first; the latest ones where there are very many."""
        for _ in range(MOST_RECORDS):
            try:
                record = b"" if self._fd is None else os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the kernel overwrote what was not read yet
                continue
            except OSError:
                break
            if not record:
                break
            for one in record.splitlines():  # a regular file gives many at once
                line = parse_record(one)
                # both clocks stand still in suspend, and differ by the kernel's rounding
                if line is not None and line.at_s >= self._since_s - 1.0:
                    self._lines.append(line)
        return list(self._lines)

    def close(self) -> None:
        """Read no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 2**62
"""Version 1 says "no limit" with a number near 2**63."""


@dataclass(frozen=True)
class MemoryGroup:
    """One memory cgroup at one moment; None where it is unknown."""

    path: str
    """Where its files are."""
    version: int
    kills: int | None
    """Processes that the kernel has killed for memory: in version 2 also those of groups below."""
    limit_bytes: int | None = None
    used_bytes: int | None = None
    peak_bytes: int | None = None


def groups_of(
    pid: int | str = "self", proc: Path = PROC, cgroups: Path = CGROUPS
) -> list[MemoryGroup]:
    """The memory cgroup of a process and all above it, innermost first; empty where none is seen.

    Args:
        pid: the process.
        proc: where /proc is mounted.
        cgroups: where cgroups are mounted.
    """
    for version, folders in cgroup_folders("memory", pid, proc, cgroups):
        found = [read_group(folder, version) for folder in folders]
        if any(group.kills is not None for group in found):
            return found
    return []


def cgroup_folders(
    controller: str, pid: int | str = "self", proc: Path = PROC, cgroups: Path = CGROUPS
) -> Iterator[tuple[int, list[Path]]]:
    """Each hierarchy's version, and the folders of a process's cgroup and of all above it.

    A container mounts its own group in place of the root.
    """
    try:
        text = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, own = rest.partition(":")
        if controller in controllers.split(","):
            version, mount = 1, cgroups / controller
        elif number == "0" and not controllers:
            version, mount = 2, cgroups
        else:
            continue
        parts = [part for part in PurePosixPath(own).parts if part not in ("/", "..")]
        while parts and not mount.joinpath(*parts).is_dir():
            del parts[0]
        depths = range(len(parts), -1, -1)
        yield version, [mount.joinpath(*parts[:depth]) for depth in depths]


def read_group(folder: Path, version: int) -> MemoryGroup:
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
    limit_bytes = number_in(folder / limit)
    if limit_bytes is not None and limit_bytes >= NO_LIMIT:
        limit_bytes = None
    return MemoryGroup(
        path=str(folder),
        version=version,
        kills=kills,
        limit_bytes=limit_bytes,
        used_bytes=number_in(folder / used),
        peak_bytes=number_in(folder / peak),
    )


def _table(path: Path) -> Mapping[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def number_in(path: Path) -> int | None:
    """The number that a file of a cgroup holds; None for `max`, and without the file."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


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
    """An out-of-memory kill in the kernel's log."""

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
        groups: Callable[[], list[MemoryGroup]] = groups_of,
        log: KernelLog | None = None,
        own_pids: bool | None = None,
    ) -> None:
        if own_pids is None:
            own_pids = procs.pid_namespace() == _FIRST_PID_NAMESPACE
        self._own_pids = own_pids
        self.groups = groups
        """Reads the memory cgroups of now."""
        self.log = KernelLog() if log is None else log
        self._before: list[MemoryGroup] = []
        self._since_s = time.monotonic()

    def begin_attempt(self) -> None:
        """Note the counts of now."""
        self._before = self.groups()
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
