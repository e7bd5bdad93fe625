"""`--gpus`: what was asked for, and which devices that is on this machine.

Indices are the machine's in PCI order, as nvidia-smi shows them. An inherited CUDA_VISIBLE_DEVICES
is the outer bound and the default; its numbers are read in PCI order too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ddptop_runner.errors import UsageError
from ddptop_runner.model import GpuSample
from ddptop_runner.spec import Device

FORMS = "use 0-3, 0,2,5, 0-1,4, all, or none"
_HIGHEST_INDEX = 1023
_NUMBER = re.compile(r"[+-]?\d+")
_AUTO = re.compile(r"auto:([1-9]\d*)")


@dataclass(frozen=True)
class GpuRequest:
    """What `--gpus` says."""

    kind: Literal["indices", "all", "none"]
    indices: tuple[int, ...] = ()
    """In the order given, which becomes the order of the local ranks."""


def parse_gpus(text: str) -> GpuRequest:
    """Read the value of `--gpus`. The same index twice is an error, as CUDA would see no device.

    Raises:
        UsageError: naming the part that cannot be used, and the forms that can.
    """
    value = text.strip()
    if value in ("all", "none"):
        return GpuRequest("all" if value == "all" else "none")
    if _AUTO.fullmatch(value):
        raise UsageError(
            f"--gpus {value} is not yet available: ddptop cannot choose idle devices",
            "name the devices, such as 0-3; `ddptop gpus` shows which are idle",
        )
    if value.startswith("auto"):
        raise UsageError(f"--gpus {text!r} is not auto:N", FORMS)
    if not value:
        raise UsageError("--gpus is empty", FORMS)
    indices: list[int] = []
    for part in value.split(","):
        for index in _indices(part.strip(), text):
            if index in indices:
                raise UsageError(f"--gpus {text!r} names GPU {index} twice", "name each one once")
            indices.append(index)
    return GpuRequest("indices", tuple(indices))


def _indices(part: str, text: str) -> range:
    found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
    if found is None:
        raise UsageError(f"--gpus {text!r}: {part!r} is not an index or a range", FORMS)
    first, last = int(found[1]), int(found[2] or found[1])
    if max(first, last) > _HIGHEST_INDEX:
        raise UsageError(f"--gpus {text!r}: {part!r} is no GPU of any machine", FORMS)
    if last < first:
        raise UsageError(
            f"--gpus {text!r}: the range {part!r} runs backwards", f"write {last}-{first}"
        )
    return range(first, last + 1)


def mig_instances(inherited_cvd: str | None) -> list[str]:
    """UUIDs of the MIG instances that an inherited CUDA_VISIBLE_DEVICES names.

    They are not among a machine's devices; a sampler asked for these UUIDs knows them.
    """
    return [entry for entry in _entries(inherited_cvd) if entry.startswith("MIG-")]


def resolve(
    request: GpuRequest | None,
    present: Sequence[GpuSample | Device],
    inherited_cvd: str | None,
    nproc: int | None = None,
) -> list[Device] | None:
    """The devices of a job, in the order of its local ranks.

    Args:
        request: what `--gpus` says; None when it was not given.
        present: the machine's devices, and MIG instances where `mig_instances` names any.
        inherited_cvd: CUDA_VISIBLE_DEVICES of the calling shell; None when it is not set.
        nproc: what `--nproc` says; None when it was not given.

    Returns:
        None where the machine has no device and none was asked for; [] where it has devices and
        the job shall see none of them.

    Raises:
        UsageError: when a device asked for is not there, is lost, or is not allowed.
    """
    if request is not None and request.kind == "none":
        return []
    if not present:
        if request is None:
            return None
        raise UsageError(
            "this machine has no GPU that ddptop can see",
            "leave --gpus out and give --nproc N to train on CPUs; `ddptop gpus` says why",
        )
    known = {gpu.uuid for gpu in present}
    if unknown := [uuid for uuid in mig_instances(inherited_cvd) if uuid not in known]:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES names {unknown[0]}, which the driver does not know",
            "see `nvidia-smi -L`",
        )
    allowed = visible_devices(present, inherited_cvd)
    if any((device.uuid or "").startswith("MIG-") for device in allowed):
        _check_mig(allowed, nproc)
    lost = {gpu.index for gpu in present if isinstance(gpu, GpuSample) and gpu.lost}
    if request is None or request.kind == "all":
        chosen = [device for device in allowed if device.index not in lost]
        if request is not None and not chosen:
            reason = "every GPU is lost" if allowed else _bound(inherited_cvd)
            raise UsageError(f"--gpus all: {reason}", "see `ddptop gpus`")
        return chosen
    return _choose(request.indices, present, allowed, lost, inherited_cvd)


def _choose(
    indices: Sequence[int],
    present: Sequence[GpuSample | Device],
    allowed: Sequence[Device],
    lost: set[int],
    inherited_cvd: str | None,
) -> list[Device]:
    there = {gpu.index for gpu in present}
    if missing := [index for index in indices if index not in there]:
        raise UsageError(
            f"{_named(missing)} not on this machine", f"it has {_named(sorted(there), verb='')}"
        )
    by_index = {device.index: device for device in allowed}
    if outside := [index for index in indices if index not in by_index]:
        remedy = f"allowed: {_named(sorted(by_index), verb='')}" if by_index else "unset it"
        raise UsageError(f"{_named(outside)} outside: {_bound(inherited_cvd)}", remedy)
    if gone := [index for index in indices if index in lost]:
        rest = sorted(set(by_index) - lost)
        remedy = f"choose from {_named(rest, verb='')}" if rest else "reset the device or reboot"
        raise UsageError(f"{_named(gone)} lost", remedy)
    return [by_index[index] for index in indices]


def _check_mig(allowed: Sequence[Device], nproc: int | None) -> None:
    if nproc not in (None, 1):
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES names the MIG instance {allowed[0].uuid}, and {nproc} ranks "
            "cannot train on one instance",
            "use --nproc 1, or whole GPUs",
        )


def _bound(inherited_cvd: str | None) -> str:
    return f"CUDA_VISIBLE_DEVICES is {inherited_cvd!r}" + (
        "" if inherited_cvd and inherited_cvd.strip() else ", which allows no GPU"
    )


def _named(indices: Sequence[int], verb: str = "is|are") -> str:
    """`GPU 4 is`, `GPUs 4, 5 are`; without a verb `GPU 4`."""
    one, _, many = verb.partition("|")
    word, ending = ("GPU", one) if len(indices) == 1 else ("GPUs", many)
    return f"{word} {', '.join(map(str, indices))} {ending}".rstrip()


def _entries(inherited_cvd: str | None) -> list[str]:
    return [] if inherited_cvd is None else [entry.strip() for entry in inherited_cvd.split(",")]


def visible_devices(
    present: Sequence[GpuSample | Device], inherited_cvd: str | None
) -> list[Device]:
    """The devices that a CUDA program sees under this CUDA_VISIBLE_DEVICES, in its order.

    As CUDA does: indices, or UUIDs that may be shortened as long as they are unique; the list ends
    at the first entry that is no device, which is how '', '-1' and 'NoDevFiles' mean none; an entry
    twice means none; of several MIG instances only the first counts.
    """
    machine = sorted(present, key=lambda gpu: gpu.index)
    if inherited_cvd is None:
        return [_device(gpu) for gpu in machine]
    found: list[Device] = []
    entries = _entries(inherited_cvd)
    numeric = bool(entries) and _NUMBER.match(entries[0]) is not None
    for entry in entries:
        gpu = _by_number(entry, machine) if numeric else _by_uuid(entry, machine)
        if gpu is None:
            break
        device = _device(gpu)
        if device in found:
            return []
        found.append(device)
    migs = [device for device in found if (device.uuid or "").startswith("MIG-")]
    return migs[:1] or found


def _by_number(entry: str, machine: Sequence[GpuSample | Device]) -> GpuSample | Device | None:
    digits = _NUMBER.match(entry)
    if digits is None:
        return None
    return next((gpu for gpu in machine if gpu.index == int(digits[0])), None)


def _by_uuid(entry: str, machine: Sequence[GpuSample | Device]) -> GpuSample | Device | None:
    if not entry.startswith(("GPU-", "MIG-")) or len(entry) <= len("GPU-"):
        return None
    matches = [gpu for gpu in machine if gpu.uuid and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _device(gpu: GpuSample | Device) -> Device:
    return Device(index=gpu.index, uuid=gpu.uuid, name=gpu.name)


def job_environment(devices: Sequence[Device] | None, *, by_uuid: bool = False) -> dict[str, str]:
    """The variables that show a job its devices, and no other.

    None (a machine without devices) sets nothing; [] hides every device. With `by_uuid` devices are
    named by UUID: where a device of the machine is lost, CUDA counts only those that are left, so
    indices would mean others. MIG instances always go by UUID.
    """
    if devices is None:
        return {}
    mig = any((device.uuid or "").startswith("MIG-") for device in devices)
    uuids = [device.uuid for device in devices if device.uuid]
    if (by_uuid or mig) and len(uuids) == len(devices):
        visible = uuids
    else:
        visible = [str(device.index) for device in devices]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(visible)}
