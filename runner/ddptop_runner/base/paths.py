"""Where files are: the state folder, one run folder per job, and its live files.

On a file system that is shared between hosts (NFS, Lustre, FUSE, ...) SQLite locks and unix
sockets do not work, so `history.db` and the sockets are in a folder of the local disk and the
run folder holds a pointer; so do sockets whose path would pass the kernel's limit of 107 bytes.
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
"""sun_path holds 108 bytes; DESIGN.md leaves room for a suffix."""

POINTER_BYTES = 4096
"""The longest path."""

# statfs(2) f_type of file systems whose locks or sockets do not work across or on one host
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
    """The user's home; HOME that is relative would be another folder in each working folder."""
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
    """Refuse to take a state folder that this user may not look into for an empty one.

    Raises:
        UsageError: naming whose it is.
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
        if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
            raise UsageError(
                f"the state folder {folder} cannot be read: it {belongs(status)}", _OWN_HOME
            )


def require_own(folder: Path) -> None:
    """Refuse to start anything out of a folder whose content another user decides.

    Raises:
        UsageError: naming whose it is, where it exists and is not this user's.
    """
    try:
        status = folder.stat()
    except OSError:
        return  # whoever makes it, or its content, says what is wrong
    if status.st_uid != os.geteuid():
        raise UsageError(
            f"refusing to start anything from {folder}, which {belongs(status)}", _OWN_HOME
        )


def why_not_own(folder: RunFolder) -> str | None:
    """Why what lies in a run folder may be another user's doing, or None where it is not.

    Whoever owns it, or a folder above it, or may write into it, decides what is started there.
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
    """Refuse to start anything out of a run folder that another user may have made or replaced.

    Returns:
        Notes on folders above it that were open to other users and are closed now.

    Raises:
        UsageError: naming whose it is.
    """
    above = (folder.path.parent.parent, folder.path.parent)
    for place in above:
        require_own(place)
    closed = [note for place in above if (note := close_to_others(place)) is not None]
    if (problem := why_not_own(folder)) is not None:
        raise UsageError(f"{problem}; refusing to start anything from it", _OWN_HOME)
    return closed


def close_to_others(folder: Path) -> str | None:
    """Make a folder of this user writable by its owner only; returns a note if that changed it.

    Raises:
        UsageError: for a directory that is shared on purpose (sticky, such as /tmp).
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
    """The folder that holds one run folder per job."""
    return state_home() / "runs"


def members_dir() -> Path:
    """The folder that holds this machine's parts of jobs on several machines."""
    return state_home() / "members"


def config_file() -> Path:
    """The person's own settings, which need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _home() / ".config") / "ddptop" / "config.toml"


def nearest(path: Path) -> Path:
    """`path`, or the nearest of its parents that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def shared_file_system(path: Path) -> str | None:
    """The name of the shared file system that `path` lies on, or None for a local one.

    `path` need not exist: its nearest existing parent is asked.
    """
    import ctypes  # what only reads jobs does without

    class Statfs(ctypes.Structure):
        """The head of struct statfs; only f_type is read, the rest is room."""

        _fields_ = [("f_type", ctypes.c_long), ("rest", ctypes.c_char * 240)]

    buffer = Statfs()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.statfs(os.fsencode(nearest(path)), ctypes.byref(buffer))
    except (OSError, AttributeError):  # no libc to ask: macOS viewers never get here for a job
        return None
    return None if failed else SHARED_FILE_SYSTEMS.get(buffer.f_type & 0xFFFFFFFF)


def owner_name(rank: int) -> str:
    """Names the files of one rank (`rank-3`), or of `LAUNCHER` (`launcher`)."""
    return "launcher" if rank == LAUNCHER else f"rank-{rank}"


def owner_in_words(rank: int) -> str:
    """`rank 3`, or `the launcher`."""
    return "the launcher" if rank == LAUNCHER else f"rank {rank}"


