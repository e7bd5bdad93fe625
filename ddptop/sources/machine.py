"""CPU and memory usage of this host."""

from __future__ import annotations

import time

from ddptop.view.shown import Machine
from ddptop_runner.host import procs

CPU_SPAN_S = 0.5
"""Shortest interval over which the kernel's ticks give a usable figure."""


class CpuMeter:
    """CPU usage of this host between polls at least `CPU_SPAN_S` apart."""

    def __init__(self) -> None:
        self._looked_at_s: float | None = None
        self._times_s = (0.0, 0.0)
        self._percent: float | None = None

    def percent(self, now_s: float) -> float | None:
        """Percent of all cores; None on the first call, and unchanged if called again too soon.

        Args:
            now_s: a monotonic clock, in seconds.
        """
        if self._looked_at_s is None or now_s - self._looked_at_s >= CPU_SPAN_S:
            (busy_s, total_s), self._times_s = self._times_s, _busy_and_total_s()
            passed_s = self._times_s[1] - total_s
            if self._looked_at_s is not None and passed_s > 0:
                self._percent = min(100.0, max(0.0, 100 * (self._times_s[0] - busy_s) / passed_s))
            self._looked_at_s = now_s
        return self._percent


def _busy_and_total_s() -> tuple[float, float]:
    """CPU time of all cores since the host booted; a guest's time is included in the user's."""
    import psutil  # the first frame does without

    times = psutil.cpu_times()
    total_s = sum(times) - times.guest - times.guest_nice
    return total_s - times.idle - times.iowait, total_s


_cpu = CpuMeter()


def read_machine() -> Machine:
    """Read CPU usage since the last call, and memory."""
    import psutil

    memory = psutil.virtual_memory()
    return Machine(
        host=procs.host_name(),
        cpu_percent=_cpu.percent(time.monotonic()),
        cores=psutil.cpu_count(),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
    )
