"""What can be done on the screen with the devices."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

DEVICES: tuple[Action, ...] = (
    BACK,
    Action(
        "device.open",
        "open",
        "enter",
        "Open",
        "explain a device's metrics, or open a process's job",
    ),
    Action("device.figure", "figure", "m", "Metric", "chart: show the next metric"),
    replace(CHART_ACTIONS[0], show=False),
    *CHART_ACTIONS[1:],
    Action("view.jobs", "back", "o", "Jobs", "show all jobs", show=False),
    LEAVE,
    DETACH,
    HELP,
)
"""Of the screen with the devices."""
