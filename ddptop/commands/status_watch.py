"""`ddptop status --watch`: a job in three lines, or one line per job, updated in place."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TextIO

from ddptop.commands.unguarded import KeptGuarded, adopt_if_unguarded, guard
from ddptop.job.hosts import hosts_of_devices
from ddptop.job.progress import (
    BAR_CELLS,
    LIST_CELLS,
    place,
    share,
    shown_percent,
    steps_per_s,
    text_bar,
)
from ddptop.job.record import Job, own_job
from ddptop.job.status import (
    age_words,
    exit_status,
    job_state,
    pause_in_words,
    pause_state,
    pause_why,
    severity,
)
from ddptop.job.urgency import by_need, worst_first
from ddptop.output import put_json
from ddptop_runner.base import units
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError
from ddptop_runner.base.median import median
from ddptop_runner.base.units import NOT_AVAILABLE, duration, name_gpus, name_ranks, size
from ddptop_runner.job.registry import JobView, is_recent, read_all, read_job
from ddptop_runner.jobs.contract import JobList, JobStatus, job_row, job_status
from ddptop_runner.jobs.slurm_queue import as_queued, find
from ddptop_runner.judge.balance.imbalance import deviations, seen
from ddptop_runner.model.snapshot import Alert, GpuSample, RankSample
from ddptop_runner.store.log_clean import sanitize

NO_JOBS = "no jobs yet; start one with ddptop launch train.py"


def run(job: str | None, as_json: bool, interval_s: float) -> int:
    """Show until the job ends, or until ctrl+c.

    Args:
        job: the job; None shows all jobs, most urgent first, until ctrl+c.
        as_json: print one JSON object per update, each on its own line.
        interval_s: seconds between updates.

    Returns:
        For a job that ended, the status of `ddptop wait`; 0 after ctrl+c.

    Raises:
        NoSuchJobError: there is no such job, or it was removed.
    """
    signal.signal(signal.SIGTERM, _leave)  # so that the terminal's echo is restored
    screen = Inline(sys.stdout)
    try:
        with quiet_keys():
            if job is None:
                _watch_all(screen, as_json, interval_s)
            return _watch_one(find(job), screen, as_json, interval_s)
    except KeyboardInterrupt:
        return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _watch_one(view: JobView, screen: Inline, as_json: bool, interval_s: float) -> int:
    view, keep = adopt_if_unguarded(view), KeptGuarded()
    while True:
        status = job_status(view)
        if as_json:
            put_json(status)
            sys.stdout.flush()
        else:
            screen.show(job_lines(own_job(view), status))
        if not view.is_live:
            return exit_status(view)
        time.sleep(interval_s)
        try:
            view = as_queued(read_job(view.folder))
        except DamagedFileError:
            if not view.folder.spec_file.exists():
                raise NoSuchJobError(f"{view.job} was removed") from None
            raise
        keep(view)


def _watch_all(screen: Inline, as_json: bool, interval_s: float) -> NoReturn:
    guard(view for view in read_all()[0] if is_recent(view))
    while True:
        found = map(as_queued, read_all()[0])
        recent = {view.job: view for view in found if is_recent(view)}
        jobs = by_need(map(own_job, recent.values()), utc_now())
        if as_json:
            put_json(JobList(jobs=[job_row(recent[job.name]) for job in jobs]))
            sys.stdout.flush()
        else:
            screen.show(_lines(jobs, recent, screen))
        time.sleep(interval_s)


def _lines(views: list[Job], recent: Mapping[str, JobView], screen: Inline) -> list[list[Part]]:
    """As many lines as fit; the last one counts those left out."""
    if not views:
        return [[(NO_JOBS, "")]]
    room = max(1, screen.size()[1] - 1) if screen.redraws else len(views)
    shown = views if len(views) <= room else views[: room - 1]
    lines = [job_line(view, job_status(recent[view.name])) for view in shown]
    if (more := len(views) - len(shown)) > 0:
        lines.append([(f"and {more} more (ddptop ls)", "")])
    return lines


Part = tuple[str, str]
"""(text, style); the style is `ok`, `warn`, `bad`, `strong`, or empty."""


def job_lines(view: Job, status: JobStatus) -> list[list[Part]]:
    """One line each for state and progress, ranks, and devices."""
    return [_state(view, status), _ranks(status), _devices(status)]


def job_line(view: Job, status: JobStatus) -> list[Part]:
    """One line for one of several jobs."""
    return [
        (view.name, "strong"),
        _state_part(view, status, ""),
        *_progress(status, LIST_CELLS),
        *_news(view, status),
        *_learning(status),
    ]


def _state(view: Job, status: JobStatus) -> list[Part]:
    text, color = _state_part(view, status, "strong")
    parts: list[Part] = [(f"{view.name}: {text}", color)]
    if status.pause is not None and (why := pause_why(status.pause, view.read_at)):
        parts.append((why, ""))
    parts += _progress(status, BAR_CELLS)
    if status.attempt:
        parts.append((f"attempt {status.attempt}", ""))
    if view.is_live and status.guarded is False:
        parts.append(("unguarded", "warn"))
    if stale := age_words(view):
        parts.append((stale, "warn"))
    return parts


def _state_part(view: Job, status: JobStatus, plain: str) -> Part:
    """The state in one word, or how long no step has finished."""
    pause = status.pause
    if pause is None or status.state == "hung":
        return status.state, _color(job_state(status.state), plain)
    now = view.read_at
    return pause_in_words(pause, now), _color(pause_state(pause, now), plain)


def _color(state: Part, plain: str) -> str:
    """The TUI's color; plain where that is dim or busy."""
    return plain if state[1] in ("dim", "busy") else state[1]


