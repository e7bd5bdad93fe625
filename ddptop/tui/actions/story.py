"""What can be done on the screen with a job's story."""

from __future__ import annotations

from ddptop.tui.actions.common import BACK, DETACH, HELP, LEAVE, Action

STORY: tuple[Action, ...] = (BACK, LEAVE, DETACH, HELP)
"""Of the screen with a job's story."""
