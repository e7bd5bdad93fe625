"""Waiting for devices, update by update, with reports like the sampler's."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

from tests.support.builders import put_job
from tests.support.emitted import EmittedLog

from ddptop_runner.base.clock import utc_from_unix, utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.host import procs
from ddptop_runner.job import registry
from ddptop_runner.launch.gpus import queue as device_queue
from ddptop_runner.launch.gpus import shared
from ddptop_runner.launch.gpus.queue import LOOK_S, NEVER_S, PASS_S, QueueWatch, feed_of, queue_of
from ddptop_runner.launch.gpus.shared import Entry, UserQueue
from ddptop_runner.model.snapshot import GpuProcess, GpuSample
from ddptop_runner.model.spec import Device, Predecessor, Waiting, read_spec

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)
DEVICES = [Device(index=i, uuid=f"GPU-{i}") for i in range(3)]


class Feed:
    """The sampler's latest report."""

    def __init__(self) -> None:
        self.latest: DeviceReport | None = None
        self.note: str | None = None
        self._looks = 0.0

    def report(self, *busy: int, lost: int | None = None) -> None:
        self._looks += 3.0
        gpus = [
            GpuSample(
                index=i,
                uuid=f"GPU-{i}",
                lost=i == lost,
                mem_used_bytes=2**33 if i in busy else 0,
                mem_total_bytes=80 * 2**30,
                util_percent=0.0,
                processes=[GpuProcess(pid=7, user="alice", command="a")] if i in busy else [],
            )
            for i in range(3)
        ]
        self.latest = DeviceReport(ts=utc_now(), boottime_s=self._looks, gpus=gpus)


def waiting(
    name: str, feed: Feed, minute: int = 0, count: int = 2, **more: object
) -> tuple[QueueWatch, EmittedLog]:
    live = {"boot_id": procs.boot_id(), "pid_ns": procs.pid_namespace()}
    live |= {"guardian": procs.identify(os.getpid()), "state": "queued"}
    since = NOW + dt.timedelta(minutes=minute)
    queue = Waiting(candidates=DEVICES, count=count, since=since, **more)
    folder = put_job(name, live, queue=queue, job_id=f"{name}@1")
    story = EmittedLog()
    watch = queue_of(folder, read_spec(folder), story)
    assert watch is not None
    watch._feed = feed
    return watch, story


def theirs(job: str, count: int, devices: list[Device] = DEVICES) -> Entry:
    """What waits in another user's queue, since before any job here."""
    uuids = [device.uuid for device in devices]
    living = [procs.identify(os.getpid())]
    return Entry(job=job, job_id=job, devices=uuids, count=count, since=NOW, processes=living)


def taken(name: str, home: Path) -> list[int] | None:
    devices = read_spec(RunFolder(home / "runs" / name)).devices
    return None if devices is None else [device.index for device in devices]


def test_free_devices_are_taken_and_stand_in_the_spec(ddptop_home):
    feed = Feed()
    watch, story = waiting("job", feed)
    assert watch.look() is None  # the sampler has not reported yet
    feed.report(0, 1)
    assert watch.look() is None
    words = "waiting for 2 of GPUs 0-2; GPUs 0, 1: alice's a (pid 7) uses 8.0 GiB"
    assert watch.alert().message == words
    assert (watch.alert().gpus, watch.alert().severity) == ([0, 1], "info")
    assert story.lines == [("queued", f"queued: {words}")]
    assert watch.look() is None  # the same report does not count again
    feed.report(1)
    spec = watch.look()
    assert spec is not None
    assert [device.index for device in spec.devices] == taken("job", ddptop_home) == [0, 2]
    assert len(story.lines) == 1


def test_two_jobs_do_not_take_the_same(ddptop_home):
    feed = Feed()
    first, _ = waiting("first", feed, minute=1, count=2)
    second, _ = waiting("second", feed, minute=2, count=1)
    feed.report()
    assert second.look() is None
    assert first.look() is not None
    assert "behind job first, queued earlier" in second.words
    feed.report()
    assert [device.index for device in second.look().devices] == [2]
    assert (taken("first", ddptop_home), taken("second", ddptop_home)) == ([0, 1], [2])


