"""Every action of the interface: its key, its name and what it does, a table for each screen.

Bindings, the help screen, the key map and the command palette are made from these tables.
"""

from __future__ import annotations

from ddptop.tui.actions.common import (
    EVERYWHERE,
    MOVING,
    Action,
    bindings,
    key_text,
    keys_text,
    moving,
)
from ddptop.tui.actions.compare import COMPARE
from ddptop.tui.actions.devices import DEVICES
from ddptop.tui.actions.job import JOB
from ddptop.tui.actions.logs import LOGS
from ddptop.tui.actions.overview import OVERVIEW
from ddptop.tui.actions.rank import RANK
from ddptop.tui.actions.replay import REPLAY
from ddptop.tui.actions.story import STORY

ALL: dict[str, tuple[Action, ...]] = {
    "all jobs": OVERVIEW,
    "a job": JOB,
    "a rank": RANK,
    "devices": DEVICES,
    "logs": LOGS,
    "a job's story": STORY,
    "a comparison": COMPARE,
    "replay": REPLAY,
}
"""By screen, in words, in the order of the help."""

PLACES: dict[str, str] = {
    "OverviewScreen": "all jobs",
    "JobScreen": "a job",
    "RankScreen": "a rank",
    "DevicesScreen": "devices",
    "LogsScreen": "logs",
    "StoryScreen": "a job's story",
    "CompareScreen": "a comparison",
    "ReplayScreen": "replay",
}
"""The screen of each class."""

__all__ = [
    "ALL",
    "COMPARE",
    "DEVICES",
    "EVERYWHERE",
    "JOB",
    "LOGS",
    "MOVING",
    "OVERVIEW",
    "PLACES",
    "RANK",
    "REPLAY",
    "STORY",
    "Action",
    "bindings",
    "key_text",
    "keys_text",
    "moving",
    "table_of",
]


def table_of(screen: object) -> tuple[Action, ...]:
    """What can be done on a screen; nothing on one without a table, such as a question."""
    return ALL.get(PLACES.get(type(screen).__name__, ""), ())
