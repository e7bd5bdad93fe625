"""Reads the devices' figures, now and over the last hours; the device screen's query and answer.

The memory of a history is bounded: one ring per device and figure. What precedes this viewer is
read once, from the histories of the jobs on the devices.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ddptop.job.figures.devices import HISTORY
from ddptop.job.record import Job
from ddptop.job.series import DeviceHistory, Points
from ddptop.sources.query import Answer, Devices, Look, Query, Sources
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.devices import codes
from ddptop_runner.devices.feed import DeviceFeed
from ddptop_runner.devices.report import (
    DeviceReport,
    library_problem,
    without_metrics,
)
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import GPU, device_number

FRESH_S = 3.5
"""Up to this age, a snapshot's device figures count as current."""

QUERYING = "querying the driver"
"""Why devices may be missing until the sampler's first report."""

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
        if self._known is None and (problem := library_problem()) is not None:
            return Devices(note=problem)
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
            return Devices(gpus=tuple(covered.values()), note=QUERYING)
        sampled = {} if report is None else {gpu.uuid: gpu for gpu in report.gpus}
        gpus = tuple(
            covered.get(gpu.uuid or "") or sampled.get(gpu.uuid) or without_metrics(gpu)
            for gpu in self._known.gpus
        )
        return Devices(gpus, None if report is None else report.note)

    def pause(self) -> Devices:
        """Stop sampling until the next `read`; returns no devices."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._hand_over(self._end, feed)
        return Devices()

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


BUCKET_S = 5
BUCKETS = 4 * 3600 // BUCKET_S

RECENT = 600 // BUCKET_S
"""Buckets reported for every device."""

IDLE_PERCENT = 1.0
"""Up to this utilization, a device counts as idle."""

MOST_MARKS = 64

MOST_DEVICES = 256
"""With more, as for a job on many machines, only the first ones are kept."""


class Ring:
    """The means of a figure in the last `BUCKETS` buckets; NaN where unknown."""

    def __init__(self) -> None:
        self.newest = -1
        """Number of the newest bucket, counted from the Unix epoch."""
        self._means = array("f", [math.nan]) * BUCKETS
        self._sum, self._number = 0.0, 0

    def put(self, t: float, value: float | None) -> None:
        """Add a current sample; ignored if the clock was set back."""
        bucket = int(t // BUCKET_S)
        if bucket < self.newest:
            return
        if bucket > self.newest:
            for missed in range(max(self.newest + 1, bucket - BUCKETS + 1), bucket + 1):
                self._means[missed % BUCKETS] = math.nan
            self.newest, self._sum, self._number = bucket, 0.0, 0
        if value is not None:
            self._sum, self._number = self._sum + value, self._number + 1
            self._means[bucket % BUCKETS] = self._sum / self._number

    def fill(self, t: float, mean: float) -> None:
        """Fill an older bucket; one that has samples stays as it is."""
        bucket = int(t // BUCKET_S)
        place = bucket % BUCKETS
        if self.newest - BUCKETS < bucket < self.newest and math.isnan(self._means[place]):
            self._means[place] = mean

    def _in_order(self) -> array[float]:
        """All means, oldest first."""
        first = (self.newest + 1) % BUCKETS
        return self._means[first:] + self._means[:first]

    def latest(self, number: int) -> tuple[float | None, ...]:
        """The means of the last complete buckets, oldest first; None where unknown."""
        found = self._in_order()[-number - 1 : -1]
        return tuple(None if math.isnan(value) else round(value, 1) for value in found)

    def idle_s(self) -> float:
        """How long the value has been at most `IDLE_PERCENT`."""
        number = 0
        for value in reversed(self._in_order()[:-1]):
            if not value <= IDLE_PERCENT:  # NaN is not
                break
            number += 1
        return float(number * BUCKET_S)

    def points(self, until: float) -> Points:
        """All points, each at the middle of its bucket but not after `until`."""
        buckets = enumerate(self._in_order(), self.newest - BUCKETS + 1)
        known = [(bucket, mean) for bucket, mean in buckets if not math.isnan(mean)]
        means = [mean for _, mean in known]
        times = [min(until, (bucket + 0.5) * BUCKET_S) for bucket, _ in known]
        return Points(times, means, means, means)


class _Device:
    """The figures of one device."""

    def __init__(self, first: float) -> None:
        """`first` is the time of the earliest sample."""
        self.rings = {name: Ring() for name in HISTORY}
        self.marks: deque[tuple[float, str]] = deque(maxlen=MOST_MARKS)
        self.slowed = False
        self.errors = 0
        self.first = first

    def take(self, gpu: GpuSample, now_s: float) -> None:
        """Add a current sample, and mark where its clocks are lowered and where it fails."""
        for name, attribute in HISTORY.items():
            self.rings[name].put(now_s, None if gpu.lost else getattr(gpu, attribute))
        reasons = map(codes.throttle, gpu.throttle_reasons or [])
        slowed = any(one.cause == "heat" or one.weight == "slowed" for one in reasons)
        if slowed and not self.slowed:
            self.marks.append((now_s, "slowed"))
        self.slowed = slowed
        errors = gpu.xid or []
        if len(errors) > self.errors:
            self.marks.append((now_s, f"XID {errors[-1]}"))
        self.errors = len(errors)


class DeviceHistorySource:
    """Keeps device samples. Used only by the collector's thread."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._recent_of: tuple[int, int] = (-1, 0)
        self._recent: dict[str, tuple[float | None, ...]] = {}
        self._idle: dict[str, float] = {}
        self._to_fill: deque[str] = deque()
        self._known_jobs: set[str] = set()
        self._fills = 0

    def take(self, gpus: Sequence[GpuSample], now_s: float) -> None:
        """Add the current samples."""
        for gpu in gpus:
            if gpu.uuid is None:
                continue
            if gpu.uuid not in self._devices:
                if len(self._devices) >= MOST_DEVICES:
                    continue
                self._devices[gpu.uuid] = _Device(now_s)
            self._devices[gpu.uuid].take(gpu, now_s)

    def read(self, look: Look, uuid: str | None = None) -> DeviceHistory:
        """Utilization of every device in the last ten minutes, and all of the device `uuid`."""
        now_s = look.now_s
        self._fill_next(look.own, now_s)
        self._sum_up(now_s)
        if uuid is None or (device := self._devices.get(uuid)) is None:
            return DeviceHistory(now_s, now_s, self._recent, self._idle)
        return DeviceHistory(
            max(device.first, now_s - BUCKETS * BUCKET_S),
            now_s,
            self._recent,
            self._idle,
            uuid,
            {name: ring.points(now_s) for name, ring in device.rings.items()},
            tuple(device.marks),
        )

    def _sum_up(self, now_s: float) -> None:
        """Update recent utilization and idle time of all devices, once per bucket."""
        key = (int(now_s // BUCKET_S), self._fills)
        if key == self._recent_of and self._recent.keys() == self._devices.keys():
            return
        self._recent_of = key
        rings = {uuid: device.rings["util"] for uuid, device in self._devices.items()}
        self._recent = {uuid: ring.latest(RECENT) for uuid, ring in rings.items()}
        self._idle = {uuid: idle_s for uuid, ring in rings.items() if (idle_s := ring.idle_s())}

    # --- before this viewer started ------------------------------------------------------------

    def _fill_next(self, views: Sequence[Job], now_s: float) -> None:
        """Read the history of one new job, so that no poll takes long."""
        live = {
            view.spec.job_id: view
            for view in views
            if view.is_live and not view.on_other_host and view.snapshot.gpus
        }
        if self._to_fill and (view := live.get(self._to_fill.popleft())) is not None:
            self._fill(view, now_s)
            self._fills += 1
        self._to_fill.extend(sorted(live.keys() - self._known_jobs))
        self._known_jobs = set(live)

    def _fill(self, view: Job, now_s: float) -> None:
        numbers = {
            device_number(view.spec.hosts, gpu.host, gpu.index): self._devices[gpu.uuid]
            for gpu in view.snapshot.gpus
            if gpu.parent_uuid is None and gpu.uuid in self._devices
        }
        reader = HistoryReader(view.folder.history_db)
        since = now_s - BUCKETS * BUCKET_S
        for name, attribute in HISTORY.items():
            try:
                series = reader.series(GPU, attribute, since, now_s, BUCKETS, list(numbers))
            except DdptopError:
                return
            for number, one in series.items():
                if (device := numbers.get(number)) is None:  # of a number that is not asked for
                    continue
                device.first = min([device.first, *one.t[:1]])
                for t, mean in zip(one.t, one.mean, strict=True):
                    for offset in range(0, max(1, one.bucket_s), BUCKET_S):
                        device.rings[name].fill(t + offset, mean)
