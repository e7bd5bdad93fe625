"""What the interface shows at one moment, complete in itself, and what it asks for."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from ddptop.tui.render.series import ChartData
from ddptop_runner.model import Event, GpuSample
from ddptop_runner.registry import JobView


@dataclass(frozen=True)
class Machine:
    """This host as a whole."""

    host: str
    cpu_percent: float | None = None
    """Of all cores: 100 is all of them."""
    cores: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class Devices:
    """The devices of this host, from the jobs' fresh snapshots and from sampling for the rest."""

    gpus: tuple[GpuSample, ...] = ()
    note: str | None = None
    """Why devices are missing or incomplete, in words."""


@dataclass(frozen=True)
class JobDetail:
    """All that the job screen shows besides the job's log."""

    view: JobView
    chart: ChartData = field(default_factory=ChartData)
    events: tuple[Event, ...] = ()
    """Latest first."""
    loss_deviation: dict[int, float | None] = field(default_factory=dict)
    """By rank: distance from the median loss, as a ratio minus one."""
    time_deviation: dict[int, float | None] = field(default_factory=dict)
    """The same of the step time."""
    cause_tail: tuple[str, ...] = ()
    """Last log lines of the rank that failed first."""
    trouble: str | None = None
    """What could not be read, in words."""


@dataclass(frozen=True)
class Wish:
    """What the screen on top needs; the collector reads nothing else."""

    job: str | None = None
    devices: bool = True
    """Whether the machine's devices are shown."""
    chart_window_s: float | None = None
    """None: the whole run."""
    chart_columns: int = 200
    """Dots across; more points than that cannot be told apart."""
    log_rank: int | None = None
    """The rank whose log is followed; None: none is shown."""
    viewer: int = 0
    """Who asks: a new viewer gets the log from its first lines."""


@dataclass(frozen=True)
class Snapshot:
    """One look at everything that is on the screen."""

    taken_at: dt.datetime
    wish: Wish
    """What was asked for: what it leaves out is not known here."""
    machine: Machine
    jobs: tuple[JobView, ...] = ()
    """Live ones first."""
    devices: Devices = field(default_factory=Devices)
    detail: JobDetail | None = None
    """Of the job asked for; None when none was, or when it is gone."""
