"""What can be done on the screen of logs."""

from __future__ import annotations

from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

LOGS: tuple[Action, ...] = (BACK, LEAVE, DETACH, HELP)
"""Of the screen of logs."""
