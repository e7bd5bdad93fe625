"""Every action of the interface: its key, its name and what it does, a table for each screen.

Bindings, the help screen, the key map and the command palette are made from these tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding, BindingType

from ddptop.tui.actions.common import Action, bindings, keys_text
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
    "two jobs compared": COMPARE,
    "replay": REPLAY,
}
"""By screen, in words, in the order of the help."""

__all__ = [
    "ALL",
    "COMPARE",
    "DEVICES",
    "JOB",
    "LOGS",
    "OVERVIEW",
    "RANK",
    "REPLAY",
    "STORY",
    "Action",
    "bindings",
    "keys_text",
    "palette_actions",
]


def palette_actions(
    screen_bindings: Sequence[BindingType], *, readonly: bool = False
) -> list[Action]:
    """The actions behind a screen's bindings, for the command palette."""
    ids = {binding.id for binding in screen_bindings if isinstance(binding, Binding)}
    known = {action.id: action for table in ALL.values() for action in table}
    return [
        action
        for action_id, action in known.items()
        if action_id in ids and not (readonly and action.changes)
    ]
