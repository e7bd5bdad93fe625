"""Reads the jobs of this machine: spec, snapshot, and a verified state.

All viewers and CLI verbs read jobs through `JobView`; the same code reads finished and live jobs.
Liveness is verified against the processes rather than taken from the file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fcntl
import functools
import glob
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.clock import boottime_s, is_time, utc_now
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError, UsageError
from ddptop_runner.base.files import stamp
from ddptop_runner.base.paths import (
    RunFolder,
    members_dir,
    run_folder,
    runs_dir,
    shared_file_system,
    why_not_own,
)
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import SCHEMA, NodeSnapshot, Pause, decode_snapshot
from ddptop_runner.model.spec import (
    MAX_REASON,
    JobSpec,
    damaged_job,
    read_spec,
    refuse_other_schema,
)
from ddptop_runner.model.words import LIVE_STATES, JobState

if TYPE_CHECKING:
    from ddptop_runner.foreign.types import ForeignView

START_ALLOWANCE_S = 20.0
"""A job that has had neither snapshot nor process for this long failed to start."""

QUIET_S = 60.0
"""A live job's supervisor writes every second; without a write for this long, it is gone or
stopped."""

TORN_S = 0.003
"""Wait before rereading a file that was read while being written."""

RECENT_S = 24 * 3600.0
"""`ls` shows jobs that ended within this time."""


AnyJob: TypeAlias = "JobView | ForeignView"
"""A job that viewers show: ddptop's own, or one that it did not start."""


class Lived(Protocol):
    """What a job's run time and pause follow from."""

    @property
    def state(self) -> JobState: ...  # noqa: D102
    @property
    def is_live(self) -> bool: ...  # noqa: D102
    @property
    def snapshot(self) -> NodeSnapshot | None: ...  # noqa: D102
    @property
    def snapshot_age_s(self) -> float | None: ...  # noqa: D102
    @property
    def created_at(self) -> dt.datetime: ...  # noqa: D102
    @property
    def ended_at(self) -> dt.datetime | None: ...  # noqa: D102
    @property
    def read_at(self) -> dt.datetime: ...  # noqa: D102


