"""Determines whether the kernel killed a process because memory ran out, from its log and counters.

The log is /dev/kmsg, if this user can read it. The counters are those of the job's memory cgroup,
which also provides limits and usage as evidence.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddptop_runner.base.units import size
from ddptop_runner.host import procs
from ddptop_runner.model.words import Base

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""Large enough for any record, since the kernel refuses shorter reads."""
MOST_LINES = 2000
"""Maximum number of lines per attempt; an out-of-memory kill alone writes about a hundred."""
MOST_RECORDS = 20_000
"""Maximum number of records per read."""

_RECORD = re.compile(rb"^(?P<level>\d+),(?P<seq>\d+),(?P<us>\d+),[^;]*;(?P<text>[^\n]*)")


@dataclass(frozen=True)
class KernelLine:
    """A line of the kernel log."""

    at_s: float
    """Seconds since boot, excluding time suspended."""
    text: str

    def __str__(self) -> str:
        return f"[{self.at_s:12.6f}] {self.text}"


def parse_record(record: bytes) -> KernelLine | None:
    """Parse a record of /dev/kmsg; None if it is not one."""
    found = _RECORD.match(record)
    if found is None:
        return None
    return KernelLine(int(found["us"]) / 1e6, found["text"].decode("utf-8", "replace"))


class KernelLog:
    """The kernel log since `begin`.

    Args:
        path: the log's device, or a file with such records.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._fd: int | None = None
        self._since_s = 0.0
        self._lines: deque[KernelLine] = deque(maxlen=MOST_LINES)

    @property
    def readable(self) -> bool:
        """Whether there is a log that this process can read."""
        return self._fd is not None

    def begin(self, since_s: float | None = None) -> None:
        """Start over.

        Args:
            since_s: the `time.monotonic()` at which an earlier process began; defaults to now.
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
        """All lines since then, oldest first; only the latest if there are very many."""
        for _ in range(MOST_RECORDS):
            try:
                record = b"" if self._fd is None else os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the kernel overwrote unread records
                continue
            except OSError:
                break
            if not record:
                break
            for one in record.splitlines():  # a regular file returns many at once
                line = parse_record(one)
                # both clocks stop during suspend; they differ by the kernel's rounding
                if line is not None and line.at_s >= self._since_s - 1.0:
                    self._lines.append(line)
        return list(self._lines)

    def close(self) -> None:
        """Close the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


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
    used_bytes: int | None = None
    peak_bytes: int | None = None


def groups_of(
    pid: int | str = "self", proc: Path = PROC, cgroups: Path = CGROUPS
) -> list[MemoryGroup]:
    """The memory cgroup of a process and all above it, innermost first; empty if none is visible.

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
    """Yields each hierarchy's version, with the folders of a process's cgroup and all above it.

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
    """Read one cgroup.

    Args:
        folder: the folder with its files.
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
    """The number in a cgroup's file; None for `max` or without the file."""
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
"""Prefixes of the kernel's names for training processes; torch renames its own."""

NOT_COUNTED = "The kernel log shows no OOM kill of this process"
SOMETHING_ELSE = "something else killed it (kill -9, a batch system, an OOM daemon)"

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace that the kernel log uses."""


@dataclass(frozen=True)
class OomFinding:
    """The kernel's information on a process that was killed by SIGKILL."""

    killed: bool
    """Whether it was killed for memory."""
    words: str
    """A sentence."""


@dataclass(frozen=True)
class Kill:
    """An out-of-memory kill in the kernel log."""

    pid: int
    name: str
    held_bytes: int | None
    by_limit: bool
    """Whether a cgroup reached its limit; otherwise, the machine ran out of memory."""

    @property
    def why(self) -> str:
        """The reason in words."""
        return (
            "its cgroup's memory limit was reached"
            if self.by_limit
            else "the machine ran out of memory"
        )


def kills_in(lines: Iterable[KernelLine]) -> list[Kill]:
    """The kills in the kernel log, in order."""
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
    """What the kernel log says about one of these processes; None if nothing.

    Args:
        kills: since the attempt began.
        pids: as this process sees them.
        own_pids: whether the kernel log uses the same pids as this process; not so in a container.
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
    return OomFinding(False, f"{NOT_COUNTED}: {SOMETHING_ELSE}.")


class OomMemory(Base, frozen=True, kw_only=True):
    """What an earlier supervisor knew when the attempt began."""

    since_s: float | None = None
    """CLOCK_MONOTONIC."""
    kills: dict[str, int | None] = {}
    """By cgroup."""


class OomWatch:
    """Records the kernel's counters before an attempt, for comparison after a SIGKILL.

    Args:
        groups: reads the memory cgroups of this process, which the ranks share.
        log: the kernel log.
        own_pids: whether that log uses the same pids as this process; None to find out.
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
        """Reads the present memory cgroups."""
        self.log = KernelLog() if log is None else log
        self._before: list[MemoryGroup] = []
        self._since_s = time.monotonic()

    def begin_attempt(self) -> None:
        """Record the present counters."""
        self._before = self.groups()
        self._since_s = time.monotonic()
        self.log.begin()

    def explain(self, pids: Collection[int]) -> OomFinding | None:
        """Why the kernel killed one of these processes; None if unknown.

        Args:
            pids: processes killed by SIGKILL.
        """
        finding = by_log(kills_in(self.log.lines()), pids, own_pids=self._own_pids)
        if finding is None:
            finding = by_counts(self._before, self.groups())
        if finding is None and self._own_pids and self.log.readable:
            finding = OomFinding(False, f"{NOT_COUNTED}: {SOMETHING_ELSE}.")
        return finding

    def remember(self) -> OomMemory:
        """What a restarted supervisor restores."""
        return OomMemory(
            since_s=self._since_s, kills={group.path: group.kills for group in self._before}
        )

    def recall(self, memory: OomMemory) -> None:
        """Restore the result of `remember`."""
        self._before = [MemoryGroup(path, 0, count) for path, count in memory.kills.items()]
        if memory.since_s is not None and memory.since_s <= time.monotonic():
            self._since_s = memory.since_s
            self.log.begin(self._since_s)
