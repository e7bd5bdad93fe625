"""What the interface shows at one moment, complete in itself, and what it asks for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ddptop.view.learning import LossTrend
from ddptop.view.series import ChartData
from ddptop.view.shown import Machine, Recent
from ddptop_runner.job.registry import AnyJob
from ddptop_runner.judge.balance.imbalance import Figure, RankDeviation
from ddptop_runner.model.snapshot import Event, GpuSample, RankSample

if TYPE_CHECKING:
    from ddptop.sources.compare import Compared
    from ddptop.sources.rank import RankHistory
    from ddptop.sources.replay import Replay
    from ddptop.sources.story import Story
    from ddptop.view.shown import DeviceHistory
    from ddptop_runner.foreign.types import Unreadable
    from ddptop_runner.launch.slurm import SlurmJob


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


class JobDetail(msgspec.Struct, frozen=True):
    """All that the job screen shows besides the job's log."""

    view: AnyJob
    chart: ChartData = msgspec.field(default_factory=ChartData)
    events: tuple[Event, ...] = ()
    """Latest first."""
    deviations: Mapping[int, RankDeviation] = msgspec.field(default_factory=dict)
    """By rank: how far it is from the median of its job."""
    cause_tail: tuple[str, ...] = ()
    """Last log lines of the rank that failed first."""
    recent: Recent = msgspec.field(default_factory=Recent)
    """Its last minutes."""
    trouble: str | None = None
    """What could not be read, in words."""
    only: frozenset[int] | None = None
    """The ranks that the filter selects; None: all."""

    @property
    def ranks(self) -> list[RankSample]:
        """The ranks that are shown."""
        ranks = [] if self.view.snapshot is None else self.view.snapshot.ranks
        return ranks if self.only is None else [rank for rank in ranks if rank.rank in self.only]

    @property
    def far_off(self) -> frozenset[Figure]:
        """Figures in which a rank is an outlier."""
        return frozenset().union(*(rank.outliers for rank in self.deviations.values()))


class Wish(msgspec.Struct, frozen=True):
    """What the screen on top needs; the collector reads nothing else."""

    job: str | None = None
    devices: bool = True
    """Whether the machine's devices are shown."""
    foreign: bool = True
    """Whether training that ddptop did not start is shown."""
    follow: bool = False
    """Whether `job` has its own screen; a foreign job is then followed closely."""
    chart_window_s: float | None = None
    """None: the whole run."""
    chart_until: float | None = None
    """Right edge of the chart, unix seconds; None: what is newest."""
    chart_columns: int = 200
    """Dots across; more points cannot be distinguished."""
    log_rank: int | None = None
    """The rank whose log is followed; None: none is shown."""
    viewer: int = 0
    """Who asks: a new viewer gets the log from its first lines."""
    rank: int | None = None
    """The rank of `job` whose history is shown; None: none is."""
    device_history_s: float | None = None
    """How far back the devices' histories go that are shown; None: none are."""
    device: str | None = None
    """UUID of the one whose figures are shown over that time; of the others, how busy they were."""
    trends: bool = False
    """Whether each job's loss trend is needed."""
    slurm: bool = False
    """Whether Slurm's queue is shown."""
    story: bool = False
    """Whether every attempt of `job` is needed."""
    story_attempt: int | None = None
    """The attempt whose last log lines are needed; None is the latest."""
    compare: tuple[str, ...] = ()
    """Jobs whose losses are shown on one axis."""
    compare_part: tuple[str, float, float] | None = None
    """The axis, "time" or "step", and the zoomed part of it; None: all of it."""
    replay: bool = False
    """Whether `job` is shown as it was at `replay_at`."""
    replay_at: float | None = None
    """Unix seconds; None is shortly before it failed or hung last, else its last moment."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot of everything on the screen."""

    taken_at: dt.datetime
    wish: Wish
    """What was requested; anything else is absent from this snapshot."""
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
    detail: JobDetail | None = None
    """Detail of the requested job; None if none was requested or it is gone."""
    rank: RankHistory | None = None
    """History of the requested rank."""
    device_history: DeviceHistory | None = None
    trends: Mapping[str, LossTrend] = msgspec.field(default_factory=dict)
    """By job: which way its loss goes."""
    slurm: tuple[SlurmJob, ...] = ()
    """The user's jobs in Slurm's queue that are no jobs of ddptop's."""
    story: Story | None = None
    """Story of the requested job."""
    compared: Compared | None = None
    replay: Replay | None = None
    """Replay of the requested job; its own `detail` is as of that moment."""
