"""Messages from threads and widgets to the app."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from ddptop.tui.screens.base import MonitorScreen

QUITTING = ("job", "story", "compare", "replay")
"""Screens that quit ddptop when they are left, if ddptop was opened on them."""


class QueryChanged(Message):
    """The query of the screen on top changed, and it needs the answer soon."""


class ScreenWanted(Message):
    """Open a screen, or go back to the screen below that shows the same."""

    def __init__(self, screen: str, *subject: object, **options: object) -> None:
        """Name the module of a screen, and the arguments of its class."""
        super().__init__()
        self.screen, self.subject, self.options = screen, subject, options

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen, whose module is loaded only now."""
        module = import_module(f"ddptop.tui.screens.{self.screen}")
        make = getattr(module, f"{self.screen.title()}Screen")
        screen: MonitorScreen[Any] = make(*self.subject, **self.options, readonly=readonly)
        return screen


OVERVIEW = ScreenWanted("overview")
"""The job list."""
