"""The jobs of this machine as a reader sees them: spec, snapshot, and a verified state.

Every viewer and every CLI verb reads jobs through `JobView`; a finished job is read by the same
code as a live one. Liveness is checked against the processes, not believed from the file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import functools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import boottime_s, is_time, utc_now
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError, UsageError
from ddptop_runner.base.paths import (
    RunFolder,
    members_dir,
    run_folder,
    runs_dir,
    shared_file_system,
    why_not_own,
)
from ddptop_runner.devices.owners import user_name
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import SCHEMA, NodeSnapshot, Pause, decode_snapshot
from ddptop_runner.model.spec import JobSpec, damaged_job, read_spec, refuse_newer_schema
from ddptop_runner.model.words import LIVE_STATES, JobState

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignView

START_ALLOWANCE_S = 20.0
"""A job without a snapshot for longer than this, and without a process, did not come up."""

QUIET_S = 60.0
"""A live job's supervisor writes every second; after so long without it is gone, or stopped."""

TORN_S = 0.003
"""Between two looks at a file that can be read only half."""

RECENT_S = 24 * 3600.0
"""`ls` shows jobs that ended within this time."""


AnyJob: TypeAlias = "JobView | ForeignView"
"""What viewers show: a job of ddptop's own, or one that it did not start."""