class RunFolder(msgspec.Struct, frozen=True, dict=True):
    """The files of one job. Constructing it touches nothing."""

    path: Path
    """`<state home>/runs/<job>`, mode 0700."""

    @property
    def job(self) -> str:
        """The job's name, which is the folder's."""
        return self.path.name

    @property
    def spec_file(self) -> Path:
        """The JobSpec; its presence makes the folder a job."""
        return self.path / "job.json"

    @property
    def nodes_dir(self) -> Path:
        """One snapshot file per host."""
        return self.path / "nodes"

    def node_file(self, host: str) -> Path:
        """The snapshot of one host, replaced as a whole once a second."""
        return self.nodes_dir / f"{host}.json"

    @property
    def logs_dir(self) -> Path:
        """Holds `attempt-<n>/rank-<r>.log`; of a command `attempt-<n>/launcher.log`."""
        return self.path / "logs"

    def log_file(self, attempt: int, rank: int) -> Path:
        """Standard output and error of one rank, or of `LAUNCHER`, in one attempt."""
        return self.logs_dir / f"attempt-{attempt}" / f"{owner_name(rank)}.log"

    @property
    def evidence_dir(self) -> Path:
        """Stacks and other evidence, kept per attempt."""
        return self.path / "evidence"

    @property
    def supervisor_log(self) -> Path:
        """Output of the guardian, supervisor, sampler, and agent."""
        return self.path / "supervisor.log"

    @property
    def handover_file(self) -> Path:
        """The launching shell's variables for the guardian: 0600, deleted when read."""
        return self.path / "handover.json"

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
        """Names the local folder where the run folder itself cannot hold live files."""
        return self.path / "local-dir"

    @functools.cached_property
    def live_dir(self) -> Path:
        """The folder of the database and sockets while the job runs: this or the pointed-to one."""
        with contextlib.suppress(OSError, ValueError):
            pointed = Path(bounded.read_text(self.local_pointer, POINTER_BYTES).strip())
            # whoever can write here must not lead `rm` to another job's files
            if pointed in _local_dirs(self) and _is_own(self.local_pointer):
                return pointed
        return self.path

    @property
    def history_db(self) -> Path:
        """Metrics and events. At the end of a job it is always in the run folder."""
        live = self.live_dir / "history.db"
        return live if live.exists() else self.path / "history.db"

    @property
    def control_socket(self) -> Path:
        """Where the supervisor takes commands (stream)."""
        return self.live_dir / "control.sock"

    @property
    def probe_socket(self) -> Path:
        """Where the supervisor takes the probes' datagrams."""
        return self.live_dir / "probe.sock"

    @property
    def save_flag(self) -> Path:
        """Made to ask the script for a checkpoint; ranks know it as DDPTOP_CHECKPOINT_FILE."""
        return self.live_dir / "save-now"


def run_folder(job: str) -> RunFolder:
    """The run folder of the job of that exact name, existing or not."""
    return RunFolder(runs_dir() / job)


def local_dir_reason(folder: RunFolder) -> str | None:
    """Why the run folder cannot hold database and sockets, or None if it can."""
    if name := shared_file_system(folder.path):
        return f"the run folder is on {name}"
    longest = folder.path / "control.sock"
    if len(os.fsencode(longest)) > SOCKET_PATH_LIMIT_BYTES:
        return f"the run folder's path is too long for a socket ({longest})"
    return None


def _local_base() -> Path:
    """Holds the local folders of this user's runs."""
    return Path("/var/tmp") / f"ddptop-{os.getuid()}"


def _local_dirs(folder: RunFolder) -> set[Path]:
    """The only local folders that a run may have: two where its own path leads over a link."""
    import hashlib  # 6 ms that other verbs need not pay

    names = {os.fsencode(path) for path in (folder.path, folder.path.resolve())}
    return {_local_base() / hashlib.sha256(name).hexdigest()[:16] for name in names}


def _is_own(path: Path) -> bool:
    return path.lstat().st_uid == os.geteuid()


def create_local_dir(folder: RunFolder) -> Path:
    """Make the local folder of a run, `/var/tmp/ddptop-<uid>/<hash>`, and point to it.

    Raises:
        UsageError: where /var/tmp holds something of that name that is not this user's, or cannot
            be written.
    """
    base = _local_base()
    (local,) = _local_dirs(RunFolder(folder.path.resolve()))
    try:
        base.mkdir(mode=0o700, exist_ok=True)
        if base.is_symlink() or base.stat().st_uid != os.getuid():
            raise UsageError(f"{base} is not owned by this user", "remove it, or set DDPTOP_HOME")
        local.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{base} cannot be used for the job's sockets ({error.strerror})",
            "fix the problem, or set DDPTOP_HOME to a short path on a local disk",
        ) from error
    folder.local_pointer.write_text(f"{local}\n", encoding="utf-8")
    folder.__dict__.pop("live_dir", None)
    return local


LAUNCHER = -1
"""Stands among rank numbers for the launcher of a job that is a command: its output is everyone's,
and its end is the attempt's. Never a rank's number in a snapshot, an event or `--json`."""
