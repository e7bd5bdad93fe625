"""The devices' figures over the last minutes and hours, as this viewer saw them.

Memory is bounded: three rings per device and figure, with buckets of one second, ten seconds, and
one minute. What precedes this viewer is read once, from the histories of jobs on the devices.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from ddptop.job.figures.devices import HISTORY
from ddptop.job.record import Job
from ddptop.job.series import DeviceHistory, Points
from ddptop.sources.query import Look
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.devices import codes
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import device_number

TIERS: tuple[tuple[int, int], ...] = ((1, 900), (10, 720), (60, 1440))
"""(seconds per bucket, number of buckets): 15 minutes, two hours, one day."""

RECENT = 60
"""Ten-second buckets reported for every device."""

IDLE_PERCENT = 1.0
"""Up to this utilization, a device counts as idle."""

MOST_MARKS = 64

MOST_DEVICES = 64
"""With more, as for a job on many machines, only the first ones and the selected one are kept."""


class Ring:
    """Ring buffer of fixed-length buckets, each with minimum, mean, and maximum."""

    def __init__(self, step_s: int, size: int) -> None:
        self.step_s = step_s
        self.size = size
        self.newest = -1
        """Number of the newest bucket, counted from the Unix epoch."""
        self._low, self._mean, self._high = (array("f", [math.nan]) * size for _ in range(3))
        self._sum, self._number = 0.0, 0

    def put(self, t: float, value: float | None) -> None:
        """Add a current sample; ignored if the clock was set back."""
        bucket = int(t // self.step_s)
        if bucket < self.newest:
            return
        if bucket > self.newest:
            self._go_to(bucket)
        if value is None:
            return
        place = bucket % self.size
        self._sum, self._number = self._sum + value, self._number + 1
        self._mean[place] = self._sum / self._number
        self._low[place] = min(value, self._low[place]) if self._number > 1 else value
        self._high[place] = max(value, self._high[place]) if self._number > 1 else value

    def _go_to(self, bucket: int) -> None:
        for missed in range(max(self.newest + 1, bucket - self.size + 1), bucket + 1):
            place = missed % self.size
            self._low[place] = self._mean[place] = self._high[place] = math.nan
        self.newest, self._sum, self._number = bucket, 0.0, 0

    def fill(self, t: float, low: float, mean: float, high: float) -> None:
        """Fill an older bucket; one that has samples stays as it is."""
        bucket = int(t // self.step_s)
        place = bucket % self.size
        if self.newest - self.size < bucket < self.newest and math.isnan(self._mean[place]):
            self._low[place], self._mean[place], self._high[place] = low, mean, high

    def means(self, number: int) -> tuple[float | None, ...]:
        """The last complete buckets, oldest first; None where unknown."""
        buckets = range(max(0, self.newest - number), max(0, self.newest))
        found = (self._mean[bucket % self.size] for bucket in buckets)
        return tuple(None if math.isnan(value) else round(value, 1) for value in found)

    def idle_buckets(self) -> int:
        """How many of the latest complete buckets are idle throughout."""
        number = 0
        for bucket in range(self.newest - 1, max(-1, self.newest - self.size), -1):
            if not self._high[bucket % self.size] <= IDLE_PERCENT:  # NaN is not
                break
            number += 1
        return number

    def points(self, since: float, until: float) -> Points:
        """The points between two times, each at the middle of its bucket but not after `until`."""
        first = max(int(since // self.step_s), self.newest - self.size + 1, 0)
        buckets = [
            bucket
            for bucket in range(first, min(self.newest, int(until // self.step_s)) + 1)
            if not math.isnan(self._mean[bucket % self.size])
        ]
        places = [bucket % self.size for bucket in buckets]
        return Points(
            t=[min(until, (bucket + 0.5) * self.step_s) for bucket in buckets],
            low=[self._low[place] for place in places],
            mean=[self._mean[place] for place in places],
            high=[self._high[place] for place in places],
        )


class _Device:
    """The figures of one device."""

    def __init__(self, first: float) -> None:
        """`first` is the time of the earliest sample."""
        self.rings = {name: [Ring(*tier) for tier in TIERS] for name in HISTORY}
        self.marks: deque[tuple[float, str]] = deque(maxlen=MOST_MARKS)
        self.slowed = False
        self.errors = 0
        self.first = first


class DeviceHistorySource:
    """Keeps device samples. Used only by the collector's thread."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._recent_of: tuple[int, int] = (-1, 0)
        self._recent: dict[str, tuple[float | None, ...]] = {}
        self._idle: dict[str, float] = {}
        self._to_fill: deque[tuple[str, int]] = deque()
        self._known_jobs: set[str] = set()
        self._fills = 0
        self._extra: str | None = None
        """The device kept only because it is selected."""

    def take(self, gpus: Sequence[GpuSample], now_s: float) -> None:
        """Add the current samples."""
        for gpu in gpus:
            if gpu.uuid in self._devices or len(self._devices) < MOST_DEVICES:
                self._take(gpu, now_s)

    def _take(self, gpu: GpuSample, now_s: float) -> None:
        if gpu.uuid is None:
            return
        if (device := self._devices.get(gpu.uuid)) is None:
            device = self._devices[gpu.uuid] = _Device(now_s)
        for name, attribute in HISTORY.items():
            value = None if gpu.lost else getattr(gpu, attribute)
            for ring in device.rings[name]:
                ring.put(now_s, value)
        self._mark(device, gpu, now_s)

    def _select(self, gpus: Sequence[GpuSample], uuid: str | None, now_s: float) -> None:
        """Keep the selected device even beyond the limit, instead of the one selected before."""
        gpu = next((gpu for gpu in gpus if gpu.uuid == uuid), None)
        if uuid is None or gpu is None or uuid in self._devices:
            return
        self._devices.pop(self._extra or "", None)
        self._extra = uuid
        self._known_jobs.clear()  # so that its past is read
        self._take(gpu, now_s)

    @staticmethod
    def _mark(device: _Device, gpu: GpuSample, now_s: float) -> None:
        reasons = map(codes.throttle, gpu.throttle_reasons or [])
        slowed = any(one.cause == "heat" or one.weight == "slowed" for one in reasons)
        if slowed and not device.slowed:
            device.marks.append((now_s, "slowed"))
        device.slowed = slowed
        errors = len(gpu.xid or [])
        if errors > device.errors and gpu.xid:
            device.marks.append((now_s, f"XID {gpu.xid[-1]}"))
        device.errors = errors

    def read(self, look: Look, span_s: float, uuid: str | None = None) -> DeviceHistory:
        """The histories over the last `span_s` seconds; all figures of the device `uuid`."""
        now_s = look.now_s
        self._select(look.devices.gpus, uuid, now_s)
        self._fill_some(look.own, now_s)
        self._sum_up(now_s)
        since = now_s - span_s
        device = self._devices.get(uuid or "")
        figures: dict[str, Points] = {}
        marks: tuple[tuple[float, str], ...] = ()
        first: float | None = None
        if device is not None:
            first = device.first
            tier = next((i for i, (s, n) in enumerate(TIERS) if s * n >= now_s - since), 2)
            figures = {
                name: rings[tier].points(since, now_s) for name, rings in device.rings.items()
            }
            marks = tuple(mark for mark in device.marks if mark[0] >= since)
        shown = uuid if device else None
        return DeviceHistory(
            *(since, now_s, self._recent, self._idle, shown, figures, first),
            fills=self._fills,
            marks=marks,
        )

    def _sum_up(self, now_s: float) -> None:
        """Update recent utilization and idle time of all devices, once every ten seconds."""
        key = (int(now_s // TIERS[1][0]), self._fills)
        if key == self._recent_of and self._recent.keys() == self._devices.keys():
            return
        self._recent_of = key
        self._recent, self._idle = {}, {}
        for uuid, device in self._devices.items():
            tens, minutes = device.rings["util"][1:]
            self._recent[uuid] = tens.means(RECENT)
            idle_s = tens.idle_buckets() * tens.step_s
            if idle_s >= (tens.size - 1) * tens.step_s:
                idle_s = max(idle_s, minutes.idle_buckets() * minutes.step_s)
            if idle_s:
                self._idle[uuid] = float(idle_s)

    # --- before this viewer started ------------------------------------------------------------

    def _fill_some(self, views: Sequence[Job], now_s: float) -> None:
        """Read one tier of one history per poll, so that no poll takes long."""
        live = {
            view.spec.job_id: view
            for view in views
            if view.is_live and not view.on_other_host and view.snapshot and view.snapshot.gpus
        }
        if self._to_fill:
            job_id, tier = self._to_fill.popleft()
            if job_id in live:
                self._fill(live[job_id], tier, now_s)
                self._fills += 1
        new = live.keys() - self._known_jobs
        self._known_jobs = set(live)
        self._to_fill.extend((job_id, tier) for tier in (1, 0, 2) for job_id in sorted(new))

    def _fill(self, view: Job, tier: int, now_s: float) -> None:
        gpus = view.snapshot.gpus if view.snapshot is not None else []
        hosts = view.spec.hosts
        uuids = {
            device_number(hosts, gpu.host, gpu.index): gpu.uuid
            for gpu in gpus
            if gpu.parent_uuid is None and gpu.uuid in self._devices
        }
        step_s, size = TIERS[tier]
        reader = HistoryReader(view.folder.history_db)
        for name, attribute in HISTORY.items():
            try:
                since = now_s - step_s * size
                series = reader.gpu_series(attribute, since, now_s, size, list(uuids))
            except DdptopError:
                return
            for number, one in series.items():
                device = self._devices.get(uuids.get(number) or "")
                if device is None:
                    continue
                ring = device.rings[name][tier]
                for t, low, mean, high in zip(one.t, one.min, one.mean, one.max, strict=True):
                    device.first = min(t, device.first)
                    for start in _buckets(t, one.bucket_s, step_s):
                        ring.fill(start, low, mean, high)


def _buckets(t: float, length_s: int, step_s: int) -> Iterator[float]:
    """The starts of a ring's buckets that a longer bucket covers."""
    yield from (t + offset for offset in range(0, max(1, length_s), step_s))
