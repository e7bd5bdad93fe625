"""The forked reading of `ddptop gpus`: it finishes whatever the driver does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.nvml_stub import StubDriver
from tests.support.programs import captured

SCRIPT = """
import os, sys, time
from ddptop_runner.devices.report import ForkedReading
from ddptop_runner.model.snapshot import encode
print("before", end="")  # what waits to be written is not written twice
fds = len(os.listdir("/proc/self/fd"))
started = time.monotonic()
reading = ForkedReading()
if "slowly" in sys.argv:
    time.sleep(0.3)
report = reading.report(float(sys.argv[1]))
print()
print(encode([report, time.monotonic() - started, len(os.listdir("/proc/self/fd")) - fds]).decode())
"""


def read(env: dict[str, str], *arguments: str) -> tuple[dict, float]:
    done = captured(
        *[sys.executable, "-W", "error", "-c", SCRIPT],
        *arguments,
        env={**env, "PYTHONUNBUFFERED": ""},
        timeout=120,
        check=True,
    )
    before, answer = done.stdout.splitlines()
    assert (before, done.stderr) == ("before", "")
    report, took_s, leaked = json.loads(answer)
    assert leaked == 0
    return report, took_s


def no_child_of(stub: StubDriver) -> bool:
    """Whether every process that called the driver has exited."""
    return not [pid for pid in {call.pid for call in stub.calls()} if Path(f"/proc/{pid}").exists()]


def test_it_reads_what_a_sampler_reads(make_stub, wait_until):
    stub = make_stub(3)
    report, _ = read(stub.env(), "60", "slowly")
    assert report["source"] == "nvml"
    assert [gpu["util_percent"] for gpu in report["gpus"]] == [97] * 3
    assert stub.counts()["nvmlShutdown"] == 0
    assert no_child_of(stub)


def test_a_driver_that_crashes_ends_the_child_only(make_stub):
    stub = make_stub(1)
    stub.crash("nvmlDeviceGetPowerUsage")
    report, _ = read(stub.env(), "60")
    assert report["gpus"] == [] and "was killed by SIGSEGV" in report["note"]


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetPowerUsage"])
def test_a_driver_that_blocks_is_not_waited_for(make_stub, wait_until, function):
    stub = make_stub(1)
    if function == "nvmlInitWithFlags":
        stub.set_driver(init_status=-1)
    else:
        stub.hang(function)
    try:
        report, took_s = read(stub.env(), "0.5")
        assert report["gpus"] == [] and "has not responded" in report["note"]
        assert took_s < 20
        wait_until(lambda: no_child_of(stub), what="the child's end")
    finally:
        for pid in {call.pid for call in stub.calls()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_an_interrupted_command_leaves_no_child(make_stub, wait_until):
    stub = make_stub(1)
    stub.set_driver(slow_ms=200)
    with subprocess.Popen(
        [sys.executable, "-m", "ddptop", "gpus"], env=stub.env(), stdout=subprocess.PIPE
    ) as command:
        wait_until(lambda: stub.calls(), what="the first call")
        command.send_signal(2)
        assert command.wait(60) == 130
    stub.set_driver(slow_ms=0)
    wait_until(lambda: no_child_of(stub), what="the child's end")