def _progress(status: JobStatus, cells: int) -> list[Part]:
    progress = status.progress
    if progress is None:
        return [] if status.step is None else [(_step(status), "")]
    parts: list[Part] = []
    if progress.fraction is not None:
        parts.append((f"{text_bar(progress.fraction, cells)} {share(progress)}", ""))
    elif progress.epoch_fraction is not None:
        bar = text_bar(progress.epoch_fraction, cells)
        parts.append((f"{bar} {shown_percent(progress.epoch_fraction):.1f}% of the epoch", ""))
    if progress.eta_s is not None:
        about = "about " if progress.estimated else ""
        parts.append((f"{about}{duration(progress.eta_s)} left", ""))
    if where := place(progress):
        parts.append((where, ""))
    elif status.step is not None:
        parts.append((_step(status), ""))
    return parts


def _step(status: JobStatus) -> str:
    """`step 738`, or `step 98 of this attempt` if the step of the run is unknown."""
    whose = "" if status.step_counts in (None, "run") else f" of this {status.step_counts}"
    return f"step {status.step:,}{whose}"


def _ranks(status: JobStatus) -> list[Part]:
    count = len(status.ranks) or status.world_size
    head = "no ranks yet" if not count else f"{count} rank{'s' if count > 1 else ''}"
    if status.world_size and status.ranks and len(status.ranks) != status.world_size:
        head = f"{len(status.ranks)} of {status.world_size} ranks"
    return [(head, ""), *_learning(status), *_news(None, status)]


def _learning(status: JobStatus) -> list[Part]:
    """Pace and loss."""
    ranks = seen(status.ranks)
    pace = steps_per_s(ranks)
    loss = _middle(rank.loss for rank in ranks)
    parts: list[Part] = []
    if pace is not None and status.pause is None:
        parts.append((units.rate(pace), ""))
    if broken := [rank.rank for rank in ranks if rank.loss_state in ("nan", "inf")]:
        state = next(rank.loss_state for rank in ranks if rank.rank == broken[0])
        whose = "" if len(broken) == len(ranks) else f" on {name_ranks(broken)}"
        parts.append((f"loss is {units.loss(None, state)}{whose}", "bad"))
    elif ranks:
        parts.append((f"loss {units.loss(loss)}", ""))
    return parts


def _news(view: Job | None, status: JobStatus) -> list[Part]:
    """The most important fact: the cause of failure, an alert, or an outlier rank."""
    if status.cause is not None:
        return [(status.cause.summary, "bad")]
    if alerts := worst_first(status.alerts):
        more = f" (and {len(alerts) - 1} more)" if len(alerts) > 1 else ""
        return [(alerts[0].message + more, severity(alerts[0].severity)[1])]
    live = view is None or view.is_live
    return (
        [(odd, "warn")]
        if live and (odd := odd_one(status.ranks, status.gpus, status.alerts))
        else []
    )


def odd_one(ranks: Sequence[RankSample], gpus: Sequence[GpuSample], alerts: Sequence[Alert]) -> str:
    """The slowest rank, in words; empty if none holds up the others."""
    found = [
        (-apart.slower, rank)
        for rank, apart in deviations(ranks, gpus, alerts).items()
        if apart.is_slow and apart.slower is not None
    ]
    if not found:
        return ""
    slower, rank = min(found)
    others = len(found) - 1
    more = f" (and {others} more)" if others else ""
    return f"rank {rank}: {-100 * slower:.0f}% slower{more}"


def _devices(status: JobStatus) -> list[Part]:
    gpus = status.gpus
    if not gpus:
        cpu = _sum(rank.cpu_percent for rank in status.ranks)
        memory = _sum(rank.rss_bytes for rank in status.ranks)
        return [
            ("CPU", ""),
            (f"load {units.percent(cpu)}", ""),
            (f"memory {size(None if memory is None else int(memory))}", ""),
        ]
    hosts = hosts_of_devices(gpus, 16)
    names = name_gpus([gpu.index for gpu in gpus if gpu.index is not None]) or "GPUs"
    if hosts:
        names = f"{len(gpus)} GPUs on {len(hosts)} hosts"
    parts: list[Part] = [(names, "")]
    for host in hosts or [None]:
        lost = [gpu.index for gpu in gpus if gpu.lost and host in (None, gpu.host)]
        if lost:
            where = "" if host is None else f" on {hosts[host]}"
            parts.append((f"{name_gpus(lost)}{where} lost", "bad"))
    parts.append((f"load {_range(gpus, lambda gpu: gpu.util_percent)}", ""))
    used = _sum(gpu.mem_used_bytes for gpu in gpus)
    total = _sum(gpu.mem_total_bytes for gpu in gpus)
    if used is None or not total:
        parts.append((f"memory {NOT_AVAILABLE}", ""))
    else:
        parts.append((f"memory {100 * used / total:.0f}% of {size(int(total))}", ""))
    return parts


