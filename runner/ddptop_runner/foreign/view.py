"""A foreign job with the same interface as a ddptop job, for every viewer."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import LIVE_STATES, JobState

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignJob


@dataclass(frozen=True)
class ForeignView:
    """One foreign job at the moment it was looked at. See `registry.AnyJob`."""

    foreign: ForeignJob
    snapshot: NodeSnapshot
    """Made by the viewer itself: ddptop keeps no file of a foreign job."""
    read_at: dt.datetime
    output: str | None = None
    """Where its output goes, and why it cannot be read where it cannot."""
    ended_by: str | None = None
    """The signal that this viewer sent it last before it was gone; None when it sent none."""
    stopping: str | None = None
    """Which signals this viewer is sending to it, and when, in words; None while it sends none."""

    guarded = None
    on_other_host = False
    snapshot_age_s = 0.0

    @property
    def job(self) -> str:
        """The job's name."""
        return self.foreign.name

    @property
    def user(self) -> str:
        """Who runs it."""
        return self.foreign.user

    @property
    def state(self) -> JobState:
        """`running` while a rank lives; `lost` once all are gone: nobody saw how they ended."""
        return self.snapshot.state

    @property
    def is_live(self) -> bool:
        """Whether processes of the job exist."""
        return self.state in LIVE_STATES

    @property
    def ended_at(self) -> dt.datetime | None:
        """When its last rank was found gone."""
        return self.snapshot.ended_at

    @property
    def created_at(self) -> dt.datetime:
        """When its launcher was started."""
        return self.foreign.started_at

    @property
    def host(self) -> str:
        """This host."""
        return self.snapshot.host

    @property
    def world_size(self) -> int | None:
        """Ranks on all hosts, or None when nothing says it."""
        return self.foreign.world_size

    @property
    def command(self) -> str:
        """What was typed, as far as /proc tells."""
        return self.foreign.command

    @property
    def launcher(self) -> str:
        """Who started the ranks."""
        return self.foreign.launcher
