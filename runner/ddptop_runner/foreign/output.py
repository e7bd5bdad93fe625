"""Finds where the output of a process goes, and reads it there without consuming it.

A regular file is read as it grows, also one that was deleted or renamed while the process holds it
open. A pipe leads to its reader and from there on; a terminal to the tmux pane that shows it, or
to the program that made it (mpirun, script). Everything else is named with the reason why it
cannot be read. Nothing here blocks: only regular files are ever opened.

Of tmux only `list-panes` and `capture-pane -p` are asked: nothing is attached, resized, or typed,
and no `pipe-pane`, which would end a pipe of the user's own. A server that does not answer is left
alone for a while.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from ddptop_runner.base.files import is_private_folder
from ddptop_runner.host import procs, tree
from ddptop_runner.store.log_clean import sanitize
from ddptop_runner.store.logs import LogFile

HISTORY_LINES = 2000
"""How far back the first capture of a pane reaches."""
LATER_LINES = 500
"""How far back a later one does: more than is written between two of them, as a rule."""
MAX_REDRAWN = 12
"""So many lines at the end may change between two captures, as nested progress bars do."""
MAX_CHARS = 4 << 20
"""A capture is cut here, from its beginning."""
TIMEOUT_S = 1.0
AVOID_S = 60.0
"""A server that let the time pass is not asked again for so long."""

_UCRED = struct.Struct("3i")
"""Pid, uid and gid of who listens."""

_FORMAT = "#{pane_tty}\t#{pane_id}\t#{session_name}:#{window_index}.#{pane_index}"

_avoided: dict[str, float] = {}
"""Sockets whose server did not answer, and until when (monotonic) to leave them alone."""


@dataclass(frozen=True)
class Pane:
    """One pane of one tmux server."""

    socket: str
    id: str
    """`%5`: stays the same for the pane's life."""
    name: str
    """`work:1.0`, as a person names it."""
    tty: str


def sockets(tmux_variables: Iterable[str] = ()) -> list[str]:
    """Sockets of this user's own tmux servers: the usual ones, and those that $TMUX values name.

    A tmux client obeys its server, up to executing a file. So only sockets in folders that nobody
    else can write are named, whoever's variable names them.
    """
    folders = [os.environ.get("TMUX_TMPDIR") or "/tmp", "/tmp"]
    found = [value.split(",")[0] for value in tmux_variables]
    for folder in dict.fromkeys(folders):
        try:
            own = Path(folder, f"tmux-{os.geteuid()}")
            found += sorted(os.fspath(path) for path in own.iterdir())
        except OSError:
            continue
    return [path for path in dict.fromkeys(found) if _is_own(path) and _is_served(path)]


