"""Devices: every metric or the reason it is missing, and which processes use them."""

from __future__ import annotations

import msgspec
from ddptop.draw.devices import detail_lines, device_trouble, heaviest_first, holder_text
from ddptop.job.figures.devices import energy, heat
from ddptop.style import plain, width
from tests.support import fake_foreign
from tests.support.fake_foreign import IllFeed
from tests.support.fake_home import gpu

from ddptop_runner.job.registry import rank_of_pid
from ddptop_runner.model.snapshot import GpuProcess, GpuSample


def ill(index: int) -> GpuSample:
    return next(g for g in IllFeed().latest.gpus if g.index == index and g.parent_uuid is None)


def details(sample: GpuSample, cells: int = 110, rows: int = 40) -> str:
    lines = detail_lines(sample, cells, rows)
    assert all(width(line) <= cells for line in lines)
    assert len(lines) <= rows
    return "\n".join(plain(line).rstrip() for line in lines)


class TestDetails:
    def test_throttled_device_shows_the_reason_and_temperature_limit(self) -> None:
        text = details(ill(0))
        assert "slowed    ▼ thermal, by hardware" in text
        assert "now 86 °C   slowdown at 87 °C   fan n/a" in text
        assert "SM 1200/1980 MHz" in text
        assert "limited by power cap" in text, "the usual power limit is no trouble, but said"
        assert "energy 113.9 kWh" in text

    def test_what_is_not_known_has_a_reason(self) -> None:
        assert "n/a       fan: not supported by this device" in details(ill(0))
        text = details(ill(5))
        assert "n/a       utilization, memory, processes: no permission" in text
        assert "temperature: the driver has no such function" in text
        assert "0%" not in text

    def test_a_lost_device_has_words_and_no_figures(self) -> None:
        text = details(ill(1))
        assert "✗ lost: fell off the bus; a reset or a reboot brings it back" in text
        assert "clocks" not in text

    def test_an_xid_has_its_meaning(self) -> None:
        assert "✗ 79: the device fell off the bus" in details(ill(2))

    def test_failing_memory_is_reported(self) -> None:
        assert "spare rows used 12   row remap pending: reset the device" in details(ill(3))
        assert "no spare rows left: replace the device" in details(ill(4))

    def test_a_healthy_device_has_no_trouble(self) -> None:
        assert "● the driver reports no problems" in details(ill(7))
        assert "no trouble" not in details(ill(5)), "of that one the driver does not say"
        assert device_trouble(gpu(0, throttle_reasons=["power cap"])) == ()

    def test_mig_instances_are_named_on_both_sides(self) -> None:
        assert "MIG       MIG-aaaa   MIG-bbbb" in details(ill(6))
        instance = next(g for g in IllFeed().latest.gpus if g.parent_uuid is not None)
        assert "GPU 6, MIG instance" in details(instance)

    def test_energy_in_the_unit_that_reads_well(self) -> None:
        assert [energy(value) for value in (None, 3600.0, 4.1e8)] == ["n/a", "1 Wh", "113.9 kWh"]


class TestRows:
    def test_heat_is_measured_against_the_devices_own_threshold(self) -> None:
        assert heat(gpu(0, temperature_c=86.0, temperature_slowdown_c=95.0)) == ""
        assert heat(gpu(0, temperature_c=86.0, temperature_slowdown_c=87.0)) == "warn"
        assert heat(gpu(0, temperature_c=None)) == "dim"

    def test_trouble_comes_before_the_holder(self) -> None:
        assert plain(holder_text(ill(2))) == "XID 79  busy: unknown process, 61.4 GiB"

    def test_ranks_of_one_job_are_held_together(self) -> None:
        held = gpu(0, processes=[GpuProcess(pid=p) for p in (11, 12, 13)])
        known = {11: ("train.py:4711", 0), 12: ("train.py:4711", 1)}
        assert plain(holder_text(held, known)) == "train.py:4711 ranks 0-1  pid 13"

    def test_data_loader_workers_count_as_their_rank(self) -> None:
        view = fake_foreign.healthy()
        ranks = list(view.foreign.ranks)
        ranks[2] = msgspec.structs.replace(ranks[2], helpers=(9001,))
        foreign = msgspec.structs.replace(view.foreign, ranks=tuple(ranks))
        found = rank_of_pid([msgspec.structs.replace(view, foreign=foreign)])
        assert found[9001] == ("train.py:4711", 2)
        assert found[4711] == ("train.py:4711", None)
        assert found[4724] == ("train.py:4711", 3)


def test_the_process_that_holds_the_most_memory_is_first() -> None:
    used = {1: 5, 2: None, 3: 9}
    held = [GpuProcess(pid=pid, mem_used_bytes=held) for pid, held in used.items()]
    assert [process.pid for process in heaviest_first(held)] == [3, 1, 2]
