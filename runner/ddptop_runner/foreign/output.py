"""Finds where the output of a process goes and reads it there without consuming it.

A regular file is read as it grows, even if deleted or renamed while the process holds it open. A
pipe leads to its reader and on from there; a terminal leads to the tmux pane that shows it, or to
the program that created it (mpirun, script). Anything else is named, with the reason why it cannot
be read. Nothing here blocks: only regular files are ever opened.

Of tmux, only `list-panes` and `capture-pane -p` are used: nothing is attached, resized, or typed,
and there is no `pipe-pane`, which would end the user's own pipe. A server that does not answer is
skipped for a while.
"""

from __future__ import annotations

import functools
import os
import socket
import stat
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from ddptop_runner.base.files import is_private_folder
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.host import procs, tree
from ddptop_runner.reading.progress.text_watch import LogStream
from ddptop_runner.reading.text.parser import LossParser, Reading
from ddptop_runner.store.log_clean import LineCleaner, sanitize
from ddptop_runner.store.logs import LogFile

HISTORY_LINES = 2000
"""Lines of scrollback in the first capture of a pane."""
LATER_LINES = 500
"""The same for later captures; usually more than is written between two."""
MAX_REDRAWN = 12
"""Lines at the end that may change between two captures, as nested progress bars do."""
TIMEOUT_S = 1.0
AVOID_S = 60.0
"""How long to skip a server that timed out."""

_UCRED = struct.Struct("3i")
"""Pid, uid, and gid of the listener."""

_FORMAT = "#{pane_tty}\t#{pane_id}\t#{session_name}:#{window_index}.#{pane_index}"

_avoided: dict[str, float] = {}
"""Sockets whose server did not answer, and until when (monotonic) to skip them."""


@dataclass(frozen=True)
class Pane:
    """One pane of one tmux server."""

    socket: str
    id: str
    """`%5`; constant for the pane's life."""
    name: str
    """`work:1.0`, the name that a user would type."""
    tty: str


def sockets(tmux_variables: Iterable[str] = ()) -> list[str]:
    """Sockets of this user's own tmux servers: the usual ones, and those named in $TMUX values.

    A tmux client obeys its server, even to the point of executing a file. So the result contains
    only sockets in folders that no other user can write, whoever set the variable.
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
    """Whether a server of this user listens there; a killed server leaves its socket behind.

    Asking tmux would take a process for each socket, and there may be hundreds.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:  # the server is busy
            return True
        except OSError:
            return False
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return bool(_UCRED.unpack(credentials)[1] == os.geteuid())


def list_panes(socket_paths: Iterable[str]) -> dict[str, Pane]:
    """All panes of these servers, by terminal such as `/dev/pts/3`."""
    panes = {}
    for path in socket_paths:
        # not `Server.panes`: it asks for every format and splits at a character that names may have
        for line in _ask(path, "list-panes", "-a", "-F", _FORMAT) or ():
            parts = line.split("\t")
            if len(parts) == 3:
                panes[parts[0]] = Pane(path, parts[1], parts[2], parts[0])
    return panes


def capture(pane: Pane, history_lines: int = LATER_LINES) -> list[str] | None:
    """The pane's last lines, with wrapped ones joined; None if it is gone or does not answer."""
    found = _ask(pane.socket, "capture-pane", "-p", "-J", "-S", f"-{history_lines}", "-t", pane.id)
    if found is None:
        return None
    lines = [line.rstrip() for line in found]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _ask(socket_path: str, *command: str) -> list[str] | None:
    """The lines that a command prints; None if it fails, or its server did not answer recently."""
    if _avoided.get(socket_path, 0.0) > time.monotonic():
        return None
    from ddptop_runner.host.tmux_server import Server

    try:
        answer = Server(TIMEOUT_S, socket_path=socket_path).cmd(*command)
    except subprocess.TimeoutExpired:
        _avoided[socket_path] = time.monotonic() + AVOID_S
        return None
    except OSError:
        return None
    return answer.stdout if answer.returncode == 0 else None