def _is_own(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if not path.startswith("/") or name in ("", ".", "..") or not is_private_folder(folder):
        return False
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _is_served(path: str) -> bool:
    """Whether a server of this user listens there: of one that was killed the socket stays.

    Asking tmux instead takes a process, and such sockets may be hundreds.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:  # it has much to do
            return True
        except OSError:
            return False
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return bool(_UCRED.unpack(credentials)[1] == os.geteuid())


def list_panes(socket_paths: Iterable[str]) -> dict[str, Pane]:
    """Every pane of these servers by its terminal, such as `/dev/pts/3`."""
    panes = {}
    for path in socket_paths:
        text = _tmux(path, "list-panes", "-a", "-F", _FORMAT)
        for line in (text or "").splitlines():
            parts = line.split("\t")
            if len(parts) == 3:
                panes[parts[0]] = Pane(path, parts[1], parts[2], parts[0])
    return panes


def capture(pane: Pane, history_lines: int = LATER_LINES) -> list[str] | None:
    """The pane's last lines, wrapped ones joined; None when it cannot be asked or is gone."""
    text = _tmux(pane.socket, "capture-pane", "-p", "-J", "-S", f"-{history_lines}", "-t", pane.id)
    if text is None:
        return None
    lines = [line.rstrip() for line in text[-MAX_CHARS:].split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _tmux(socket_path: str, *command: str) -> str | None:
    if _avoided.get(socket_path, 0.0) > time.monotonic():
        return None
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    try:
        answer = subprocess.run(
            ["tmux", "-u", "-S", socket_path, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        _avoided[socket_path] = time.monotonic() + AVOID_S
        return None
    except OSError:
        return None
    return answer.stdout.decode("utf-8", "replace") if answer.returncode == 0 else None


def shared(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """(how many lines at the beginning of `after` are old, how many old ones were redrawn).

    What both captures share scrolls up: `after` begins with a part of `before`. Lines at the end of
    `before` may have been redrawn since; they count as written again. Where nothing is shared
    (the screen was cleared, or more was written than a capture holds) all of `after` is new.
    """
    best, redrawn = 0, 0
    for dropped in range(min(MAX_REDRAWN, len(before)) + 1):
        kept = before[: len(before) - dropped]
        if len(kept) <= best:
            break
        for offset in range(max(0, len(kept) - len(after)), len(kept) - best):
            length = len(kept) - offset
            if kept[offset] == after[0] and kept[offset:] == after[:length]:
                best, redrawn = length, dropped
                break
    return best, redrawn


class PaneReader:
    """What is written into one pane, capture by capture."""

    def __init__(self, pane: Pane) -> None:
        self.pane = pane
        self.last = ""
        """The last line as it stands: a progress bar, or a line that may not have ended."""
        self._before: list[str] | None = None
        self._handed = False
        """Whether `last` was handed out: it stood unchanged in two captures."""

    def read(self) -> list[str] | None:
        """Lines that are complete since the last read; None when the pane cannot be read."""
        first = self._before is None
        after = capture(self.pane, HISTORY_LINES if first else LATER_LINES)
        return None if after is None else self.take(after)

    def take(self, after: list[str]) -> list[str]:
        """The same of a capture at hand."""
        before, self._before = self._before or [], after
        if not after:
            self.last, self._handed = "", False
            return []
        old, redrawn = shared(before, after)
        new = after[old:]
        if not new and not redrawn:
            if self._handed or not self.last:
                return []
            self._handed = True
            return [self.last]
        lines = new[:-1]
        if old and not redrawn and not self._handed and self.last:
            lines.insert(0, self.last)
        self.last, self._handed = (new[-1] if new else after[-1]), not new
        return lines


MAX_HOPS = 4
"""Pipes and terminals that are followed one after the other."""
MAX_ANCESTORS = 6
MAX_DESCRIPTORS = 512
"""Descriptors of one process that are looked at."""

_KEEPERS = frozenset(["tee", "script", "rotatelogs", "cronolog", "multilog", "svlogd"])
"""Programs that write what they read to files of theirs, and as a rule to their own output."""
_FILTERS = "cat grep egrep fgrep sed awk gawk mawk ts tr cut stdbuf pv"
_MPI = "mpirun mpiexec mpiexec.hydra orterun prterun horovodrun srun"
_FORWARDERS = frozenset([*_KEEPERS, *_FILTERS.split(), *_MPI.split()])
"""Programs that write what they read."""

SinkKind = Literal[
    "file", "deleted", "pipe", "terminal", "null", "socket", "other", "closed", "hidden"
]


@dataclass(frozen=True)
class Sink:
    """What one descriptor of a process is."""

    pid: int
    fd: int
    kind: SinkKind
    target: str = ""
    """A path, or what /proc calls it."""
    device_inode: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """Where it can be opened, whatever became of its name."""
        return f"/proc/{self.pid}/fd/{self.fd}"


@dataclass(frozen=True)
class Output:
    """Where an output ends up."""

    words: str
    """For the person: where it goes and, if it cannot be read, why."""
    file: Sink | None = None
    """Readable as a file."""
    pane: Pane | None = None
    """Readable as a pane."""

    @property
    def key(self) -> object:
        """Equal for two outputs that are read in the same place; None where none can be."""
        if self.file is not None:
            return self.file.device_inode
        return None if self.pane is None else (self.pane.socket, self.pane.id)


def look_at(pid: int, fd: int) -> Sink:
    """What the descriptor is now; never raises, opens nothing."""
    path = f"/proc/{pid}/fd/{fd}"
    try:
        target = os.readlink(path)  # noqa: PTH115 - hot, and a Path would resolve `pipe:[1]`
    except PermissionError:
        return Sink(pid, fd, "hidden")
    except OSError:
        return Sink(pid, fd, "closed")
    try:
        status = os.stat(path)  # noqa: PTH116 - hot
    except OSError:
        return Sink(pid, fd, "other", target)
    inode = (status.st_dev, status.st_ino)
    mode = status.st_mode
    if stat.S_ISREG(mode):
        deleted = target.endswith(" (deleted)") and not status.st_nlink
        name = target.removesuffix(" (deleted)") if deleted else target
        return Sink(pid, fd, "deleted" if deleted else "file", name, inode)
    if stat.S_ISFIFO(mode):
        return Sink(pid, fd, "pipe", target, inode)
    if target == "/dev/null":
        return Sink(pid, fd, "null", target)
    if stat.S_ISCHR(mode) and target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Sink(pid, fd, "terminal", target, inode)
    return Sink(pid, fd, "socket" if stat.S_ISSOCK(mode) else "other", target)


def _descriptors(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))[:MAX_DESCRIPTORS]
    except OSError:
        return []


def _fdinfo(pid: int, fd: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            text = file.read(4096)
    except OSError:
        return {}
    fields = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in fields}


def _flags(pid: int, fd: int) -> int | None:
    """The flags that it was opened with; None when they cannot be seen."""
    try:
        return int(_fdinfo(pid, fd)["flags"], 8)
    except (KeyError, ValueError):
        return None


def _access(pid: int, fd: int) -> int | None:
    """os.O_RDONLY, os.O_WRONLY or os.O_RDWR; None when it cannot be seen."""
    flags = _flags(pid, fd)
    return None if flags is None else flags & os.O_ACCMODE


def _name(pid: int) -> str:
    argv = procs.argv(pid)
    return sanitize(argv[0].rpartition("/")[2])[:40].strip() if argv else "gone"


def neighbors_of(pids: Iterable[int]) -> list[int]:
    """Processes that may read the output of these: themselves, parents, and all their sessions.

    A parent's session counts too: `setsid train | tee log` leaves `tee` in that of the shell.
    """
    near: dict[int, None] = {}
    sessions = set()
    for pid in pids:
        for one in islice((pid, *tree.ancestors_of(pid)), MAX_ANCESTORS):
            if one in near or one <= 1 or (fields := procs.stat_fields(one)) is None:
                break
            near[one] = None
            sessions.add(fields[3])
    for pid in procs.all_pids():
        if pid not in near and (fields := procs.stat_fields(pid)) and fields[3] in sessions:
            near[pid] = None
    return list(near)


def appends(sink: Sink) -> bool:
    """Whether it was opened to append: what the file holds may be of an earlier run."""
    flags = _flags(sink.pid, sink.fd)
    return flags is None or bool(flags & os.O_APPEND)


class Finder:
    """Finds where outputs end up. Make one for each search: it remembers what it saw."""

    def __init__(
        self,
        neighbors: Callable[[], Iterable[int]],
        panes: Callable[[], dict[str, Pane]],
        launchers: Collection[int] = (),
    ) -> None:
        """The callables are asked only where they are needed.

        Args:
            neighbors: pids that may read a pipe or hold the other end of a terminal.
            panes: panes by terminal.
            launchers: pids that hand on what their ranks write.
        """
        self._neighbors = neighbors
        self._panes = panes
        self._launchers = launchers
        self._open: dict[int, list[Sink]] = {}

    def find(self, pid: int, fd: int = 1) -> Output:
        """Where that descriptor's output ends up."""
        return self._follow(look_at(pid, fd), MAX_HOPS)

    def _follow(self, sink: Sink, hops: int) -> Output:
        if sink.kind == "file":
            return self._of_file(sink, f"file {_shown(sink.target)}")
        if sink.kind == "deleted":
            words = f"deleted file {_shown(sink.target)}, still open in pid {sink.pid}"
            return self._of_file(sink, words)
        if sink.kind == "pipe":
            return self._of_pipe(sink, hops)
        if sink.kind == "terminal":
            return self._of_terminal(sink, hops)
        reasons = {
            "null": "/dev/null: discarded",
            "socket": "a socket: not readable",
            "closed": f"closed by pid {sink.pid}",
            "hidden": f"unknown: pid {sink.pid} belongs to another user (needs root)",
        }
        other = f"{_shown(sink.target)}: not readable as a file"
        return Output(reasons.get(sink.kind, other))

    def _of_file(self, sink: Sink, words: str) -> Output:
        if not os.access(sink.path, os.R_OK):
            return Output(f"{words}: no read permission")
        return Output(words, file=sink)

    def _of_pipe(self, sink: Sink, hops: int) -> Output:
        readers = self._readers_of(sink)
        if not readers:
            return Output("a pipe whose reader is not visible: not readable")
        reader = next((pid for pid in readers if self._hands_on(pid)), readers[0])
        return self._through(reader, f"a pipe to pid {reader} ({_name(reader)})", hops)

    def _of_terminal(self, sink: Sink, hops: int) -> Output:
        is_own = procs.uid_of(sink.pid) == os.geteuid()
        pane = self._panes().get(sink.target) if is_own else None
        if pane is not None and _is_terminal(pane.tty, sink):
            return Output(f"tmux pane {_shown(pane.name)} (captured)", pane=pane)
        maker = self._maker_of(sink)
        if maker is None:
            if is_own:
                return Output(f"terminal {sink.target} outside tmux: not readable")
            return Output(f"another user's terminal {sink.target}: not readable")
        words = f"terminal {sink.target} from pid {maker} ({_name(maker)})"
        return self._through(maker, words, hops)

    def _through(self, pid: int, words: str, hops: int) -> Output:
        """What `pid` does with what it reads: the files that it writes, else its own output."""
        if hops <= 0 or not self._hands_on(pid):
            return Output(f"{words}: not readable")
        for sink in self._sinks(pid) if _name(pid) in _KEEPERS else ():
            if sink.fd > 2 and sink.kind in ("file", "deleted"):
                found = self._of_file(sink, f"{words}, which writes to {_shown(sink.target)}")
                if found.key is not None:
                    return found
        found = self._follow(look_at(pid, 1), hops - 1)
        if found.key is None:
            return Output(f"{words}: not readable")
        return Output(f"{found.words} via {words}", file=found.file, pane=found.pane)

    def _sinks(self, pid: int) -> list[Sink]:
        """What the process can write to."""
        sinks = [sink for sink in self._all(pid) if _access(pid, sink.fd) != os.O_RDONLY]
        return [sink for sink in sinks if sink.kind in ("file", "deleted", "pipe", "terminal")]

    def _all(self, pid: int) -> list[Sink]:
        if pid not in self._open:
            self._open[pid] = [look_at(pid, fd) for fd in _descriptors(pid)]
        return self._open[pid]

    def _hands_on(self, pid: int) -> bool:
        return pid in self._launchers or _name(pid) in _FORWARDERS

    def _readers_of(self, pipe: Sink) -> list[int]:
        return [
            pid
            for pid in self._neighbors()
            if pid != pipe.pid and any(self._reads(sink, pipe) for sink in self._all(pid))
        ]

    def _reads(self, sink: Sink, pipe: Sink) -> bool:
        return (
            sink.kind == "pipe"
            and sink.device_inode == pipe.device_inode
            and _access(sink.pid, sink.fd) in (os.O_RDONLY, os.O_RDWR)
        )

    def _maker_of(self, terminal: Sink) -> int | None:
        """The process that holds the other end of a pseudo-terminal."""
        number = terminal.target.rpartition("/")[2]
        for pid in self._neighbors():
            for sink in self._all(pid):
                if sink.target.endswith("ptmx") and _terminal_of(sink) == number:
                    return pid
        return None


def _is_terminal(tty: str, sink: Sink) -> bool:
    """Whether a name of here is that terminal: in a container the same name is another one."""
    try:
        status = os.stat(tty)  # noqa: PTH116 - hot
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == sink.device_inode


def _terminal_of(master: Sink) -> str | None:
    """The number of the pseudo-terminal that a descriptor is the master of."""
    return _fdinfo(master.pid, master.fd).get("tty-index")


def _shown(name: str) -> str:
    """A name that is safe to print and no longer than a line."""
    clean = sanitize(os.fsencode(name)).replace("\n", " ")
    return clean if len(clean) <= 160 else f"{clean[:60]}…{clean[-96:]}"


def open_log(sink: Sink) -> LogFile:
    """The file that a process holds open, to read it as it grows.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    # the process may have put a device there since, and opening some does harm
    place = os.open(sink.path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(place)
        same = (status.st_dev, status.st_ino) == sink.device_inode
        if not same or not stat.S_ISREG(status.st_mode):
            raise OSError(f"{sink.target} was replaced by another file")
        return LogFile(os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        os.close(place)
