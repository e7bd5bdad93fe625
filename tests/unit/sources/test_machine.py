"""CPU and memory of the host, as reported by the kernel."""

from __future__ import annotations

import psutil
import pytest
from ddptop.sources import overview


def test_cpu_is_not_known_at_first_and_looks_close_together_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiting for a disk is no work, and a guest's time counts once."""
    times = type(psutil.cpu_times())
    looks = iter(
        times(busy + 9, 0, 0, idle - 1, 1, 0, 0, 0, guest=9, guest_nice=0)
        for busy, idle in ((0, 0), (40, 60), (100, 100))
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(looks))
    meter = overview.CpuMeter()
    assert [meter.percent(at_s) for at_s in (10.0, 10.1)] == [None, None]
    assert [meter.percent(at_s) for at_s in (11.0, 11.1, 12.0)] == [40.0, 40.0, 60.0]


def test_this_host_is_seen_as_others_see_it() -> None:
    seen, memory = overview.read_machine(), psutil.virtual_memory()
    assert seen.memory_total_bytes == memory.total
    assert seen.memory_used_bytes == pytest.approx(memory.total - memory.available, rel=0.5)
    assert seen.cores == psutil.cpu_count()
