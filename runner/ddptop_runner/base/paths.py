"""Where files are: the state folder, one run folder per job, and its live files.

On a file system shared between hosts (NFS, Lustre, FUSE, ...), SQLite locks and Unix sockets do not
work. There, `history.db` and the sockets are in a folder on the local disk, and the run folder
contains a pointer to it. The same applies to sockets whose path would exceed the kernel's limit of
107 bytes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from pathlib import Path

import msgspec

from ddptop_runner.base import bounded
from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.files import belongs

SOCKET_PATH_LIMIT_BYTES = 100
"""sun_path holds 108 bytes; this leaves room for a suffix."""

LOCAL_DISK = Path("/var/tmp")
"""Contains the local folders of runs: everyone can write to it, and reboots leave it alone."""

POINTER_BYTES = 4096
"""The longest path allowed."""

# statfs(2) f_type of file systems whose locks or sockets do not work across hosts, or at all
SHARED_FILE_SYSTEMS = {
    0x6969: "nfs",
    0x0BD00BD0: "lustre",
    0x65735546: "fuse",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x47504653: "gpfs",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x19830326: "beegfs",
    0x01021997: "9p",
}


def state_home() -> Path:
    """`$DDPTOP_HOME`, else `$XDG_STATE_HOME/ddptop`, else `~/.local/state/ddptop`."""
    if home := os.environ.get("DDPTOP_HOME"):
        return Path(home).absolute()
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state).absolute() / "ddptop"
    return _home() / ".local" / "state" / "ddptop"


def _home() -> Path:
    """The user's home. A relative HOME is ignored, as it depends on the working directory."""
    home = Path(os.environ.get("HOME", ""))
    if home.is_absolute():
        return home
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise UsageError(
            "HOME is not an absolute path", "set HOME or DDPTOP_HOME to an absolute path"
        ) from None


