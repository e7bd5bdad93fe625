"""What can be done on the screen that compares two jobs."""

from __future__ import annotations

from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

COMPARE: tuple[Action, ...] = (BACK, LEAVE, DETACH, HELP)
"""Of the screen that compares two jobs."""
