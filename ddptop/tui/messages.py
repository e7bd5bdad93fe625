"""What happened, as facts that travel from threads to screens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.job.registry import AnyJob

if TYPE_CHECKING:
    from ddptop.sources.query import Look
    from ddptop.tui.operations import Operation


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
class JobPicked(Message):
    """Open a job's screen."""

    job: str
    foreign: bool = False
    """Whether ddptop did not start it."""


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


@dataclass
class RankPicked(Message):
    """Open a rank's screen."""

    job: str
    rank: int
    foreign: bool = False


@dataclass
class DevicesWanted(Message):
    """Open the device screen."""

    uuid: str | None = None
    """Device to select first; None selects the first one."""


@dataclass
class LogsWanted(Message):
    """Open a job's logs."""

    job: str
    rank: int | None = None
    """Whose lines; None is everyone's."""
    foreign: bool = False
    attempt: int | None = None
    """Attempt to show first; None shows the latest."""


@dataclass
class StoryWanted(Message):
    """Open a job's story."""

    job: str


@dataclass
class CompareWanted(Message):
    """Open a comparison of jobs."""

    jobs: tuple[str, ...]
    """One, whose companion is still to be chosen, or two."""


@dataclass
class ReplayWanted(Message):
    """Open a replay of a job."""

    job: str
    at: float | None = None
    """Unix seconds; None is shortly before it failed or hung last, else its last moment."""
