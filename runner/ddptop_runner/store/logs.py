r"""Rank logs: found, read from any byte or from the end, and followed as they grow.

`LogFile` is the one reader; everything else here reads through it. What a log holds is cleaned by
`log_clean` before anyone sees it as lines.

The supervisor drops the head of a log that is too long by punching a hole into the file
(`disk.RankLog`), so a byte keeps its offset for ever, and nothing has to be written down.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from ddptop_runner.base import bounded, units
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.store.log_clean import LineCleaner, sanitize

BLOCK_BYTES = 1 << 18
MAX_TAIL_BYTES = 1 << 22
"""Where lines are wanted, the search for them ends here, plus 4 KiB per line: the progress bar of
days may be a single line."""
LOOK_BYTES = 256 * 1024
"""So much of a log's beginning and of its end tells whether its lines are tagged."""
FEWEST_RANKS = 4
"""For the lines of one rank, so many times as many lines are looked at first."""
END_READ_BYTES = 4 * 1024 * 1024
"""A progress bar without line ends may have written a megabyte after a traceback."""
END_KEPT_BYTES = 256 * 1024
LINE_BYTES = 4000
"""Of a longer line its two ends are kept."""
MAX_BLOCKS = 32
POLL_S = 0.2
"""How often a follower looks for more."""


# -- where logs are --------------------------------------------------------------------------------


def attempts(folder: RunFolder) -> list[int]:
    """The attempts that have a folder for logs, in order."""
    return _numbers(folder.logs_dir, "attempt-", "")


def ranks(folder: RunFolder, attempt: int) -> list[int]:
    """The ranks that have a log in an attempt, in order; `LAUNCHER` where there is one."""
    launcher = [LAUNCHER] if folder.log_file(attempt, LAUNCHER).exists() else []
    return [*launcher, *_numbers(folder.logs_dir / f"attempt-{attempt}", "rank-", ".log")]


def _numbers(directory: Path, prefix: str, suffix: str) -> list[int]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    middles = (
        name[len(prefix) : len(name) - len(suffix)]
        for name in names
        if name.startswith(prefix) and name.endswith(suffix)
    )
    return sorted(int(middle) for middle in middles if middle.isascii() and middle.isdigit())


# -- one log ---------------------------------------------------------------------------------------


def dropped_note(size_bytes: int, elsewhere: str | None = None) -> str:
    """The line that stands for the missing head of a log.

    Args:
        size_bytes: how much is missing.
        elsewhere: where it may be, of a log of another host.
    """
    why = elsewhere or "dropped: log limit reached or disk full"
    return f"──── {units.size(size_bytes)} of earlier output {why} ────"


def head_hole(fd: int) -> int:
    """How many bytes at the head of an open log were dropped."""
    try:
        hole = os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:  # no data at all, or no such operation
        hole = os.fstat(fd).st_size if error.errno == errno.ENXIO else 0
    # blocks that are reserved, and written to a moment ago, may count as a hole
    return hole if hole and os.pread(fd, 1, 0) == b"\0" else 0


