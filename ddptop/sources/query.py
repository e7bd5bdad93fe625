"""What a screen asks of the collector, and what it gets: one Query and one Answer per screen.

A screen's own pair is in the module that reads for it. This one has what all of them share.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from textual.message import Message

from ddptop.view.shown import Machine
from ddptop_runner.job.registry import AnyJob, JobView
from ddptop_runner.model.snapshot import GpuSample

if TYPE_CHECKING:
    from ddptop.sources.foreign import ForeignSource
    from ddptop_runner.foreign.types import ForeignJob, Unreadable

AnySource = TypeVar("AnySource")


class Devices(msgspec.Struct, frozen=True):
    """The devices of this host, from the jobs' fresh snapshots and from sampling for the rest."""

    gpus: tuple[GpuSample, ...] = ()
    note: str | None = None
    """Why devices are missing or incomplete, in words."""
    driver: str | None = None
    """Driver version, if this viewer's own sampler reported it."""
    sampler_cpu_percent: float | None = None
    """CPU usage of this viewer's own sampler; None if it has none."""
    queries_per_s: float | None = None
    """Questions that it asks the driver each second."""


class Look(msgspec.Struct, frozen=True):
    """The host and its jobs at one moment: what every answer contains."""

    taken_at: dt.datetime
    machine: Machine
    jobs: tuple[AnyJob, ...] = ()
    """Live ones first, and of each the newest; ddptop's own and foreign ones."""
    damaged: tuple[tuple[str, str], ...] = ()
    """Run folders that cannot be read as a job: name, and why."""
    unreadable: tuple[Unreadable, ...] = ()
    """Processes that may be training but cannot be inspected."""
    cpu_percent: float | None = None
    """CPU usage of this viewer over the last few seconds; 100 is one core."""
    devices: Devices = msgspec.field(default_factory=Devices)
    owners: Mapping[int, tuple[str, int | None]] = msgspec.field(default_factory=dict)
    """Job and rank of every process of a live job on this host, by pid."""

    @property
    def now_s(self) -> float:
        """When it was taken, unix seconds."""
        return self.taken_at.timestamp()

    @property
    def own(self) -> list[JobView]:
        """Ddptop's own jobs."""
        return [view for view in self.jobs if isinstance(view, JobView)]

    def job(self, name: str | None) -> AnyJob | None:
        """The job of that name, if it still exists."""
        return next((view for view in self.jobs if view.job == name), None)


class Followed(msgspec.Struct, frozen=True):
    """A foreign job that is read closely because its screen is open."""

    job: str
    rank: int | None = None
    """The rank whose output is read; None: all of it."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What the screen on top needs; the collector reads nothing else."""

    viewer: int = 0
    """The screen that asks."""
    devices: bool = False
    """Whether the machine's devices are needed."""
    foreign: bool = False
    """Whether training that ddptop did not start is needed."""
    followed: Followed | None = None

    def answer(self, look: Look, sources: Sources) -> Answer:
        """Read what is needed besides the look, in the collector's thread."""
        return Answer(query=self, look=look)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a screen shows, complete in itself."""

    query: Query
    look: Look
    view: AnyJob | None = None
    """The job that the screen is about; None if it is about none, or the job is gone."""


class Sources:
    """One source of each kind, made when it is first asked, for the collector's life."""

    def __init__(self, watched: ForeignJob | None = None) -> None:
        """`watched` is the foreign job that the user selected."""
        self._watched = watched
        self._made: dict[type, Any] = {}

    def __getitem__(self, kind: type[AnySource]) -> AnySource:
        if kind not in self._made:
            self._made[kind] = kind()
        source: AnySource = self._made[kind]
        return source

    @functools.cached_property
    def foreign(self) -> ForeignSource:
        """Training that ddptop did not start; loaded after the first frame."""
        from ddptop.sources.foreign import ForeignSource

        return ForeignSource(self._watched)

    @property
    def asked_foreign(self) -> ForeignSource | None:
        """The foreign source if it has been used; else None."""
        return self.foreign if "foreign" in vars(self) else None


@dataclass
class Answered(Message):
    """The collector has read what a screen asked for."""

    answer: Answer

    def can_replace(self, message: Message) -> bool:
        """A newer answer makes one that still waits worthless."""
        return isinstance(message, Answered)