class JobView(msgspec.Struct, frozen=True, dict=True):
    """One job at the time it was read."""

    folder: RunFolder
    spec: JobSpec
    snapshot: NodeSnapshot | None
    """None before the supervisor's first snapshot; a substitute if the file is damaged."""
    read_at: dt.datetime
    read_boottime_s: float | None = None
    """CLOCK_BOOTTIME of `read_at`."""
    in_slurm_queue: bool = False
    """Whether Slurm will start it again; see `jobs.slurm_queue.as_queued`."""

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
        """The host on which it was launched."""
        return self.spec.host

    @functools.cached_property
    def user(self) -> str:
        """The owner of its run folder, who launched it; empty if unknown."""
        try:
            return procs.user_name(self.folder.path.stat().st_uid)
        except OSError:
            return ""

    @property
    def _has_processes(self) -> bool:
        """Whether a process of its owner has its ID."""
        try:
            owner = self.folder.path.stat().st_uid
        except OSError:
            owner = None
        return bool(procs.pids_of_job(self.spec.job_id, owner))

    @property
    def world_size(self) -> int | None:
        """The requested number of ranks; None for a command, which decides itself."""
        return None if self.spec.is_command else self.spec.nproc

    @property
    def command(self) -> str:
        """Script or module with its arguments, as typed after `launch` and its options."""
        return self.spec.command_line()

    @property
    def launcher(self) -> str:
        """`ddptop`, or whatever starts a command's ranks."""
        if not self.spec.is_command:
            return "ddptop"
        seen = None if self.snapshot is None else self.snapshot.launcher
        return (self.spec.launcher if seen is None else seen.name) or "python"

    @functools.cached_property
    def guarded(self) -> bool | None:
        """Whether the guardian is alive; None if unknown.

        It is unknown before the first snapshot, on another host, and in Slurm's queue.
        """
        if self.on_other_host or self.in_slurm_queue or self.snapshot is None:
            return None
        return procs.is_alive(self.snapshot.guardian)

    @functools.cached_property
    def needs_guardian(self) -> bool:
        """Whether it is this user's job, is alive on this host, and its guardian has ended."""
        if self.guarded is not False or self.snapshot is None or self.snapshot.guardian is None:
            return False
        return self.is_live and why_not_own(self.folder) is None

    @functools.cached_property
    def on_other_host(self) -> bool:
        """Whether its processes may be on another host or in another container, out of sight."""
        return self._was_elsewhere and not self.is_abandoned

    @functools.cached_property
    def is_abandoned(self) -> bool:
        """Whether it ran on another host or in another container, and nothing is left of it.

        Can only be true for files on a local disk: the locks of guardian and supervisor are free,
        and nothing has been written to its files for a minute.
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
        """The snapshot's state, or `lost` if the processes that should be alive are not."""
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
            # its ranks are on other machines and train on; in Slurm, they end with the batch step
            return recorded
        holders = [self.snapshot.guardian, self.snapshot.supervisor, self.snapshot.agent]
        if any(procs.is_alive(process) for process in holders):
            return recorded
        return recorded if self._has_processes else "lost"

    @property
    def is_live(self) -> bool:
        """Whether processes of the job exist or should exist."""
        return self.state in LIVE_STATES

    @property
    def left_in_queue(self) -> bool:
        """Whether it waited when the machine, or all of its processes, ended."""
        return self.state == "lost" and self.spec.is_queued

    @property
    def ended_at(self) -> dt.datetime | None:
        """When it ended; for a lost job, when it last wrote a snapshot."""
        if self.snapshot is None:
            return self.spec.created_at if self.state == "lost" else None
        return self.snapshot.ts if self.state == "lost" else self.snapshot.ended_at

    @property
    def snapshot_age_s(self) -> float | None:
        """Seconds since the snapshot was written, regardless of changes to the wall clock."""
        snapshot = self.snapshot
        if snapshot is None:
            return None
        stamps = (self.read_boottime_s, snapshot.boottime_s)
        here = snapshot.host == procs.host_name() and snapshot.boot_id == procs.boot_id()
        if here and stamps[0] is not None and stamps[1] is not None:
            return max(0.0, stamps[0] - stamps[1])
        return max(0.0, (self.read_at - snapshot.ts).total_seconds())


def empty_snapshot(view: JobView) -> NodeSnapshot:
    """What stands in for a job's first snapshot until there is one."""
    return NodeSnapshot(
        job=view.job,
        job_id=view.spec.job_id,
        host=view.spec.host,
        seq=0,
        ts=view.created_at,
        state=view.state,
        restarts_left=view.spec.max_restarts,
        world_size=view.world_size,
        started_at=view.created_at,
    )


def read_job(folder: RunFolder) -> JobView:
    """Read one job.

    Raises:
        DamagedFileError: `job.json` cannot be read, a file is from a newer ddptop, or the files
            contradict each other.
    """
    try:
        view = _read_once(folder)
        if view.state == "lost":  # or it and then its guardian ended after the snapshot was read
            again = _read_once(folder)
            if _written(again) != _written(view):
                view = again
        _ = view.state, elapsed_s(view, view.read_at), view.snapshot_age_s
    except (ArithmeticError, LookupError, ValueError, OSError) as error:
        raise damaged_job(folder, folder.path, f"{type(error).__name__}: {error}") from error
    return view


def require_own_name(view: JobView) -> JobView:
    """The view itself, for callers that identify jobs by name.

    Raises:
        DamagedFileError: the job has the name of another one.
    """
    if view.job != view.folder.job:
        raise damaged_job(view.folder, view.folder.spec_file, "it belongs to another job")
    return view


def _written(view: JobView) -> tuple[int, dt.datetime] | None:
    """The identity of a snapshot among those of the same job."""
    return None if view.snapshot is None else (view.snapshot.seq, view.snapshot.ts)


def _read_once(folder: RunFolder) -> JobView:
    spec = read_spec(folder)
    node_file = folder.node_file(spec.host)
    snapshot = None
    try:
        snapshot = _read_snapshot(node_file)
    except PermissionError:
        pass  # not readable for us
    except FileNotFoundError:
        if _was_deleted(folder):
            snapshot = _rebuilt(folder, spec, "missing")
    except (OSError, msgspec.MsgspecError) as error:
        snapshot = _rebuilt(folder, spec, f"damaged ({str(error)[:MAX_REASON]})")
    return JobView(folder, spec, snapshot, read_at=utc_now(), read_boottime_s=boottime_s())