def _range(gpus: Sequence[GpuSample], read: Callable[[GpuSample], float | None]) -> str:
    """`97%`, or `12 to 97%` if devices differ."""
    known = [value for gpu in gpus if (value := read(gpu)) is not None]
    if not known:
        return NOT_AVAILABLE
    least, most = min(known), max(known)
    return f"{most:.0f}%" if round(least) == round(most) else f"{least:.0f} to {most:.0f}%"


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if any value is unknown, because a partial sum would mislead."""
    known = list(values)
    return None if not known or None in known else float(sum(v for v in known if v is not None))


# --- cells ----------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """The width of the text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(_cells_of(letter) for letter in text)


def _cells_of(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def fit(parts: Sequence[Part], width: int, gap: str = "  ") -> list[Part]:
    """The parts that fit a line of `width` cells; the first one is clipped if necessary.

    Parts without a color are dropped before parts with one.
    """
    kept = [part for part in parts if part[0]]
    while len(kept) > 1 and _width(kept, gap) > width:
        plain = [index for index, (_, color) in enumerate(kept) if index and not color]
        if not plain:
            break
        kept.pop(plain[-1])
    left, line = width, list[Part]()
    for text, color in kept:
        room = left - (len(gap) if line else 0)
        if room < min(cells(text), 4):
            break
        cut = clip(text, room)
        line.append((cut, color))
        left = room - cells(cut)
    return line


def _width(parts: Sequence[Part], gap: str) -> int:
    return sum(cells(text) for text, _ in parts) + len(gap) * (len(parts) - 1)


def clip(text: str, width: int) -> str:
    """The text cut to a number of cells, with an ellipsis if it was cut."""
    if cells(text) <= width:
        return text
    kept, left = "", width - 1
    for letter in text:
        left -= _cells_of(letter)
        if left < 0:
            break
        kept += letter
    return f"{kept}…" if width > 0 else ""


GAP = "  "
_SGR = {"ok": "32", "warn": "33", "bad": "31", "strong": "1"}
_UP, _TO_END, _BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"
_SPACES = re.compile(r"\s+")


class Inline:
    """Lines at the bottom of the terminal, or one line per change."""

    def __init__(self, out: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        terminal = out.isatty() and environ.get("TERM", "") not in ("", "dumb")
        self.redraws = terminal
        """Whether lines are drawn in place."""
        self._colors = terminal and not environ.get("NO_COLOR")
        self._out = out
        self._drawn: list[int] = []
        """Width in cells of each line on the screen."""
        self._last_line = ""

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        try:
            found = os.get_terminal_size(self._out.fileno())
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def show(self, lines: Sequence[Sequence[Part]]) -> None:
        """Replace the previous lines."""
        clean = [[(_plain(text), color) for text, color in parts] for parts in lines]
        if not self.redraws:
            self._print_line(
                " | ".join(GAP.join(text for text, _ in parts if text) for parts in clean)
            )
            return
        columns, rows = self.size()
        # after a line as wide as the terminal, the cursor position differs between terminals
        fitted = [fit(parts, columns - 1, GAP) for parts in clean[: max(1, rows - 1)]]
        drawn = "".join(f"{self._painted(parts)}{_TO_END}\n" for parts in fitted)
        self._write(f"{self._to_first(columns, rows)}{drawn}{_BELOW}")
        self._drawn = [cells(GAP.join(text for text, _ in parts)) for parts in fitted]

    def _to_first(self, columns: int, rows: int) -> str:
        """Move to the first line; if the terminal became narrower, it has wrapped the lines."""
        high = sum(max(1, -(-width // columns)) for width in self._drawn)
        return f"\r{_UP.format(min(high, rows - 1))}" if high else "\r"

    def _painted(self, parts: Sequence[Part]) -> str:
        return GAP.join(
            f"\x1b[{_SGR[color]}m{text}\x1b[0m" if self._colors and color in _SGR else text
            for text, color in parts
        )

    def _print_line(self, text: str) -> None:
        if text != self._last_line:
            self._last_line = text
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _plain(text: str) -> str:
    """The text on one line, without control characters."""
    return _SPACES.sub(" ", sanitize(text)).strip()


@contextmanager
def quiet_keys(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Turn off echo, so that typed keys do not garble the lines; ctrl+c still works."""
    try:
        fd = sys.stdin.fileno()
        mine = os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
        before = termios.tcgetattr(fd) if mine else None
    except (OSError, ValueError, termios.error):
        before = None
    if before is None:
        yield
        return
    silent = list(before)
    silent[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, silent)
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
