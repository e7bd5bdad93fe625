"""Real jobs, on CPUs or on four simulated devices."""

from __future__ import annotations

import pytest
from tests.support.nvml_stub import StubDriver, StubGpu
from tests.support.real_jobs import (
    ddp_trainer,
    launch,
    launch_command,
    launch_script,
    trainer,
    wait_until,
)
from tests.support.stub_fixtures import make_stub

__all__ = [
    "ddp_trainer",
    "launch",
    "launch_command",
    "launch_script",
    "make_stub",
    "trainer",
    "wait_until",
]


@pytest.fixture
def stub(make_stub, monkeypatch, ddptop_home) -> StubDriver:
    """Four idle devices."""
    driver = make_stub([StubGpu(index=index, mem_used=0) for index in range(4)])
    for name, value in driver.env(log=False).items():
        monkeypatch.setenv(name, value)
    return driver
