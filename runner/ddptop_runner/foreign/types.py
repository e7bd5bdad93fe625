"""Types for foreign processes, the jobs that they form, and a viewer's view of a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Literal

import msgspec

from ddptop_runner.model.snapshot import NodeSnapshot
from ddptop_runner.model.words import LIVE_STATES, JobState

Launcher = Literal[
    "torchrun",
    "accelerate",
    "deepspeed",
    "horovod",
    "mpirun",
    "srun",
    "mp.spawn",
    "DataParallel",
    "MirroredStrategy",
    "ddptop",
    "python",
]
"""What started the ranks. `DataParallel`: one process on several devices; `ddptop`: a ddptop job of
another user or state folder; `python`: no launcher, so one process or ranks started one by one. May
grow."""


class ProcessFacts(msgspec.Struct, frozen=True):
    """One process as /proc shows it; None marks what this user may not read."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/<pid>/stat; identifies the process together with the pid."""
    ppid: int
    is_zombie: bool
    """Whether it has exited and its parent has not reaped it yet."""
    session: int
    uid: int
    comm: str
    """The process's short name, which a thread can set, such as `pt_data_worker`."""
    argv: tuple[str, ...]
    environ: Mapping[str, str] | None = None
    """Only the variables of ranks and jobs; None without permission."""
    threads: frozenset[str] | None = None
    """Names of its threads; None without permission or if there was no reason to look."""
    libraries: frozenset[str] | None = None
    """Which of torch, tensorflow, and jax it has mapped; None as above."""
    program: str | None = None
    """Base name of its executable, regardless of its title; None as above."""


class ForeignRank(msgspec.Struct, frozen=True):
    """One rank of a foreign job on this host."""

    rank: int
    local_rank: int
    pid: int
    start_ticks: int
    devices: tuple[str, ...] = ()
    """UUIDs of the devices that it holds, according to NVML."""
    helpers: tuple[int, ...] = ()
    """Pids of its data loader workers and the like, which are not ranks."""
    restart_count: int | None = None


class ForeignJob(msgspec.Struct, frozen=True):
    """Training that ddptop did not start: the part on this host."""

    name: str
    """`<script>:<pid>`, unique on this host."""
    launcher: Launcher
    root_pid: int
    """The launcher, or the only process."""
    root_start_ticks: int
    uid: int
    user: str
    command: str
    """What the user typed, as far as /proc shows, on one line."""
    started_at: dt.datetime
    world_size: int | None
    """On all hosts; None if unknown."""
    ranks: tuple[ForeignRank, ...]
    """In order of rank."""
    launcher_pids: tuple[int, ...] = ()
    """Agents, shells, and runners between the user and the ranks, including the root."""
    helper_pids: tuple[int, ...] = ()
    """Helpers that belong to no particular rank, such as resource trackers."""
    rendezvous: str | None = None
    """`MASTER_ADDR:MASTER_PORT`; None if unknown."""
    notes: tuple[str, ...] = ()
    """What could not be read and the consequences, in words."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process that belongs to the job."""
        ranks = [pid for rank in self.ranks for pid in (rank.pid, *rank.helpers)]
        return tuple(dict.fromkeys([*self.launcher_pids, *ranks, *self.helper_pids]))


class Unreadable(msgspec.Struct, frozen=True):
    """A process that may be training but that this user cannot inspect."""

    pid: int
    user: str | None
    command: str | None
    gpus: tuple[str, ...] = ()
    """UUIDs of the devices that it uses."""
    reason: str = ""
    """Why it cannot be inspected."""


class Census(msgspec.Struct, frozen=True):
    """All foreign training on this host at one moment."""

    jobs: tuple[ForeignJob, ...] = ()
    """Newest first."""
    unreadable: tuple[Unreadable, ...] = ()
    facts: Mapping[int, ProcessFacts] = msgspec.field(default_factory=dict)
    """By pid, for every process that belongs to a job."""


class ForeignView(msgspec.Struct, frozen=True):
    """One foreign job at the time of a scan. See `registry.AnyJob`."""

    foreign: ForeignJob
    snapshot: NodeSnapshot
    """Made by the viewer, because ddptop keeps no files for foreign jobs."""
    read_at: dt.datetime
    output: str | None = None
    """Where its output goes and, if it is unreadable, why."""

    on_other_host = False

    @property
    def job(self) -> str:
        """The job's name."""
        return self.foreign.name

    @property
    def state(self) -> JobState:
        """`running` while a rank is alive; `lost` once all are gone, with unknown exit status."""
        return self.snapshot.state

    @property
    def is_live(self) -> bool:
        """Whether processes of the job exist."""
        return self.state in LIVE_STATES
