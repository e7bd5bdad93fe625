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
        "an attempt: what was kept when it failed; an event: all that is told of it",
    ),
    LOGS_PAGE,
    Action(
        "job.evidence",
        "evidence",
        "i",
        "Evidence",
        "what was kept when the chosen attempt failed: cause, stacks, logs, devices",
        own=True,
    ),
    REPLAY_PAGE,
    Action(
        "story.other",
        "other",
        "tab",
        "Events",
        "from the attempts to the events of the chosen one, and back",
    ),
    Action("view.filter", "filter", "slash", "Filter", "only events with these words"),
    AGAIN,
    FINDINGS,
    LEAVE,
    DETACH,
    HELP,
)
"""Of the screen with a job's story."""
