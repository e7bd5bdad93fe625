"""A frozen machine: clock, zone, host, devices."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddptop.job import keys
from ddptop.job.series import Machine
from ddptop.logs import reader as log_source
from ddptop.sources import devices as sources
from ddptop.sources import foreign as foreign_source
from ddptop.tui.app import DdptopApp
from tests.support import fake_gpus, idle
from tests.support.fake_foreign import FakeBook, FakeTaker, FakeWorld, HeldFeed, IllFeed
from tests.support.fake_home import GIB, HOST, NOW
from tests.support.terminal import Terminal

from ddptop_runner.devices.words import LIBRARY_MISSING
from ddptop_runner.host import procs
from ddptop_runner.job import registry

MACHINE = Machine(
    host=HOST,
    cpu_percent=37.0,
    cores=64,
    memory_used_bytes=212 * GIB,
    memory_total_bytes=512 * GIB,
)

idle.take_its_place()
# an app creates so many objects that garbage collection took a tenth of the time
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def default_keys() -> Iterator[None]:
    """Messages in the next test name the default keys again."""
    yield
    keys.use({})


@pytest.fixture
def frozen(ddptop_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder on a machine whose clock and devices are frozen."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(procs, "host_name", lambda: HOST)
    monkeypatch.setattr(registry, "utc_now", lambda: NOW)
    monkeypatch.setattr(sources, "library_problem", lambda: LIBRARY_MISSING)
    monkeypatch.setattr(foreign_source, "HostCensus", FakeTaker)
    monkeypatch.setattr(foreign_source, "ForeignBook", FakeBook)
    monkeypatch.chdir("/")
    FakeWorld.clear()
    yield ddptop_home
    FakeWorld.clear()
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def eight_gpus(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same machine with eight devices."""
    monkeypatch.setattr(sources, "library_problem", lambda: None)
    monkeypatch.setattr(sources, "DeviceFeed", fake_gpus.FrozenFeed)
    return frozen


@pytest.fixture
def held_gpus(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same machine with eight devices, used by the ranks of foreign jobs."""
    monkeypatch.setattr(sources, "library_problem", lambda: None)
    monkeypatch.setattr(sources, "DeviceFeed", HeldFeed)
    return frozen


@pytest.fixture
def ill_gpus(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same machine with nine devices, most of them with problems."""
    monkeypatch.setattr(sources, "library_problem", lambda: None)
    monkeypatch.setattr(sources, "DeviceFeed", IllFeed)
    return frozen


@pytest.fixture
def make_app(frozen: Path) -> Iterator[Callable[..., DdptopApp]]:
    """An app that updates once at startup, and then only on request."""
    made: list[DdptopApp] = []

    def make(job: str | None = None, **options: Any) -> DdptopApp:
        made.append(
            DdptopApp(job, now=lambda: NOW, machine=lambda: MACHINE, tick_s=None, **options)
        )
        return made[-1]

    yield make
    # it leaves behind an update that takes two seconds; keep it out of the next test
    for app in made:
        if app.collector._thread.is_alive():
            app.collector._thread.join(60)


@pytest.fixture
def quick_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check logs frequently, so that tests need not wait."""
    for name in ("POLL_S", "SLOW_POLL_S", "PLACES_EVERY_S"):
        monkeypatch.setattr(log_source, name, 0.02)


@pytest.fixture
def terminal(ddptop_home: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(*arguments, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
