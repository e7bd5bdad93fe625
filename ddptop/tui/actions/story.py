"""What can be done on the screen with a job's story."""

from __future__ import annotations

from ddptop.tui.actions.common import (
    AGAIN,
    BACK,
    DETACH,
    FINDINGS,
    HELP,
    LEAVE,
    LOGS_PAGE,
    REPLAY_PAGE,
    Action,
)

STORY: tuple[Action, ...] = (
    BACK,
    Action(
        "story.open",
        "open",
        "enter",
        "Open",
        "open an attempt's evidence, or an event's details",
    ),
    LOGS_PAGE,
    Action(
        "job.evidence",
        "evidence",
        "i",
        "Evidence",
        "show evidence saved when this attempt failed: cause, stacks, logs, and devices",
        own=True,
    ),
    REPLAY_PAGE,
    Action(
        "story.other",
        "other",
        "tab",
        "Events",
        "switch between attempts and events",
    ),
    Action("view.filter", "filter", "slash", "Filter", "show only matching events"),
    AGAIN,
    FINDINGS,
    LEAVE,
    DETACH,
    HELP,
)
"""Of the screen with a job's story."""