def _was_deleted(folder: RunFolder) -> bool:
    """Whether a missing snapshot was written once: the history is too old for a new job."""
    at = stamp(folder.history_db)
    is_old = at is not None and time.time() - at / 1e9 > START_ALLOWANCE_S
    return is_old and not any(folder.nodes_dir.glob("*.json"))


def _rebuilt(folder: RunFolder, spec: JobSpec, damage: str) -> NodeSnapshot:
    from ddptop_runner.job.moment import rebuild  # loads the history's code

    name = folder.node_file(spec.host).name
    return rebuild(folder, spec, f"nodes/{name} is {damage}; showing data from the history")


def _read_snapshot(file: Path) -> NodeSnapshot:
    for _ in range(3):  # on a full disk, a file may be overwritten in place while it is read
        data = bounded.read_bytes(file)
        with contextlib.suppress(msgspec.MsgspecError):
            snapshot = decode_snapshot(data)
            if snapshot.schema == SCHEMA:  # rereading it only for that would take too long
                return _checked(snapshot)
        refuse_other_schema(file, data)
        time.sleep(TORN_S)
    return _checked(decode_snapshot(data))


def _checked(snapshot: NodeSnapshot) -> NodeSnapshot:
    """The snapshot, unchanged.

    Raises:
        msgspec.ValidationError: its times are out of range.
    """
    if not all(map(is_time, (snapshot.ts, snapshot.started_at, snapshot.ended_at))):
        raise msgspec.ValidationError("invalid time")
    return snapshot


def is_locked(folder: RunFolder) -> bool:
    """Whether a guardian or supervisor is alive on any host, or that cannot be determined."""
    for path in (folder.guardian_lock, folder.supervisor_lock):
        try:
            fd = bounded.open_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a lock of ours
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
    written = (at for file in files if (at := stamp(file)) is not None)
    return any(abs(time.time() - at / 1e9) < QUIET_S for at in written)


def elapsed_s(view: Lived, now: dt.datetime) -> float:
    """How long a job has lived, without the time between an end and a restart.

    `now` counts if its snapshot does not contain the time.
    """
    snapshot = view.snapshot
    if snapshot is None or snapshot.ran_s is None:
        started_at = view.created_at if snapshot is None else snapshot.started_at
        return max(0.0, ((view.ended_at or now) - started_at).total_seconds())
    since_s = (view.snapshot_age_s or 0.0) + max(0.0, (now - view.read_at).total_seconds())
    return snapshot.ran_s + (since_s if view.is_live else 0.0)


def pause_of(view: Lived) -> Pause | None:
    """A live job's pause; None while there are steps, and if unknown."""
    lives = view.is_live and view.state in ("starting", "running", "hung")
    return view.snapshot.pause if lives and view.snapshot is not None else None


def _is_job(folder: RunFolder) -> bool:
    """Whether the folder contains a job that this user may see; a state folder may be shared."""
    return stamp(folder.spec_file) is not None


def is_there(name: str) -> bool:
    """Whether anything with that name exists among the run folders, a job or not."""
    return (
        bounded.is_file_name(name)
        and not name.startswith(".")  # ddptop's own
        and os.path.lexists(run_folder(name).path)
    )