def test_what_cannot_be_written_is_tried_again(ddptop_home, monkeypatch):
    feed = Feed()
    watch, _ = waiting("job", feed)
    real = device_queue.write_spec

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(device_queue, "write_spec", disk_full)
    for _ in range(3):
        feed.report()
        assert watch.look() is None
    monkeypatch.setattr(device_queue, "write_spec", real)
    feed.report()
    assert watch.look() is not None


def test_with_a_lost_device_the_others_are_selected_by_uuid(ddptop_home):
    feed = Feed()
    watch, _ = waiting("job", feed)
    feed.report(lost=1)
    spec = watch.look()
    assert "GPU 1: lost" in watch.words
    assert [device.index for device in spec.devices] == [0, 2]
    assert spec.queue.by_uuid


async def test_nothing_of_other_peoples_devices_is_left_once_the_wait_is_over(ddptop_home):
    feed = Feed()
    watch, _ = waiting("job", feed)
    feed.report(0)
    watch.look()
    assert [gpu.index for gpu in watch.latest.gpus] == [0, 1, 2]

    async def stop() -> None:
        return None

    feed.stop = stop
    await watch.stop()
    assert watch.latest is None


def test_a_job_with_devices_or_without_any_waits_for_none(ddptop_home):
    folder = put_job("cpu")
    assert queue_of(folder, read_spec(folder), EmittedLog()) is None
    assert feed_of(read_spec(folder)) is None


def test_a_job_whose_predecessor_failed_never_starts(ddptop_home, monkeypatch):
    feed, now_s = Feed(), [100.0]
    monkeypatch.setattr(device_queue, "boottime_s", lambda: now_s[0])
    first = put_job("first", {"state": "failed"}, job_id="first@1")
    watch, _ = waiting("job", feed, after=[Predecessor(job="first", job_id="first@1")])
    feed.report()
    assert (watch.look(), watch.never) == (None, None)  # it may be restarting
    now_s[0] += NEVER_S
    assert watch.never == "not started: job first failed"
    shutil.rmtree(first.path)
    put_job("first", {"state": "finished"}, job_id="first@1")
    feed.report()
    assert watch.look() is not None
    assert watch.never is None


def test_a_job_without_devices_starts_once_its_time_has_come(ddptop_home, monkeypatch):
    live = {"state": "queued", "guardian": procs.identify(os.getpid())}
    folder = put_job("job", live, queue=Waiting(since=NOW, not_before=NOW))
    watch = queue_of(folder, read_spec(folder), EmittedLog())
    spec = watch.look()
    assert spec is not None
    assert not spec.is_queued
    assert spec.devices is None


def test_a_device_of_an_idle_process_is_shared_only_if_asked_for(ddptop_home):
    feed = Feed()
    polite, _ = waiting("polite", feed, minute=2)
    sharing, _ = waiting("sharing", feed, minute=1, share_idle=True)
    for _ in range(40):
        feed.report(0, 1)
        assert polite.look() is None and sharing.look() is None
    feed.report(0, 1)
    assert [device.index for device in sharing.look().devices] == [0, 2]
    assert polite.look() is None
    assert "alice's a (pid 7) uses 8.0 GiB, idle for 2 min" in polite.words


def test_a_job_far_back_checks_less_often(ddptop_home, monkeypatch):
    feed = Feed()
    ahead = [waiting(f"ahead-{number}", feed, minute=number)[0] for number in range(8)]
    last, _ = waiting("last", feed, minute=59)
    feed.report()
    assert last.look() is None
    for watch in ahead:
        shutil.rmtree(watch._folder.path)
    feed.report()
    assert last.look() is None
    later_s = device_queue.boottime_s() + 2 * LOOK_S
    monkeypatch.setattr(device_queue, "boottime_s", lambda: later_s)
    assert last.look() is not None


