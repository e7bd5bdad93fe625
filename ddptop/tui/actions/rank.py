"""What can be done on the screen of one rank."""

from __future__ import annotations

from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

RANK: tuple[Action, ...] = (BACK, LEAVE, DETACH, HELP)
"""Of the screen of one rank."""
