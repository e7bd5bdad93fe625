"""CPU and memory usage of this host, from /proc/stat and /proc/meminfo."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ddptop.view.shown import Machine
from ddptop_runner.host import procs

CPU_SPAN_S = 0.5
"""Shortest interval over which the kernel's ticks give a usable figure."""

_IDLE = slice(3, 5)
"""Fields of a CPU line: idle and iowait."""
_COUNTED = 8
"""Number of fields that count; guest time, which follows, is included in them."""


def ticks_of(stat: str) -> tuple[int, int] | None:
    """Busy and total ticks of all cores since the host booted; None if unknown.

    Args:
        stat: text of /proc/stat.
    """
    name, *figures = stat.partition("\n")[0].split()[: _COUNTED + 1] or [""]
    if name != "cpu" or not figures:
        return None
    ticks = [int(figure) for figure in figures]
    return sum(ticks) - sum(ticks[_IDLE]), sum(ticks)


def memory_of(meminfo: str) -> tuple[int, int] | None:
    """Used and total bytes; None if unknown.

    Args:
        meminfo: text of /proc/meminfo.
    """
    known = dict(line.partition(":")[::2] for line in meminfo.splitlines())
    try:
        total, available = (int(known[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (KeyError, IndexError, ValueError):
        return None
    return (total - available) * 1024, total * 1024


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _ticks() -> tuple[int, int] | None:
    return ticks_of(_text("/proc/stat"))


class CpuMeter:
    """CPU usage of this host between polls at least `CPU_SPAN_S` apart."""

    def __init__(self) -> None:
        self._looked_at_s: float | None = None
        self._ticks: tuple[int, int] | None = None
        self._percent: float | None = None

    def percent(self, now_s: float) -> float | None:
        """Percent of all cores; None on the first call, and unchanged if called again too soon.

        Args:
            now_s: a monotonic clock, in seconds.
        """
        if self._looked_at_s is None or now_s - self._looked_at_s >= CPU_SPAN_S:
            before, self._ticks = self._ticks, _ticks()
            self._percent = share(before, self._ticks)
            self._looked_at_s = now_s
        return self._percent


def share(before: tuple[int, int] | None, now: tuple[int, int] | None) -> float | None:
    """Percent of ticks that were busy between two readings; None if unknown."""
    if before is None or now is None or now[1] <= before[1]:
        return None
    return min(100.0, max(0.0, 100.0 * (now[0] - before[0]) / (now[1] - before[1])))


_cpu = CpuMeter()


def read_machine() -> Machine:
    """Read CPU usage since the last call, and memory."""
    used, total = memory_of(_text("/proc/meminfo")) or (None, None)
    return Machine(
        host=procs.host_name(),
        cpu_percent=_cpu.percent(time.monotonic()),
        cores=os.cpu_count(),
        memory_used_bytes=used,
        memory_total_bytes=total,
    )
