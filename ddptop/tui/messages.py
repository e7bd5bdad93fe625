"""Messages from threads and widgets to the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual.message import Message

from ddptop.job.record import Job
from ddptop_runner.base.errors import DdptopError

if TYPE_CHECKING:
    from ddptop.sources.query import Look
    from ddptop.tui.operations import Operation
    from ddptop.tui.screens.base import MonitorScreen


@dataclass
class CommandDone(Message):
    """An operation finished or failed."""

    text: str
    """The notification on success."""
    error: DdptopError | None = None
    ended: tuple[str, str] | None = None
    """A foreign job and the signal that ended it."""
    job: str | None = None
    """The job that the operation was for."""


@dataclass
class JobLaunched(Message):
    """A launch or relaunch finished or failed."""

    job: str | None
    """The new job's name; None if it failed."""
    error: str | None = None
    """The command's error, in one line."""


@dataclass
class SectionsWanted(Message):
    """Open a dialog with sections of text."""

    title: str
    hint: str
    sections: list[tuple[str, str]]
    """(heading, text) of each section."""
    look_again: Callable[[Look], tuple[str, list[tuple[str, str]]]] | None = None
    """Returns the hint and sections after each poll; None: they never change."""


@dataclass
class LaunchWanted(Message):
    """Open the launch form, filled in with the values of the ended job `again`, if given."""

    again: Job | None = None


@dataclass
class OperationWanted(Message):
    """Run an operation on a job, after confirmation."""

    view: Job
    make: Callable[[Job], Operation]
    needs_live: bool
    """Whether it requires a live job; otherwise it requires an ended one."""


@dataclass
class StacksWanted(Message):
    """Show the ranks' stacks."""

    view: Job


@dataclass
class EvidenceWanted(Message):
    """Show the evidence saved at a failure or hang."""

    view: Job
    attempt: int | None = None
    """The attempt; None: the latest one with evidence."""


class QueryChanged(Message):
    """The query of the screen on top changed, and it needs the answer soon."""


class ScreenWanted(Message):
    """Open a screen, or go back to the screen below that shows the same."""

    quits: ClassVar[bool] = False
    """Whether leaving the screen quits if ddptop was opened on it."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        raise NotImplementedError


@dataclass
class JobPicked(ScreenWanted):
    """Open a job's screen."""

    quits: ClassVar[bool] = True
    job: str
    foreign: bool = False
    """Whether ddptop did not start it."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.job import JobScreen

        return JobScreen(self.job, foreign=self.foreign, readonly=readonly)


@dataclass
class RankPicked(ScreenWanted):
    """Open a rank's screen."""

    job: str
    rank: int
    foreign: bool = False

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.rank import RankScreen

        return RankScreen(self.job, self.rank, foreign=self.foreign, readonly=readonly)


@dataclass
class DevicesWanted(ScreenWanted):
    """Open the device screen."""

    uuid: str | None = None
    """Device to select first; None selects the first one."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.devices import DevicesScreen

        return DevicesScreen(self.uuid, readonly=readonly)


@dataclass
class LogsWanted(ScreenWanted):
    """Open a job's logs."""

    job: str
    rank: int | None = None
    """Show only this rank's lines; None shows all."""
    foreign: bool = False
    attempt: int | None = None
    """Attempt to show first; None shows the latest."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.logs import LogsScreen

        return LogsScreen(
            *(self.job, self.rank), attempt=self.attempt, foreign=self.foreign, readonly=readonly
        )


@dataclass
class StoryWanted(ScreenWanted):
    """Open a job's story."""

    quits: ClassVar[bool] = True
    job: str

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.story import StoryScreen

        return StoryScreen(self.job, readonly=readonly)


@dataclass
class CompareWanted(ScreenWanted):
    """Open a comparison of jobs."""

    quits: ClassVar[bool] = True
    jobs: tuple[str, ...]
    """One job, if the other is to be chosen on the screen, or two."""
    preferred: tuple[str, ...] = ()
    """Jobs to offer first."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.compare import CompareScreen

        return CompareScreen(self.jobs, self.preferred, readonly=readonly)


@dataclass
class ReplayWanted(ScreenWanted):
    """Open a replay of a job."""

    quits: ClassVar[bool] = True
    job: str
    at: float | None = None
    """Unix seconds; None: shortly before the latest failure or hang, else the end."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """Create the screen."""
        from ddptop.tui.screens.replay import ReplayScreen

        return ReplayScreen(self.job, self.at, readonly=readonly)
