"""Maps `cuda:i` of a foreign process to a device, from its CUDA_VISIBLE_DEVICES. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop_runner.foreign.variables import whole_number
from ddptop_runner.model.devices import GpuSample

MAX_ENTRIES = 1024
"""Of the list: CUDA ends it at the first that it does not know, but another user wrote it."""


def ordered_devices(
    visible: str | None, gpus: Sequence[GpuSample], *, pci_order: bool
) -> list[GpuSample] | None:
    """The devices that the process may use, in its own order; None where that is not certain.

    Numbers count in CUDA's order, which is the machine's only where all devices are of one model:
    else the fastest comes first. CUDA ends the list at the first entry that it does not know.

    Args:
        visible: CUDA_VISIBLE_DEVICES of the process; None when it is unset.
        gpus: all devices of the machine.
        pci_order: whether its CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    whole = [gpu for gpu in gpus if gpu.parent_uuid is None]
    alike = pci_order or len({gpu.name for gpu in whole}) <= 1
    if visible is None:
        return whole if alike else None
    found: list[GpuSample] = []
    by_index = {gpu.index: gpu for gpu in whole}
    for entry in (part.strip() for part in visible.split(",", MAX_ENTRIES)[:MAX_ENTRIES]):
        if entry.isascii() and entry.isdigit():
            if not alike:
                return None
            index = whole_number(entry)
            gpu = None if index is None else by_index.get(index)
        else:
            named = [g for g in gpus if entry and g.uuid and g.uuid.startswith(entry)]
            gpu = named[0] if len(named) == 1 else None
        if gpu is None or gpu in found:
            break
        found.append(gpu)
    return found


def cuda_index(order: Sequence[GpuSample] | None, gpu: GpuSample) -> int | None:
    """The i of `cuda:i` for `gpu` by what `ordered_devices` says; None where it is not certain."""
    own = (gpu.uuid, gpu.index)
    names = [(one.uuid, one.index) for one in order or ()]
    return names.index(own) if own in names else None
