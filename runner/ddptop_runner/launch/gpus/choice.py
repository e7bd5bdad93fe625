"""Decides which devices a launch gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import UsageError
from ddptop_runner.devices import hardware
from ddptop_runner.devices.report import sample_once
from ddptop_runner.devices.words import (
    NO_INSTANCES,
    name_of,
    names_of,
    wanted_in_words,
)
from ddptop_runner.launch.gpus import usage
from ddptop_runner.launch.gpus.usage import DeviceUse, busy_in_words, choice_in_words, idlest
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device, DeviceQueue, JobSpec

CPU_RANKS = 2
"""Number of ranks on a machine without NVIDIA hardware."""
ON_CPU = f"no NVIDIA devices: starting {CPU_RANKS} CPU ranks; pass --nproc N to start N"

OPTIONS_AGAINST = "--force and --wait-gpus cannot be used together"


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
    queue: DeviceQueue | None = None
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
        return self.queue is not None and self.devices is None

    @property
    def count(self) -> int:
        """Number of devices that the job has or will have."""
        if self.devices is None and self.queue is not None:
            return self.queue.count
        return len(self.devices or ())

    @property
    def ranks(self) -> int | None:
        """Number of ranks unless `--nproc` says otherwise; None if there is no telling."""
        is_cpu_machine = self.devices is None and self.queue is None and self.why_none is None
        return self.count or (CPU_RANKS if is_cpu_machine else None)

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
) -> DeviceChoice:
    """Decide which devices a new job gets.

    Args:
        asked: the value of `--gpus`, if given.
        env: the launching shell's variables, with those of `--env`.
        nproc: the value of `--nproc`, if given.
        force: `--force`: use busy devices.
        wait: `--wait-gpus`: queue if too few are free.

    Raises:
        UsageError: a device is unavailable; the message names who holds it.
    """
    request = None if asked is None else parse_gpus(asked)
    if force and wait:
        raise UsageError(OPTIONS_AGAINST, "use one of them")
    visible = env.get("CUDA_VISIBLE_DEVICES")
    named = mig_instances(visible)
    named += [uuid for uuid in (request.uuids if request else ()) if uuid.startswith("MIG-")]
    present, why_none = present_devices(named)
    machine = Machine(present, visible)
    pool = machine.resolve(request, nproc)
    if not pool:
        if wait:
            raise UsageError(
                "--wait-gpus has no effect: this job uses no GPUs", "remove --wait-gpus"
            )
        if request is not None:
            why_none = None
        elif present:
            why_none = machine.why_none()
        return DeviceChoice(pool, why_none=why_none)
    notes = machine.left_out(request)
    count = len(pool)
    if request is not None and request.kind == "auto":
        count = request.count
        pool = sorted(pool, key=lambda device: device.index)
    return _Decision(pool, count, present, notes, request, force, wait, machine.usable).make()


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
        raise UsageError(OPTIONS_AGAINST, "use one of them")
    devices = spec.devices
    if devices is None and spec.queue is not None:  # it ended before it got devices
        wait = wait or not force
        pool, count = spec.queue.candidates, spec.queue.count
    else:
        pool, count = devices or [], len(devices or ())
    if not pool:
        return DeviceChoice(devices)
    present, _ = present_devices([device.uuid or "" for device in pool if device.is_mig])
    if not present:
        raise UsageError(
            f"{spec.job} ran on {names_of(pool)}, but no GPUs were found on this machine",
            "see `ddptop gpus`",
        )
    Machine(present, env.get("CUDA_VISIBLE_DEVICES")).require_allowed(pool)
    return _Decision(pool, count, present, [], None, force, wait).make()


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
    request: GpuRequest | None
    force: bool
    wait: bool
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
            queue = DeviceQueue(
                candidates=list(self.pool), count=self.count, since=utc_now(), by_uuid=by_uuid
            )
        if queue is not None and busy:
            devices = None
            notes.append(f"waiting for {wanted_in_words(queue)}; {busy_in_words(uses)}")
        elif self.request is not None and self.request.kind == "auto":
            notes.append(choice_in_words(chosen, uses))
        elif busy:
            notes.append(f"using busy GPUs (--force): {busy_in_words(busy)}")
        if devices is not None:
            notes += _doubts(chosen)
        return DeviceChoice(devices, queue, by_uuid, tuple(notes), self.make)

    def _refusal(self, uses: Sequence[DeviceUse], chosen: Sequence[DeviceUse]) -> DevicesError:
        """The error that names who uses which device, and the alternatives.

        Args:
            uses: the devices that the job may get.
            chosen: those that it would get.
        """
        if self.request is not None and self.request.kind == "auto":
            free = [use for use in uses if not use.busy]
            verb = "is" if len(free) == 1 else "are"
            what = f"--gpus auto:{self.count}: {len(free)} of {len(uses)} GPUs {verb} free"
            what += f" ({busy_in_words(uses)})"
        else:
            free = [use for use in usage.uses(self.allowed, self.present) if not use.busy]
            held = [use.device for use in chosen if use.busy]
            verb = "is" if len(held) == 1 else "are"
            words = busy_in_words(chosen)
            alike = f"{names_of(held)}: "  # the same holder on all of them
            words = f": {words[len(alike) :]}" if words.startswith(alike) else f" ({words})"
            what = f"{names_of(held)} {verb} busy{words}"
        is_mig = any(use.device.is_mig for use in chosen)
        count = min(len(free), self.count)
        remedy = f"--gpus auto:{count} for idle GPUs, " if count and not is_mig else ""
        hint = f"pass {remedy}--wait-gpus to wait, or --force to use busy GPUs"
        return DevicesError(what, hint, "busy")


def _doubts(chosen: Sequence[DeviceUse]) -> list[str]:
    """A line for each reason to doubt that devices are free."""
    reasons: dict[str, list[Device]] = {}
    for use in chosen:
        if use.doubt is not None:
            reasons.setdefault(use.doubt, []).append(use.device)
    return [f"{names_of(devices)}: {reason}" for reason, devices in reasons.items()]


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

    def in_words(self) -> str:
        """As it would be typed."""
        if self.kind == "auto":
            return f"auto:{self.count}"
        if self.kind == "uuids":
            return ",".join(self.uuids)
        return ",".join(map(str, self.indices)) if self.kind == "indices" else self.kind


def parse_gpus(text: str) -> GpuRequest:
    """Parse `--gpus`. Naming a device twice is an error, since CUDA would then see no device.

    Raises:
        UsageError: it is invalid; the message names the invalid part and the valid forms.
    """
    value = text.strip()
    if value in ("all", "none"):
        return GpuRequest("all" if value == "all" else "none")
    if found := _AUTO.fullmatch(value):
        return GpuRequest("auto", count=int(found[1]))
    if not value:
        raise UsageError("--gpus is empty", FORMS)
    parts = [part.strip() for part in value.split(",")]
    if any(_UUID.fullmatch(part) for part in parts):
        return _uuids(parts, text)
    indices: list[int] = []
    for part in parts:
        for index in _indices(part, text):
            if index in indices:
                raise UsageError(f"--gpus {text!r} lists GPU {index} twice", "list each one once")
            indices.append(index)
    return GpuRequest("indices", tuple(indices))


def _uuids(parts: list[str], text: str) -> GpuRequest:
    for number, part in enumerate(parts):
        if not _UUID.fullmatch(part):
            raise UsageError(
                f"--gpus {text!r}: {part!r} is not a UUID; CUDA accepts indices or UUIDs, not both",
                "use the same form for all devices",
            )
        if part in parts[:number]:
            raise UsageError(f"--gpus {text!r} lists {part} twice", "list each one once")
    if len(parts) > 1 and any(part.startswith("MIG-") for part in parts):
        raise UsageError(
            f"--gpus {text!r}: a CUDA process sees only one MIG instance",
            "pass one instance with --nproc 1, and launch one job per instance",
        )
    return GpuRequest("uuids", uuids=tuple(parts))


def _indices(part: str, text: str) -> range:
    found = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
    if found is None or max(int(found[1]), int(found[2] or 0)) > _HIGHEST_INDEX:
        raise UsageError(
            f"--gpus {text[:40]!r}: {part[:20]!r} is not an index, range, or UUID", FORMS
        )
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise UsageError(f"--gpus {text!r}: the range {part!r} is reversed", f"use {last}-{first}")
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


def in_mig_mode(present: Present) -> dict[int, list[str]]:
    """By index of each whole device in MIG mode, the UUIDs of its instances."""
    found: dict[int, list[str]] = {}
    for gpu in present:
        if is_instance(gpu) and gpu.uuid:
            found.setdefault(gpu.index, []).append(gpu.uuid)
        elif gpu.mig_instances or (gpu.note is not None and NO_INSTANCES in gpu.note):
            found.setdefault(gpu.index, []).extend(gpu.mig_instances)
    return {index: sorted(set(uuids)) for index, uuids in found.items()}


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
        self._whole = {one.index: one for one in self._allowed if not one.is_mig}
        self._lost = {gpu.index for gpu in present if gpu.lost}
        self._mig = in_mig_mode(present)
        self.usable = [
            device
            for device in self._allowed
            if device.index not in self._lost and (device.is_mig or device.index not in self._mig)
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
        instances = [device for device in chosen if device.is_mig]
        if instances and nproc not in (None, 1):
            raise UsageError(
                f"{instances[0].uuid} is one MIG instance, which {nproc} ranks cannot share",
                "use --nproc 1, or whole GPUs",
            )
        return chosen

    def why_none(self) -> str:
        """Why none of the machine's devices is allowed, or no allowed one is present."""
        return "all allowed GPUs are lost" if self._allowed else self._bound()

    def require_allowed(self, devices: Sequence[Device]) -> None:
        """Check devices against the outer bound.

        Raises:
            UsageError: CUDA_VISIBLE_DEVICES excludes some, which the message names.
        """
        inside = {device.uuid or device.index for device in self._allowed}
        here = {(gpu.uuid, gpu.index) for gpu in self._present}
        outside = [
            device
            for device in devices
            if (device.uuid or device.index) not in inside
            and not (device.is_mig and device.index in self._whole)
            and (device.uuid, device.index) in here
        ]
        if outside:
            whole = list(self._whole.values())
            remedy = f"allowed: {names_of(whole)}" if whole else "unset it"
            raise UsageError(f"{_are(outside)} not allowed: {self._bound()}", remedy)

    def left_out(self, request: GpuRequest | None) -> list[str]:
        """Which allowed devices `all`, `auto:N`, or the default leaves out, and why."""
        if request is not None and request.kind not in ("all", "auto"):
            return []
        allowed = {device.index for device in self._allowed}
        notes = [f"GPU {index} is lost; skipping it" for index in sorted(self._lost & allowed)]
        if not any(device.is_mig for device in self._allowed):
            notes += [
                f"GPU {index} is in MIG mode and was skipped;"
                f" to use it, pass an instance ({_few(self._mig[index])})"
                for index in sorted(set(self._mig) & allowed)
            ]
        return notes

    def _bound(self) -> str:
        nothing = not (self._inherited_cvd and self._allowed)
        words = f"CUDA_VISIBLE_DEVICES is {self._inherited_cvd!r}"
        return f"{words}, which allows no GPUs" if nothing else words

    def _all_usable(self, request: GpuRequest | None) -> list[Device]:
        asked = "without --gpus" if request is None else f"--gpus {request.in_words()}"
        chosen = self.usable
        if not chosen and self._allowed and all(one.index in self._mig for one in self._allowed):
            raise UsageError(
                f"{asked}: all GPUs are in MIG mode, and a job can use only one instance",
                f"pass one: {_few([uuid for uuids in self._mig.values() for uuid in uuids])}",
            )
        if request is not None and not chosen:
            reason = "all GPUs are lost" if self._allowed else self._bound()
            raise UsageError(f"{asked}: {reason}", "see `ddptop gpus`")
        if request is not None and request.kind == "auto" and request.count > len(chosen):
            raise UsageError(
                f"{asked}: only {len(chosen)} to choose from ({names_of(chosen)})", "request fewer"
            )
        return chosen

    def _named(self, request: GpuRequest) -> list[Device]:
        wholes = {gpu.index: gpu for gpu in self._present if not is_instance(gpu)}
        if missing := [Device(index=index) for index in request.indices if index not in wholes]:
            there = names_of([_device(gpu) for gpu in wholes.values()])
            does = "does" if len(missing) == 1 else "do"
            raise UsageError(f"{names_of(missing)} {does} not exist", f"available: {there}")
        chosen = [_device(wholes[index]) for index in request.indices]
        for uuid in request.uuids:
            device = _device(_the_one(uuid, self._present))
            if device in chosen:
                raise UsageError(f"--gpus lists {device.uuid} twice", "list each one once")
            chosen.append(device)
        self.require_allowed(chosen)
        if gone := [device for device in chosen if device.index in self._lost]:
            rest = [one for index, one in self._whole.items() if index not in self._lost]
            remedy = f"choose from {names_of(rest)}" if rest else "reset the device or reboot"
            raise UsageError(f"{_are(gone)} lost", remedy)
        for device in chosen:
            if device.index in self._mig and not device.is_mig:
                raise UsageError(
                    f"{name_of(device)} is in MIG mode and cannot be used as a whole",
                    f"pass one of its instances: {_few(self._mig[device.index])}",
                )
        return chosen


def _the_one(uuid: str, present: Present) -> GpuSample:
    found = [gpu for gpu in present if gpu.uuid and gpu.uuid.startswith(uuid)]
    exact = [gpu for gpu in found if gpu.uuid == uuid]
    if not found:
        raise UsageError(f"no device has UUID {uuid}", "see `nvidia-smi -L`")
    if len(found) > 1 and not exact:
        names = ", ".join(str(gpu.uuid) for gpu in found[:3])
        raise UsageError(f"{uuid} matches {len(found)} UUIDs: {names}", "use a longer prefix")
    return exact[0] if exact else found[0]


def _few(uuids: Sequence[str], most: int = 4) -> str:
    more = ", ..." if len(uuids) > most else ""
    return ", ".join(uuids[:most]) + more or "see `nvidia-smi -L`"


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
    matches = [gpu for gpu in machine if gpu.uuid and gpu.uuid.startswith(entry)]
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
