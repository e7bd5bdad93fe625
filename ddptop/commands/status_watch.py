"""`ddptop status --watch`: a job in a few lines, or one line per job, updated in place."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, TextIO

from ddptop.commands.unguarded import KeptGuarded, adopt_if_unguarded, guard
from ddptop.draw.header import header_lines
from ddptop.draw.panels import alert_lines
from ddptop.job.figures.jobs import Subject, columns_for, job_row, without_empty
from ddptop.job.ranks import hosts_of_devices
from ddptop.job.record import Job, own_job
from ddptop.job.status import Attention, alarms, exit_status, ranked, state_of
from ddptop.output import put_json
from ddptop.style import Line, field, fit, fit_columns, join, line, plain, row_line
from ddptop.terminal import DUMB
from ddptop_runner.base import units
from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DamagedFileError, NoSuchJobError
from ddptop_runner.base.units import NOT_AVAILABLE, name_gpus, size
from ddptop_runner.job.registry import JobView, is_recent, read_all, read_job
from ddptop_runner.jobs.contract import JobList, job_status
from ddptop_runner.jobs.contract import job_row as json_row
from ddptop_runner.jobs.slurm_queue import as_queued, find
from ddptop_runner.model.snapshot import GpuSample
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
    screen = Inline(sys.stdout)
    try:
        if job is None:
            _watch_all(screen, as_json, interval_s)
        return _watch_one(find(job), screen, as_json, interval_s)
    except KeyboardInterrupt:
        return 0


def _watch_one(view: JobView, screen: Inline, as_json: bool, interval_s: float) -> int:
    view, keep = adopt_if_unguarded(view), KeptGuarded()
    while True:
        if as_json:
            put_json(job_status(view))
            sys.stdout.flush()
        else:
            screen.show(job_lines(own_job(view), screen.size()[0] - 1))
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
        recent = {view.job: view for view in map(as_queued, read_all()[0]) if is_recent(view)}
        found = ranked(map(own_job, recent.values()), utc_now())
        if as_json:
            put_json(JobList(jobs=[json_row(recent[one.job.name]) for one in found]))
            sys.stdout.flush()
        else:
            columns, rows = screen.size()
            screen.show(list_lines(found, columns - 1, rows - 1 if screen.redraws else None))
        time.sleep(interval_s)


def list_lines(found: Sequence[Attention], cells: int, most: int | None) -> list[Line]:
    """The rows of the overview, at most `most`; the last one counts those left out."""
    if not found:
        return [line(NO_JOBS)]
    now = utc_now()
    room = len(found) if most is None or len(found) < most else max(1, most - 2)
    rows = [job_row(Subject(one, now)) for one in found[:room]]
    states = [state_of(one.job)[0] for one in found]
    columns = columns_for(cells, [one.job.name for one in found], states)
    layout = fit_columns(without_empty(columns, rows), cells)
    heads = {column.key: (column.title, "dim") for column, _ in layout}
    lines = [row_line(row, layout, cells) for row in (heads, *rows)]
    if more := len(found) - room:
        lines.append(line((f" and {more} more (ddptop ls)", "dim")))
    return lines


def job_lines(job: Job, cells: int) -> list[Line]:
    """The header of the job's screen, its devices, and the worst alert or why it failed."""
    now, cause = job.read_at, job.snapshot.cause
    first, *more = header_lines(job, now, cells - len(job.name) - 1)
    lines = [line((f"{job.name} ", "strong"), *first), *more, _devices(job)]
    if cause is not None:
        lines.append(line((f" {cause.summary}", "bad")))
    elif job.is_live and (alerts := alarms(job.snapshot.alerts)):
        lines += alert_lines(alerts, now, cells, 1)
    return [fit(one, cells) for one in lines]


def _devices(job: Job) -> Line:
    ranks, gpus = job.snapshot.ranks, job.snapshot.gpus
    if not gpus:
        rss = _sum(rank.rss_bytes for rank in ranks)
        cpu = field("CPU", units.percent(_sum(rank.cpu_percent for rank in ranks)))
        return line(" ", *join([cpu, field("RSS", size(None if rss is None else int(rss)))]))
    names = name_gpus([gpu.index for gpu in gpus if gpu.index is not None]) or "GPUs"
    if hosts := hosts_of_devices(gpus, 16):
        names = f"{len(gpus)} GPUs on {len(hosts)} hosts"
    used = _sum(gpu.mem_used_bytes for gpu in gpus)
    total = _sum(gpu.mem_total_bytes for gpu in gpus)
    memory = NOT_AVAILABLE
    if used is not None and total:
        memory = f"{100 * used / total:.0f}% of {size(int(total))}"
    parts = [line((names, "dim")), field("util", _range(gpus)), field("memory", memory)]
    return line(" ", *join(parts))


def _range(gpus: Sequence[GpuSample]) -> str:
    """`97%`, or `12 to 97%` if devices differ."""
    known = [gpu.util_percent for gpu in gpus if gpu.util_percent is not None]
    if not known:
        return NOT_AVAILABLE
    least, most = min(known), max(known)
    return f"{most:.0f}%" if round(least) == round(most) else f"{least:.0f} to {most:.0f}%"


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if any value is unknown, because a partial sum would mislead."""
    known = list(values)
    return None if not known or None in known else float(sum(v for v in known if v is not None))


_SGR = {
    "ok": "32",
    "warn": "33",
    "bad": "31",
    "busy": "36",
    "strong": "1",
    "title": "1",
    "dim": "2",
}
_UP, _TO_END, _BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"


class Inline:
    """Lines at the bottom of the terminal, or one line per change."""

    def __init__(self, out: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        self.redraws = out.isatty() and environ.get("TERM", "") not in ("", *DUMB)
        """Whether lines are drawn in place."""
        self._colors = self.redraws and not environ.get("NO_COLOR")
        self._out = out
        self._rows = 0
        """How many lines are on the screen."""
        self._last_line = ""

    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        return shutil.get_terminal_size()

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the previous lines."""
        if not self.redraws:
            text = " | ".join(" ".join(_clean(plain(one)).split()) for one in lines)
            if text != self._last_line:
                self._last_line = text
                print(text, file=self._out, flush=True)
            return
        columns, rows = self.size()
        # after a line as wide as the terminal, the cursor position differs between terminals
        fitted = [fit(one, columns - 1) for one in lines[: max(1, rows - 1)]]
        up = _UP.format(self._rows) if self._rows else ""
        drawn = "".join(f"{self._painted(one)}{_TO_END}\n" for one in fitted)
        print(f"\r{up}{drawn}{_BELOW}", end="", file=self._out, flush=True)
        self._rows = len(fitted)

    def _painted(self, of: Line) -> str:
        return "".join(
            f"\x1b[{_SGR[style]}m{_clean(text)}\x1b[0m"
            if self._colors and style in _SGR
            else _clean(text)
            for text, style in of
        ).rstrip()


def _clean(text: str) -> str:
    """The text on one line, without control characters."""
    return sanitize(text).replace("\n", " ")
