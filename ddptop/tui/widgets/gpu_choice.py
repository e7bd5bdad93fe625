"""A list of devices of which some are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding
from textual.message import Message

from ddptop.tui.render.columns import Column
from ddptop.tui.render.panels import short_name
from ddptop.tui.render.text import Span, line
from ddptop.tui.render.units import ranks, size_of
from ddptop.tui.widgets.table import Table
from ddptop_runner.model import GpuSample

COLUMNS = (
    Column("use", "use", 3),
    Column("index", "", 3, ">"),
    Column("name", "device", 16),
    Column("memory", "memory", 14, ">"),
    Column("who", " held by", 14, flex=True),
)


def holder_words(gpu: GpuSample) -> str:
    """Who holds a device, in words."""
    if gpu.lost:
        return "lost: the driver does not answer"
    if gpu.processes is None:
        return "n/a"
    names = {p.job or f"{p.user or 'someone'}: {p.command or '?'}" for p in gpu.processes}
    return ", ".join(sorted(names)) or "free"


class GpuChoice(Table):
    """Space or a click chooses a device or leaves it out."""

    BINDINGS = [Binding("space", "choose", "Choose", show=False, id="gpus.choose")]

    class Changed(Message):
        """Another set of devices is chosen."""

    def __init__(self) -> None:
        super().__init__("GPUs", COLUMNS, id="gpus")
        self._gpus: Sequence[GpuSample] = ()
        self._chosen: set[int] = set()

    @property
    def chosen(self) -> tuple[int, ...]:
        """Machine indices of the chosen devices."""
        return tuple(sorted(self._chosen))

    def offer(self, gpus: Sequence[GpuSample]) -> None:
        """List devices; those that nobody holds are chosen."""
        self._gpus = gpus
        self._chosen = {gpu.index for gpu in gpus if gpu.processes == [] and not gpu.lost}
        self._show()

    def on_table_chosen(self, message: Table.Chosen) -> None:
        """Choose, or leave out."""
        message.stop()
        self._chosen ^= {int(message.key)}
        self._show()
        self.post_message(self.Changed())

    def _show(self) -> None:
        note = f"{ranks(list(self.chosen))} chosen" if self._chosen else "none chosen"
        rows = [(str(gpu.index), self._row(gpu)) for gpu in self._gpus]
        self.set_rows(rows, line((f"{note}, space changes", "dim")))

    def _row(self, gpu: GpuSample) -> dict[str, Span]:
        used = gpu.index in self._chosen
        free = gpu.processes == [] and not gpu.lost
        return {
            "use": (" ✓", "ok") if used else (" ·", "dim"),
            "index": (str(gpu.index), "strong"),
            "name": (short_name(gpu.name), "" if used else "dim"),
            "memory": (size_of(gpu.mem_used_bytes, gpu.mem_total_bytes), ""),
            "who": (f" {holder_words(gpu)}", "dim" if free else "warn"),
        }
