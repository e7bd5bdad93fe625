"""A list of devices to choose from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from textual.binding import Binding
from textual.message import Message

from ddptop.draw.panels import short_name
from ddptop.tui.widgets.table import Table
from ddptop.view.figures.columns import Column
from ddptop.view.text import Span, line
from ddptop_runner.base.units import ranks, size_of
from ddptop_runner.launch.gpus.choice import is_instance
from ddptop_runner.launch.gpus.usage import (
    DeviceUse,
    in_mig_mode,
    program_of,
    unknown_holder,
    use_of,
)
from ddptop_runner.model.snapshot import GpuSample
from ddptop_runner.model.spec import Device

COLUMNS = (
    Column("use", "use", 3),
    Column("index", "", 3, ">"),
    Column("name", "device", 16),
    Column("memory", "memory", 14, ">"),
    Column("who", " used by", 14, flex=True),
)

SHORT_COMMAND = 24
"""Commands up to this many characters are shown in full."""


def holder_words(gpu: GpuSample) -> str:
    """Who holds a device, in words."""
    if gpu.lost:
        return "lost: the driver is not responding"
    if in_mig_mode(gpu):
        return "in MIG mode; use ddptop launch --gpus MIG-..."
    use = _use(gpu)
    if not use.busy:
        return "free" if gpu.processes is not None else "n/a"
    names = {
        p.job or f"{p.user or 'unknown user'}: {_short(p.command)}" for p in gpu.processes or ()
    }
    unknown = unknown_holder(gpu)
    return ", ".join([*sorted(names), *([f"busy: {unknown}"] if unknown else ())]) or use.holders[0]


def _short(command: str | None) -> str:
    """The command if it is short, else only its script or program."""
    if command is None:
        return "?"
    return command if len(command) <= SHORT_COMMAND else program_of(command)


def is_free(gpu: GpuSample) -> bool:
    """Whether it is usable and has no known user."""
    known = gpu.processes is not None
    return known and not gpu.lost and not in_mig_mode(gpu) and not _use(gpu).busy


def _use(gpu: GpuSample) -> DeviceUse:
    return use_of(Device(index=gpu.index, uuid=gpu.uuid), gpu)


class GpuChoice(Table):
    """A list of devices; space or a click selects or deselects one."""

    BINDINGS = [Binding("space", "choose", "Choose", show=False, id="gpus.choose")]

    class Changed(Message):
        """The selection changed."""

    def __init__(self) -> None:
        super().__init__("GPUs", COLUMNS, id="gpus")
        self._gpus: Sequence[GpuSample] = ()
        self._chosen: set[int] = set()

    @property
    def chosen(self) -> tuple[int, ...]:
        """Indices of the selected devices on this machine."""
        return tuple(sorted(self._chosen))

    def offer(self, gpus: Sequence[GpuSample], chosen: Collection[int] | None = None) -> None:
        """List devices and select those with the given indices, or the free ones."""
        self._gpus = [gpu for gpu in gpus if not is_instance(gpu)]
        self._chosen = {
            gpu.index
            for gpu in self._gpus
            if (is_free(gpu) if chosen is None else gpu.index in chosen)
        }
        self._show()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Select or deselect the device."""
        message.stop()
        if any(in_mig_mode(gpu) for gpu in self._gpus if gpu.index == int(message.key)):
            return
        self._chosen ^= {int(message.key)}
        self._show()
        self.post_message(self.Changed())

    def _show(self) -> None:
        note = f"{ranks(list(self.chosen))} selected" if self._chosen else "none selected"
        rows = [(str(gpu.index), self._row(gpu)) for gpu in self._gpus]
        self.set_rows(rows, line((f"{note}; space toggles", "dim")))

    def _row(self, gpu: GpuSample) -> dict[str, Span]:
        used = gpu.index in self._chosen
        free = is_free(gpu)
        return {
            "use": (" ✓", "ok") if used else (" ·", "dim"),
            "index": (str(gpu.index), "strong"),
            "name": (short_name(gpu.name), "" if used else "dim"),
            "memory": (size_of(gpu.mem_used_bytes, gpu.mem_total_bytes), ""),
            "who": (f" {holder_words(gpu)}", "dim" if free else ""),
        }