class JobSource:
    """All jobs of this state folder; an ended one is not read again until its files change."""

    def __init__(self) -> None:
        self._ended: dict[Path, tuple[tuple[int | None, int | None], JobView]] = {}
        self._known = self._ended
        """Those of the time before."""
        self.damaged: list[DamagedFileError] = []
        """Why others could not be read the last time."""

    def read(self) -> list[JobView]:
        """Every readable job, newest first, with its state already verified."""
        self.damaged, self._known, self._ended = [], self._ended, {}
        try:
            folders = [RunFolder(path) for path in runs_dir().iterdir()]
        except OSError:
            return []
        views = [view for folder in folders if (view := self._read_one(folder)) is not None]
        return sorted(views, key=lambda view: view.created_at, reverse=True)

    def _read_one(self, folder: RunFolder) -> JobView | None:
        known = self._known.get(folder.path)
        if known is not None and known[0] == self._key(known[1]):
            self._ended[folder.path] = known
            return known[1]
        if not _is_job(folder):
            return None
        try:
            view = require_own_name(read_job(folder))
        except DamagedFileError as error:
            if _is_job(folder):  # otherwise, it has just been removed
                error.job = folder.job
                self.damaged.append(error)
            return None
        if not (view.is_live or view.guarded is True):
            self._ended[folder.path] = (self._key(view), view)
        return view

    @staticmethod
    def _key(view: JobView) -> tuple[int | None, int | None]:
        return stamp(view.folder.spec_file), stamp(view.folder.node_file(view.spec.host))


def read_all() -> tuple[list[JobView], list[DamagedFileError]]:
    """(every readable job of this state folder, newest first; why others cannot be read)."""
    source = JobSource()
    return source.read(), source.damaged


def all_jobs() -> list[JobView]:
    """Every readable job of this state folder, newest first."""
    return read_all()[0]


def group_of(name: str) -> list[JobView]:
    """The jobs of the sweep of that name in the order of their launch; empty if there is none."""
    if not bounded.is_file_name(name):
        return []
    folders = [RunFolder(path) for path in runs_dir().glob(f"{glob.escape(name)}-*")]
    found = []
    for folder in filter(_is_job, folders):
        with contextlib.suppress(DamagedFileError):
            if read_spec(folder).group == name:
                found.append(read_job(folder))
    return sorted(found, key=lambda view: view.created_at)


def parts_here() -> list[JobView]:
    """This machine's readable parts of jobs on several nodes, whose heads may be elsewhere."""
    try:
        folders = [RunFolder(path) for path in members_dir().iterdir()]
    except OSError:
        return []
    views = []
    for folder in filter(_is_job, folders):
        with contextlib.suppress(DamagedFileError):
            views.append(read_job(folder))
    return views


def led_elsewhere(jobs: Iterable[JobView]) -> list[JobView]:
    """This machine's live parts of jobs whose heads are not among these jobs."""
    ids = {view.spec.job_id for view in jobs}
    return [
        view
        for view in parts_here()
        if view.spec.job_id.rpartition(".")[0] not in ids
        and view.is_live
        and not view.on_other_host
    ]


def is_recent(view: Lived, now: dt.datetime | None = None) -> bool:
    """Whether `ls` shows it without --all: it is live or ended within the last day."""
    if view.is_live or view.ended_at is None:
        return True
    return ((now or view.read_at) - view.ended_at).total_seconds() < RECENT_S


def rank_of_pid(
    views: Iterable[AnyJob] | None = None,
) -> dict[int, tuple[str, int | None]]:
    """(job, rank) of each process, by pid, that is a live local job's rank or uses a device for it.

    `views` are the jobs, if already read.
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
    """The job with that name or unique prefix; without a name, the only live job.

    The name of a job on another machine stands for its part on this one.

    Args:
        name: as typed.
        as_seen: applied to views before their liveness is checked, and to the result.

    Raises:
        NoSuchJobError: no job has that name or prefix.
        UsageError: the prefix, or leaving the name out, is ambiguous; the message lists the jobs.
            Or it is the name of a sweep.
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
    jobs = all_jobs()
    matches = [view for view in jobs if name and view.job.startswith(name)]
    if not matches:
        matches = [view for view in led_elsewhere(jobs) if name in (view.job, view.spec.job_id)]
    if len(matches) == 1:
        return as_seen(matches[0])
    if len({view.job for view in matches}) == 1:  # parts of jobs of several heads
        ids = ", ".join(sorted(view.spec.job_id for view in matches))
        raise UsageError(f"{name!r} is ambiguous: {ids}", "use one of these IDs")
    if any(view.spec.group == name for view in matches):
        raise UsageError(f"{name} is a sweep", f"name one of its jobs: ddptop ls {name}")
    if matches:
        raise UsageError(f"{name!r} is ambiguous: {_names(matches)}", "use a longer prefix")
    raise NoSuchJobError(f"no job named {name!r}", "list jobs with `ddptop ls --all`")
