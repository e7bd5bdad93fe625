"""What can be done on the screen of a replay."""

from __future__ import annotations

from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

REPLAY: tuple[Action, ...] = (BACK, LEAVE, DETACH, HELP)
"""Of the screen of a replay."""