def test_a_job_that_has_ended_is_read_once(ddptop_home, monkeypatch):
    read = Mock(side_effect=registry.read_job)
    monkeypatch.setattr(registry, "read_job", read)
    put_job("old", {"state": "finished", "ended_at": NOW})
    feed = Feed()
    watch, _ = waiting("job", feed)
    for _ in range(3):
        feed.report(0, 1)
        assert watch.look() is None
    assert sorted(call.args[0].job for call in read.mock_calls) == ["job"] * 3 + ["old"]


def test_a_job_that_was_moved_to_the_front_is_checked_at_once(ddptop_home):
    feed = Feed()
    for number in range(8):
        waiting(f"ahead-{number}", feed, minute=number)
    last, _ = waiting("last", feed, minute=59)
    feed.report()
    assert last.look() is None
    last.move(NOW - dt.timedelta(days=1))
    feed.report()
    assert last.look() is not None


def test_jobs_without_a_place_put_off_no_check(ddptop_home):
    feed, tonight = Feed(), utc_now() + dt.timedelta(hours=9)
    for number in range(8):
        waiting(f"ahead-{number}", feed, minute=number, not_before=tonight)
    watch, _ = waiting("job", feed, minute=59)
    feed.report(0, 1)
    assert watch.look() is None
    feed.report()
    assert watch.look() is not None


def test_another_users_job_that_wants_a_lost_device_holds_no_place(ddptop_home, monkeypatch):
    feed, queue = Feed(), UserQueue(uid=4321, waits=[theirs("theirs", 3)])
    monkeypatch.setattr(shared, "others", lambda now: [queue])
    watch, _ = waiting("job", feed, minute=1, count=1)
    feed.report()
    assert watch.look() is None
    feed.report(lost=1)
    assert watch.look() is not None


def test_another_users_job_that_does_not_take_its_turn_is_passed_over(ddptop_home, monkeypatch):
    feed, now_s = Feed(), [100.0]
    monkeypatch.setattr(device_queue, "boottime_s", lambda: now_s[0])
    queue = UserQueue(uid=4321, waits=[theirs(f"theirs-{count}", count) for count in (2, 1)])
    monkeypatch.setattr(shared, "others", lambda now: [queue])
    watch, _ = waiting("job", feed, minute=1, count=1)
    for busy in ((0, 1), (), (0, 1), ()):  # their first job cannot start all of the time
        feed.report(*busy)
        assert watch.look() is None
        now_s[0] += PASS_S - 1
    assert "behind job 4321's theirs-2, queued earlier" in watch.words
    feed.report()
    assert watch.look() is None
    now_s[0] += PASS_S
    feed.report()
    assert watch.look() is not None


def test_the_order_of_a_users_state_folders_changes_nothing(ddptop_home, monkeypatch):
    feed, now_s = Feed(), [100.0]
    monkeypatch.setattr(device_queue, "boottime_s", lambda: now_s[0])
    waits = [theirs("theirs", 1, DEVICES[:1])]
    folders = [UserQueue(uid=4321, waits=waits), UserQueue(uid=4321, turn_at=utc_from_unix(0))]
    monkeypatch.setattr(shared, "others", lambda now: folders)
    watch, _ = waiting("job", feed, minute=1, count=1)
    for _ in range(2):
        feed.report(1)
        assert watch.look() is None
        now_s[0] += PASS_S / 2
        folders.reverse()
    feed.report(1)
    assert watch.look() is not None


def test_each_user_who_takes_no_turn_is_passed_over_after_the_one_before(ddptop_home, monkeypatch):
    feed, now_s = Feed(), [100.0]
    monkeypatch.setattr(device_queue, "boottime_s", lambda: now_s[0])
    queues = [UserQueue(uid=uid, waits=[theirs("a", 1)]) for uid in (4321, 4322)]
    monkeypatch.setattr(shared, "others", lambda now: queues)
    watch, _ = waiting("job", feed, minute=1, count=1)
    starts = []
    for _ in range(3):
        feed.report()
        starts.append(watch.look() is not None)
        now_s[0] += PASS_S
    assert starts == [False, False, True]
