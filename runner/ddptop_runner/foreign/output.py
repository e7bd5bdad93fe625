"""Finds where the output of a job goes and reads it there without consuming it.

A regular file is read as it grows, even if deleted or renamed while the process holds it open. A
pipe to `tee` leads to the file that it writes; a terminal leads to the tmux pane that shows it.
Anything else is named, with the reason why it cannot be read. Nothing here blocks: only regular
files are ever opened.

Of tmux, only `list-panes` and `capture-pane -p` are used: nothing is attached, resized, or typed,
and there is no `pipe-pane`, which would end the user's own pipe. A server that does not answer is
skipped for a while.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddptop_runner.base.files import is_private_folder
from ddptop_runner.foreign.types import ForeignJob
from ddptop_runner.host import procs
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


def is_own_server(socket: str) -> bool:
    """Whether the path is a socket in a folder that no other user can write.

    A tmux client obeys its server, even to the point of executing a file, and another user can set
    $TMUX.
    """
    folder, _, name = socket.rpartition("/")
    if not socket.startswith("/") or name in ("", ".", "..") or not is_private_folder(folder):
        return False
    try:
        return stat.S_ISSOCK(os.lstat(socket).st_mode)
    except (OSError, ValueError):
        return False


def list_panes(socket: str) -> dict[str, Pane]:
    """All panes of this server, by terminal such as `/dev/pts/3`."""
    panes = {}
    # not `Server.panes`: it asks for every format and splits at a character that names may have
    for line in _ask(socket, "list-panes", "-a", "-F", _FORMAT) or ():
        parts = line.split("\t")
        if len(parts) == 3:
            panes[parts[0]] = Pane(socket, parts[1], parts[2])
    return panes


def panes_of(job: ForeignJob) -> dict[str, Pane]:
    """Panes of the tmux server that the job was started in; none for another user's job."""
    if procs.uid_of(job.root_pid) != os.geteuid():
        return {}
    socket = (procs.environ_value(job.root_pid, "TMUX") or "").split(",")[0]
    return list_panes(socket) if is_own_server(socket) else {}


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


MAX_DESCRIPTORS = 512
"""Descriptors examined of a `tee`."""
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


@dataclass(frozen=True)
class Output:
    """What one descriptor of a process refers to, as far as it can be read."""

    words: str
    """For the user: where the output goes and, if it cannot be read, why."""
    path: str | None = None
    """Opens the file, even if it was renamed or deleted; None if it is no file."""
    inode: tuple[int, int] | None = None
    """Device and inode of the file."""
    is_appended: bool = False
    """Whether the file was opened for appending, so that it may contain an earlier run's output."""
    pane: Pane | None = None

    @property
    def key(self) -> object:
        """Equal for outputs that are read from the same place; None if it cannot be read."""
        return self.inode if self.pane is None else (self.pane.socket, self.pane.id)


