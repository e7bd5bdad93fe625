"""What can be done on the screen of logs."""

from __future__ import annotations

from msgspec.structs import replace

from ddptop.tui.actions.common import (
    BACK,
    DETACH,
    HELP,
    LEAVE,
    NEXT_RANK,
    PREVIOUS_RANK,
    Action,
)

LOGS: tuple[Action, ...] = (
    BACK,
    LEAVE,
    Action(
        "log.search",
        "search",
        "slash",
        "Search",
        "search for text or a regex (ignores case if all lowercase)",
    ),
    Action("log.next", "find(1)", "n", "Next", "go to the next match", show=False),
    Action("log.previous", "find(-1)", "N", "Previous", "go to the previous match", show=False),
    Action(
        "log.level",
        "level",
        "L",
        "Level",
        "show all lines, warnings and errors, or errors only",
    ),
    Action("log.merge", "merge", "m", "All ranks", "merge all ranks, or show one"),
    PREVIOUS_RANK,
    replace(
        NEXT_RANK,
        name="Rank",
        help="go to the next rank; digits select a rank",
        show=True,
        key_display="[ ]",
    ),
    Action(
        "log.older",
        "attempt(-1)",
        "less_than_sign",
        "Attempt",
        "go to the previous attempt",
        key_display="< >",
    ),
    Action(
        "log.newer",
        "attempt(1)",
        "greater_than_sign",
        "Newer attempt",
        "go to the next attempt",
        show=False,
    ),
    Action("log.follow", "follow", "F", "Follow", "follow new lines, or stop following"),
    Action("log.wrap", "wrap", "W", "Wrap", "wrap long lines, or scroll them with ← and →"),
    Action(
        "log.alike",
        "alike",
        "c",
        "Collapse",
        "collapse identical lines, collapse lines that differ only in rank and time, or show all",
    ),
    DETACH,
    HELP,
)
"""Of the screen of logs."""
