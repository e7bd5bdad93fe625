"""`ddptop logs`: the end of the ranks' logs, optionally followed.

Lines are printed without control sequences, and of one that was drawn over, such as a progress bar,
only its last state. The original bytes are in the log files.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Literal

from ddptop.output import info
from ddptop.style import clip
from ddptop_runner.base.errors import DdptopError, UsageError
from ddptop_runner.base.paths import LAUNCHER, RunFolder
from ddptop_runner.base.units import span
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.store import logs
from ddptop_runner.store.logs import LogFollower


def run(
    folder: RunFolder,
    spec: JobSpec,
    rank: int | Literal["all"] | None,
    follow: bool,
    lines: int,
    attempt: int | None,
    is_over: Callable[[], bool],
) -> int:
    """Print the last lines of one rank's log or of all logs, and follow them if requested.

    A command has a single log, which is shown for any rank.

    Args:
        folder: the job's folder.
        spec: how it was launched.
        rank: one rank, or all, with the rank before each line; None is rank 0, or for a command its
            whole output, like `model.LAUNCHER`.
        follow: continue until the job ends, through later attempts unless one was chosen.
        lines: how many last lines of each rank to print.
        attempt: the attempt; None is the latest.
        is_over: whether the job has ended.

    Raises:
        UsageError: there is no such rank or attempt.
        DdptopError: there is no log yet, and `follow` is off.
    """
    if spec.is_command:
        if isinstance(rank, int) and rank != LAUNCHER:
            _report_source(folder, rank)
        rank = LAUNCHER
    elif rank == LAUNCHER:
        raise UsageError(f"{folder.job} has no launcher log", "use -r all for its ranks")
    elif rank is None:
        rank = 0
    live = not is_over()
    if spec.placement is not None and live:
        _fetch(folder, attempt, None if rank == "all" else [rank], keep=follow)
    elif spec.placement is not None and isinstance(rank, int):
        _report_unfetched(folder, attempt, rank)
    _check(folder, spec, rank, attempt, live=live, wait=follow and live)
    existing = logs.attempts(folder)
    chosen = attempt if attempt is not None else existing[-1] if existing else 0
    only = None if rank == "all" else [rank]
    if follow:
        parts, stay = [only], attempt
    else:  # rank by rank: lines have no time by which to order them
        parts = [[one] for one in (logs.ranks(folder, chosen) if only is None else only)]
        stay = chosen
    for part in parts:
        over = is_over if follow else lambda: True
        follower = LogFollower(folder, part, stay, over, lines, whole=not follow)
        _print_lines(follower, rank == "all", live=follow)
    if not follow and attempt is None and chosen > existing[0]:
        earlier = span(existing[:-1])
        info(f"ddptop: showing attempt {chosen}; --attempt N shows an earlier one ({earlier})")
    return 0


def _fetch(folder: RunFolder, attempt: int | None, ranks: list[int] | None, *, keep: bool) -> None:
    """Fetch logs from other hosts; with `keep`, as long as this process runs."""
    import threading

    from ddptop_runner.jobs.far_files import FAR, RENEW_S

    far = FAR.fetch_log(folder, attempt, ranks)
    for why in () if far is None else far.silent:
        info(f"ddptop: {why}")
    if not keep:
        return

    def renew() -> None:
        while True:
            for rank in [None] if ranks is None else ranks:
                FAR.want_log(folder, attempt, rank)
            time.sleep(RENEW_S)

    threading.Thread(target=renew, name="renew", daemon=True).start()


def _report_unfetched(folder: RunFolder, attempt: int | None, rank: int) -> None:
    """If part of an ended job's log was not fetched, print where it may be."""
    from ddptop_runner.jobs.far_files import FAR

    far = FAR.fetch_log(folder, attempt, [rank])
    if far is None:
        return
    chosen = far.attempt if attempt is None else attempt
    try:
        with logs.LogFile(folder.log_file(chosen, rank)) as file:
            is_whole = file.first == 0
    except OSError:
        is_whole = False
    if not is_whole and (elsewhere := far.left_there(chosen, rank)) is not None:
        info(f"ddptop: rank {rank}'s log was not fetched completely; the rest {elsewhere}")


def _check(
    folder: RunFolder,
    spec: JobSpec,
    rank: int | Literal["all"],
    attempt: int | None,
    *,
    live: bool,
    wait: bool,
) -> None:
    """Refuse ranks and attempts without a log; with `wait`, accept those that may still get one."""
    later = "use -f to wait for one" if live else None
    existing = logs.attempts(folder)
    if attempt is not None and existing and attempt not in existing:
        raise UsageError(
            f"{folder.job} has no log for attempt {attempt}", f"attempts: {span(existing)}"
        )
    shown = attempt if attempt is not None else existing[-1] if existing else 0
    there = logs.ranks(folder, shown)
    expected = sorted({*there, *range(spec.nproc)})
    if rank not in ("all", LAUNCHER) and expected and rank not in expected:
        raise UsageError(f"{folder.job} has no rank {rank}", f"ranks: {span(expected)}")
    if wait or (there if rank == "all" else rank in there):
        return
    if not there or rank == LAUNCHER:
        which = "" if shown == 0 else f" for attempt {shown}"
        raise DdptopError(f"{folder.job} has no log{which}{' yet' if live else ''}", later)
    remedy = f"ranks with one: {span(there)}"
    raise DdptopError(f"rank {rank} of {folder.job} has no log for attempt {shown}", remedy)


def _report_source(folder: RunFolder, rank: int) -> None:
    """Print which lines are shown for a rank without a separate log.

    Raises:
        UsageError: the job is known to have no such rank.
    """
    from ddptop_runner.job.registry import read_job

    snapshot = read_job(folder).snapshot
    size = None if snapshot is None else snapshot.world_size
    known = set() if snapshot is None else {sample.rank for sample in snapshot.ranks}
    if size is not None and rank >= size and rank not in known:
        raise UsageError(f"{folder.job} has no rank {rank}", f"ranks: {span(range(size))}")
    info(f"ddptop: rank {rank} has no separate log; showing all output of the command")


def _print_lines(follower: LogFollower, with_rank: bool, live: bool) -> None:
    """Print new lines; with `live`, on a terminal, also the one being written."""
    shown, draws = "", live and not with_rank and sys.stdout.isatty()
    with closing(follower.batches()) as batches:
        for lines in batches:
            partial = _fitting(" ".join(follower.partial().values())) if draws else ""
            if lines or partial != shown:
                texts = [f"{line.prefixed() if with_rank else line.text}\n" for line in lines]
                sys.stdout.write("".join(["\r\x1b[K" if shown else "", *texts, partial]))
                sys.stdout.flush()
                shown = partial
            _check_reader()


def _fitting(text: str) -> str:
    """The line, cut to one row of the terminal."""
    return clip(text.expandtabs(), shutil.get_terminal_size().columns - 1)


def _check_reader() -> None:
    """Check that stdout is still open: a closed pipe fails only on a write.

    Raises:
        BrokenPipeError: the reader, or the terminal, is gone.
    """
    try:
        fd = sys.stdout.fileno()
    except OSError:  # not a real file, as with captured output in tests
        return
    poll = select.poll()
    poll.register(fd, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError(os.strerror(32))
