"""What the collector reads, and what it does not read again."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from ddptop.job.series import Machine
from ddptop.logs.messages import CollectorFailed, LogRead
from ddptop.sources import collector as collecting
from ddptop.sources import devices as sources
from ddptop.sources.collector import Collector
from ddptop.sources.devices import DeviceSource, covered_devices
from ddptop.sources.history import ChartQuery, JobHistory
from ddptop.sources.job import JobQuery
from ddptop.sources.past import StoryQuery
from ddptop.sources.query import Answer, Answered, Query
from tests.support import fake_gpus, fake_home
from tests.support.fake_gpus import FrozenFeed
from tests.support.fake_home import NOW
from tests.support.own_views import read
from textual.message import Message

from ddptop_runner.job import registry
from ddptop_runner.job.registry import JobSource, JobView, read_job
from ddptop_runner.store.history import HistoryReader

MACHINE = Machine(host="node-a")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs whose files were read."""
    names: list[str] = []

    def counted(folder: object) -> JobView:
        view = read_job(folder)
        names.append(view.job)
        return view

    monkeypatch.setattr(registry, "read_job", counted)
    return names


class TestJobs:
    def test_an_ended_job_is_read_once(self, frozen: Path, reads: list[str]) -> None:
        fake_home.two_cpu_ranks(frozen)
        fake_home.finished_job(frozen)
        source = JobSource()
        for _ in range(3):
            assert [view.job for view in source.read()] == ["mlp-cpu", "resnet-a"]
        assert sorted(reads) == ["mlp-cpu", "mlp-cpu", "mlp-cpu", "resnet-a"]

    def test_an_ended_job_that_lives_again_is_seen(self, frozen: Path) -> None:
        folder = fake_home.finished_job(frozen)
        source = JobSource()
        assert [view.state for view in source.read()] == ["finished"]
        live = fake_home.snapshot_of(read_job(folder).spec, state="running", attempt=1)
        fake_home.write_snapshot(folder, live)
        assert [view.state for view in source.read()] == ["running"]

    def test_a_removed_job_is_gone(self, frozen: Path) -> None:
        folder = fake_home.finished_job(frozen)
        source = JobSource()
        assert len(source.read()) == 1
        folder.spec_file.unlink()
        assert source.read() == []

    def test_one_that_may_not_be_read_is_left_out(
        self, frozen: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hidden = fake_home.finished_job(frozen).spec_file
        fake_home.two_cpu_ranks(frozen)
        ordinary = Path.stat

        def stat(path: Path, **options: bool) -> os.stat_result:
            if path == hidden:
                raise PermissionError(errno.EACCES, "Permission denied")
            return ordinary(path, **options)

        monkeypatch.setattr(Path, "stat", stat)
        assert [view.job for view in JobSource().read()] == ["mlp-cpu"]

    def test_without_a_state_folder_there_are_no_jobs(self, frozen: Path) -> None:
        assert JobSource().read() == []


class TestHistory:
    @pytest.fixture
    def queries(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        made: list[str] = []
        for name in ("scalar_series", "events"):
            real = getattr(HistoryReader, name)

            def counted(self: HistoryReader, *a: object, name: str = name, real=real) -> object:
                made.append(name)
                return real(self, *a)

            monkeypatch.setattr(HistoryReader, name, counted)
        return made

    def test_a_live_chart_is_read_as_often_as_a_dot_moves(
        self, frozen: Path, queries: list[str]
    ) -> None:
        view, now_s = read(fake_home.two_cpu_ranks(frozen)), NOW.timestamp()
        history, query = JobHistory(view.folder.history_db), ChartQuery()
        first = history.chart(view, query, now_s)
        assert sorted(first.series) == [0, 1]
        assert first.until - first.since == pytest.approx(755, abs=2)
        assert history.chart(view, query, now_s + 3) is first
        assert history.chart(view, query, now_s + 4) is not first
        assert queries.count("scalar_series") == 2
        glance = ChartQuery(2000, glance=True)  # with other jobs, it is read less often
        first = history.chart(view, glance, now_s)
        assert history.chart(view, glance, now_s + 4) is first
        assert history.chart(view, glance, now_s + 6) is not first

    def test_an_ended_history_is_read_once(self, frozen: Path, queries: list[str]) -> None:
        view, now_s = read(fake_home.failed_job(frozen)), NOW.timestamp()
        history = JobHistory(view.folder.history_db)
        chart = history.chart(view, ChartQuery(), now_s)
        assert history.chart(view, ChartQuery(), now_s + 999) is chart
        assert chart.ended and chart.series[0].not_finite
        for _ in range(3):
            found = [event.type for event in history.events(300)]
            assert found == ["launched", "rank_exited", "failed"]
        assert queries == ["events", "scalar_series", "events"]  # the chart's pauses, then the list

    def test_marks_are_the_attempts_after_the_first(self, frozen: Path) -> None:
        view = read(fake_gpus.eight_gpu_ranks(frozen))
        chart = JobHistory(view.folder.history_db).chart(view, ChartQuery(), NOW.timestamp())
        assert [label for _, label in chart.marks] == ["attempt 1"]


class TestDevices:
    def test_fresh_snapshots_cover_their_devices(self, frozen: Path) -> None:
        folder = fake_gpus.eight_gpu_ranks(frozen)
        assert sorted(covered_devices([read_job(folder)])) == [fake_home.uuid(i) for i in range(8)]
        fake_home.change(folder, ts=fake_home.ago(10))
        assert covered_devices([read_job(folder)]) == {}

    async def test_devices_that_no_job_reports_are_sampled(self, eight_gpus: Path) -> None:
        folder = fake_gpus.eight_gpu_ranks(eight_gpus)
        snapshot = read_job(folder).snapshot
        assert snapshot is not None
        fake_home.change(folder, gpus=snapshot.gpus[:6])
        source = DeviceSource()
        source.loop = asyncio.get_running_loop()
        source.read([read_job(folder)])
        feed = source._feed
        for _ in range(8):
            devices = source.read([read_job(folder)])
        assert feed is not None and source._feed is feed, "one sampler, kept"
        held = [gpu.processes[0].job if gpu.processes else None for gpu in devices.gpus]
        assert held == ["llama-ft"] * 6 + [None] * 2
        await source.close()

    async def test_no_sampler_while_jobs_report_all_devices(self, eight_gpus: Path) -> None:
        folder = fake_gpus.eight_gpu_ranks(eight_gpus)
        source = DeviceSource()
        source.loop = asyncio.get_running_loop()
        for _ in range(8):
            source.read([read_job(folder)])
        assert source._feed is None
        fake_home.change(folder, ts=fake_home.ago(60))  # its supervisor stopped reporting
        for _ in range(2):
            devices = source.read([read_job(folder)])
        assert source._feed is not None
        assert devices.gpus[0].util_percent == 97.0
        await source.close()

    async def test_the_end_waits_for_each_sampler_and_begins_none(
        self, eight_gpus: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []

        class Feed(FrozenFeed):
            async def start(self) -> None:
                told.append("begun")

            async def stop(self) -> None:
                await asyncio.sleep(0.05)
                told.append("ended")

        monkeypatch.setattr(sources, "DeviceFeed", Feed)
        source = DeviceSource()
        source.loop = asyncio.get_running_loop()
        source.read([])
        await asyncio.sleep(0)
        source.pause()  # just before the interface closes
        source.read([])  # and the thread continues meanwhile
        await source.close()
        assert told == ["begun", "ended"], "a loop was closed under its sampler"
        source.read([])
        source.pause()
        await asyncio.sleep(0.1)
        assert told == ["begun", "ended"], "a sampler was begun that nobody ends"

    def test_after_the_end_of_the_loop_nothing_is_begun(self, eight_gpus: Path) -> None:
        source = DeviceSource()
        source.loop = asyncio.new_event_loop()
        source.loop.close()
        source.read([])
        source.pause()

    def test_without_a_driver_nothing_is_started(self, frozen: Path) -> None:
        source = DeviceSource()
        devices = source.read([])
        assert devices.gpus == ()
        assert "libnvidia-ml.so.1" in (devices.note or "")
        assert source._feed is None

    def test_a_lost_feed_leaves_identities_without_figures(
        self, eight_gpus: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = DeviceSource()
        source._known = FrozenFeed().latest
        source.loop = None
        devices = source.read([])
        assert len(devices.gpus) == 8
        assert {gpu.util_percent for gpu in devices.gpus} == {None}


class TestCollector:
    @pytest.fixture
    def delivered(self) -> list[Message]:
        return []

    def test_many_asks_are_few_looks(self, frozen: Path, delivered: list[Message]) -> None:
        go, looking = threading.Event(), threading.Event()

        def slow_machine() -> Machine:
            looking.set()
            assert go.wait(60)
            return MACHINE

        collector = Collector(delivered.append, lambda: NOW, slow_machine)
        loop = asyncio.new_event_loop()
        collector.start(loop)
        assert looking.wait(60)
        for _ in range(200):
            collector.ask()
        go.set()
        collector.stop()
        # on a busy machine, the last update takes longer than a stop waits
        collector._thread.join(60)
        loop.close()
        assert 1 <= len(delivered) <= 2

    def test_foreign_jobs_are_looked_for_once_the_first_answer_is_drawn(
        self,
        frozen: Path,
        delivered: list[Message],
        monkeypatch: pytest.MonkeyPatch,
        wait_until: Callable[..., object],
    ) -> None:
        fake_home.two_cpu_ranks(frozen)
        monkeypatch.setattr(collecting, "DRAWN_S", 60.0)
        collector = Collector(delivered.append, lambda: NOW, lambda: MACHINE)
        collector.query = Query(foreign=True)
        asked: list[tuple[bool, bool]] = []
        answer = collector.answer

        def recorded(query: Query) -> Answer:
            asked.append((query.foreign, collector._drawn.is_set()))
            return answer(msgspec.structs.replace(query, foreign=False))

        monkeypatch.setattr(collector, "answer", recorded)
        loop = asyncio.new_event_loop()
        collector.start(loop)
        wait_until(lambda: delivered)
        collector.drawn()
        wait_until(lambda: len(delivered) == 2)
        collector.stop()
        collector._thread.join(60)
        loop.close()
        assert asked == [(False, False), (True, True)]

    def test_a_look_is_complete_in_itself(self, frozen: Path, delivered: list[Message]) -> None:
        fake_home.failed_job(frozen)
        collector = Collector(delivered.append, lambda: NOW, lambda: MACHINE)
        detail = collector.answer(JobQuery(job="vit-base", chart=ChartQuery())).detail
        assert detail is not None
        assert detail.cause_tail[-1].startswith("RuntimeError")
        assert detail.deviations[3].loss is None  # it has ended
        assert msgspec.structs.asdict(detail.events[0])["type"] == "failed"

    def test_no_screen_reads_the_history_for_another(
        self, frozen: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_home.failed_job(frozen)
        read: list[str] = []
        for name in ("series", "scalar_series", "events"):
            real = getattr(HistoryReader, name)
            monkeypatch.setattr(
                HistoryReader, name, lambda *a, n=name, of=real: read.append(n) or of(*a)
            )
        collector = Collector(lambda _: None, lambda: NOW, lambda: MACHINE)
        collector.answer(Query(job="vit-base"))
        assert read == []
        collector.answer(StoryQuery(job="vit-base"))
        assert "scalar_series" not in read, "only charts show it"
        collector.answer(JobQuery(job="vit-base", chart=ChartQuery()))
        assert "scalar_series" in read

    def test_a_defect_is_delivered_not_swallowed(
        self, frozen: Path, delivered: list[Message]
    ) -> None:
        collector = Collector(delivered.append, lambda: NOW, lambda: 1 / 0)
        loop = asyncio.new_event_loop()
        collector.start(loop)
        collector._thread.join(60)
        loop.close()
        (failed,) = delivered
        assert isinstance(failed, CollectorFailed)

    def test_snapshots_replace_each_other_but_lines_never(self, frozen: Path) -> None:
        collector = Collector(lambda _: None, lambda: NOW, lambda: MACHINE)
        one, two = (Answered(collector.answer(Query())) for _ in range(2))
        assert one.can_replace(two)
        read = LogRead(1, None, [], False)
        assert not read.can_replace(LogRead(1, None, [], False))
        assert not one.can_replace(read)
