"""Derives the state of a process, and the reason for it, from outside.

`StateWatch` remembers what the looks before saw; `state_of` decides from that alone. A rank that
waits in a collective spins or sleeps like one that works: that verdict is `stuck`'s, from the
devices, never from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddptop_runner.host import procs
from ddptop_runner.host.tree import RankUsage, UsageMeter
from ddptop_runner.model.words import RankState

BLOCKED_LOOKS = 3
"""So many looks in a row must find a process in uninterruptible sleep ..."""
BLOCKED_S = 2.0
"""... and for so long: a disk access takes milliseconds."""
IDLE_S = 30.0
"""After this time without any CPU time that is worth saying."""


@dataclass(frozen=True)
class Seen:
    """One process and its helpers at one look."""

    letter: str
    """As in ps(1)."""
    blocked_looks: int = 0
    """How many looks in a row found it in uninterruptible sleep, this one included."""
    blocked_s: float = 0.0
    idle_s: float | None = None
    """Seconds since it last used CPU time; None at the first look."""
    wait_channel: str | None = None
    """The kernel function in which it sleeps, where that is readable."""
    cpu_percent: float | None = None
    """Of one core, over the time since the last look, helpers included."""
    rss_bytes: int | None = None
    """Helpers included: pages that they share count once for each."""


def state_of(seen: Seen, stuck_reason: str | None = None) -> tuple[RankState, str | None]:
    """(state, reason in words or None) of a rank.

    Args:
        seen: what was seen of its process.
        stuck_reason: why it is thought to be stuck in a collective; None when it is not.
    """
    if seen.letter in "ZX":
        return "zombie", "exited, but not yet reaped by its parent"
    if seen.letter == "T":
        return "paused", "paused by a signal (SIGSTOP or Ctrl-Z); send SIGCONT to resume it"
    if seen.letter == "t":
        return "paused", "stopped in a debugger"
    if seen.blocked_looks >= BLOCKED_LOOKS and seen.blocked_s >= BLOCKED_S:
        inside = f" in {seen.wait_channel}" if seen.wait_channel else ""
        return "blocked", (
            f"in uninterruptible sleep{inside} for {seen.blocked_s:.0f} s: waiting for a disk, "
            "network file system, or driver; signals have no effect"
        )
    if stuck_reason is not None:
        return "stuck", stuck_reason
    if seen.idle_s is not None and seen.idle_s >= IDLE_S:
        return "running", f"no CPU time used for {seen.idle_s:.0f} s"
    return "running", None


@dataclass
class _Memory:
    """One process, from look to look."""

    start_ticks: int
    busy_s: float
    """When CPU time was last seen used."""
    looks: int = 0
    blocked_looks: int = 0
    blocked_since_s: float = 0.0


class StateWatch:
    """Looks at processes again and again; a process that is not looked at is forgotten."""

    def __init__(self) -> None:
        self._meter = UsageMeter[int]()
        self._known: dict[int, _Memory] = {}

    def look(
        self, processes: Mapping[int, tuple[int, Iterable[int]]], now_s: float
    ) -> dict[int, Seen]:
        """What is seen of each process, by pid; those that are gone are left out.

        Args:
            processes: {pid: (start ticks, pids of its helpers)}.
            now_s: a clock that only goes forward.
        """
        trees = {pid: (pid, *helpers) for pid, (_, helpers) in processes.items()}
        known, found = {}, {}
        for pid, usage in self._meter.look(trees, now_s).items():
            if usage.start_ticks != processes[pid][0]:
                continue
            memory = self._known.get(pid)
            if memory is None or memory.start_ticks != usage.start_ticks:
                memory = _Memory(usage.start_ticks, now_s)
            known[pid] = memory
            found[pid] = _see(pid, usage, memory, now_s)
        self._known = known
        return found

    def known(self) -> int:
        """How many processes are remembered."""
        return len(self._known)


def _see(pid: int, usage: RankUsage, memory: _Memory, now_s: float) -> Seen:
    memory.looks += 1
    if usage.cpu_percent:
        memory.busy_s = now_s
    blocked = usage.state_letter == "D"
    if blocked and not memory.blocked_looks:
        memory.blocked_since_s = now_s
    memory.blocked_looks = memory.blocked_looks + 1 if blocked else 0
    return Seen(
        letter=usage.state_letter,
        blocked_looks=memory.blocked_looks,
        blocked_s=now_s - memory.blocked_since_s if blocked else 0.0,
        idle_s=now_s - memory.busy_s if memory.looks > 1 else None,
        wait_channel=procs.wait_channel(pid) if blocked else None,
        cpu_percent=usage.cpu_percent,
        rss_bytes=usage.rss_bytes,
    )
