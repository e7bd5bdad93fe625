"""The chosen device with everything that is known of it."""

from __future__ import annotations

from ddptop.draw.device_details import detail_lines
from ddptop.draw.devices import Owners
from ddptop.tui.widgets.lines import LinesView
from ddptop.view.text import Line
from ddptop_runner.model.snapshot import GpuSample


class DeviceDetails(LinesView):
    """Shown below the devices on their own page."""

    def __init__(self, *, processes: bool = True) -> None:
        """Without `processes` these are shown elsewhere."""
        super().__init__(id="device")
        self._processes = processes
        self._gpu: GpuSample | None = None
        self._owners: Owners = {}

    def show(self, gpu: GpuSample | None, owners: Owners) -> None:
        """Take the chosen device; None where there is none."""
        self._gpu, self._owners = gpu, owners
        self.redraw()

    def build(self, width: int, height: int) -> list[Line]:
        """As many rows as there is room for."""
        if self._gpu is None:
            return []
        return detail_lines(self._gpu, width, height, self._owners, processes=self._processes)