class JobView(msgspec.Struct, frozen=True, dict=True):
    """One job at the moment it was read."""

    folder: RunFolder
    spec: JobSpec
    snapshot: NodeSnapshot | None
    """None before the supervisor's first snapshot; where its file is damaged, a substitute."""
    read_at: dt.datetime
    read_boottime_s: float | None = None
    """CLOCK_BOOTTIME of `read_at`."""
    in_slurm_queue: bool = False
    """Whether Slurm is going to start it again; see `jobs.slurm_queue.as_queued`."""

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.job

    @property
    def created_at(self) -> dt.datetime:
        """When it was launched."""
        return self.spec.created_at

    @property
    def host(self) -> str:
        """Where it was launched."""
        return self.spec.host

    @functools.cached_property
    def user(self) -> str:
        """Who launched it: the owner of its run folder; empty where that cannot be seen."""
        try:
            return user_name(self.folder.path.stat().st_uid)
        except OSError:
            return ""

    @property
    def _has_processes(self) -> bool:
        """Whether a process of its owner carries its id."""
        try:
            owner = self.folder.path.stat().st_uid
        except OSError:
            owner = None
        return bool(procs.pids_of_job(self.spec.job_id, owner))

    @property
    def world_size(self) -> int | None:
        """The number of ranks asked for; None of a command, whose ranks are its own affair."""
        return None if self.spec.is_command else self.spec.nproc

    @property
    def command(self) -> str:
        """Script or module, and its arguments, as typed after `launch` and its options."""
        return self.spec.command_line()

    @property
    def launcher(self) -> str:
        """`ddptop`; of a command who starts its ranks."""
        if not self.spec.is_command:
            return "ddptop"
        seen = None if self.snapshot is None else self.snapshot.launcher
        return (self.spec.launcher if seen is None else seen.name) or "python"

    @functools.cached_property
    def guarded(self) -> bool | None:
        """Whether the guardian lives; None where that cannot be seen.

        So it is before the first snapshot, and for a job of another host or in Slurm's queue.
        """
        if self.on_other_host or self.in_slurm_queue or self.snapshot is None:
            return None
        return procs.is_alive(self.snapshot.guardian)

    @functools.cached_property
    def needs_guardian(self) -> bool:
        """Whether it lives here, is this user's own, and its guardian has ended."""
        if self.guarded is not False or self.snapshot is None or self.snapshot.guardian is None:
            return False
        return self.is_live and why_not_own(self.folder) is None

    @functools.cached_property
    def on_other_host(self) -> bool:
        """Whether it may live where its processes cannot be seen: another host or container."""
        return self._was_elsewhere and not self.is_abandoned

    @functools.cached_property
    def is_abandoned(self) -> bool:
        """Whether it was another host's or container's, of which nothing is left.

        Only what lies on a disk of this machine alone can tell: its guardian's and supervisor's
        locks are free, and nothing was written to its files for a minute.
        """
        return (
            self._was_elsewhere
            and shared_file_system(self.folder.path) is None
            and os.path.lexists(self.folder.guardian_lock)
            and not is_locked(self.folder)
            and not was_written_lately(self.folder)
        )

    @functools.cached_property
    def _was_elsewhere(self) -> bool:
        if self.spec.host != procs.host_name():
            return True
        if self.snapshot is None or self.snapshot.boot_id != procs.boot_id():
            return False
        return self.snapshot.pid_ns != procs.pid_namespace()

    @functools.cached_property
    def state(self) -> JobState:
        """The snapshot's state, or `lost` when the processes that should be alive are not."""
        if self.in_slurm_queue:
            return "queued"
        if self.snapshot is None:
            age_s = (self.read_at - self.spec.created_at).total_seconds()
            if self.on_other_host or 0 <= age_s <= START_ALLOWANCE_S:
                return "starting"
            return "starting" if self._has_processes else "lost"
        recorded = self.snapshot.state
        if recorded not in LIVE_STATES:
            return recorded
        if self.on_other_host:
            ends_elsewhere = self.spec.slurm_job is not None and not was_written_lately(self.folder)
            return "lost" if ends_elsewhere else recorded
        if self.spec.placement is not None and self.spec.slurm_job is None:
            # its ranks are on other machines, and train on; in Slurm they end with the batch step
            return recorded
        holders = [self.snapshot.guardian, self.snapshot.supervisor, self.snapshot.agent]
        if any(procs.is_alive(process) for process in holders):
            return recorded
        return recorded if self._has_processes else "lost"

    @property
    def is_live(self) -> bool:
        """Whether processes of the job exist or should."""
        return self.state in LIVE_STATES

    @property
    def ended_at(self) -> dt.datetime | None:
        """When it ended; for a lost job, when it last wrote a snapshot."""
        if self.snapshot is None:
            return self.spec.created_at if self.state == "lost" else None
        return self.snapshot.ts if self.state == "lost" else self.snapshot.ended_at

    @property
    def snapshot_age_s(self) -> float | None:
        """Seconds since the snapshot was written, whatever was done to the wall clock."""
        snapshot = self.snapshot
        if snapshot is None:
            return None
        stamps = (self.read_boottime_s, snapshot.boottime_s)
        here = snapshot.host == procs.host_name() and snapshot.boot_id == procs.boot_id()
        if here and stamps[0] is not None and stamps[1] is not None:
            return max(0.0, stamps[0] - stamps[1])
        return max(0.0, (self.read_at - snapshot.ts).total_seconds())


def read_job(folder: RunFolder) -> JobView:
    """Read one job.

    Raises:
        DamagedFileError: when `job.json` cannot be read, a file is of a newer ddptop, or what they
            say makes no sense together.
    """
    try:
        view = _read_once(folder)
        if view.state == "lost":  # or it ended after its snapshot was read, and its guardian then
            again = _read_once(folder)
            if _written(again) != _written(view):
                view = again
        _ = view.state, elapsed_s(view, view.read_at), view.snapshot_age_s
    except (ArithmeticError, LookupError, ValueError, OSError) as error:
        raise damaged_job(folder, folder.path, f"{type(error).__name__}: {error}") from error
    return view


def require_own_name(view: JobView) -> JobView:
    """The job itself, for who knows jobs by name.

    Raises:
        DamagedFileError: when it goes by the name of another one.
    """
    if view.job != view.folder.job:
        raise damaged_job(view.folder, view.folder.spec_file, "it belongs to another job")
    return view


