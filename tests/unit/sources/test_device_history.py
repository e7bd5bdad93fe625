"""The history of devices: bounded, filled from jobs' histories, and unknown is not zero."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from pathlib import Path

import pytest
from ddptop.charts.devices import figures_of, pause_s
from ddptop.draw.devices import first_seen, small_curve, wasted_words
from ddptop.job.record import Job
from ddptop.job.series import DeviceHistory, Machine
from ddptop.sources.device_history import RECENT, DeviceHistorySource, Ring
from ddptop.sources.query import Look
from ddptop.style import plain
from tests.support import fake_gpus
from tests.support.fake_device_history import write_gpu_history
from tests.support.fake_home import GIB, NOW, gpu, uuid
from tests.support.own_views import read

from ddptop_runner.model.snapshot import GpuProcess

START = NOW.timestamp()


def history_at(
    source: DeviceHistorySource,
    second: float,
    *views: Job,
    device: str | None = uuid(0),
    span_s: float = 900.0,
) -> DeviceHistory:
    look = Look(NOW + dt.timedelta(seconds=second), Machine("here"), views)
    return source.read(look, span_s, device)


def test_a_ring_has_least_mean_and_greatest_of_each_bucket() -> None:
    ring = Ring(10, 4)
    for t, value in ((100, 1.0), (101, 3.0), (109, None), (111, 5.0)):
        ring.put(t, value)
    points = ring.points(0, 200)
    assert (points.t, points.low, points.mean, points.high) == (
        [105.0, 115.0],
        [1.0, 5.0],
        [2.0, 5.0],
        [3.0, 5.0],
    )


def test_a_ring_forgets_what_is_older_than_it_is_long_and_keeps_gaps() -> None:
    ring = Ring(1, 4)
    for t in (100, 101, 105, 104):  # the last one has a clock that was set back
        ring.put(t, float(t))
    assert ring.points(0, 200).t == [105.5]
    assert ring.means(3) == (None, None, None)
    ring.put(500, 1.0)
    assert ring.points(0, 600).t == [500.5]


def test_what_was_before_fills_only_what_is_not_known() -> None:
    ring = Ring(1, 10)
    ring.put(100, 1.0)
    ring.put(102, 3.0)
    for t in (80, 98, 100, 101, 102, 103):
        ring.fill(t, 7.0, 8.0, 9.0)
    assert ring.points(0, 200).t == [98.5, 100.5, 101.5, 102.5]
    assert ring.points(0, 200).mean == [8.0, 1.0, 8.0, 3.0]


def taken(source: DeviceHistorySource, seconds: int, **figures: object) -> None:
    for second in range(seconds):
        source.take([gpu(0, **figures), gpu(1)], START + second)


def test_idle_assigned_device_is_marked_with_its_idle_time() -> None:
    source = DeviceHistorySource()
    taken(source, 301, util_percent=0.0)
    history = history_at(source, 301)
    assert history.idle_s == {uuid(0): 300.0}
    held = gpu(0, util_percent=0.0, processes=[GpuProcess(pid=1, mem_used_bytes=GIB)])
    assert plain(wasted_words(held, history.idle_s)) == "▲ idle for 5m"
    assert wasted_words(gpu(0, util_percent=0.0), history.idle_s) == (), "nobody holds it"
    assert wasted_words(held, {uuid(0): 90.0}) == (), "a pause is no waste"
    working = gpu(0, util_percent=50.0, processes=held.processes)
    assert wasted_words(working, history.idle_s) == ()


def test_what_is_not_known_is_neither_idle_nor_drawn() -> None:
    source = DeviceHistorySource()
    taken(source, 301, util_percent=None)
    history = history_at(source, 301)
    assert history.idle_s == {}
    assert set(history.recent[uuid(0)]) == {None}
    assert small_curve(history.recent[uuid(0)], 12).strip() == ""
    assert small_curve([0.0] * RECENT, 12) == "⣀" * 12
    assert small_curve([None] * 30 + [100.0] * 30, 12) == " " * 6 + "⠉" * 6
    recent = {"a": [None] * 30 + [100.0] * 30, "b": [None] * 45 + [0.0] * 15}
    assert first_seen(recent) == 30
    assert [small_curve(one, 12, 30) for one in recent.values()] == [
        "⠉" * 6 + " " * 6,
        " " * 3 + "⣀" * 3 + " " * 6,
    ], "a short history begins at the left, on one axis for all devices"
    assert len(small_curve([50.0] * RECENT, 30)) == 30


def test_the_chosen_device_has_its_figures_and_marks() -> None:
    source = DeviceHistorySource()
    taken(source, 30)
    hot = gpu(0, throttle_reasons=["thermal, by hardware"], xid=[79])
    for second in (30, 31):
        source.take([hot], START + second)
    history = history_at(source, 32)
    assert history.first == START
    assert [word for _, word in history.marks] == ["slowed", "XID 79"]
    data = figures_of(hot, history)
    assert [curve.name for curve in data.curves] == ["util", "memory", "power", "temperature"]
    assert data.curves[1].points.mean[0] == pytest.approx(100 * hot.mem_used_bytes / (80 * GIB))
    no_total = figures_of(gpu(0, mem_total_bytes=None), history)
    assert [curve.name for curve in no_total.curves] == ["util", "power", "temperature"]
    other = history_at(source, 32, device="GPU-of-another-machine")
    assert other.device is None
    assert pause_s(900.0, history, 100) == pytest.approx(4.5)


def test_histories_of_jobs_fill_what_was_before_this_viewer(frozen: Path) -> None:
    folder = fake_gpus.eight_gpu_ranks(frozen)
    write_gpu_history(folder, 1000, 2, 1)
    view = read(folder)
    source = DeviceHistorySource()
    for look in range(6):  # one history and one tier per update
        source.take(view.snapshot.gpus, START + look)
        history = history_at(source, look, view)
    assert history.first == pytest.approx(START - 1000, abs=61)
    seconds = history.figures["power"].t
    assert seconds[0] == pytest.approx(START - 895, abs=7)
    assert len(seconds) >= 890
    assert None not in history.recent[uuid(1)]
    long = history_at(source, 6, view, span_s=7200.0)
    assert len(long.figures["util"].t) >= 95, "of ten seconds each"


def test_a_day_of_looks_takes_no_more_memory_than_an_hour() -> None:
    source = DeviceHistorySource()

    def watch(first_hour: int, hours: int) -> None:
        for second in range(first_hour * 3600, (first_hour + hours) * 3600, 300):
            source.take([gpu(0)], START + second)
            if second % 600 == 0:
                history_at(source, second)

    tracemalloc.start()
    watch(0, 1)
    assert tracemalloc.get_traced_memory()[0] < 0.2 * 2**20, "of one device, as docs tell"
    watch(1, 1)
    before = tracemalloc.get_traced_memory()[0]
    watch(2, 24)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 50_000