class Finder:
    """Finds the destinations of a job's outputs; make one per search."""

    def __init__(self, job: ForeignJob, captures: bool) -> None:
        """`captures`: whether tmux panes can be read."""
        self._job = job
        self._panes: dict[str, Pane] | None = None if captures else {}
        self._tees: list[int] | None = None

    def find(self, pid: int, fd: int) -> Output:
        """The destination of that descriptor's output; never raises, opens nothing."""
        path = f"/proc/{pid}/fd/{fd}"
        try:
            target = os.readlink(path)  # noqa: PTH115 - a Path would resolve `pipe:[1]`
            status = os.stat(path)  # noqa: PTH116
        except PermissionError:
            return Output(f"unknown: pid {pid} belongs to another user (needs root)")
        except OSError:
            return Output(f"closed by pid {pid}")
        if stat.S_ISREG(status.st_mode):
            return _of_file(path, target, status)
        if stat.S_ISFIFO(status.st_mode):
            return self._of_pipe(status)
        if stat.S_ISCHR(status.st_mode) and target.startswith(_TERMINALS):
            return self._of_terminal(pid, target, status)
        is_null = target == "/dev/null"
        return Output(f"{_shown(target)}: {'discarded' if is_null else 'not readable'}")

    def _of_pipe(self, pipe: os.stat_result) -> Output:
        if self._tees is None:
            self._tees = _tees_near(self._job.pids)
        tee = next((one for one in self._tees if _is_same(f"/proc/{one}/fd/0", pipe)), None)
        for fd in () if tee is None else range(3, 3 + _count(f"/proc/{tee}/fd")):
            path = f"/proc/{tee}/fd/{fd}"
            try:
                target, status = os.readlink(path), os.stat(path)  # noqa: PTH115, PTH116
            except OSError:
                continue
            # another pipe is not followed: many could lead to each other
            found = _of_file(path, target, status) if stat.S_ISREG(status.st_mode) else None
            if found is not None and found.path is not None:
                return found
        return Output("a pipe: not readable unless it leads to `tee FILE`")

    def _of_terminal(self, pid: int, tty: str, status: os.stat_result) -> Output:
        if procs.uid_of(pid) != os.geteuid():
            return Output(f"another user's terminal {tty}: not readable")
        if self._panes is None:
            self._panes = panes_of(self._job)
        pane = self._panes.get(tty)
        # a container has its own terminal of that name
        if pane is not None and _is_same(tty, status):
            return Output(f"tmux pane {_shown(pane.name)} (captured)", pane=pane)
        return Output(f"terminal {tty} outside tmux: not readable")


def _of_file(path: str, target: str, status: os.stat_result) -> Output:
    shown = _shown(target)
    if not os.access(path, os.R_OK):
        return Output(f"file {shown}: no read permission")
    inode = (status.st_dev, status.st_ino)
    return Output(f"file {shown}", path, inode, is_appended=_flags(path) & os.O_APPEND != 0)


def _flags(path: str) -> int:
    """The flags with which a descriptor was opened; if unknown, for appending."""
    try:
        info = procs.read_up_to(path.replace("/fd/", "/fdinfo/"), 4096).decode("ascii", "replace")
        return int(info.partition("flags:")[2].split()[0], 8)
    except (OSError, IndexError, ValueError):
        return os.O_APPEND


def _is_same(path: str, status: os.stat_result) -> bool:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)


def _count(folder: str) -> int:
    try:
        return min(len(os.listdir(folder)), MAX_DESCRIPTORS)
    except OSError:
        return 0


def _tees_near(pids: Iterable[int]) -> list[int]:
    """The `tee` processes in the sessions of these processes."""
    sessions = {fields[3] for pid in pids if (fields := procs.stat_fields(pid))}
    return [
        pid
        for pid in procs.all_pids()
        if (named := procs.name_and_stat(pid)) and named[0] == "tee" and named[1][3] in sessions
    ]


def _shown(name: str) -> str:
    """The name, safe to print and no longer than a line."""
    clean = sanitize(os.fsencode(name)).replace("\n", " ")
    return clean if len(clean) <= 160 else f"{clean[:60]}…{clean[-96:]}"


