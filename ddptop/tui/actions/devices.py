"""What can be done on the screen with the devices."""

from __future__ import annotations

from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

DEVICES: tuple[Action, ...] = (BACK, LEAVE, DETACH, HELP)
"""Of the screen with the devices."""
