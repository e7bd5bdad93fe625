"""What happened, as facts that travel from threads to screens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from textual.message import Message

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import AnyJob

if TYPE_CHECKING:
    from ddptop.sources.query import Look
    from ddptop.tui.operations import Operation
    from ddptop.tui.screens.base import MonitorScreen


@dataclass
class CommandDone(Message):
    """An operation finished or was refused."""

    text: str
    """What was done, for the notification."""
    error: DdptopError | None = None
    ended: tuple[str, str] | None = None
    """A job that ddptop did not start and the signal that ended it."""
    job: str | None = None
    """The job that it was about."""


@dataclass
class JobLaunched(Message):
    """A launch or a new attempt was tried."""

    job: str | None
    """The new job's name; None when it failed."""
    error: str | None = None
    """One line, from the command itself."""


@dataclass
class SectionsWanted(Message):
    """Open a dialog with sections of text."""

    title: str
    hint: str
    sections: list[tuple[str, str]]
    """Heading and text."""
    look_again: Callable[[Look], tuple[str, list[tuple[str, str]]]] | None = None
    """Hint and sections of a later look; None: they stay as they are."""


@dataclass
class LaunchWanted(Message):
    """Open the launch form, filled in with what an ended job was launched with."""

    again: AnyJob | None = None


@dataclass
class OperationWanted(Message):
    """Run an operation on a job, after confirmation."""

    view: AnyJob
    make: Callable[[AnyJob], Operation]
    needs_live: bool
    """Whether it makes sense for a live job; otherwise for an ended one."""


@dataclass
class StacksWanted(Message):
    """Show the ranks' stacks."""

    view: AnyJob


@dataclass
class EvidenceWanted(Message):
    """Show the evidence saved at a failure or hang."""

    view: AnyJob
    attempt: int | None = None
    """Of this attempt; None is the last one of which something was kept."""


class QueryChanged(Message):
    """The screen on top asks something else, and needs it now."""


class ScreenWanted(Message):
    """Open a screen, or go back to where the same is shown already."""

    quits: ClassVar[bool] = False
    """Whether leaving it quits a ddptop that was opened on it."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
        raise NotImplementedError


@dataclass
class JobPicked(ScreenWanted):
    """Open a job's screen."""

    quits: ClassVar[bool] = True
    job: str
    foreign: bool = False
    """Whether ddptop did not start it."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
        from ddptop.tui.screens.job import JobScreen

        return JobScreen(self.job, foreign=self.foreign, readonly=readonly)


@dataclass
class RankPicked(ScreenWanted):
    """Open a rank's screen."""

    job: str
    rank: int
    foreign: bool = False

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
        from ddptop.tui.screens.rank import RankScreen

        return RankScreen(self.job, self.rank, foreign=self.foreign, readonly=readonly)


@dataclass
class DevicesWanted(ScreenWanted):
    """Open the device screen."""

    uuid: str | None = None
    """Device to select first; None selects the first one."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
        from ddptop.tui.screens.devices import DevicesScreen

        return DevicesScreen(self.uuid, readonly=readonly)


@dataclass
class LogsWanted(ScreenWanted):
    """Open a job's logs."""

    job: str
    rank: int | None = None
    """Whose lines; None is everyone's."""
    foreign: bool = False
    attempt: int | None = None
    """Attempt to show first; None shows the latest."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
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
        """The screen."""
        from ddptop.tui.screens.story import StoryScreen

        return StoryScreen(self.job, readonly=readonly)


@dataclass
class CompareWanted(ScreenWanted):
    """Open a comparison of jobs."""

    quits: ClassVar[bool] = True
    jobs: tuple[str, ...]
    """One, whose companion is still to be chosen, or two."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
        from ddptop.tui.screens.compare import CompareScreen

        return CompareScreen(self.jobs, readonly=readonly)


@dataclass
class ReplayWanted(ScreenWanted):
    """Open a replay of a job."""

    quits: ClassVar[bool] = True
    job: str
    at: float | None = None
    """Unix seconds; None is shortly before it failed or hung last, else its last moment."""

    def make(self, *, readonly: bool) -> MonitorScreen[Any]:
        """The screen."""
        from ddptop.tui.screens.replay import ReplayScreen

        return ReplayScreen(self.job, self.at, readonly=readonly)
