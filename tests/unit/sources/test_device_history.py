"""The history of devices: bounded, filled from jobs' histories, and unknown is not zero."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from pathlib import Path

import pytest
from ddptop.charts.plots import figures_of
from ddptop.draw.devices import small_curve, wasted_words
from ddptop.job.record import Job
from ddptop.job.series import DeviceHistory, Machine
from ddptop.sources.devices import BUCKET_S, BUCKETS, RECENT, DeviceHistorySource, Ring
from ddptop.sources.query import Look
from ddptop.style import plain
from tests.support import fake_gpus
from tests.support.fake_device_history import write_gpu_history
from tests.support.fake_home import GIB, NOW, gpu, uuid
from tests.support.own_views import read

from ddptop_runner.model.snapshot import GpuProcess

START = NOW.timestamp()


def history_at(
    source: DeviceHistorySource, second: float, *views: Job, device: str | None = uuid(0)
) -> DeviceHistory:
    look = Look(NOW + dt.timedelta(seconds=second), Machine("here"), views)
    return source.read(look, device)


def test_a_ring_has_the_mean_of_each_bucket() -> None:
    ring = Ring()
    for t, value in ((100, 1.0), (101, 3.0), (104, None), (106, 5.0)):
        ring.put(t, value)
    points = ring.points(200)
    assert (points.t, points.mean) == ([102.5, 107.5], [2.0, 5.0])


def test_a_ring_forgets_what_is_older_than_it_is_long_and_keeps_gaps() -> None:
    ring, length_s = Ring(), BUCKETS * BUCKET_S
    for t in (100, 105, 125, 104):  # the last one has a clock that was set back
        ring.put(t, float(t))
    assert ring.points(200).t == [102.5, 107.5, 127.5]
    assert ring.latest(4) == (105.0, None, None, None)
    ring.put(length_s + 100, 1.0)
    assert ring.points(2 * length_s).t == [107.5, 127.5, length_s + 102.5]


def test_what_was_before_fills_only_what_is_not_known() -> None:
    ring, newest = Ring(), BUCKETS * BUCKET_S
    ring.put(newest - 10, 1.0)
    ring.put(newest, 3.0)
    for t in (0, 5, newest - 10, newest - 5, newest, newest + 5):
        ring.fill(t, 8.0)
    points = ring.points(2 * newest)
    assert points.t == [7.5, newest - 7.5, newest - 2.5, newest + 2.5]
    assert points.mean == [8.0, 1.0, 8.0, 3.0]


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
    assert small_curve((0.0,) * RECENT, 12) == "⣀" * 12
    assert small_curve((None,) * 60 + (100.0,) * 60, 12) == " " * 6 + "⠉" * 6
    assert len(small_curve((50.0,) * RECENT, 30)) == 30


def test_the_chosen_device_has_its_figures_and_marks() -> None:
    source = DeviceHistorySource()
    taken(source, 30)
    hot = gpu(0, throttle_reasons=["thermal, by hardware"], xid=[79])
    for second in (30, 31):
        source.take([hot], START + second)
    history = history_at(source, 32)
    assert history.since == START
    assert [word for _, word in history.marks] == ["slowed", "XID 79"]
    data = figures_of(hot, history)
    assert [curve.name for curve in data.curves] == ["GPU", "GPU mem", "power", "temperature"]
    memory = data.curves[1]
    assert memory.points.mean[0] == pytest.approx(hot.mem_used_bytes)
    assert (memory.unit, memory.most) == ("bytes", 80 * GIB), "drawn apart from utilization"
    other = history_at(source, 32, device="GPU-of-another-machine")
    assert other.device is None


def test_histories_of_jobs_fill_what_was_before_this_viewer(frozen: Path) -> None:
    folder = fake_gpus.eight_gpu_ranks(frozen)
    write_gpu_history(folder, 1000, 2, 1)
    view = read(folder)
    source = DeviceHistorySource()
    for look in range(2):  # one history per update
        source.take(view.snapshot.gpus, START + look)
        history = history_at(source, look, view)
    assert history.since == pytest.approx(START - 1000, abs=61)
    times = history.figures["power"].t
    assert times[0] == pytest.approx(START - 1000, abs=61)
    assert len(times) >= 190
    assert None not in history.recent[uuid(1)]


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
