"""In place of devices: CPU and memory of the machine, why there is no device, and what to do."""

from __future__ import annotations

from ddptop.draw.panels import machine_lines
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.shown import Machine
from ddptop.view.text import Line, line, rule, wrap

TO_DO = (
    ("ddptop doctor", "checks the driver, its library, and permissions, and suggests fixes"),
    ("ddptop launch --gpus none --nproc 2 train.py", "trains on the CPU in the meantime"),
)


class MachinePanel(LinesView):
    """Shown if the machine has no device or the driver reports none."""

    def __init__(self) -> None:
        super().__init__(id="machine")
        self._machine: Machine | None = None
        self._reason: str | None = None

    def show(self, machine: Machine, reason: str | None) -> None:
        """Take a look at the machine, and why it has no device."""
        self._machine, self._reason = machine, reason
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """Bars, reason, and what helps."""
        lines = [rule("machine", width)]
        if self._machine is not None:
            lines += machine_lines(self._machine, width)
        lines += [(), rule("no devices", width)]
        reason = self._reason or "the driver reports no devices"
        lines += [line((f" {text}", "")) for text in wrap(reason, width - 2, 4)]
        lines.append(())
        for command, what in TO_DO:
            lines += [line((f"   {command}", "busy")), line((f"     {what}", "dim"))]
        return lines
