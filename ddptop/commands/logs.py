"""`ddptop logs`: what ranks wrote, from the end of their logs, or as it comes.

A terminal gets clean lines, so that no log can clear the screen; a pipe or a file gets the bytes
as they were written.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Literal

from ddptop.output import say
from ddptop_runner import logs
from ddptop_runner.errors import DamagedFileError, DdptopError, UsageError
from ddptop_runner.log_ranges import LogFile
from ddptop_runner.logs import ByteFollower, LogChunk, LogFollower, LogLine
from ddptop_runner.paths import RunFolder
from ddptop_runner.spec import read_spec

MAX_RAW_LINE_BYTES = 1 << 20
"""A longer line of one rank is cut where other ranks' lines stand between."""


def run(
    folder: RunFolder,
    rank: int | Literal["all"],
    follow: bool,
    lines: int,
    attempt: int | None,
    is_over: Callable[[], bool],
) -> int:
    """Print the last lines of a rank's log, or of every rank's, and go on with what follows.

    Args:
        folder: the job's.
        rank: one rank, or all, each line then with its rank before it.
        follow: go on until the job is over, through its later attempts unless one was chosen.
        lines: so many last lines of each rank.
        attempt: the attempt; None is the latest.
        is_over: whether the job has ended.

    Raises:
        UsageError: there is no such rank or attempt.
        DdptopError: there is no log yet, and no waiting for it.
    """
    _check(folder, rank, attempt, wait=follow and not is_over())
    only = None if rank == "all" else [rank]
    on_terminal = sys.stdout.isatty()
    if follow and on_terminal:
        _follow_lines(LogFollower(folder, only, attempt, is_over, lines), rank == "all")
    elif follow:
        _follow_bytes(ByteFollower(folder, only, attempt, is_over, lines), rank == "all")
    else:
        existing = logs.attempts(folder)
        chosen = existing[-1] if attempt is None else attempt
        if on_terminal:
            _put_lines(logs.stream_tails(folder, chosen, lines, only), rank == "all")
        else:
            _copy_tails(folder, chosen, only, lines)
        if attempt is None and chosen > existing[0]:
            say(f"ddptop: this is attempt {chosen}; --attempt N shows {_listed(existing[:-1])}")
    return 0


def _check(folder: RunFolder, rank: int | Literal["all"], attempt: int | None, wait: bool) -> None:
    """Refuse what there is no log of; with `wait`, accept what may still come."""
    existing = logs.attempts(folder)
    if attempt is not None and existing and attempt not in existing:
        raise UsageError(
            f"{folder.job} has no log of attempt {attempt}", f"there are {_listed(existing)}"
        )
    everywhere = sorted({number for a in existing for number in logs.ranks(folder, a)})
    if rank != "all" and rank not in everywhere:
        expected = _expected_ranks(folder) or everywhere
        if expected and rank not in expected:
            raise UsageError(
                f"{folder.job} has no rank {rank}", f"its ranks are {_listed(expected)}"
            )
    if wait:
        return
    if not everywhere:
        raise DdptopError(f"{folder.job} has no log yet", "-f waits for it")
    shown = existing[-1] if attempt is None else attempt
    there = logs.ranks(folder, shown)
    if rank != "all" and rank not in there:
        remedy = f"those with one are {_listed(there)}" if there else "-f waits for it"
        raise DdptopError(f"rank {rank} of {folder.job} has no log in attempt {shown}", remedy)


def _expected_ranks(folder: RunFolder) -> list[int]:
    try:
        return list(range(read_spec(folder).nproc))
    except DamagedFileError:
        return []


def _listed(numbers: list[int]) -> str:
    """Ascending numbers as `0-3, 5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)


def _put(text: str) -> None:
    """Write text to stdout, whatever its encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))


def _put_lines(lines: Iterable[LogLine], with_rank: bool) -> None:
    for line in lines:
        _put(f"{line.prefixed() if with_rank else line.text}\n")


def _copy_tails(folder: RunFolder, attempt: int, only: list[int] | None, lines: int) -> None:
    """Copy the ends of logs to stdout as they are."""
    for rank in logs.ranks(folder, attempt) if only is None else only:
        with LogFile(folder.log_file(attempt, rank)) as log:
            log.seek(log.tail_offset(lines))
            lines_of = _RawLines()
            while block := log.read(logs.BLOCK_BYTES):
                sys.stdout.buffer.write(block if only else lines_of.take(rank, block))
            sys.stdout.buffer.write(lines_of.rest())
    sys.stdout.buffer.flush()


class _RawLines:
    """Cuts the bytes of several ranks into lines, each with its rank before it."""

    def __init__(self) -> None:
        self._open: dict[int, bytes] = {}

    def take(self, rank: int, data: bytes) -> bytes:
        """The lines that are complete now."""
        *ended, rest = (self._open.pop(rank, b"") + data).split(b"\n")
        if len(rest) > MAX_RAW_LINE_BYTES:
            ended.append(rest)
        elif rest:
            self._open[rank] = rest
        return b"".join(b"[rank %d] %b\n" % (rank, line) for line in ended)

    def rest(self) -> bytes:
        """The lines that nothing ended."""
        return b"".join(self.take(rank, b"\n") for rank in sorted(self._open))


def _follow_bytes(follower: ByteFollower, with_rank: bool) -> None:
    raw = _RawLines()

    def write(chunk: LogChunk) -> None:
        if chunk.rank is None:
            sys.stdout.buffer.write(raw.rest())
            sys.stdout.buffer.flush()
            say(f"ddptop: attempt {chunk.attempt}")
        else:
            data = raw.take(chunk.rank, chunk.data) if with_rank else chunk.data
            sys.stdout.buffer.write(data)

    with follower:
        for chunks in follower.batches():
            for chunk in chunks:
                write(chunk)
            sys.stdout.buffer.flush()
            _check_reader()
        sys.stdout.buffer.write(raw.rest())
        sys.stdout.buffer.flush()


def _follow_lines(follower: LogFollower, with_rank: bool) -> None:
    """Print lines as they come; the line that one rank is still writing stands below them."""
    shown = ""
    with closing(follower.batches()) as batches:
        for lines in batches:
            partial = "" if with_rank else _fitting(" ".join(follower.partial().values()))
            if lines or partial != shown:
                if shown:
                    _put("\r\x1b[K")
                _put_lines(lines, with_rank)
                _put(partial)
                shown = partial
                sys.stdout.flush()
            _check_reader()


def _fitting(text: str) -> str:
    """As much of a line as one row of the terminal holds."""
    from rich.cells import cell_len, set_cell_size

    columns = shutil.get_terminal_size().columns - 1
    text = text.expandtabs()
    return set_cell_size(text, columns) if cell_len(text) > columns else text


def _check_reader() -> None:
    """Leave when nobody reads any more: a closed pipe tells only those who write.

    Raises:
        BrokenPipeError: the reader, or the terminal, is gone.
    """
    try:
        fd = sys.stdout.fileno()
    except OSError:  # not a real file, as under a test's capture
        return
    poll = select.poll()
    poll.register(fd, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError(os.strerror(32))
