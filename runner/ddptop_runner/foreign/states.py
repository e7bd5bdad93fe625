"""Derives the state of a process, and the reason for it, from outside.

`StateWatch` remembers what the looks before saw; `state_of` decides from that alone. A rank that
waits in a collective spins or sleeps like one that works: that verdict is `stuck`'s, from the
devices, never from here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddptop_runner.model.words import RankState

BLOCKED_LOOKS = 3
"""So many looks in a row must find a process in uninterruptible sleep ..."""
BLOCKED_S = 2.0
"""... and for so long: a disk access takes milliseconds."""
IDLE_S = 30.0
"""After this time without any CPU time that is worth saying."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Seen:
    """One process and its helpers at one look."""

    letter: str | None
    """As in ps(1); None when this user may not see it."""
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
    if seen.letter is None:
        return "unknown", "cannot be inspected: owned by another user (needs root)"
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
    cpu_ticks: dict[int, tuple[int, int]]
    """(start, ticks) by pid, helpers included."""
    looked_s: float
    busy_s: float
    """When CPU time was last seen used."""
    blocked_looks: int = 0
    blocked_since_s: float = 0.0


class StateWatch:
    """Looks at processes again and again; a process that is not looked at is forgotten."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, _Memory] = {}

    def look(
        self, processes: Mapping[int, tuple[int, Iterable[int]]], now_s: float
    ) -> dict[int, Seen]:
        """What is seen of each process, by pid; those that are gone are left out.

        Args:
            processes: {pid: (start ticks, pids of its helpers)}.
            now_s: a clock that only goes forward.
        """
        known, found = {}, {}
        for pid, (started, helpers) in processes.items():
            fields = self._stat(pid)
            if fields == "hidden":
                found[pid] = Seen(letter=None)
                continue
            if not isinstance(fields, list) or int(fields[19]) != started:
                continue
            known[pid] = memory = self._remember(pid, started, now_s)
            found[pid] = self._see(pid, fields, helpers, memory, now_s)
        self._known = known
        return found

    def known(self) -> int:
        """How many processes are remembered."""
        return len(self._known)

    def _remember(self, pid: int, started: int, now_s: float) -> _Memory:
        memory = self._known.get(pid)
        if memory is None or memory.start_ticks != started:
            return _Memory(started, {}, now_s, now_s)
        return memory

    def _see(
        self, pid: int, fields: list[str], helpers: Iterable[int], memory: _Memory, now_s: float
    ) -> Seen:
        first = not memory.cpu_ticks
        ticks = {pid: (memory.start_ticks, int(fields[11]) + int(fields[12]))}
        rss_bytes = int(fields[21]) * _PAGE_BYTES
        for helper in helpers:
            stat = self._stat(helper)
            if isinstance(stat, list):
                ticks[helper] = (int(stat[19]), int(stat[11]) + int(stat[12]))
                rss_bytes += int(stat[21]) * _PAGE_BYTES
        used = 0
        for one, (started, total) in ticks.items():
            before = memory.cpu_ticks.get(one)
            if before is not None and before[0] == started:
                used += total - before[1]
        elapsed_s = now_s - memory.looked_s
        if used > 0:
            memory.busy_s = now_s
        memory.cpu_ticks, memory.looked_s = ticks, now_s
        letter = fields[0]
        if letter != "D":
            memory.blocked_looks = 0
        elif not memory.blocked_looks:
            memory.blocked_looks, memory.blocked_since_s = 1, now_s
        else:
            memory.blocked_looks += 1
        blocked_s = now_s - memory.blocked_since_s if memory.blocked_looks else 0.0
        return Seen(
            letter=letter,
            blocked_looks=memory.blocked_looks,
            blocked_s=blocked_s,
            idle_s=None if first else now_s - memory.busy_s,
            wait_channel=self._wait_channel(pid) if letter == "D" else None,
            cpu_percent=(
                100.0 * used / _TICKS_PER_S / elapsed_s if not first and elapsed_s > 0 else None
            ),
            rss_bytes=rss_bytes,
        )

    def _stat(self, pid: int) -> list[str] | str | None:
        """Fields after the command, "hidden", or None when it is gone."""
        try:
            with open(f"{self._proc}/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - hot
                data = file.read(4096)
        except PermissionError:
            return "hidden"
        except OSError:
            return None
        return data[data.rfind(b")") + 2 :].decode("ascii", "replace").split()

    def _wait_channel(self, pid: int) -> str | None:
        try:
            with open(f"{self._proc}/{pid}/wchan", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                name = file.read(128).strip()
        except OSError:
            return None
        return name if name not in ("", "0") else None
