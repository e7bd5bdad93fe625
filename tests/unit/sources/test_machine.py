"""CPU and memory of the host, as reported by the kernel."""

from __future__ import annotations

import psutil
import pytest
from ddptop.sources import overview


def test_cpu_is_not_known_at_first_and_looks_close_together_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, percents = iter([10.0, 10.1, 11.0, 11.1, 12.0]), iter([0.0, 40.0, 60.0])
    monkeypatch.setattr(overview, "_cpu", (None, None))
    monkeypatch.setattr(overview.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(psutil, "cpu_percent", lambda: next(percents))
    looks = [overview.read_machine().cpu_percent for _ in range(5)]
    assert looks == [None, None, 40.0, 40.0, 60.0]


def test_this_host_is_seen_as_others_see_it() -> None:
    seen, memory = overview.read_machine(), psutil.virtual_memory()
    assert seen.memory_total_bytes == memory.total
    assert seen.memory_used_bytes == pytest.approx(memory.total - memory.available, rel=0.5)
    assert seen.cores == psutil.cpu_count()
