"""CPU and memory of the host, as reported by the kernel."""

from __future__ import annotations

import psutil
import pytest
from ddptop.sources import machine

STAT = "cpu  {busy} 0 0 {idle} 0 0 0 0 999 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"


def test_cpu_is_not_known_at_first_and_looks_close_together_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = ((0, 0), (40, 60), (100, 100))
    texts = iter([STAT.format(busy=busy, idle=idle) for busy, idle in looks])
    monkeypatch.setattr(machine, "_text", lambda path: next(texts))
    meter = machine.CpuMeter()
    assert [meter.percent(at_s) for at_s in (10.0, 10.1)] == [None, None]
    assert [meter.percent(at_s) for at_s in (11.0, 11.1, 12.0)] == [40.0, 40.0, 60.0]


def test_waiting_for_a_disk_is_no_work_and_a_guests_time_counts_once() -> None:
    assert machine.ticks_of("cpu  10 20 30 400 50 6 7 8 900 900\n") == (81, 531)


@pytest.mark.parametrize("stat", ["", "intr 1\n", "cpu\n"])
def test_without_a_word_of_the_kernel_cpu_is_unknown(stat: str) -> None:
    assert machine.ticks_of(stat) is None
    assert machine.share(None, (1, 2)) is None
    assert machine.share((1, 2), None) is None
    assert machine.share((1, 2), (1, 2)) is None


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 5 kB\n", "MemTotal:\nMemAvailable: 1 kB\n"])
def test_memory_that_the_kernel_does_not_tell_is_unknown(meminfo: str) -> None:
    assert machine.memory_of(meminfo) is None


def test_this_host_is_seen_as_others_see_it() -> None:
    seen, memory = machine.read_machine(), psutil.virtual_memory()
    assert seen.memory_total_bytes == memory.total
    assert seen.memory_used_bytes == pytest.approx(memory.total - memory.available, rel=0.5)
    assert seen.cores == psutil.cpu_count()
