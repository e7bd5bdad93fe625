"""Messages from threads and widgets to the app."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from textual.message import Message

from ddptop_runner.base.errors import DdptopError

if TYPE_CHECKING:
    from ddptop.tui.screens.base import MonitorScreen

SCREENS = {
    "job": "JobScreen",
    "rank": "RankScreen",
    "devices": "DevicesScreen",
    "logs": "LogsScreen",
    "story": "StoryScreen",
    "compare": "CompareScreen",
    "replay": "ReplayScreen",
}
"""The class of each screen, in the module of the same name."""
QUITTING = ("job", "story", "compare", "replay")
"""Screens that quit ddptop when they are left, if ddptop was opened on them."""


class QueryChanged(Message):
    """The query of the screen on top changed, and it needs the answer soon."""


class ScreenWanted(Message):
    """Open a screen, or go back to the screen below that shows the same."""

    def __init__(self, screen: str, *subject: object, **options: object) -> None:
        """Name a screen of `SCREENS`, and the arguments of its class."""
        super().__init__()
        self.screen, self.subject, self.options = screen, subject, options

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen, whose module is loaded only now."""
        module = import_module(f"ddptop.tui.screens.{self.screen}")
        make = getattr(module, SCREENS[self.screen])
        screen: MonitorScreen[Any] = make(*self.subject, **self.options, readonly=readonly)
        return screen


class CommandDone(Message):
    """An operation finished or failed."""

    def __init__(
        self,
        text: str,
        error: DdptopError | None = None,
        ended: tuple[str, str] | None = None,
        job: str | None = None,
    ) -> None:
        """Report an operation.

        Args:
            text: the notification on success.
            error: why it failed.
            ended: a foreign job and the signal that ended it.
            job: the job that the operation was for.
        """
        super().__init__()
        self.text, self.error, self.ended, self.job = text, error, ended, job
