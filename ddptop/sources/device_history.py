"""The devices' figures over the last hours, as this viewer saw them.

Memory is bounded: one ring per device and figure. What precedes this viewer is read once, from the
histories of the jobs on the devices.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence

from ddptop.job.figures.devices import HISTORY
from ddptop.job.record import Job
from ddptop.job.series import DeviceHistory, Points
from ddptop.sources.query import Look
from ddptop_runner.base.errors import DdptopError
from ddptop_runner.devices import codes
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.store.history_reader import HistoryReader
from ddptop_runner.store.history_schema import device_number

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
        gpus = view.snapshot.gpus if view.snapshot is not None else []
        numbers = {
            device_number(view.spec.hosts, gpu.host, gpu.index): self._devices[gpu.uuid]
            for gpu in gpus
            if gpu.parent_uuid is None and gpu.uuid in self._devices
        }
        reader = HistoryReader(view.folder.history_db)
        since = now_s - BUCKETS * BUCKET_S
        for name, attribute in HISTORY.items():
            try:
                series = reader.gpu_series(attribute, since, now_s, BUCKETS, list(numbers))
            except DdptopError:
                return
            for number, one in series.items():
                if (device := numbers.get(number)) is None:  # of a number that is not asked for
                    continue
                device.first = min([device.first, *one.t[:1]])
                for t, mean in zip(one.t, one.mean, strict=True):
                    for offset in range(0, max(1, one.bucket_s), BUCKET_S):
                        device.rings[name].fill(t + offset, mean)
