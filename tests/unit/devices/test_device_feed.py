"""The sampler's clients: the feed of a supervisor or viewer, and a command's single reading."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest
from tests.support.nvml_stub.driver import UNINITIALIZED

from ddptop_runner.devices import feed as device_feed
from ddptop_runner.devices import report as device_once
from ddptop_runner.devices.feed import DeviceFeed, next_delay_s
from ddptop_runner.devices.report import sample_once
from ddptop_runner.devices.words import LIBRARY_MISSING


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


@pytest.fixture
def stub(make_stub, monkeypatch):
    """A simulated driver that child processes find. This process's own loader cannot see it."""
    driver = make_stub(2)
    for name, value in driver.env({}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device_feed, "library_problem", lambda: None)
    monkeypatch.setattr("ddptop_runner.devices.report.library_problem", lambda: None)
    return driver


async def test_the_feed_follows_the_driver_and_ends_its_sampler(stub):
    feed = DeviceFeed(interval_s=0.1)
    assert feed.latest is None and feed.note is None and feed.pid is None
    await feed.start()
    await feed.start()  # a second start changes nothing
    await until(lambda: feed.latest and feed.latest.gpus)
    assert [gpu.index for gpu in feed.latest.gpus] == [0, 1]
    stub.set(0, util=5)
    await until(lambda: feed.latest.gpus[0].util_percent == 5)
    pid = feed.pid
    assert pid is not None
    await feed.stop()
    assert feed.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await feed.stop()


async def test_a_report_can_be_requested_between_ticks(stub):
    feed = DeviceFeed(interval_s=600)
    feed.request()  # nothing runs yet
    await feed.start()
    await until(lambda: feed.latest and feed.latest.gpus)
    stub.set(0, util=5)
    feed.request()
    await until(lambda: feed.latest.gpus[0].util_percent == 5)
    await feed.stop()
    feed.request()


async def test_a_killed_sampler_is_started_again(stub, monkeypatch):
    monkeypatch.setattr(device_feed, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(device_feed, "STALE_AFTER_S", 1.2)
    stub.slow_ms = 0
    feed = DeviceFeed(interval_s=0.1)
    await feed.start()
    await until(lambda: feed.latest and feed.latest.gpus)
    first = feed.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: feed.pid not in (None, first))
    stub.set(1, util=7)
    # while there are no reports, none lists devices
    await until(
        lambda: feed.note is None and [gpu.util_percent for gpu in feed.latest.gpus[1:2]] == [7]
    )
    await feed.stop()


@pytest.mark.parametrize(("interval_s", "fresh_s", "stale_s"), [(1.0, 5, 6), (60.0, 64, 65)])
def test_a_report_is_stale_5_s_after_it_was_due(monkeypatch, interval_s, fresh_s, stale_s):
    times = iter([0, fresh_s, stale_s])
    monkeypatch.setattr(device_feed, "boottime_s", lambda: next(times))
    feed = DeviceFeed(interval_s=interval_s)
    assert feed.note is None and "has not responded" in (feed.note or "")


async def test_a_silent_sampler_makes_its_figures_unknown(stub, monkeypatch):
    feed = DeviceFeed(interval_s=0.1)
    monkeypatch.setattr(device_feed, "STALE_AFTER_S", 1.4)
    await feed.start()
    await until(lambda: feed.latest and feed.latest.gpus)
    os.kill(feed.pid, signal.SIGSTOP)
    await until(lambda: feed.note)
    assert "has not responded for" in feed.note
    gpu = feed.latest.gpus[0]
    assert gpu.util_percent is gpu.power_w is gpu.processes is gpu.mem_used_bytes is None
    assert gpu.name and gpu.uuid and gpu.mem_total_bytes
    os.kill(feed.pid, signal.SIGCONT)
    await until(lambda: feed.note is None and feed.latest.gpus[0].util_percent == 97)
    await feed.stop()


