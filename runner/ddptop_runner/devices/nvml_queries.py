"""What is asked of one device, and how its answers become figures.

A query that a device does not support is asked once. A figure that is unknown has its reason beside
it, in `Gpu.unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pynvml

from ddptop_runner.devices import words
from ddptop_runner.devices.nvml_calls import tally
from ddptop_runner.devices.nvml_figures import (
    FAST,
    FIGURES,
    FIXED,
    FIXED_OF_ALL,
    KEPT,
    MIG,
    TOLD_OF_MIG,
    Figure,
    Query,
)
from ddptop_runner.devices.words import Why, why_not
from ddptop_runner.devices.xid_words import xid_meaning
from ddptop_runner.host import procs
from ddptop_runner.model.devices import GpuSample

_SILENT_TICKS = 2
"""A device that answers none of its fast queries this many times running counts as lost."""

_NEVER = {  # a query that ends so will end so each time: it is not asked again
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
_STALE = pynvml.NVML_ERROR_UNINITIALIZED


class LostError(Exception):
    """The device fell off the bus: its handle must not be used again."""

    def __init__(self, status: int | None = None) -> None:
        super().__init__(status)
        self.status = status
        """What NVML said; None where it ceased to answer."""

    @property
    def stale(self) -> bool:
        """Whether NVML itself has to be started again."""
        return bool(self.status == _STALE)


class Gpu:
    """One device or MIG instance: its handle while it is there, and its latest figures."""

    def __init__(
        self,
        index: int,
        handle: Any | None = None,
        uuid: str | None = None,
        parent_uuid: str | None = None,
    ) -> None:
        """`parent_uuid` is of the device that a MIG instance is part of."""
        self.index, self.handle = index, handle
        self.uuid, self.parent_uuid = uuid, parent_uuid
        self.mig_mode = False
        self.mig_instances: list[str] = []
        self.figures: dict[str, Any] = {}
        self.unknown: dict[str, Why] = {}
        self.xids: list[int] = []
        self.why_no_xids: Why | None = words.NOT_READ
        self.unsupported: dict[Query, Why] = {}
        self.silent_ticks = 0
        self.trouble: str | None = None
        """What is wrong with a device without a handle, and the remedy."""
        self.nvlinks: int | None = None
        self.nvlink_counters: tuple[float, float, float] | None = None
        """Bytes received and sent since the driver was loaded, and when (CLOCK_BOOTTIME)."""

    def lose(self, trouble: str) -> None:
        """Forget the handle, and the figures that are no longer known."""
        self.handle, self.trouble = None, trouble
        self.figures = {name: self.figures.get(name) for name in KEPT}
        self.unknown.clear()
        self.unsupported.clear()
        self.silent_ticks, self.nvlinks, self.nvlink_counters = 0, None, None

    def put(self, fields: Iterable[str], values: Iterable[Any]) -> None:
        """Keep the values, and for those that are a reason instead: None and the reason."""
        for field, value in zip(fields, values, strict=True):
            if isinstance(value, Why):
                self.figures[field] = None
                self.unknown[field] = value
            else:
                self.figures[field] = value
                self.unknown.pop(field, None)

    def sample(self) -> GpuSample:
        """What is known of the device."""
        heard = self.why_no_xids is None or bool(self.xids)
        known = {
            **self.figures,
            "uuid": self.uuid,
            "xid": list(self.xids) if heard else None,
            "xid_meanings": [xid_meaning(code) for code in self.xids] if heard else None,
        }
        lost = self.handle is None
        unknown: dict[str, str] = {
            name: words.LOST if lost else str(self._why(name))
            for name in FIGURES
            if known.get(name) is None
        }
        if not lost:
            unknown.update((name, str(why)) for name, why in self.unknown.items() if "." in name)
        return GpuSample(
            index=self.index,
            host=procs.host_name(),
            parent_uuid=self.parent_uuid,
            mig_instances=list(self.mig_instances),
            lost=lost,
            note=self._note(),
            unknown=unknown,
            **known,
        )

    def _why(self, name: str) -> Why:
        if name.startswith("xid"):
            return self.why_no_xids or words.NOT_READ
        return self.unknown.get(name, words.NOT_READ)

    def _note(self) -> str | None:
        if self.handle is None:
            return self.trouble
        notes = []
        if self.figures.get("remap_failed"):
            notes.append(words.REMAP_FAILED)
        if self.figures.get("remap_pending"):
            notes.append(words.REMAP_PENDING)
        if self.mig_mode and not self.mig_instances:
            notes.append(words.NO_INSTANCES)
        return "; ".join(notes) or None


def ask(gpu: Gpu, queries: Iterable[Query], call: Callable[..., Any] | None = None) -> Any:
    """The first answer of the queries that this device supports; else a `Why`.

    `call(handle, name, *arguments)` asks in place of the pynvml function of that name.

    Raises:
        LostError: when the device is gone.
    """
    why: Why | None = None
    for query in queries:
        if (known := gpu.unsupported.get(query)) is not None:
            why = _plainer(why, known)
            continue
        function = getattr(pynvml, query[0], None) if call is None else call
        if function is None:
            gpu.unsupported[query] = words.OLDER_PYNVML
            why = _plainer(why, words.OLDER_PYNVML)
            continue
        try:
            if call is not None:
                return call(gpu.handle, *query)
            tally.calls += 1
            return function(gpu.handle, *query[1:])
        except pynvml.NVMLError as error:
            status = error.value
        except UnicodeDecodeError:  # NVML can answer with bytes that are no text
            return words.NOT_TEXT
        if status in (pynvml.NVML_ERROR_GPU_IS_LOST, _STALE):
            raise LostError(status)
        if status not in _NEVER:
            return why_not(status)
        gpu.unsupported[query] = why_not(status)
        why = _plainer(why, gpu.unsupported[query])
    return why or words.NOT_SUPPORTED


def _plainer(first: Why | None, second: Why) -> Why:
    """The reason that tells more: an older name that is missing says nothing of the device."""
    older = (words.OLDER_DRIVER, words.OLDER_PYNVML)
    if first is None or (first in older and second not in older):
        return second
    return first


def read(gpu: Gpu, figures: Collection[Figure]) -> bool:
    """Ask and keep what the device answers; whether it answered anything that it supports."""
    answered = asked = False
    for figure in figures:
        answer = ask(gpu, figure.queries)
        if isinstance(answer, Why):
            gpu.put(figure.fields, (answer,) * len(figure.fields))
            asked = asked or any(query not in gpu.unsupported for query in figure.queries)
        else:
            gpu.put(figure.fields, figure.values(answer))
            answered = asked = True
    return answered or not asked


def read_fast(gpu: Gpu) -> None:
    """Ask for what changes each second. All reads raise LostError when the device is gone."""
    gpu.silent_ticks = (
        0 if read(gpu, FAST if gpu.parent_uuid is None else MIG) else (gpu.silent_ticks + 1)
    )
    if gpu.silent_ticks >= _SILENT_TICKS:
        raise LostError


def read_mig_mode(gpu: Gpu) -> None:
    """Ask whether a whole device is divided; newer ones change that without a reset."""
    mode = ask(gpu, (("nvmlDeviceGetMigMode",),))
    if not isinstance(mode, Why):
        gpu.mig_mode = mode[0] == 1


def identify(gpu: Gpu) -> None:
    """Read what never changes."""
    if gpu.uuid is None:
        uuid = ask(gpu, (("nvmlDeviceGetUUID",),))
        gpu.unknown.pop("uuid", None)
        if isinstance(uuid, Why):
            gpu.unknown["uuid"] = uuid
        else:
            gpu.uuid = uuid
    read(gpu, FIXED_OF_ALL if gpu.parent_uuid else FIXED)
    if gpu.parent_uuid is None:
        read_mig_mode(gpu)
    else:
        not_told = [name for name in FIGURES if name not in TOLD_OF_MIG]
        gpu.put(not_told, [words.MIG_INSTANCE] * len(not_told))
        gpu.why_no_xids = words.MIG_INSTANCE