def require_readable() -> None:
    """Raise if the state folder cannot be read, rather than treat it as empty.

    Raises:
        UsageError: names its owner, or that it is no directory.
    """
    for folder in (state_home(), runs_dir()):
        try:
            status = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise UsageError(
                f"the state folder {folder} cannot be accessed ({error.strerror})", _OWN_HOME
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError(f"the state folder {folder} is not a directory", _OWN_HOME)
        if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
            raise UsageError(
                f"the state folder {folder} cannot be read: it {belongs(status)}", _OWN_HOME
            )


def require_own(folder: Path) -> None:
    """Refuse to start anything from a folder whose content another user controls.

    Raises:
        UsageError: names its owner, if the folder exists and is not this user's.
    """
    try:
        status = folder.stat()
    except OSError:
        return  # whoever creates it or its content reports the problem
    if status.st_uid != os.geteuid():
        raise UsageError(
            f"refusing to start anything from {folder}, which {belongs(status)}", _OWN_HOME
        )


def why_not_own(folder: RunFolder) -> str | None:
    """Why another user may control the content of a run folder; None if no other user can.

    Whoever owns it or a folder above it, or can write to it, decides what is started from it.
    """
    try:
        for place in (folder.path.parent.parent, folder.path.parent):
            if (above := place.stat()).st_uid != os.geteuid():
                return f"{place} {belongs(above)}"
        found = folder.path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return f"{folder.path} is not a directory"
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return f"{folder.path} {belongs(found)}"
    except OSError as error:
        return f"{folder.path} cannot be accessed ({error.strerror})"
    return None


def require_own_run(folder: RunFolder) -> list[str]:
    """Refuse to start anything from a run folder that another user may have created or replaced.

    Returns:
        Notes on folders above it that were writable by other users, and no longer are.

    Raises:
        UsageError: names its owner.
    """
    above = (folder.path.parent.parent, folder.path.parent)
    for place in above:
        require_own(place)
    closed = [note for place in above if (note := close_to_others(place)) is not None]
    if (problem := why_not_own(folder)) is not None:
        raise UsageError(f"{problem}; refusing to start anything from it", _OWN_HOME)
    return closed


def close_to_others(folder: Path) -> str | None:
    """Make a folder of this user writable only by its owner; returns a note if that changed it.

    Raises:
        UsageError: the directory is shared on purpose (sticky, like /tmp).
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & 0o022:
        return None
    if mode & stat.S_ISVTX:
        raise UsageError(f"{folder} is shared with other users", _OWN_HOME)
    folder.chmod(mode & ~0o022)
    return (
        f"{folder} was writable by other users (mode {mode:04o}); ddptop removed their write access"
    )


_OWN_HOME = "set DDPTOP_HOME to a directory of your own"


def runs_dir() -> Path:
    """The folder that contains one run folder per job."""
    return state_home() / "runs"


def members_dir() -> Path:
    """The folder for this machine's parts of jobs on several machines."""
    return state_home() / "members"


def config_file() -> Path:
    """The user's settings, which may not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _home() / ".config") / "ddptop" / "config.toml"


def nearest(path: Path) -> Path:
    """`path`, or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def shared_file_system(path: Path) -> str | None:
    """The name of the shared file system that contains `path`; None if it is local.

    `path` does not have to exist: its nearest existing parent is checked.
    """
    import ctypes  # commands that only read jobs do not need it

    class Statfs(ctypes.Structure):
        """The start of struct statfs. Only f_type is read; the rest is padding."""

        _fields_ = [("f_type", ctypes.c_long), ("rest", ctypes.c_char * 240)]

    buffer = Statfs()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.statfs(os.fsencode(nearest(path)), ctypes.byref(buffer))
    # there is no libc on macOS, where viewers never get here for a job
    except (OSError, AttributeError):
        return None
    return None if failed else SHARED_FILE_SYSTEMS.get(buffer.f_type & 0xFFFFFFFF)


def owner_name(rank: int) -> str:
    """The name of a rank's files (`rank-3`), or of the `LAUNCHER`'s (`launcher`)."""
    return "launcher" if rank == LAUNCHER else f"rank-{rank}"


def log_name(rank: int) -> str:
    """The name of a rank's log, or of the `LAUNCHER`'s."""
    return f"{owner_name(rank)}.log"


def owner_in_words(rank: int) -> str:
    """`rank 3`, or `the launcher`."""
    return "the launcher" if rank == LAUNCHER else f"rank {rank}"


class RunFolder(msgspec.Struct, frozen=True, dict=True):
    """The files of one job. Creating an instance does not access the disk."""

    path: Path
    """`<state home>/runs/<job>`, mode 0700."""

    @property
    def job(self) -> str:
        """The job's name, which is also the folder's."""
        return self.path.name

    @property
    def spec_file(self) -> Path:
        """The JobSpec. A folder that contains it is a job."""
        return self.path / "job.json"

    @property
    def nodes_dir(self) -> Path:
        """One snapshot file per host."""
        return self.path / "nodes"

    def node_file(self, host: str) -> Path:
        """The snapshot of one host, replaced atomically once a second."""
        return self.nodes_dir / f"{host}.json"

    @property
    def logs_dir(self) -> Path:
        """Contains `attempt-<n>/rank-<r>.log`, or `attempt-<n>/launcher.log` for a command."""
        return self.path / "logs"

    def log_file(self, attempt: int, rank: int) -> Path:
        """Standard output and error of a rank, or of the `LAUNCHER`, in one attempt."""
        return self.logs_dir / f"attempt-{attempt}" / log_name(rank)

    @property
    def evidence_dir(self) -> Path:
        """Stacks and other evidence, by attempt."""
        return self.path / "evidence"

    @property
    def profiles_dir(self) -> Path:
        """Traces of torch.profiler, and orders to make them."""
        return self.path / "profiles"

    @property
    def supervisor_log(self) -> Path:
        """Output of the guardian, supervisor, sampler, and agent."""
        return self.path / "supervisor.log"

    @property
    def handover_file(self) -> Path:
        """The launching shell's environment for the guardian: mode 0600, deleted once read."""
        return self.path / "handover.json"

    @property
    def notify_file(self) -> Path:
        """URLs that get the job's notices, one per line: mode 0600. Without it, nothing is sent."""
        return self.path / "notify-urls"

    @property
    def guardian_lock(self) -> Path:
        """Locked (flock) by the guardian while it runs."""
        return self.path / "guardian.lock"

    @property
    def start_lock(self) -> Path:
        """Flock held while a guardian is being started, until it holds its own."""
        return self.path / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Locked (flock) by the supervisor while it runs."""
        return self.path / "supervisor.lock"

    @property
    def local_pointer(self) -> Path:
        """Names the local folder if the run folder cannot contain live files."""
        return self.path / "local-dir"

    @functools.cached_property
    def live_dir(self) -> Path:
        """The folder of the database and sockets while the job runs: this one or the local one."""
        with contextlib.suppress(OSError, ValueError):
            pointed = Path(bounded.read_text(self.local_pointer, POINTER_BYTES).strip())
            # whoever can write here must not be able to point `rm` at another job's files
            is_local = pointed.parent == LOCAL_DISK and pointed.name.startswith(_local_names(self))
            if is_local and _is_own(self.local_pointer):
                return pointed
        return self.path

    @property
    def history_db(self) -> Path:
        """Metrics and events. When the job has ended, it is always in the run folder."""
        live = self.live_dir / "history.db"
        return live if live.exists() else self.path / "history.db"

    @property
    def control_socket(self) -> Path:
        """Where the supervisor receives commands (stream)."""
        return self.live_dir / "control.sock"

    @property
    def probe_socket(self) -> Path:
        """Where the supervisor receives the probes' datagrams."""
        return self.live_dir / "probe.sock"

    @property
    def save_flag(self) -> Path:
        """Created to ask the script for a checkpoint; DDPTOP_CHECKPOINT_FILE in ranks."""
        return self.live_dir / "save-now"


def run_folder(job: str) -> RunFolder:
    """The run folder of the job with exactly this name, whether or not it exists."""
    return RunFolder(runs_dir() / job)


def local_dir_reason(folder: RunFolder) -> str | None:
    """Why the run folder cannot contain the database and sockets; None if it can."""
    if name := shared_file_system(folder.path):
        return f"the run folder is on {name}"
    longest = folder.path / "control.sock"
    if len(os.fsencode(longest)) > SOCKET_PATH_LIMIT_BYTES:
        return f"the run folder's path is too long for a socket ({longest})"
    return None


def _local_names(folder: RunFolder) -> tuple[str, ...]:
    """What a run's local folder's name begins with; may differ if its path goes through a link."""
    import hashlib  # importing it takes 6 ms, which other commands can save

    names = [os.fsencode(path) for path in (folder.path.resolve(), folder.path)]
    hashes = [hashlib.sha256(name).hexdigest()[:16] for name in names]
    return tuple(f"ddptop-{os.geteuid()}-{one}-" for one in hashes)


def _is_own(path: Path) -> bool:
    return path.lstat().st_uid == os.geteuid()


def create_local_dir(folder: RunFolder) -> Path:
    """Create the local folder of a run, unless it has one, and point to it.

    It is private, and part of its name, `ddptop-<uid>-<hash>-<random>`, is known to nobody before,
    so that no other user can take its place.

    Raises:
        UsageError: it cannot be created.
    """
    import tempfile

    folder.__dict__.pop("live_dir", None)
    local = folder.live_dir
    with contextlib.suppress(OSError):
        if local != folder.path and stat.S_ISDIR(local.lstat().st_mode) and _is_own(local):
            return local
    try:
        local = Path(tempfile.mkdtemp(prefix=_local_names(folder)[0], dir=LOCAL_DISK))
    except OSError as error:
        raise UsageError(
            f"{LOCAL_DISK} cannot be used for the job's sockets ({error.strerror})",
            "fix the problem, or set DDPTOP_HOME to a short path on a local disk",
        ) from error
    folder.local_pointer.write_text(f"{local}\n", encoding="utf-8")
    del folder.__dict__["live_dir"]
    return local


LAUNCHER = -1
"""Used in place of a rank for the launcher of a command job: its output is shared by all ranks, and
the attempt ends when it exits. Never a rank in a snapshot, an event, or `--json`."""