def shared(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """(number of old lines at the start of `after`, number of old lines that were redrawn).

    Shared lines scroll up, so `after` starts with a part of `before`. Lines at the end of `before`
    may have been redrawn since; they count as written again. If nothing is shared (the screen was
    cleared, or more was written than a capture holds), all of `after` is new.
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
    """Reads what is written to one pane, capture by capture."""

    def __init__(self, pane: Pane) -> None:
        self.pane = pane
        self.last = ""
        """The current last line: a progress bar, or a line that may not have ended."""
        self._before: list[str] | None = None
        self._handed = False
        """Whether `last` was returned because two captures show it unchanged."""

    def read(self) -> list[str] | None:
        """Lines completed since the last read; None if the pane cannot be read."""
        first = self._before is None
        after = capture(self.pane, HISTORY_LINES if first else LATER_LINES)
        return None if after is None else self.add(after)

    def add(self, after: list[str]) -> list[str]:
        """Lines completed since the last read, from a given capture."""
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
"""Longest chain of pipes and terminals to follow."""
MAX_ANCESTORS = 6
MAX_DESCRIPTORS = 512
"""Descriptors examined per process."""

_SAVING = frozenset({"tee", "script"})
"""Programs that copy their input to files."""
_FORWARDING = frozenset({*_SAVING, "cat", "grep", "sed", "awk", "ts", "stdbuf"})
"""Programs that copy their input to their output."""

SinkKind = Literal["file", "pipe", "terminal", "other", "closed", "hidden"]


@dataclass(frozen=True)
class Sink:
    """What one descriptor of a process refers to."""

    pid: int
    fd: int
    kind: SinkKind
    target: str = ""
    """A path, or the name that /proc gives."""
    device_inode: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """A path that opens it even if it was renamed or deleted."""
        return f"/proc/{self.pid}/fd/{self.fd}"


@dataclass(frozen=True)
class Output:
    """The final destination of an output."""

    words: str
    """For the user: where it goes and, if it cannot be read, why."""
    file: Sink | None = None
    """The file to read, if any."""
    pane: Pane | None = None
    """The pane to read, if any."""

    @property
    def key(self) -> object:
        """Equal for outputs that are read from the same place; None if it cannot be read."""
        if self.file is not None:
            return self.file.device_inode
        return None if self.pane is None else (self.pane.socket, self.pane.id)


def sink_of(pid: int, fd: int) -> Sink:
    """What the descriptor currently refers to; never raises, opens nothing."""
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
        return Sink(pid, fd, "file", target, inode)
    if stat.S_ISFIFO(mode):
        return Sink(pid, fd, "pipe", target, inode)
    if stat.S_ISCHR(mode) and target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Sink(pid, fd, "terminal", target, inode)
    return Sink(pid, fd, "other", target)


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


def _flags(sink: Sink) -> int:
    """The flags with which it was opened; if unknown, for appending."""
    try:
        return int(_fdinfo(sink.pid, sink.fd)["flags"], 8)
    except (KeyError, ValueError):
        return os.O_WRONLY | os.O_APPEND


def _name(pid: int) -> str:
    argv = procs.argv(pid)
    return sanitize(argv[0].rpartition("/")[2])[:40].strip() if argv else "gone"


def neighbors_of(pids: Iterable[int]) -> list[int]:
    """Processes that may read the output of these: they, their parents, and all their sessions.

    A parent's session counts too: `setsid train | tee log` leaves `tee` in the shell's session.
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
    """Whether it was opened for appending, so that its contents may be from an earlier run."""
    return bool(_flags(sink) & os.O_APPEND)


class Finder:
    """Finds the destinations of outputs. Make one per search, because it caches what it reads."""

    def __init__(
        self,
        neighbors: Callable[[], Iterable[int]],
        panes: Callable[[], dict[str, Pane]],
        launchers: Collection[int] = (),
    ) -> None:
        """The callables are only called if needed.

        Args:
            neighbors: pids that may read a pipe or hold the other end of a terminal.
            panes: panes by terminal.
            launchers: pids that forward what their ranks write.
        """
        self._neighbors = neighbors
        self._panes = panes
        self._launchers = launchers
        self._open: dict[int, list[Sink]] = {}

    def find(self, pid: int, fd: int = 1) -> Output:
        """The destination of that descriptor's output."""
        return self._follow(sink_of(pid, fd), MAX_HOPS)

    def _follow(self, sink: Sink, hops: int) -> Output:
        if sink.kind == "file":
            if not os.access(sink.path, os.R_OK):
                return Output(f"file {_shown(sink.target)}: no read permission")
            return Output(f"file {_shown(sink.target)}", file=sink)
        if sink.kind == "pipe":
            return self._of_pipe(sink, hops)
        if sink.kind == "terminal":
            return self._of_terminal(sink, hops)
        if sink.kind == "closed":
            return Output(f"closed by pid {sink.pid}")
        if sink.kind == "hidden":
            return Output(f"unknown: pid {sink.pid} belongs to another user (needs root)")
        is_null = sink.target == "/dev/null"
        return Output(f"{_shown(sink.target)}: {'discarded' if is_null else 'not readable'}")

    def _of_pipe(self, pipe: Sink, hops: int) -> Output:
        readers = [
            pid
            for pid in self._neighbors()
            for sink in self._descriptors_of(pid)
            if sink.device_inode == pipe.device_inode and _flags(sink) & os.O_ACCMODE != os.O_WRONLY
        ]
        if not readers:
            return Output("a pipe whose reader is not visible: not readable")
        reader = next(filter(self._forwards, readers), readers[0])
        return self._through(reader, f"a pipe to pid {reader} ({_name(reader)})", hops)

    def _of_terminal(self, sink: Sink, hops: int) -> Output:
        is_own = procs.uid_of(sink.pid) == os.geteuid()
        pane = self._panes().get(sink.target) if is_own else None
        if pane is not None and _is_terminal(pane.tty, sink):
            return Output(f"tmux pane {_shown(pane.name)} (captured)", pane=pane)
        maker = self._maker_of(sink)
        if maker is not None:
            words = f"terminal {sink.target} from pid {maker} ({_name(maker)})"
            return self._through(maker, words, hops)
        if is_own:
            return Output(f"terminal {sink.target} outside tmux: not readable")
        return Output(f"another user's terminal {sink.target}: not readable")

    def _through(self, pid: int, words: str, hops: int) -> Output:
        """Where `pid` copies its input: the files that it writes, or else its own output."""
        if hops <= 0 or not self._forwards(pid):
            return Output(f"{words}: not readable")
        for sink in self._descriptors_of(pid) if _name(pid) in _SAVING else ():
            if sink.fd > 2 and sink.kind == "file" and os.access(sink.path, os.R_OK):
                return Output(f"{words}, which writes to {_shown(sink.target)}", file=sink)
        found = self._follow(sink_of(pid, 1), hops - 1)
        if found.key is None:
            return Output(f"{words}: not readable")
        return Output(f"{found.words} via {words}", file=found.file, pane=found.pane)

    def _descriptors_of(self, pid: int) -> list[Sink]:
        if pid not in self._open:
            self._open[pid] = [sink_of(pid, fd) for fd in _descriptors(pid)]
        return self._open[pid]

    def _forwards(self, pid: int) -> bool:
        return pid in self._launchers or _name(pid) in _FORWARDING

    def _maker_of(self, terminal: Sink) -> int | None:
        """The process that holds the other end of a pseudo-terminal."""
        number = terminal.target.rpartition("/")[2]
        for pid in self._neighbors():
            for sink in self._descriptors_of(pid):
                is_master = sink.target.endswith("ptmx")
                if is_master and _fdinfo(pid, sink.fd).get("tty-index") == number:
                    return pid
        return None


def _is_terminal(tty: str, sink: Sink) -> bool:
    """Whether the name refers to that terminal here; a container has its own."""
    try:
        status = os.stat(tty)  # noqa: PTH116 - hot
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == sink.device_inode


def _shown(name: str) -> str:
    """The name, safe to print and no longer than a line."""
    clean = sanitize(os.fsencode(name)).replace("\n", " ")
    return clean if len(clean) <= 160 else f"{clean[:60]}…{clean[-96:]}"


def open_log(sink: Sink) -> LogFile:
    """A file that a process holds open, to read as it grows.

    Raises:
        OSError: it cannot be opened or is not a regular file.
    """
    # the process may have replaced it with a device since, and opening some does harm
    place = os.open(sink.path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(place)
        same = (status.st_dev, status.st_ino) == sink.device_inode
        if not same or not stat.S_ISREG(status.st_mode):
            raise OSError(f"{sink.target} was replaced by another file")
        return LogFile(os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        os.close(place)


KEPT_LINES = 2000
FOLLOWED_BYTES = 1 << 20
"""How much of the end of a followed job's logs is read, at first and in each scan."""
LISTED_BYTES = 48 * 1024
"""The same for a job that is only listed."""
MAX_SOURCES = 256
PANE_EVERY_S = 2.0
LISTED_PANE_EVERY_S = 10.0
FIND_EVERY_S = 10.0
LISTED_FIND_EVERY_S = 30.0


class Source:
    """One destination of output."""

    def __init__(self, output: Output, is_followed: bool) -> None:
        """Raises OSError if the file can no longer be opened."""
        self.output = output
        self.ranks: tuple[int, ...] = ()
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = 0
        """Total number of lines ever added to `lines`."""
        self.file = LogStream(open_log(output.file)) if output.file is not None else None
        self.pane = PaneReader(output.pane) if output.pane is not None else None
        self.read_at_s = 0.0
        self._parser = LossParser()
        """For a pane."""
        self._cleaner = LineCleaner()
        self._first = True
        self._is_shared = output.file is None or appends(output.file)
        """Whether its first content may be from an earlier run, as in a pane."""
        self._max_bytes = FOLLOWED_BYTES if is_followed else LISTED_BYTES
        if self.file is not None and is_followed:
            self.file.on_text = lambda text: self._keep(self._cleaner.feed(text))

    @property
    def is_whole(self) -> bool:
        """Whether everything in it is known to be the job's, and was read."""
        return self.file is not None and self.file.is_whole and not self._is_shared

    @property
    def partial(self) -> str:
        """The unfinished last line."""
        return self._cleaner.partial if self.pane is None else self.pane.last

    def read(self, max_bytes: int) -> tuple[list[Reading], bool, int]:
        """(readings, whether they were written since the last read, bytes read)."""
        is_new, self._first = not self._first, False
        if self.pane is not None:
            readings, size = self._read_pane(self.pane), 0
        else:
            assert self.file is not None
            readings, size = self.file.read(min(max_bytes, self._max_bytes))
            if not is_new:
                # a progress bar at the end that does not move is as old as the rest
                readings += self.file.parser.settle()
        return ([] if self._is_shared and not is_new else readings), is_new, size

    def _read_pane(self, reader: PaneReader) -> list[Reading]:
        lines = reader.read()
        if lines is None:
            return []
        self._keep(lines)
        readings = self._parser.feed("".join(f"{line}\n" for line in lines).encode())
        if reader.last:
            readings += self._parser.peek(reader.last.encode())
        return readings

    def _keep(self, lines: list[str]) -> None:
        self.lines.extend(lines)
        self.count += len(lines)

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.log.close()


class JobOutput:
    """The outputs of one job. Close it."""

    def __init__(self, panes_by_tty: Callable[[ForeignJob], dict[str, Pane]]) -> None:
        self._panes = panes_by_tty
        self._sources: dict[object, Source] = {}
        self._of: dict[tuple[int | None, int], Output] = {}
        """By (rank, descriptor); rank None stands for the launcher."""
        self._pids: dict[int | None, int] = {}
        """By rank, the pid whose descriptors these are."""
        self._find_at_s = 0.0
        self._processes: tuple[tuple[int, int], ...] = ()
        self.is_followed = False
        """Whether it is read closely, and its lines are kept."""
        self.shared_default = False
        """Whether a line without a rank came from an output shared by several ranks."""

    def due(self, job: ForeignJob, now_s: float) -> bool:
        """Whether it is time to find the destinations again."""
        return now_s >= self._find_at_s or self._processes != _processes(job)

    def find(self, job: ForeignJob, now_s: float) -> None:
        """Find the destinations of all outputs; those already open are read on."""
        self._find_at_s = now_s + (FIND_EVERY_S if self.is_followed else LISTED_FIND_EVERY_S)
        self._processes = _processes(job)
        pids = [*job.launcher_pids, *(rank.pid for rank in job.ranks)]
        neighbors = functools.cache(lambda: neighbors_of(pids))
        finder = Finder(neighbors, functools.cache(lambda: self._panes(job)), job.launcher_pids)
        before, pids_before = self._of, self._pids
        self._of, self._pids = {}, dict(_writers(job))
        for rank, pid in self._pids.items():
            for fd in (1, 2):
                found = finder.find(pid, fd)
                known = before.get((rank, fd)) if pids_before.get(rank) == pid else None
                if found.key is None and known is not None and procs.is_ending(pid):
                    found = known  # its last lines still have to be read
                self._of[rank, fd] = found
        self._open()

    def _open(self) -> None:
        ranks: dict[object, dict[int, None]] = {}
        outputs: dict[object, Output] = {}
        for (rank, _), output in self._of.items():
            if output.key is not None and len(outputs) < MAX_SOURCES:
                outputs.setdefault(output.key, output)
                ranks.setdefault(output.key, {})
                if rank is not None:
                    ranks[output.key][rank] = None
        for key in [key for key in self._sources if key not in outputs]:
            self._sources.pop(key).close()
        for key, output in outputs.items():
            if key not in self._sources:
                try:
                    self._sources[key] = Source(output, self.is_followed)
                except OSError:
                    continue
            self._sources[key].ranks = tuple(ranks[key])

    def follow(self) -> None:
        """Read all outputs again, closely."""
        self.is_followed = True
        self.close()
        self._find_at_s = 0.0

    def read(
        self, now_s: float, budget: int, may_capture: bool
    ) -> tuple[list[tuple[Source, Reading, bool]], int]:
        """(new readings, bytes read).

        Each new reading is (source, reading, whether it was written since the first scan).
        """
        found: list[tuple[Source, Reading, bool]] = []
        used = 0
        for source in self._sources.values():
            if source.pane is not None:
                wait_s = PANE_EVERY_S if self.is_followed else LISTED_PANE_EVERY_S
                if not may_capture or now_s < source.read_at_s + wait_s:
                    continue
                may_capture = self.is_followed
            elif used >= budget:
                continue
            source.read_at_s = now_s
            readings, is_new, size = source.read(budget - used)
            used += size
            found += [(source, one, is_new) for one in readings]
        return found, used

    @property
    def is_whole(self) -> bool:
        """Whether everything that the job wrote was read."""
        return all(source.is_whole for source in self._sources.values())

    def rank_of(self, source: Source, reading: Reading, job: ForeignJob) -> int | None:
        """The reading's rank; None if on another host, or if the rank's own output has the reading.

        A launcher can both store what its ranks write and forward it.
        """
        rank = self._named(source, reading, job)
        if rank is None or rank in source.ranks or next(self._keys_of(rank), None) is None:
            return rank
        return None

    def _named(self, source: Source, reading: Reading, job: ForeignJob) -> int | None:
        if len(source.ranks) == 1:
            return source.ranks[0]
        here = [rank.rank for rank in job.ranks]
        if reading.rank is not None and len(here) > 1:
            return reading.rank if reading.rank in here else None
        if reading.local_rank is not None:
            by_local = {rank.local_rank: rank.rank for rank in job.ranks}
            return by_local.get(reading.local_rank)
        self.shared_default |= len(here) > 1
        return min(source.ranks or here, default=None)

    @property
    def has_panes(self) -> bool:
        """Whether reading involves tmux."""
        return any(source.pane is not None for source in self._sources.values())

    @property
    def written_at(self) -> float | None:
        """Unix time of the last known write to a file."""
        files = [source.file for source in self._sources.values() if source.file is not None]
        return max((file.log.written_at for file in files), default=None)

    def sources_of(self, rank: int | None) -> list[Source]:
        """The sources of a rank, or of the whole job for None, most informative first."""
        if rank is None:
            found = list(self._keys_of(None))
            found = found or [key for other in self._ranks() for key in self._keys_of(other)][:2]
        else:
            found = list(self._keys_of(rank)) or list(self._keys_of(None))
        return [self._sources[key] for key in dict.fromkeys(found) if key in self._sources]

    def _ranks(self) -> list[int]:
        return sorted({rank for rank, _ in self._of if rank is not None})

    def _keys_of(self, rank: int | None) -> Iterator[object]:
        for fd in (1, 2):
            output = self._of.get((rank, fd))
            if output is not None and output.key in self._sources:
                yield output.key

    def words(self) -> str:
        """Where the job's output goes and, if it is unreadable, why."""
        if not self._of:
            return "not determined yet"
        for rank in [*self._ranks()[:1], None]:
            output, errors = self._of.get((rank, 1)), self._of.get((rank, 2))
            if output is None:
                continue
            text = output.words
            if errors is not None and errors.words != text:
                text += f"; stderr: {errors.words}"
            others = [self._of[key] for key in self._of if key[1] == 1 and key[0] is not None]
            if rank is not None and any(other.key != output.key for other in others):
                text = f"rank {rank}: {text}"
            if self.shared_default and rank is not None:
                text += f"; lines without a rank are attributed to rank {rank}"
            return text
        return "unknown"

    def close(self) -> None:
        """Close all files."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()


def _processes(job: ForeignJob) -> tuple[tuple[int, int], ...]:
    return tuple((rank.pid, rank.start_ticks) for rank in job.ranks)


def _writers(job: ForeignJob) -> Iterator[tuple[int | None, int]]:
    """(rank, pid) of each process whose output counts, launcher first."""
    ranks = {rank.pid for rank in job.ranks}
    for pid in (job.root_pid, *job.launcher_pids):
        if pid not in ranks:
            yield None, pid
            break
    for rank in job.ranks:
        yield rank.rank, rank.pid
