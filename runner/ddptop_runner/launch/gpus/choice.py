"""Decides which devices a launch gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import msgspec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.devices import hardware
from ddptop_runner.devices.report import sample_once
from ddptop_runner.devices.words import names_of, wanted_in_words
from ddptop_runner.launch.gpus import usage
from ddptop_runner.launch.gpus.usage import (
    DeviceUse,
    busy_in_words,
    choice_in_words,
    idlest,
    in_mig_mode,
)
from ddptop_runner.launch.gpus.waiting import reason_in_words, unmet
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, JobSpec, Waiting

CPU_RANKS = 2
"""Number of ranks on a machine without NVIDIA hardware."""
ON_CPU = f"no NVIDIA devices: starting {CPU_RANKS} CPU ranks; pass --nproc N to start N"


Refused = Literal["busy", "absent", "allocation", "other"]
"""In use; the machine has none; the Slurm allocation has none; another reason."""


class DevicesError(UsageError):
    """A job cannot get the devices."""

    def __init__(self, message: str, hint: str, why: Refused) -> None:
        super().__init__(message, hint)
        self.why = why


@dataclass(frozen=True)
class DeviceChoice:
    """The devices that a launch gets or waits for."""

    devices: list[Device] | None
    """As in JobSpec; also None while it must wait."""
    queue: Waiting | None = None
    by_uuid: bool = False
    """Whether to show the devices by UUID, because one of the machine's is lost."""
    notes: tuple[str, ...] = ()
    remake: Callable[[], DeviceChoice] | None = field(default=None, compare=False, repr=False)
    """Decides again, given what other jobs have taken meanwhile, without querying the driver."""
    why_none: str | None = None
    """Why the job gets none of the machine's devices; None if it gets some, needs none, or the
    machine has no NVIDIA hardware."""

    @property
    def waits(self) -> bool:
        """Whether the job must be queued."""
        return self.queue is not None and self.queue.over_at is None

    @property
    def count(self) -> int:
        """Number of devices that the job has or will have."""
        waiting = self.queue.count if self.waits and self.queue is not None else 0
        return waiting or len(self.devices or ())

    @property
    def ranks(self) -> int | None:
        """Number of ranks unless `--nproc` says otherwise; None if there is no telling."""
        is_cpu_machine = self.devices is None and self.why_none is None
        return self.count or (CPU_RANKS if is_cpu_machine else None)

    def queued(self, **waits: Any) -> DeviceChoice:
        """The same choice for a job that waits, for whatever else `waits` adds."""
        queue = self.queue or Waiting(since=utc_now())
        queue = msgspec.structs.replace(queue, over_at=None, **waits)
        devices = None if queue.candidates else self.devices
        return replace(self, devices=devices, queue=queue)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make only these devices visible."""
        return job_environment(self.devices, by_uuid=self.by_uuid)


def choose(
    asked: str | None,
    env: Mapping[str, str],
    nproc: int | None,
    *,
    force: bool = False,
    wait: bool = False,
    share_idle: bool = False,
) -> DeviceChoice:
    """Decide which devices a new job gets.

    Args:
        asked: the value of `--gpus`, if given.
        env: the launching shell's variables, with those of `--env`.
        nproc: the value of `--nproc`, if given.
        force: `--force`: use busy devices.
        wait: `--wait-gpus`: queue if too few are free.
        share_idle: `--share-idle`: then also take devices of idle processes.

    Raises:
        UsageError: a device is unavailable; the message names who holds it.
    """
    request = None if asked is None else parse_gpus(asked)
    visible = env.get("CUDA_VISIBLE_DEVICES")
    named = mig_instances(visible)
    named += [uuid for uuid in (request.uuids if request else ()) if uuid.startswith("MIG-")]
    present, why_none = present_devices(named)
    machine = Machine(present, visible)
    pool = machine.resolve(request, nproc)
    if not pool:
        if request is not None:
            why_none = None
        elif present:
            why_none = machine.why_none()
        return DeviceChoice(pool, why_none=why_none)
    notes = machine.left_out(request)
    count, is_auto = len(pool), False
    if request is not None and request.kind == "auto":
        count, is_auto = request.count, True
        pool = sorted(pool, key=lambda device: device.index)
    return _Decision(
        pool, count, present, notes, force, wait, share_idle, is_auto, machine.usable
    ).make()


def again(
    spec: JobSpec, env: Mapping[str, str], *, force: bool = False, wait: bool = False
) -> DeviceChoice:
    """The devices of an ended job, checked as for a new one.

    Args:
        spec: the job.
        env: the calling shell's variables, whose CUDA_VISIBLE_DEVICES is the outer bound.
        force: `--force`: use busy devices.
        wait: `--wait-gpus`: queue if one is busy.

    Raises:
        UsageError: one is gone, lost, not allowed, or busy.
    """
    if force and wait:
        raise UsageError("--force cannot be used with --wait-gpus", "use one of them")
    devices = spec.devices
    if spec.is_queued and spec.queue is not None:  # it ended before it started
        wait = wait or not force
        reason = unmet(spec, usage.jobs_here(), utc_now()) if wait else None
        if reason is not None and reason.kind == "never":
            hint = "restart that job first, or use --force to start now"
            raise UsageError(reason_in_words(reason), hint)
        pool, count = spec.queue.candidates, spec.queue.count
    else:
        pool, count = devices or [], len(devices or ())
    if not pool:
        queue = spec.queue if spec.is_queued and wait else None
        return DeviceChoice(devices, queue)
    present, _ = present_devices([device.uuid or "" for device in pool if device.is_mig])
    if not present:
        raise UsageError(
            f"{spec.job} ran on {names_of(pool)}, but no GPUs were found on this machine",
            "see `ddptop gpus`",
        )
    Machine(present, env.get("CUDA_VISIBLE_DEVICES")).require_allowed(pool)
    share_idle = wait and spec.queue is not None and spec.queue.share_idle
    return _Decision(pool, count, present, [], force, wait, share_idle).make()


def present_devices(named: Sequence[str] = ()) -> tuple[list[GpuSample], str | None]:
    """(the machine's devices with the MIG instances of these UUIDs, why there are none).

    The reason is None without NVIDIA hardware.
    """
    report = sample_once()
    present = list(report.gpus)
    why_none = None
    if not present and hardware.exists():
        why_none = report.note or "the driver reports no devices"
    known = [gpu.uuid or "" for gpu in present]
    missing = [uuid for uuid in named if not any(there.startswith(uuid) for there in known)]
    if missing:
        present += sample_once(uuids=missing).gpus
    return present, why_none


@dataclass(frozen=True)
class _Decision:
    """Everything except the claims of other jobs, so that it can be repeated with newer ones."""

    pool: Sequence[Device]
    count: int
    present: Sequence[GpuSample]
    left_out: Sequence[str]
    force: bool
    wait: bool
    share_idle: bool
    is_auto: bool = False
    """Whether the job takes the idlest of the pool."""
    allowed: Sequence[Device] = ()
    """All devices that `--gpus` may name; empty for `restart`, which keeps a job's devices."""

    def make(self) -> DeviceChoice:
        """Decide, given what other jobs have now.

        Raises:
            UsageError: a device is busy, without `--wait-gpus` or `--force`.
        """
        uses = usage.uses(self.pool, self.present)
        chosen = idlest(uses, self.count)
        busy = [use for use in chosen if use.busy]
        if gone := [use for use in chosen if use.gone]:
            raise UsageError(busy_in_words(gone), "see `ddptop gpus`")
        notes = [*self.left_out]
        if busy and not self.force and not self.wait:
            raise self._refusal(uses, chosen)
        devices: list[Device] | None = [use.device for use in chosen]
        by_uuid = any(gpu.lost for gpu in self.present)
        queue = None
        if self.wait:
            now = utc_now()
            queue = Waiting(
                candidates=list(self.pool),
                count=self.count,
                since=now,
                by_uuid=by_uuid,
                share_idle=self.share_idle,
                over_at=None if busy else now,
            )
        if queue is not None and busy:
            devices = None
            notes.append(f"waiting for {wanted_in_words(queue)}; {busy_in_words(uses)}")
        elif self.is_auto:
            notes.append(choice_in_words(chosen, uses))
        elif busy:
            notes.append(f"using busy GPUs (--force): {busy_in_words(busy)}")
        return DeviceChoice(devices, queue, by_uuid, tuple(notes), self.make)

    def _refusal(self, uses: Sequence[DeviceUse], chosen: Sequence[DeviceUse]) -> DevicesError:
        """The error that names who uses which device, and the alternatives.

        Args:
            uses: the devices that the job may get.
            chosen: those that it would get.
        """
        if self.is_auto:
            free = [use for use in uses if not use.busy]
            what = f"--gpus auto:{self.count}: only {len(free)} of {len(uses)} GPUs are free"
            what = f"{what} ({busy_in_words(uses)})"
        else:
            free = [use for use in usage.uses(self.allowed, self.present) if not use.busy]
            busy = [use for use in chosen if use.busy]
            holders = {usage.holders_in_words(use) for use in busy}
            whose = holders.pop() if len(holders) == 1 else busy_in_words(busy)
            what = f"{_are([use.device for use in busy])} busy: {whose}"
        is_mig = any(use.device.is_mig for use in chosen)
        count = min(len(free), self.count)
        remedy = f"--gpus auto:{count} for idle GPUs, " if count and not is_mig else ""
        hint = f"pass {remedy}--wait-gpus to wait, or --force to use busy GPUs"
        return DevicesError(what, hint, "busy")


def free_now(env: Mapping[str, str]) -> int | None:
    """Number of allowed devices that are free; None without any devices."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    present, _ = present_devices(mig_instances(visible))
    pool = Machine(present, visible).resolve(None)
    if pool is None:
        return None
    return sum(not use.busy for use in usage.uses(pool, present))


# --- parsing and resolving `--gpus` --------------------------------------------------
#
# Indices are those of the machine in PCI order, as in nvidia-smi. UUIDs may be shortened as long as
# they are unique, as in CUDA_VISIBLE_DEVICES. An inherited CUDA_VISIBLE_DEVICES is the outer bound
# and the default; its numbers are also in PCI order.

FORMS = "use 0-3, 0,2,5, 0-1,4, auto:2 (the idlest), all, none, or UUIDs (GPU-..., MIG-...)"
_HIGHEST_INDEX = 1023
T = TypeVar("T")
_AUTO = re.compile(r"auto:([1-9][0-9]{0,3})")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")


@dataclass(frozen=True)
class GpuRequest:
    """The parsed value of `--gpus`."""

    kind: Literal["indices", "uuids", "auto", "all", "none"]
    indices: tuple[int, ...] = ()
    """In the given order, which becomes the order of local ranks."""
    uuids: tuple[str, ...] = ()
    """Complete or shortened, in the given order."""
    count: int = 0
    """The N of `auto:N`."""


def parse_gpus(text: str, option: str = "--gpus") -> GpuRequest:
    """Parse `--gpus`. Naming a device twice is an error, since CUDA would then see no device.

    Args:
        text: the value.
        option: what the user gave it for, named in errors.

    Raises:
        UsageError: it is invalid; the message names the invalid part and the valid forms.
    """
    value = text.strip()
    if value in ("all", "none"):
        return GpuRequest("all" if value == "all" else "none")
    if found := _AUTO.fullmatch(value):
        return GpuRequest("auto", count=int(found[1]))
    if not value:
        raise UsageError(f"{option} is empty", FORMS)
    parts = [part.strip() for part in value.split(",")]
    if all(_UUID.fullmatch(part) for part in parts):
        return GpuRequest("uuids", uuids=tuple(_distinct(parts, option)))
    indices = [index for part in parts for index in _indices(part, option)]
    return GpuRequest("indices", tuple(_distinct(indices, option)))


def _distinct(listed: list[T], option: str) -> list[T]:
    for one in listed:
        if listed.count(one) > 1:
            raise UsageError(f"{option} lists {one} twice", "list each device once")
    return listed


def _indices(part: str, option: str) -> range:
    found = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
    if found is None or max(int(found[1]), int(found[2] or 0)) > _HIGHEST_INDEX:
        raise UsageError(f"{option}: {part[:40]!r} is not an index or range", FORMS)
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise UsageError(f"{option}: the range {part!r} is reversed", f"use {last}-{first}")
    return range(first, last + 1)


_NUMBER = re.compile(r"[+-]?\d+")
Present = Sequence[GpuSample]
"""The machine's devices: whole ones and known MIG instances."""


def is_instance(gpu: GpuSample) -> bool:
    """Whether this is a MIG instance rather than a whole device."""
    return gpu.parent_uuid is not None or (gpu.uuid or "").startswith("MIG-")


def mig_instances(listed: str | None) -> list[str]:
    """UUIDs of MIG instances in a comma-separated list such as CUDA_VISIBLE_DEVICES.

    A sampler may not list them unless it is asked for these UUIDs.
    """
    return [entry for entry in _entries(listed) if entry.startswith("MIG-")]


class Machine:
    """The machine's devices, and those that a job may use.

    Args:
        present: the devices, with any MIG instances that are named.
        inherited_cvd: CUDA_VISIBLE_DEVICES of the calling shell, if set.
    """

    def __init__(self, present: Present, inherited_cvd: str | None) -> None:
        self._present = present
        self._inherited_cvd = inherited_cvd
        self._allowed = visible_devices(present, inherited_cvd)
        self._unusable = {
            gpu.index: "lost" if gpu.lost else "in MIG mode"
            for gpu in present
            if not is_instance(gpu) and (gpu.lost or in_mig_mode(gpu))
        }
        self.usable = [
            device
            for device in self._allowed
            if device.is_mig or device.index not in self._unusable
        ]
        """Those available to a job that names none."""

    def resolve(self, request: GpuRequest | None, nproc: int | None = None) -> list[Device] | None:
        """The devices of a job in order of its local ranks or, for `auto:N`, the candidates.

        Args:
            request: from `--gpus`, if given.
            nproc: the value of `--nproc`, if given.

        Returns:
            None if the machine has no devices and none were requested; [] if it has devices and
            the job must see none of them.

        Raises:
            UsageError: a requested device is missing, lost, or not allowed.
        """
        if request is not None and request.kind == "none":
            return []
        if not self._present:
            if request is None:
                return None
            raise DevicesError(
                "no GPUs found",
                "remove --gpus (a script then needs --nproc N); see `ddptop gpus`",
                "absent",
            )
        if request is not None and request.kind in ("indices", "uuids"):
            chosen = self._named(request)
        else:
            chosen = self._all_usable(request)
        if any(one.is_mig for one in chosen) and (len(chosen) > 1 or nproc not in (None, 1)):
            raise UsageError(
                "a job can use only one MIG instance, with one rank",
                "pass one instance with --nproc 1, or whole GPUs",
            )
        return chosen

    def why_none(self) -> str:
        """Why none of the machine's devices is allowed, or no allowed one is usable."""
        if self._allowed:
            return "all allowed GPUs are lost or in MIG mode, where --gpus must name an instance"
        return f"CUDA_VISIBLE_DEVICES is {self._inherited_cvd!r}, which allows no GPUs"

    def require_allowed(self, devices: Sequence[Device]) -> None:
        """Check devices against the outer bound.

        Raises:
            UsageError: CUDA_VISIBLE_DEVICES excludes some, which the message names.
        """
        if self._inherited_cvd is None:
            return
        inside = {device.uuid or device.index for device in self._allowed}
        whole = [device for device in self._allowed if not device.is_mig]
        outside = [
            device
            for device in devices
            if (device.uuid or device.index) not in inside
            and not (device.is_mig and device.index in {one.index for one in whole})
        ]
        if outside:
            raise UsageError(
                f"{_are(outside)} not allowed: CUDA_VISIBLE_DEVICES is {self._inherited_cvd!r}",
                f"allowed: {names_of(whole)}" if whole else "unset it",
            )

    def left_out(self, request: GpuRequest | None) -> list[str]:
        """Which allowed devices `all`, `auto:N`, or the default leaves out, and why."""
        if request is not None and request.kind not in ("all", "auto"):
            return []
        return [
            f"GPU {device.index} is {self._unusable[device.index]}; skipping it"
            for device in self._allowed
            if device not in self.usable
        ]

    def _all_usable(self, request: GpuRequest | None) -> list[Device]:
        if request is not None and not self.usable:
            raise UsageError(self.why_none(), "see `ddptop gpus`")
        if request is not None and request.count > len(self.usable):
            raise UsageError(
                f"--gpus auto:{request.count}: only {len(self.usable)} to choose from"
                f" ({names_of(self.usable)})",
                "request fewer",
            )
        return self.usable

    def _named(self, request: GpuRequest) -> list[Device]:
        wholes = {gpu.index: _device(gpu) for gpu in self._present if not is_instance(gpu)}
        if missing := [Device(index=index) for index in request.indices if index not in wholes]:
            does = "does" if len(missing) == 1 else "do"
            there = names_of(list(wholes.values()))
            raise UsageError(f"{names_of(missing)} {does} not exist", f"available: {there}")
        chosen = [wholes[index] for index in request.indices]
        chosen += [_device(_the_one(uuid, self._present)) for uuid in request.uuids]
        _distinct([device.uuid or device.index for device in chosen], "--gpus")
        self.require_allowed(chosen)
        return chosen


def _matching(uuid: str, present: Present) -> list[GpuSample]:
    return [gpu for gpu in present if gpu.uuid and gpu.uuid.startswith(uuid)]


def _the_one(uuid: str, present: Present) -> GpuSample:
    found = _matching(uuid, present)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no device has UUID {uuid}", "see `nvidia-smi -L`")
    names = ", ".join(str(gpu.uuid) for gpu in found[:3])
    raise UsageError(f"{uuid} matches {len(found)} UUIDs: {names}", "use a longer prefix")


def _are(devices: Sequence[Device]) -> str:
    return f"{names_of(devices)} {'is' if len(devices) == 1 else 'are'}"


def _entries(listed: str | None) -> list[str]:
    return [] if listed is None else [entry.strip() for entry in listed.split(",")]


def visible_devices(present: Present, inherited_cvd: str | None) -> list[Device]:
    """The devices that a CUDA program sees under this CUDA_VISIBLE_DEVICES, in its order.

    Follows CUDA's rules: entries are indices, or UUIDs that may be shortened as long as they are
    unique; the list ends at the first entry that is not a device, which is why '', '-1', and
    'NoDevFiles' mean none; a repeated entry means none; only the first MIG instance counts.
    """
    machine = sorted(present, key=lambda gpu: gpu.index)
    wholes = [gpu for gpu in machine if not is_instance(gpu)]
    if inherited_cvd is None:
        return [_device(gpu) for gpu in wholes]
    found: list[Device] = []
    entries = _entries(inherited_cvd)
    numeric = bool(entries) and _NUMBER.match(entries[0]) is not None
    for entry in entries:
        gpu = _by_number(entry, wholes) if numeric else _by_uuid(entry, machine)
        if gpu is None:
            break
        device = _device(gpu)
        if device in found:
            return []
        found.append(device)
    return [device for device in found if device.is_mig][:1] or found


def _by_number(entry: str, machine: Present) -> GpuSample | None:
    digits = _NUMBER.match(entry)
    if digits is None:
        return None
    return next((gpu for gpu in machine if gpu.index == int(digits[0])), None)


def _by_uuid(entry: str, machine: Present) -> GpuSample | None:
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) <= len("GPU-"):
        return None
    matches = _matching(entry, machine)
    return matches[0] if len(matches) == 1 else None


def _device(gpu: GpuSample) -> Device:
    return Device(index=gpu.index, uuid=gpu.uuid, name=gpu.name)


def job_environment(devices: Sequence[Device] | None, *, by_uuid: bool = False) -> dict[str, str]:
    """The variables that make only a job's devices visible to it.

    None (a machine without devices) sets nothing; [] hides all devices. With `by_uuid`, devices are
    named by UUID: if one is lost, CUDA numbers only the others, so that indices would be wrong. MIG
    instances are always named by UUID.
    """
    if devices is None:
        return {}
    mig = any(device.is_mig for device in devices)
    uuids = [device.uuid for device in devices if device.uuid]
    if (by_uuid or mig) and len(uuids) == len(devices):
        visible = uuids
    else:
        visible = [str(device.index) for device in devices]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible)}
