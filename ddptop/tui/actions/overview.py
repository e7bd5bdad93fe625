"""What can be done on the screen with all jobs."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.common import (
    AGAIN,
    COMPARE_PAGE,
    DEVICES_PAGE,
    FINDINGS,
    HELP,
    KILL,
    LAUNCH,
    LOGS_PAGE,
    REPLAY_PAGE,
    STOP,
    STORY_PAGE,
    Action,
)

UNSEEN = Action(
    "view.unseen",
    "unseen",
    "u",
    "Unreadable",
    "list processes that cannot be inspected, and why",
    show=False,
)

OVERVIEW: tuple[Action, ...] = (
    Action("job.open", "open", "enter", "Open", "open the job under the cursor"),
    LAUNCH,
    STOP,
    AGAIN,
    Action("view.filter", "filter", "slash", "Filter", "show only matching jobs"),
    LOGS_PAGE,
    replace(STORY_PAGE, own=True),
    DEVICES_PAGE,
    FINDINGS,
    replace(REPLAY_PAGE, own=True),
    replace(
        COMPARE_PAGE,
        help="compare the marked jobs, or this one with another",
        own=True,
    ),
    Action("jobs.mark", "mark", "space", "Mark", "mark the job for comparison", own=True),
    Action("jobs.sort", "sort", "S", "Sort", "sort by attention, name, start time, or GPUs"),
    KILL,
    Action(
        "job.remove",
        "remove",
        "x",
        "Remove",
        "delete an ended job, its logs, and its history",
        live=False,
        changes=True,
        own=True,
    ),
    UNSEEN,
    HELP,
    Action("view.back", "back", "escape", "Cancel", "clear the filter", show=False),
    Action("app.quit", "leave", "q", "Quit", "quit ddptop; all jobs keep running"),
    Action(
        "app.detach", "app.detach", "d", "Detach", "quit ddptop; all jobs keep running", show=False
    ),
)
"""Of the screen with all jobs."""