def open_log(output: Output) -> LogFile:
    """A file that a process holds open, to read as it grows.

    Raises:
        OSError: it cannot be opened or is not a regular file.
    """
    # the process may have replaced it with a device since, and opening some does harm
    place = os.open(output.path or "", os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(place)
        same = (status.st_dev, status.st_ino) == output.inode
        if not same or not stat.S_ISREG(status.st_mode):
            raise OSError(f"{output.words} was replaced by another file")
        return LogFile(os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        os.close(place)


KEPT_LINES = 2000
READ_BYTES = 1 << 20
"""How much of the end of a job's output is read, at first and in each scan."""
MAX_SOURCES = 256
PANE_EVERY_S = 2.0
FIND_EVERY_S, FIND_EVERY_MOST_S = 10.0, 60.0
"""Outputs are searched for again after such a pause, twice as long each time."""


class Source:
    """One destination of output."""

    def __init__(self, output: Output) -> None:
        """Raises OSError if the file can no longer be opened."""
        self.output = output
        self.ranks: tuple[int, ...] = ()
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = 0
        """Total number of lines ever added to `lines`."""
        self.file = LogStream(open_log(output)) if output.pane is None else None
        self.pane = PaneReader(output.pane) if output.pane is not None else None
        self.read_at_s = float("-inf")
        self._parser = LossParser()
        """For a pane."""
        self._cleaner = LineCleaner()
        self._first = True
        self._is_shared = output.pane is not None or output.is_appended
        """Whether its first content may be from an earlier run."""
        if self.file is not None:
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
            readings, size = self.file.read(max_bytes)
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

    def __init__(self, captures: bool = True) -> None:
        """`captures`: whether tmux panes are read."""
        self._captures = captures
        self._sources: dict[object, Source] = {}
        self._of: dict[tuple[int | None, int], Output] = {}
        """By (rank, descriptor); rank None stands for the launcher."""
        self._pids: dict[int | None, int] = {}
        """By rank, the pid whose descriptors these are."""
        self._find_at_s = self._pause_s = 0.0

    def find(self, job: ForeignJob, now_s: float) -> None:
        """Find the destinations of all outputs if it is time; those already open are read on."""
        before, pids_before = self._of, self._pids
        pids = dict(_writers(job))
        if now_s < self._find_at_s and pids == pids_before:
            return
        is_same = pids == pids_before
        self._pause_s = min(2 * self._pause_s, FIND_EVERY_MOST_S) if is_same else FIND_EVERY_S
        self._find_at_s = now_s + self._pause_s
        finder = Finder(job, self._captures)
        self._of, self._pids = {}, pids
        for rank, pid in pids.items():
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
                    self._sources[key] = Source(output)
                except OSError:
                    continue
            self._sources[key].ranks = tuple(ranks[key])

    def read(self, now_s: float) -> Iterator[tuple[Source, Reading, bool]]:
        """Each new reading, with its source and whether it was written since the first scan."""
        budget = READ_BYTES
        for source in self._sources.values():
            is_waiting = source.pane is not None and now_s < source.read_at_s + PANE_EVERY_S
            if budget <= 0 or is_waiting:
                continue
            source.read_at_s = now_s
            readings, is_new, size = source.read(budget)
            budget -= size
            for reading in readings:
                yield source, reading, is_new

    @property
    def is_whole(self) -> bool:
        """Whether everything that the job wrote was read."""
        return all(source.is_whole for source in self._sources.values())

    def rank_of(self, source: Source, reading: Reading, job: ForeignJob) -> int | None:
        """The reading's rank; None if on another host, or if the rank's own output has the reading.

        A launcher can both store what its ranks write and forward it.
        """
        rank = _named(source, reading, job)
        if rank is None or rank in source.ranks or next(self._keys_of(rank), None) is None:
            return rank
        return None

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
        first = next(iter(self._ranks()), None)
        readable = (one for one in (first, None) if next(self._keys_of(one), None) is not None)
        rank = next(readable, first)
        output, errors = self._of[rank, 1], self._of[rank, 2]
        text = output.words
        if errors.words != text:
            text += f"; stderr: {errors.words}"
        stdouts = {one.key for (of, fd), one in self._of.items() if fd == 1 and of is not None}
        return f"rank {rank}: {text}" if rank is not None and len(stdouts) > 1 else text

    def close(self) -> None:
        """Close all files."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()


def _named(source: Source, reading: Reading, job: ForeignJob) -> int | None:
    """The rank that a line names, or else the first one that writes there."""
    if len(source.ranks) == 1:
        return source.ranks[0]
    here = [rank.rank for rank in job.ranks]
    if reading.rank is not None and len(here) > 1:
        return reading.rank if reading.rank in here else None
    if reading.local_rank is not None:
        by_local = {rank.local_rank: rank.rank for rank in job.ranks}
        return by_local.get(reading.local_rank)
    return min(source.ranks or here, default=None)


def _writers(job: ForeignJob) -> Iterator[tuple[int | None, int]]:
    """(rank, pid) of each process whose output counts, launcher first."""
    ranks = {rank.pid for rank in job.ranks}
    for pid in (job.root_pid, *job.launcher_pids):
        if pid not in ranks:
            yield None, pid
            break
    for rank in job.ranks:
        yield rank.rank, rank.pid
