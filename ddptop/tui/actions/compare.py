"""What can be done on the screen that compares jobs."""

from __future__ import annotations

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

_KEPT_BACK = ("chart.mode", "chart.figure")
"""There is one curve a job, and nothing to choose between."""
_SHOWN = {"chart.axis": "Step/time", "chart.log": "Log", "chart.smooth": "Smooth"}

COMPARE: tuple[Action, ...] = (
    BACK,
    Action("compare.open", "open", "enter", "Open", "open the job under the cursor"),
    Action(
        "compare.keep",
        "keep",
        "space",
        "Keep",
        "keep this job on the chart and pick another (up to four jobs)",
    ),
    Action("view.filter", "filter", "slash", "Filter", "show only matching jobs"),
    *(
        Action(
            one.id,
            one.action,
            one.keys,
            _SHOWN.get(one.id, one.name),
            one.help,
            show=one.id in _SHOWN,
            key_display=one.key_display,
        )
        for one in CHART_ACTIONS
        if one.id not in _KEPT_BACK
    ),
    LEAVE,
    DETACH,
    HELP,
)
"""Of the screen that compares jobs."""