class LogFile:
    """A log, opened for reading at its first byte.

    Raises:
        OSError: when the file cannot be opened; FileNotFoundError where it is something else.
    """

    def __init__(self, path: Path | int) -> None:
        """`path` may be a descriptor that is open already."""
        try:
            fd = path if isinstance(path, int) else bounded.open_regular(path)
            self._file = os.fdopen(fd, "rb", buffering=0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from error
        self._fd = self._file.fileno()
        self._hole = self._first = 0
        self.position = 0

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def first(self) -> int:
        """Where the first line starts that has not been dropped; 0 in most logs."""
        hole = head_hole(self._fd)
        if hole != self._hole:
            self._hole = self._first = hole
            if hole:  # a hole has whole blocks and ends inside a line
                newline = os.pread(self._fd, BLOCK_BYTES, hole).find(b"\n")
                self._first = hole + newline + 1
        return self._first

    @property
    def end(self) -> int:
        """The first byte that is not written yet."""
        return os.fstat(self._fd).st_size

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` is this one.

        Raises:
            OSError: there is none.
        """
        return os.path.samestat(os.fstat(self._fd), path.stat())

    @property
    def written_at(self) -> float:
        """Unix seconds of the last write."""
        return os.fstat(self._fd).st_mtime

    def seek(self, position: int) -> None:
        """Read on from there."""
        self.position = position

    def read(self, count: int) -> bytes:
        """Up to `count` bytes, none at the log's end; where they were dropped, a line saying so."""
        if self.position > self.end:  # cut short by someone: what is left is new
            self.position = 0
        data = os.pread(self._fd, count, self.position)
        if self.position >= (first := self.first):
            self.position += len(data)
            return data
        start, self.position = self.position, first
        return f"{chr(10) if start else ''}{dropped_note(first)}\n".encode()

    def read_new(self, max_bytes: int) -> tuple[bytes, bool]:
        """What was written from the position on; the last `max_bytes` where that is more.

        Returns:
            The bytes; whether some before them were passed over.
        """
        if self.position > self.end:
            self.position = 0
        start = max(self.position, self.first, self.end - max_bytes)
        missed = start != self.position
        data = os.pread(self._fd, max_bytes, start)
        if start < self.first:
            data, missed = b"", True
        self.position = start + len(data)
        return data, missed

    def between(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`, wherever the position is; zeros where dropped."""
        return os.pread(self._fd, max(0, stop - start), start)

    def tail_offset(self, count: int, max_bytes: int | None = None) -> int:
        r"""The byte at which the last `count` lines start, an unfinished last line counted.

        Reads from the end, at most `max_bytes` far; the byte may then lie inside a line. 0 where
        the log has fewer lines, be its head dropped or not.
        """
        first, end = self.first, self.end
        if count <= 0:
            return end
        low = first if max_bytes is None else max(first, end - max_bytes)
        # the byte before the end is no separator: whether it is `\n` or not, a line ends there
        position = max(end - 1, low)
        while position > low:
            start = max(low, position - BLOCK_BYTES)
            block = self.between(start, position)
            found = block.count(b"\n")
            if found >= count:
                index = len(block)
                for _ in range(count):
                    index = block.rfind(b"\n", 0, index)
                return start + index + 1
            count -= found
            position = start
        return low if low > first or count == 1 else 0  # 1: all lines that are left

    def speaker_offset(self, rank: int, count: int, max_bytes: int | None = None) -> int:
        """As `tail_offset`, of the lines of one rank, in a log whose lines say whose they are."""
        if count <= 0:
            return self.end
        lines = count * FEWEST_RANKS
        while True:
            start = self.tail_offset(lines, max_bytes)
            found = self._starts(max(start, self.first), rank, count)
            low = self.first if max_bytes is None else max(self.first, self.end - max_bytes)
            if len(found) >= count or start <= low:
                return found[0] if len(found) == count else start
            lines *= 8

    def _starts(self, start: int, rank: int, count: int) -> list[int]:
        """Where the last lines of one rank start, at most `count`."""
        found: deque[int] = deque(maxlen=count)
        mine = RankFilter(rank, is_tagged=True)
        self.seek(start)
        at = start
        rest = b""
        while block := self.read(BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                if mine.feed(line + b"\n"):
                    found.append(at)
                at += len(line) + 1
            if len(rest) > BLOCK_BYTES:  # a progress bar of days
                if mine.feed(rest):
                    found.append(at)
                at, rest = at + len(rest), b""
        if mine.feed(rest) + mine.finish():
            found.append(at)
        return list(found)

    def to_next_start(self) -> None:
        """Read on from where the next line or redraw starts, where the position is inside one."""
        position = self.position
        if position > self.first and self.between(position - 1, position) != b"\n":
            found = re.search(rb"[\r\n]", self.between(position, position + BLOCK_BYTES))
            self.position = position if found is None else position + found.end()


def are_tagged(path: Path) -> bool:
    """Whether lines of that log say whose they are; False where there is no such log."""
    with suppress(OSError), LogFile(path) as log:
        first, end = log.first, log.end
        return has_tag(log.between(first, first + LOOK_BYTES)) or has_tag(
            log.between(max(first, end - LOOK_BYTES), end)
        )
    return False


# -- the end of a log ------------------------------------------------------------------------------


def tail_lines(path: Path, count: int, max_bytes: int | None = None) -> Iterator[str]:
    """The last `count` lines of a log, cleaned, as they are read; none where there is no file.

    Args:
        path: the log.
        count: so many lines; an unfinished last one counts.
        max_bytes: start no further back than this, at the next line.
    """
    try:
        log = LogFile(path)
    except FileNotFoundError:
        return
    cleaner = LineCleaner()
    with log:
        log.seek(log.tail_offset(count, max_bytes))
        if max_bytes is not None:
            log.to_next_start()
        while block := log.read(BLOCK_BYTES):
            yield from cleaner.feed(block)
        yield from cleaner.finish()


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a log, cleaned; none where there is no such file.

    Reads only the end of the log. An unfinished last line counts.
    """
    lines = tail_lines(path, count, MAX_TAIL_BYTES + 4096 * count)
    return list(deque(lines, maxlen=max(count, 0)))


def tail_bytes(path: Path, max_bytes: int, before: int | None = None) -> bytes:
    """The end of a log; empty when there is none.

    Args:
        path: the log.
        max_bytes: so much of it.
        before: the byte at which the log is taken to end, None for its end.
    """
    with suppress(OSError), LogFile(path) as log:
        end = log.end if before is None else min(before, log.end)
        start = max(log.first, end - max_bytes)
        return log.between(start, end) if start < end else b""
    return b""


def log_end(
    path: Path,
    kept_bytes: int = END_KEPT_BYTES,
    before: int | None = None,
    read_bytes: int = END_READ_BYTES,
) -> str:
    """The last lines of a log, cleaned, long enough to hold a traceback; empty without a log.

    Args:
        path: the log.
        kept_bytes: about this much text, after long lines were shortened.
        before: the byte at which the log is taken to end, None for its end.
        read_bytes: no more than this is read for it.
    """
    return sanitize(shortened(tail_bytes(path, read_bytes, before), kept_bytes))


def shortened(data: bytes, kept_bytes: int) -> bytes:
    """The last lines of `data`, and of a long one its ends: its end is what a bar last drew."""
    kept: list[bytes] = []
    size = 0
    for line in reversed(data.split(b"\n")):
        if len(line) > LINE_BYTES:
            line = line[: LINE_BYTES // 2] + b" [...] " + line[-LINE_BYTES // 2 :]
        size += len(line) + 1
        if size > kept_bytes and kept:
            break
        kept.append(line)
    return b"\n".join(reversed(kept))


# -- lines of several logs -------------------------------------------------------------------------


class LogLine(msgspec.Struct, frozen=True):
    """One clean line of a rank's log."""

    attempt: int
    rank: int | None
    """`LAUNCHER` of what a command wrote; None: a note that this attempt begins."""
    text: str

    def prefixed(self) -> str:
        """The line as it stands among those of other ranks."""
        return self.text if self.rank is None else f"{prefix(self.rank)}{self.text}"


def prefix(rank: int) -> str:
    """What stands before a line of one log among those of others."""
    return "[launcher] " if rank == LAUNCHER else f"[rank {rank}] "


def separator(attempt: int) -> str:
    """What stands between the lines of one attempt and the next."""
    return f"──── attempt {attempt} ────"


def stream_tails(
    folder: RunFolder, attempt: int, count: int, only: list[int] | None = None
) -> Iterator[LogLine]:
    """The last `count` lines of each rank, rank by rank, as they are read.

    Log lines carry no time, so those of several ranks cannot be put in the order in which they
    were written; following does interleave them, as they arrive.
    """
    for rank in ranks(folder, attempt) if only is None else only:
        for text in tail_lines(folder.log_file(attempt, rank), count):
            yield LogLine(attempt, rank, text)


class LogChunk(msgspec.Struct, frozen=True):
    """Bytes that a rank wrote."""

    attempt: int
    rank: int | None
    """None: no bytes, but the note that this attempt begins."""
    data: bytes
    is_full: bool = False
    """Whether there was more than one read takes."""


class _OpenLog(LogFile):
    """One rank's log and how far it has been read."""

    def __init__(self, path: Path, attempt: int, rank: int, speaker: int | None) -> None:
        super().__init__(path)
        self.attempt = attempt
        self.rank = rank
        self.filter: RankFilter | None = None
        if speaker is not None:
            self.filter = RankFilter(speaker, is_tagged=are_tagged(path))

    def to_tail(self, count: int, max_bytes: int | None) -> None:
        """Read on from the last `count` lines, of those that are wanted."""
        if self.filter is not None and self.filter.is_tagged:
            self.seek(self.speaker_offset(self.filter.rank, count, max_bytes))
        else:
            self.seek(self.tail_offset(count, max_bytes))

    def chunk(self) -> LogChunk | None:
        """What can be read now; None at the end."""
        is_dropped = self.position < self.first
        data = self.read(BLOCK_BYTES)
        is_full = bool(data) and self.position < self.end
        wanted = data if self.filter is None or is_dropped else self.filter.feed(data)
        return LogChunk(self.attempt, self.rank, wanted, is_full) if wanted or is_full else None

    def rest(self) -> LogChunk | None:
        """What the filter still held back, once no more comes."""
        held = b"" if self.filter is None else self.filter.finish()
        return LogChunk(self.attempt, self.rank, held) if held else None


class ByteFollower:
    """Follows logs as they are written, from one attempt to the next, and loses nothing.

    The next attempt is looked for before the present one is read, and entered once that read has
    reached the end. What a left-over process of the former attempt still writes is read too.
    """

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
        max_tail_bytes: int | None = None,
        speaker: int | None = None,
    ) -> None:
        """Nothing is opened before the first `poll`.

        Args:
            folder: the job's.
            only: the ranks to follow; None follows all, later ones included.
            attempt: stay with this attempt; None starts with the latest and goes on.
            is_over: whether the job has ended. It is asked before each read, so that what was
                written before the end is read.
            tail: start with so many last lines of each log; None starts at the beginning.
            max_tail_bytes: start no further back than this, be it inside a line.
            speaker: of the launcher's log, follow the lines of this rank alone where lines say
                whose they are; `only` is then not looked at.
        """
        self._folder = folder
        self._only = only if speaker is None else [LAUNCHER]
        self._speaker = speaker
        self._fixed = attempt
        self._is_over = is_over
        self._tail = tail
        self._max_tail_bytes = max_tail_bytes
        self._attempt: int | None = None
        self._logs: dict[int, _OpenLog] = {}
        self._former: list[_OpenLog] = []

    @property
    def is_tagged(self) -> bool:
        """Whether lines of the launcher's log were seen to say whose they are."""
        return any(log.filter is not None and log.filter.is_tagged for log in self._logs.values())

    def close(self) -> None:
        """Let go of the files."""
        for log in (*self._former, *self._logs.values()):
            log.close()
        self._former, self._logs = [], {}

    def poll(self) -> list[LogChunk]:
        """What is new since the call before, without waiting; empty when all has been read."""
        existing = attempts(self._folder)
        if self._attempt is None:
            if self._fixed is not None:
                self._attempt = self._fixed
            elif existing:
                self._attempt = existing[-1]
            else:
                return []
            self._open(self._attempt)
            if self._tail is not None:
                for log in self._logs.values():
                    log.to_tail(self._tail, self._max_tail_bytes)
        chunks = self._read(self._attempt)
        later = [number for number in existing if number > self._attempt]
        if (
            not later
            or self._fixed is not None
            or any(chunk.attempt == self._attempt and chunk.is_full for chunk in chunks)
        ):
            return chunks
        for log in self._former:
            log.close()
        self._former, self._logs = list(self._logs.values()), {}
        self._attempt = later[0]
        return [*chunks, LogChunk(self._attempt, None, b""), *self._read(self._attempt)]

    def batches(self, poll_s: float = POLL_S) -> Iterator[list[LogChunk]]:
        """What each poll finds, empty lists included, until the job is over and all was read."""
        while True:
            over = self._is_over() or self._superseded()
            chunks = self.poll()
            yield chunks
            if over and not chunks:
                logs = (*self._former, *self._logs.values())
                yield [chunk for log in logs if (chunk := log.rest())]
                return
            if not over and not any(chunk.is_full for chunk in chunks):
                time.sleep(poll_s)

    def _superseded(self) -> bool:
        """Whether the one attempt that is followed has made way for a later one."""
        return self._fixed is not None and any(n > self._fixed for n in attempts(self._folder))

    def _open(self, attempt: int) -> None:
        """Open the logs that have appeared since the call before."""
        for rank in ranks(self._folder, attempt):
            if rank in self._logs or (self._only is not None and rank not in self._only):
                continue
            try:
                path = self._folder.log_file(attempt, rank)
                self._logs[rank] = _OpenLog(path, attempt, rank, self._speaker)
            except FileNotFoundError:  # removed since it was listed
                continue

    def _read(self, attempt: int) -> list[LogChunk]:
        self._open(attempt)
        logs = (*self._former, *self._logs.values())
        return [chunk for log in logs if (chunk := log.chunk())]


class LogFollower:
    """Follows logs as clean lines; a note stands between the lines of two attempts."""

    def __init__(
        self,
        folder: RunFolder,
        only: Collection[int] | None = None,
        attempt: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        tail: int | None = None,
        speaker: int | None = None,
    ) -> None:
        """The arguments are those of `ByteFollower`."""
        limit = None if tail is None else MAX_TAIL_BYTES + 4096 * tail
        self._source = ByteFollower(folder, only, attempt, is_over, tail, limit, speaker)
        self._cleaners: dict[tuple[int, int], LineCleaner] = {}

    @property
    def is_tagged(self) -> bool:
        """As of `ByteFollower`."""
        return self._source.is_tagged

    def __iter__(self) -> Iterator[LogLine]:
        """Lines as they come, until the job is over and everything was read."""
        for lines in self.batches():
            yield from lines

    def batches(self, poll_s: float = POLL_S) -> Generator[list[LogLine], None, None]:
        """The lines of each poll, empty lists included, to the end."""
        with closing(self._source):
            for chunks in self._source.batches(poll_s):
                yield self._clean(chunks)
            yield self._finish()

    def poll(self) -> list[LogLine]:
        """The lines that have ended since the call before, without waiting.

        At most 8 MiB of each log are read; more is left to the next call.
        """
        lines = []
        for _ in range(MAX_BLOCKS):
            chunks = self._source.poll()
            lines += self._clean(chunks)
            if not any(chunk.is_full for chunk in chunks):
                break
        return lines

    def close(self) -> None:
        """Let go of the files, where `poll` was used."""
        self._source.close()

    def partial(self) -> dict[int, str]:
        """By rank: the line that it has not ended yet, such as a progress bar's present state."""
        return {rank: c.partial for (_, rank), c in self._cleaners.items() if c.partial}

    def _clean(self, chunks: list[LogChunk]) -> list[LogLine]:
        lines = []
        for chunk in chunks:
            if chunk.rank is None:
                lines += self._finish()
                lines.append(LogLine(chunk.attempt, None, separator(chunk.attempt)))
                continue
            cleaner = self._cleaners.setdefault((chunk.attempt, chunk.rank), LineCleaner())
            lines += [LogLine(chunk.attempt, chunk.rank, t) for t in cleaner.feed(chunk.data)]
        return lines

    def _finish(self) -> list[LogLine]:
        """The lines that no newline ended."""
        lines = [
            LogLine(attempt, rank, text)
            for (attempt, rank), cleaner in sorted(self._cleaners.items())
            for text in cleaner.finish()
        ]
        self._cleaners.clear()
        return lines


def last_words(
    folder: RunFolder, attempt: int, rank: int | None, count: int
) -> tuple[int, list[str]]:
    """Whose last lines there are to see of one rank in an attempt, and these, cleaned.

    Args:
        folder: the job's.
        attempt: which.
        rank: whose; of a command, whose ranks have no logs of their own, its lines of the one log,
            or where they do not say whose they are, all of `LAUNCHER`. None: those.
        count: so many lines.
    """
    if rank is not None and folder.log_file(attempt, rank).exists():
        return rank, last_lines(folder.log_file(attempt, rank), count)
    lines = [line.text for line in LogFollower(folder, [LAUNCHER], attempt, _ended, count, rank)]
    is_theirs = rank is not None and are_tagged(folder.log_file(attempt, LAUNCHER))
    return rank if rank is not None and is_theirs else LAUNCHER, lines[-count:]


def _ended() -> bool:
    return True


# -- whose line it is: launchers put the rank before each line of a shared log ---------------------

# Known are `[0]<stdout>:` of horovodrun, `[1,0]<stderr>:` of mpirun -tag-output, and
# `[default0]:` of torchrun --tee.
MAX_TAG_BYTES = 40

_ANYWHERE = rb"\[(?:\d{1,9},)?(?P<out>\d{1,9})\]<std(?:out|err)>:"
_AT_START = rb"^\[default(?P<role>\d{1,9})\]:"
_TAG = re.compile(_ANYWHERE + rb"|" + _AT_START)
_PART_OF_TAG = re.compile(rb"\[(?:\d*,?\d*(?:\](?:<[a-z]{0,6}>?)?)?|[a-z]{0,7}\d*\]?)\Z")
_LINE_TAG = re.compile(rb"^(?:" + _ANYWHERE + rb")|" + _AT_START, re.MULTILINE)


def has_tag(data: bytes) -> bool:
    """Whether a line of those bytes says whose it is."""
    return _LINE_TAG.search(data) is not None


class RankFilter:
    """Keeps the lines of one rank out of the bytes of a shared log, fed in pieces of any size.

    mpirun tags what it passes on, be it a line or a part of one: bytes belong to the last tag
    before them in their line. A line without a tag is the launcher's own.

    Args:
        rank: whose lines.
        is_tagged: whether the log is known to have tags; until one is seen, all is kept otherwise.
    """

    def __init__(self, rank: int, *, is_tagged: bool = False) -> None:
        self.rank = rank
        self.is_tagged = is_tagged
        """Whether a tag was seen, or there are known to be some."""
        self._held = b""
        """The end of a piece that may be the beginning of a tag."""
        self._at_start = True
        self._keeps = not is_tagged
        self._kept_some = False
        """Of the present line."""
        self.spoke = False
        """Whether the last line that has ended was the rank's, in part at least."""

    def feed(self, data: bytes) -> bytes:
        """What of the next bytes is the rank's."""
        *lines, rest = (self._held + data).split(b"\n")
        self._held = b""
        kept = [self._take(line, ended=True) for line in lines]
        bracket = rest.rfind(b"[", -MAX_TAG_BYTES)
        if bracket >= 0 and _PART_OF_TAG.match(rest, bracket):
            rest, self._held = rest[:bracket], rest[bracket:]
        if rest:
            kept.append(self._take(rest, ended=False))
        return b"".join(kept)

    def finish(self) -> bytes:
        """What was held back, once no more comes."""
        held, self._held = self._held, b""
        return self._take(held, ended=False) if held else b""

    def _take(self, line: bytes, *, ended: bool) -> bytes:
        kept = []
        at = 0
        for tag in _TAG.finditer(line):
            if tag["role"] is not None and not self._at_start:
                continue
            if self._keeps:
                kept.append(line[at : tag.start()])
            self.is_tagged = True
            self._keeps = int(tag["out"] or tag["role"]) == self.rank
            at = tag.start()
        if self._keeps:
            kept.append(line[at:])
        self._kept_some = self._kept_some or self._keeps or any(kept)
        self._at_start = ended
        if not ended:
            return b"".join(kept)
        self.spoke = self._kept_some
        newline = b"\n" if self._kept_some else b""
        self._keeps, self._kept_some = not self.is_tagged, False
        return b"".join(kept) + newline