def _written(view: JobView) -> tuple[int, dt.datetime] | None:
    """What tells one snapshot of a job from the next."""
    return None if view.snapshot is None else (view.snapshot.seq, view.snapshot.ts)


def _read_once(folder: RunFolder) -> JobView:
    spec = read_spec(folder)
    node_file = folder.node_file(spec.host)
    snapshot = None
    try:
        snapshot = _read_snapshot(node_file)
    except (FileNotFoundError, PermissionError):
        pass  # not written yet, or not for us
    except (OSError, msgspec.MsgspecError) as error:
        from ddptop_runner.job.moment import rebuild  # it needs the history's code

        words = f"nodes/{node_file.name} is damaged ({error}); showing data from the history"
        snapshot = rebuild(folder, spec, words)
    return JobView(folder, spec, snapshot, read_at=utc_now(), read_boottime_s=boottime_s())


def _read_snapshot(file: Path) -> NodeSnapshot:
    for _ in range(3):  # on a full disk a file may be overwritten in place, while it is read
        data = bounded.read_bytes(file)
        with contextlib.suppress(msgspec.MsgspecError):
            snapshot = decode_snapshot(data)
            if snapshot.schema <= SCHEMA:  # to read it once more for that alone takes its time
                return _checked(snapshot)
        refuse_newer_schema(file, data)
        time.sleep(TORN_S)
    return _checked(decode_snapshot(data))


def _checked(snapshot: NodeSnapshot) -> NodeSnapshot:
    """As it is.

    Raises:
        msgspec.ValidationError: when one cannot reckon with its times.
    """
    if not all(map(is_time, (snapshot.ts, snapshot.started_at, snapshot.ended_at))):
        raise msgspec.ValidationError("invalid time")
    return snapshot


def is_locked(folder: RunFolder) -> bool:
    """Whether a guardian or supervisor lives, wherever, or that cannot be found out."""
    for path in (folder.guardian_lock, folder.supervisor_lock):
        try:
            fd = bounded.open_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno == errno.EINVAL:  # no lock of ours
                continue
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
    return False


def was_written_lately(folder: RunFolder) -> bool:
    """Whether a supervisor or a rank has written to its files within the last minute."""
    files = [folder.spec_file, folder.supervisor_log]
    for pattern in ("nodes/*", "logs/attempt-*/*"):
        files += folder.path.glob(pattern)
    return any(map(_is_fresh, files))


def _is_fresh(path: Path) -> bool:
    try:
        return abs(time.time() - path.lstat().st_mtime) < QUIET_S
    except OSError:
        return False


def elapsed_s(view: AnyJob, now: dt.datetime) -> float:
    """For how long a job has lived at `now`, the time between an end and a restart left out.

    `now` counts where its snapshot does not tell.
    """
    snapshot = view.snapshot
    if snapshot is None or snapshot.ran_s is None:
        started_at = view.created_at if snapshot is None else snapshot.started_at
        return max(0.0, ((view.ended_at or now) - started_at).total_seconds())
    since_s = (view.snapshot_age_s or 0.0) + max(0.0, (now - view.read_at).total_seconds())
    return snapshot.ran_s + (since_s if view.is_live else 0.0)


def pause_of(view: AnyJob) -> Pause | None:
    """That a live job takes no step; None while steps come, and where that is not known."""
    lives = view.is_live and view.state in ("starting", "running", "hung")
    return view.snapshot.pause if lives and view.snapshot is not None else None


def _is_job(folder: RunFolder) -> bool:
    """Whether the folder holds a job that this user may see: a state folder may be shared."""
    try:
        folder.spec_file.lstat()
    except OSError:
        return False
    return True


def is_there(name: str) -> bool:
    """Whether something of that name lies among the run folders, a job or not."""
    return (
        bounded.is_file_name(name)
        and not name.startswith(".")  # ddptop's own
        and os.path.lexists(run_folder(name).path)
    )


