"""The collector's interface to screens: each screen has its own Query and Answer.

Each pair is in the module that reads its data. This module has what they share.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from textual.message import Message

from ddptop.job.record import Job
from ddptop.job.series import Machine
from ddptop_runner.model.snapshot import GpuSample

if TYPE_CHECKING:
    from ddptop.sources.foreign import ForeignSource
    from ddptop_runner.foreign.types import Unreadable

AnySource = TypeVar("AnySource")


class Devices(msgspec.Struct, frozen=True):
    """Device figures, from the jobs' fresh snapshots or else sampled by this viewer."""

    gpus: tuple[GpuSample, ...] = ()
    note: str | None = None
    """Why devices are missing or incomplete."""


class Look(msgspec.Struct, frozen=True):
    """The host and its jobs at one time; part of every answer."""

    taken_at: dt.datetime
    machine: Machine
    jobs: tuple[Job, ...] = ()
    """ddptop's own and foreign jobs; live ones first, then by age, newest first."""
    damaged: tuple[tuple[str, str], ...] = ()
    """(name, reason) of each run folder that cannot be read."""
    unreadable: tuple[Unreadable, ...] = ()
    """Processes that may be training but cannot be inspected."""
    devices: Devices = msgspec.field(default_factory=Devices)
    owners: Mapping[int, tuple[str, int | None]] = msgspec.field(default_factory=dict)
    """Job and rank of every process of a live job on this host, by pid."""

    @property
    def now_s(self) -> float:
        """`taken_at` in unix seconds."""
        return self.taken_at.timestamp()

    @property
    def own(self) -> list[Job]:
        """Jobs that ddptop launched."""
        return [view for view in self.jobs if not view.is_foreign]

    def job(self, name: str | None) -> Job | None:
        """The job with this name, if it exists."""
        return next((view for view in self.jobs if view.name == name), None)


class Followed(msgspec.Struct, frozen=True):
    """The foreign job whose screen is open; more of it is read."""

    job: str
    rank: int | None = None
    """The rank whose output is read; None: all of it."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What a screen needs; the collector reads nothing else."""

    viewer: int = 0
    """Identifies the screen that asks."""
    devices: bool = False
    """Whether the machine's devices are needed."""
    foreign: bool = False
    """Whether foreign jobs are needed."""
    followed: Followed | None = None
    job: str | None = None
    """The job that the screen shows; None if it shows none."""

    def answer(self, look: Look, sources: Sources) -> Answer:
        """Read what the screen needs besides `look`; called in the collector's thread."""
        return Answer(query=self, look=look, view=look.job(self.job))


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a screen shows."""

    query: Query
    look: Look
    view: Job | None = None
    """The job that the screen shows; None if the screen shows no job or the job is gone."""


class Sources:
    """The collector's sources, one of each class, created on first use."""

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def __getitem__(self, kind: type[AnySource]) -> AnySource:
        if kind not in self._made:
            self._made[kind] = kind()
        source: AnySource = self._made[kind]
        return source

    @functools.cached_property
    def foreign(self) -> ForeignSource:
        """The source of foreign jobs; imported on first use, after the first frame."""
        from ddptop.sources.foreign import ForeignSource

        return ForeignSource()

    @property
    def asked_foreign(self) -> ForeignSource | None:
        """The foreign source if it was ever used."""
        return self.foreign if "foreign" in vars(self) else None


class Answered(Message):
    """The collector has answered a query."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def can_replace(self, message: Message) -> bool:
        """A newer answer replaces one still in the queue."""
        return isinstance(message, Answered)
