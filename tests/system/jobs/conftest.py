"""Real jobs, on CPUs or on four simulated devices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from tests.support.in_process_cli import ddptop_cli as in_process_cli
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
    "in_process_cli",
    "launch",
    "launch_command",
    "launch_script",
    "make_stub",
    "trainer",
    "wait_until",
]


@pytest.fixture
def ddptop_cli(ddptop_cli, in_process_cli) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The usual fixture, but in this process, unless it is a demo or loads a simulated driver."""

    def run(*arguments: str, **options: float) -> subprocess.CompletedProcess[str]:
        is_apart = arguments[0] == "demo" or "LD_LIBRARY_PATH" in os.environ
        chosen = ddptop_cli if is_apart else in_process_cli
        return chosen(*arguments, **options)

    return run


@pytest.fixture
def stub(make_stub, monkeypatch, ddptop_home) -> StubDriver:
    """Four idle devices."""
    driver = make_stub([StubGpu(index=index, mem_used=0) for index in range(4)])
    for name, value in driver.env(log=False).items():
        monkeypatch.setenv(name, value)
    return driver