def read_all() -> tuple[list[JobView], list[DamagedFileError]]:
    """Every readable job of this state folder, newest first, and why others cannot be read."""
    try:
        folders = [RunFolder(path) for path in runs_dir().iterdir()]
    except OSError:
        return [], []
    views, damaged = [], []
    for folder in filter(_is_job, folders):
        try:
            views.append(require_own_name(read_job(folder)))
        except DamagedFileError as error:
            if _is_job(folder):  # otherwise it was removed this moment
                error.job = folder.job
                damaged.append(error)
    return sorted(views, key=lambda view: view.spec.created_at, reverse=True), damaged


def all_jobs() -> list[JobView]:
    """Every readable job of this state folder, newest first."""
    return read_all()[0]


def parts_here() -> list[JobView]:
    """This machine's readable parts of jobs on several machines, whose heads may be elsewhere."""
    try:
        folders = [RunFolder(path) for path in members_dir().iterdir()]
    except OSError:
        return []
    views = []
    for folder in filter(_is_job, folders):
        with contextlib.suppress(DamagedFileError):
            views.append(read_job(folder))
    return views


def is_recent(view: JobView) -> bool:
    """Whether `ls` shows it without --all: live, or ended within the last day."""
    if view.is_live or view.ended_at is None:
        return True
    return (view.read_at - view.ended_at).total_seconds() < RECENT_S


def rank_of_pid(
    views: Iterable[AnyJob] | None = None,
) -> dict[int, tuple[str, int | None]]:
    """(job, rank) of every process that a live job of this host has on a device or as a rank.

    `views` are the jobs where they were read already.
    """
    owners: dict[int, tuple[str, int | None]] = {}
    for view in all_jobs() if views is None else views:
        if view.snapshot is None or view.on_other_host or not view.is_live:
            continue
        placement = view.spec.placement if isinstance(view, JobView) else None
        is_here = placement is None or placement.by == "pipe"
        here = view.snapshot.host
        for gpu in view.snapshot.gpus:
            if not is_here and gpu.host != here:
                continue
            for process in gpu.processes or ():
                if process.job is not None:
                    owners[process.pid] = (process.job, process.rank)
        if not isinstance(view, JobView):
            owners.update(dict.fromkeys(view.foreign.pids, (view.job, None)))
            for member in view.foreign.ranks:
                owners.update(dict.fromkeys((member.pid, *member.helpers), (view.job, member.rank)))
        for rank in view.snapshot.ranks:
            if rank.pid is not None and (is_here or rank.host == here):
                owners[rank.pid] = (view.job, rank.rank)
    return owners


def _names(views: Iterable[JobView]) -> str:
    return ", ".join(sorted(view.job for view in views))


def resolve(name: str | None, as_seen: Callable[[JobView], JobView] = lambda view: view) -> JobView:
    """The job meant by a name or unique prefix; without a name the only job alive.

    Args:
        name: as typed.
        as_seen: what decides whether a job is alive, and what becomes of the one that is meant.

    Raises:
        NoSuchJobError: no job has that name or prefix.
        UsageError: the prefix, or leaving the name out, is ambiguous; the message lists the jobs.
        DamagedFileError: the job of that exact name has a damaged spec.
    """
    if name is None:
        live = [view for view in map(as_seen, all_jobs()) if view.is_live]
        if len(live) == 1:
            return live[0]
        if not live:
            raise UsageError(
                "no active jobs", "specify an ended job; list them with `ddptop ls --all`"
            )
        raise UsageError(f"{len(live)} jobs are active: {_names(live)}", "specify one")
    if is_there(name) and _is_job(run_folder(name)):
        return as_seen(read_job(run_folder(name)))
    matches = [view for view in all_jobs() if name and view.job.startswith(name)]
    if len(matches) == 1:
        return as_seen(matches[0])
    if matches:
        raise UsageError(f"{name!r} is ambiguous: {_names(matches)}", "use a longer prefix")
    raise NoSuchJobError(f"no job named {name!r}", "list jobs with `ddptop ls --all`")
