"""A large machine: 64 devices, 512 processes, 64 jobs. Its cost: benchmarks/many_devices.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from ddptop.sources import devices as sources
from ddptop.style import plain
from ddptop.tui.app import DdptopApp
from tests.support import fake_foreign
from tests.support.driving import settle
from tests.support.fake_foreign import FakeWorld
from tests.support.fake_home import GIB, NOW, gpu

from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.model.snapshot import GpuProcess

GPUS, RANKS = 64, 8


class ChangingFeed:
    """Replaces a sampler; each of its reports differs."""

    def __init__(self, uuids: object = None) -> None:
        self._chance = random.Random(3)

    @property
    def latest(self) -> DeviceReport:
        gpus = [
            gpu(
                index,
                util_percent=float(self._chance.randint(80, 100)),
                power_w=float(self._chance.randint(380, 640)),
                mem_used_bytes=self._chance.randrange(70 * GIB),
                processes=[
                    GpuProcess(pid=10_000 + RANKS * index + n, user="ada", command="python a.py")
                    for n in range(RANKS)
                ],
            )
            for index in range(GPUS)
        ]
        return DeviceReport(ts=NOW, boottime_s=0.0, source="nvml", gpus=gpus)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@pytest.fixture
def big_machine(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "driver_library_exists", lambda: True)
    monkeypatch.setattr(sources, "DeviceFeed", ChangingFeed)
    for index in range(GPUS):
        job = fake_foreign.foreign_job("train.py", RANKS, pid=9_990 + RANKS * index)
        ranks, gpus = fake_foreign.ranks_of(job)
        ranks = [msgspec.structs.replace(rank, gpu=index) for rank in ranks]
        FakeWorld.views.append(fake_foreign.view_of(job, ranks, gpus[:1]))


@pytest.mark.usefixtures("big_machine")
async def test_the_cursor_reaches_every_device(make_app: Callable[..., DdptopApp]) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("v", "G")
        await pilot.pause()
        panel = app.screen.devices
        assert panel.chosen.index == GPUS - 1
        assert any("-64 of 64" in text for line in panel._lines for text, _ in line)
        assert plain(panel._lines[panel.cursor_line()]).split()[0] == str(GPUS - 1)
