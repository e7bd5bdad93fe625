"""The request for a launch, and the decisions on it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddptop_runner.launch.gpus.for_launch import DeviceChoice
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import OnNan


@dataclass(frozen=True)
class LaunchRequest:
    """What the person asked for."""

    kind: Literal["script", "module", "command"]
    """`script`, `module` or `command`."""
    target: str
    """Path, module name, or the first word of a command."""
    args: tuple[str, ...] = ()
    gpus: str | None = None
    force: bool = False
    """Take devices that are busy."""
    wait_gpus: bool = False
    """Queue the job until its devices are free."""
    is_dry: bool = False
    """Only to be described: what would refuse it is noted."""
    nproc: int | None = None
    name: str | None = None
    base_name: str | None = None
    """What a name is derived from where none is given; None: the target."""
    max_restarts: int = 3
    hang_timeout_s: float | None = None
    """None: off, unless `hang_auto`."""
    hang_auto: bool = False
    on_nan: OnNan = "alert"
    allow_shrink: bool = False
    warm_spares: bool = False
    log_limit_bytes: int | None = None
    env: tuple[str, ...] = ()
    """`K=V` each."""
    cwd: str | None = None
    work_in_run_folder: bool = False
    """Give the job a working folder inside its run folder."""
    python: str | None = None
    probe: bool = True
    launcher: str | None = None
    """Who starts the ranks of a script or module; one of `shortcuts.LAUNCHERS`, None: ddptop."""
    as_asked: bool = False
    """Start ranks whatever the script looks like: the person was asked, and said so."""
    pty: bool = False
    """Give a command a terminal of its own to write to."""


@dataclass(frozen=True)
class LaunchPlan:
    """Everything decided; nothing done yet."""

    spec: JobSpec
    job_env: dict[str, str]
    """Variables that the job gets beside the shell's."""
    notes: tuple[str, ...]
    """What the person should know, a line each."""
    wrap: tuple[str, ...]
    """Through what the tmux server must be started to outlive the login."""
    name_is_derived: bool
    choice: DeviceChoice
    """The devices, or those that the job will wait for."""
    work_in_run_folder: bool = False
    """Whether the job's working folder is one of its own, deleted with it."""
