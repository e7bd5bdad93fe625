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
        "find a text or a pattern; small letters find capitals too",
    ),
    Action("log.next", "find(1)", "n", "Next", "next match, towards the end", show=False),
    Action(
        "log.previous", "find(-1)", "N", "Before", "match before, towards the beginning", show=False
    ),
    Action(
        "log.level",
        "level",
        "L",
        "Level",
        "all lines, warnings and errors, or errors alone",
    ),
    Action("log.merge", "merge", "m", "All ranks", "all ranks in one, or one rank alone"),
    PREVIOUS_RANK,
    replace(
        NEXT_RANK,
        name="Rank",
        help="next rank; a digit shows that one",
        show=True,
        key_display="[ ]",
    ),
    Action(
        "log.older",
        "attempt(-1)",
        "less_than_sign",
        "Attempt",
        "the attempt before this",
        key_display="< >",
    ),
    Action(
        "log.newer",
        "attempt(1)",
        "greater_than_sign",
        "Newer attempt",
        "the attempt after this",
        show=False,
    ),
    Action("log.follow", "follow", "F", "Follow", "show what is printed as it comes, or stay here"),
    Action("log.wrap", "wrap", "W", "Wrap", "wrap long lines, or cut them; ← and → move along"),
    Action(
        "log.alike",
        "alike",
        "c",
        "Collapse",
        "of all ranks: identical lines as one, those that differ only in ranks and times too, "
        "or each line alone",
    ),
    DETACH,
    HELP,
)
"""Of the screen of logs."""
