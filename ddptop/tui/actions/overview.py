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

OVERVIEW: tuple[Action, ...] = (
    Action("job.open", "open", "enter", "Open", "show the job under the cursor"),
    LAUNCH,
    STOP,
    AGAIN,
    Action("view.filter", "filter", "slash", "Filter", "show only jobs that match what is typed"),
    LOGS_PAGE,
    replace(STORY_PAGE, own=True),
    DEVICES_PAGE,
    FINDINGS,
    replace(REPLAY_PAGE, own=True),
    replace(
        COMPARE_PAGE,
        help="the losses of the marked jobs, or of this one and another",
        own=True,
    ),
    Action("jobs.mark", "mark", "space", "Mark", "mark the job, to compare it", own=True),
    Action("jobs.sort", "sort", "S", "Sort", "by need, by name, by start, by GPUs"),
    KILL,
    Action(
        "job.remove",
        "remove",
        "x",
        "Remove",
        "delete an ended job's logs and history",
        live=False,
        changes=True,
        own=True,
    ),
    Action(
        "view.unseen",
        "unseen",
        "u",
        "Unseen",
        "processes that may not be looked into, and why",
        show=False,
    ),
    HELP,
    Action("view.back", "back", "escape", "Back", "show every job again", show=False),
    Action("app.quit", "leave", "q", "Quit", "leave ddptop; every job goes on"),
    Action(
        "app.detach", "app.detach", "d", "Detach", "leave ddptop; every job goes on", show=False
    ),
)
"""Of the screen with all jobs."""