async def test_a_call_that_never_returns_makes_figures_unknown_and_ends_with_the_feed(
    stub, monkeypatch
):
    monkeypatch.setattr(device_feed, "STALE_AFTER_S", 1.4)
    feed = DeviceFeed(interval_s=0.1)
    await feed.start()
    await until(lambda: feed.latest and feed.latest.gpus)
    stub.hang("nvmlDeviceGetPowerUsage", 1)
    await until(lambda: feed.note)
    assert "has not responded for" in feed.note
    assert feed.latest.gpus[0].util_percent is None  # the first is as unknown as the second
    assert feed.latest.gpus[0].unknown["util_percent"] == "the driver is not responding"
    pid = feed.pid
    await feed.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_crash_of_the_driver_ends_the_sampler_only(stub, monkeypatch):
    monkeypatch.setattr(device_feed, "FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(device_feed, "STALE_AFTER_S", 1.4)
    feed = DeviceFeed(interval_s=0.1)
    await feed.start()
    await until(lambda: feed.latest and feed.latest.gpus)
    stub.crash("nvmlDeviceGetPowerUsage")
    await until(lambda: feed.note and "SIGSEGV" in feed.note)
    assert feed.latest.gpus[1].util_percent is None and feed.latest.gpus[1].uuid
    stub.set_driver(errors={})
    await until(lambda: feed.note is None and feed.latest.gpus[1].util_percent == 97)
    await feed.stop()


async def test_sampler_starts_again_when_every_handle_is_stale(stub):
    feed = DeviceFeed(interval_s=0.1)
    await feed.start()
    await until(lambda: feed.latest and feed.latest.gpus)
    before = feed.pid
    stub.set(0, util=12)
    stub.forget_clients(UNINITIALIZED)
    await until(lambda: feed.latest and feed.latest.gpus[0].util_percent == 12)
    assert feed.pid != before
    await feed.stop()


async def test_sampler_that_cannot_run_reports_its_last_line(stub, monkeypatch):
    failing = [sys.executable, "-c", "raise RuntimeError('not this one')"]
    monkeypatch.setattr(device_feed, "sampler_command", lambda *_, **__: failing)
    monkeypatch.setattr(device_feed, "STALE_AFTER_S", 1.2)
    monkeypatch.setattr(device_feed, "FIRST_DELAY_S", 30.0)
    feed = DeviceFeed(interval_s=0.1)
    await feed.start()
    words = "exited with status 1: RuntimeError: not this one"
    await until(lambda: words in (feed.note or ""))  # before it exits, it does not respond
    await feed.stop()


async def test_where_no_process_can_be_started_it_says_so_and_tries_again(stub, monkeypatch):
    async def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(device_feed, "STALE_AFTER_S", 1.0)
    monkeypatch.setattr(device_feed, "FIRST_DELAY_S", 0.05)
    feed = DeviceFeed(interval_s=0.1)
    with monkeypatch.context() as full:
        full.setattr(asyncio, "create_subprocess_exec", refused)
        await feed.start()
        await until(lambda: "cannot start" in (feed.note or ""))
        assert "temporarily unavailable" in feed.note
    await until(lambda: feed.latest.gpus and feed.note is None)
    await feed.stop()


async def test_without_the_library_no_process_is_started(monkeypatch):
    monkeypatch.setattr(device_feed, "library_problem", lambda: LIBRARY_MISSING)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
    feed = DeviceFeed()
    await feed.start()
    await until(lambda: feed.latest)
    assert feed.latest.source is None and "libnvidia-ml.so.1" in feed.note
    await feed.stop()


# --- one reading -------------------------------------------------------------------------------


def test_one_reading(stub):
    report = sample_once(60)
    assert report.source == "nvml" and len(report.gpus) == 2
    assert [gpu.index for gpu in sample_once(60, [stub.gpu(1).uuid]).gpus] == [1]


def test_one_reading_does_not_wait_for_a_driver_that_blocks(stub):
    stub.set_driver(slow_ms=60_000)
    started = time.monotonic()
    report = sample_once(timeout_s=0.5)
    assert time.monotonic() - started < 30
    assert report.gpus == [] and "has not responded" in report.note


def test_one_reading_survives_a_crash_of_the_driver(stub, monkeypatch):
    crashing = [sys.executable, "-c", "import os; os.abort()"]
    monkeypatch.setattr(device_once, "sampler_command", lambda *_, **__: crashing)
    report = sample_once(60)
    assert report.gpus == [] and "SIGABRT" in report.note


def test_delays_double_up_to_a_limit_and_reset_after_a_long_run():
    assert next_delay_s(None, 0) == 1
    assert next_delay_s(1, 2) == 2
    assert next_delay_s(16, 2) == 30
    assert next_delay_s(30, 3600) == 1
