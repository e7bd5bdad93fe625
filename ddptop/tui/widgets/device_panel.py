"""Devices as bars and figures; without devices, CPU and memory in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddptop.tui.render.panels import cpu_rank_lines, device_lines, imbalance_note, machine_lines
from ddptop.tui.render.text import Line, line, rule, wrap
from ddptop.tui.snapshot import Machine
from ddptop.tui.widgets.lines import LinesView
from ddptop_runner.model import GpuSample, Imbalance, RankSample

NOTHING_KNOWN = Imbalance()

Holder = Callable[[GpuSample], Line]


class DevicePanel(LinesView):
    """One row per device under a title; one row per rank where there is no device."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._gpus: Sequence[GpuSample] = ()
        self._holder: Holder = lambda gpu: ()
        self._ranks: Sequence[RankSample] = ()
        self._machine: Machine | None = None
        self._reason: str | None = None
        self._imbalance = Imbalance()

    def show_devices(
        self,
        gpus: Sequence[GpuSample],
        holder: Holder,
        imbalance: Imbalance = NOTHING_KNOWN,
        reason: str | None = None,
    ) -> None:
        """Show devices. `holder` says who holds one, `reason` why figures are incomplete."""
        self._gpus, self._holder, self._reason = gpus, holder, reason
        self._imbalance = imbalance
        self._ranks, self._machine = (), None
        self.redraw()

    def show_ranks(self, ranks: Sequence[RankSample], imbalance: Imbalance) -> None:
        """Show CPU and resident memory of a job's ranks."""
        self._gpus, self._ranks, self._reason = (), ranks, None
        self._imbalance = imbalance
        self._machine = None
        self.redraw()

    def show_machine(self, machine: Machine, reason: str | None) -> None:
        """Show the machine's CPU and memory, and in words why there is no device."""
        self._gpus, self._ranks, self._imbalance = (), (), NOTHING_KNOWN
        self._machine, self._reason = machine, reason
        self.redraw()

    def _note(self, cells: int) -> Line:
        return imbalance_note(self._imbalance, cells)

    def rows_wanted(self) -> int:
        """Rows that show everything."""
        return len(self.build(max(40, self.size.width or 80), 1000))

    def build(self, width: int, height: int) -> list[Line]:
        """Title and rows."""
        if self._gpus:
            lines = [rule("devices", width, self._note(width - 18))]
            lines += device_lines(self._gpus, width, self._holder)
        elif self._ranks:
            lines = [rule("CPU and memory", width, self._note(width - 25))]
            lines += cpu_rank_lines(self._ranks, width)
        else:
            lines = [rule("machine", width)]
            lines += machine_lines(self._machine, width) if self._machine else []
        if self._reason:
            texts = wrap(self._reason, width - 2, 2)
            lines += [line((f" {text}", "dim")) for text in texts]
        return _cut(lines, height)


def _cut(lines: list[Line], height: int) -> list[Line]:
    """As many lines as fit; the last one says how many are missing."""
    if len(lines) <= height or height < 2:
        return lines[:height]
    missing = len(lines) - height + 1
    return [*lines[: height - 1], line((f" and {missing} more: press v", "dim"))]
