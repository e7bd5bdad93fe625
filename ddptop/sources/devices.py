"""Reads the devices' current figures; the device screen's query and answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from ddptop.job.record import Job
from ddptop.job.series import DeviceHistory
from ddptop.sources.device_history import DeviceHistorySource
from ddptop.sources.query import Answer, Devices, Look, Query, Sources
from ddptop_runner.devices.feed import DeviceFeed
from ddptop_runner.devices.report import (
    DeviceReport,
    driver_library_exists,
    no_library_report,
    without_metrics,
)
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import JobSpec

FRESH_S = 3.5
"""Up to this age, a snapshot's device figures count as current."""

STEADY_LOOKS = 3
"""The sampler stops once jobs have reported all devices in this many polls."""


class DevicesQuery(Query, frozen=True, kw_only=True):
    """All devices, and the history of one."""

    devices: bool = True
    foreign: bool = True
    device: str | None = None
    """UUID of the device to read all figures of; of the others, only utilization is read."""

    def answer(self, look: Look, sources: Sources) -> DevicesAnswer:
        """Return the devices' history."""
        history = sources[DeviceHistorySource].read(look, self.device)
        return DevicesAnswer(query=self, look=look, history=history)


class DevicesAnswer(Answer, frozen=True, kw_only=True):
    """What the device screen shows."""

    history: DeviceHistory


class DeviceSource:
    """The machine's devices, from fresh snapshots of its jobs; sampled unless these cover all.

    The feed's sampler belongs to the interface's event loop; this thread reads only its latest
    report. Feeds start and stop in that loop; none starts once `close` was called.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop in which feeds run; if None, nothing is sampled."""
        self._feed: DeviceFeed | None = None
        self._begun: list[DeviceFeed] = []
        """Feeds whose samplers may be running. Used only in the loop, like the two below."""
        self._at_work: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._known: DeviceReport | None = None
        """The latest report, which lists the devices that exist."""
        self._covered_for = 0
        """Polls in which jobs have reported all devices."""

    def read(self, views: Iterable[Job]) -> Devices:
        """Every device of this host, and devices of other hosts on which its jobs run."""
        views = list(views)
        found = self._read_own(views)
        own = {gpu.uuid for gpu in found.gpus}
        far = [gpu for gpu in far_devices(views) if gpu.uuid is None or gpu.uuid not in own]
        if not far:
            return found
        note = None if found.note is None else f"{procs.host_name()}: {found.note}"
        return replace(found, gpus=(*found.gpus, *far), note=note)

    def _read_own(self, views: Iterable[Job]) -> Devices:
        if self._known is None and not driver_library_exists():
            return Devices(note=no_library_report().note)
        covered = covered_devices(views)
        known = () if self._known is None else self._known.gpus
        is_covered = bool(known) and all(gpu.uuid in covered for gpu in known)
        self._covered_for = self._covered_for + 1 if is_covered else 0
        if self._covered_for >= STEADY_LOOKS:
            self.pause()
        elif self._feed is None and not is_covered:
            self._start()
        report = None if self._feed is None else self._feed.latest
        if report is not None and (report.gpus or self._known is None):
            self._known = report  # MIG instances come and go
        if self._known is None:
            return Devices(gpus=tuple(covered.values()), note="querying the driver")
        sampled = {} if report is None else {gpu.uuid: gpu for gpu in report.gpus}
        gpus = tuple(
            covered.get(gpu.uuid or "") or sampled.get(gpu.uuid) or without_metrics(gpu)
            for gpu in self._known.gpus
        )
        if report is None:
            return Devices(gpus=gpus)
        return Devices(gpus, report.note, report.driver, report.sampler_cpu_percent)

    def pause(self) -> None:
        """Stop sampling until the next `read`."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._hand_over(self._end, feed)

    async def close(self) -> None:
        """Stop every sampler and start no more; to be awaited in the event loop."""
        self._is_closed, self._feed = True, None
        for feed in [*self._begun]:
            self._end(feed)
        while self._at_work:  # the loop must not close while it waits for a process
            await asyncio.wait(self._at_work)

    def _start(self) -> None:
        if self.loop is not None:
            self._feed = DeviceFeed()
            self._hand_over(self._begin, self._feed)

    def _hand_over(self, act: Callable[[DeviceFeed], None], feed: DeviceFeed) -> None:
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the interface has exited
                self.loop.call_soon_threadsafe(act, feed)

    def _begin(self, feed: DeviceFeed) -> None:
        if not self._is_closed:
            self._begun.append(feed)
            self._work(feed.start())

    def _end(self, feed: DeviceFeed) -> None:
        if feed in self._begun:
            self._begun.remove(feed)
            self._work(feed.stop())

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)


def far_devices(views: Iterable[Job]) -> list[GpuSample]:
    """Devices of other hosts on which a live job of this host runs."""
    found: dict[object, GpuSample] = {}
    for view in views:
        if not view.is_live or not is_on_several(view.spec):
            continue
        for gpu in view.snapshot.gpus:
            if gpu.host != view.snapshot.host:
                found.setdefault(gpu.uuid or (gpu.host, gpu.index), gpu)
    return list(found.values())


def is_on_several(spec: JobSpec) -> bool:
    """Whether a job may have ranks on other hosts, whose devices and pids are not local."""
    return spec.placement is not None and spec.placement.by != "pipe"


def covered_devices(views: Iterable[Job]) -> Mapping[str, GpuSample]:
    """This host's devices with fresh figures from a live job, by UUID."""
    return {
        gpu.uuid: gpu
        for view in views
        if view.is_live and not view.on_other_host
        if (view.snapshot_age_s or 0.0) <= FRESH_S
        for gpu in view.snapshot.gpus
        if gpu.uuid is not None
        if gpu.host == view.snapshot.host or not is_on_several(view.spec)
    }
