"""What can be done on the screen of one rank."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.chart import CHART_ACTIONS
from ddptop.tui.actions.common import (
    BACK,
    DETACH,
    DEVICES_PAGE,
    FINDINGS,
    HELP,
    LEAVE,
    LOGS_PAGE,
    NEXT_RANK,
    PREVIOUS_RANK,
    STORY_PAGE,
    Action,
)
from ddptop.tui.actions.job import JOBS, STACKS

RANK: tuple[Action, ...] = (
    BACK,
    LEAVE,
    replace(NEXT_RANK, show=True),
    replace(PREVIOUS_RANK, show=True),
    LOGS_PAGE,
    DEVICES_PAGE,
    STACKS,
    FINDINGS,
    STORY_PAGE,
    DETACH,
    Action(
        "page.main", "page('main')", "1", "All", "show all panels, or only the loss", show=False
    ),
    Action("page.split", "page('split')", "2", "Step", "show where step time is spent", show=False),
    Action(
        "page.load",
        "page('load')",
        "3",
        "Load",
        "show memory, CPU, and device metrics over time",
        show=False,
    ),
    Action("page.log", "page('log')", "4", "Log", "show only the rank's log", show=False),
    *CHART_ACTIONS,
    JOBS,
    HELP,
)
"""Of the screen of one rank."""
