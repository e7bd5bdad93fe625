"""Defines every figure of a job.

An entry in FIGURES defines how a figure is read and formatted, which tables of jobs have a column
for it, what a filter compares, how rows are sorted by it, and what it means. What only cells of a
screen need is imported where they are made, for `ls` has none.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from ddptop.job.figures.columns import Cell, Column, Plain, Row, plain_cell, unknown
from ddptop.job.filter import Facts, Vocabulary
from ddptop.job.hosts import hosts_in_words, hosts_of
from ddptop.job.progress import (
    assigned_devices,
    bar_and_share,
    elapsed_s,
    eta,
    median_loss,
    percent_text,
    progress_of,
    share,
    step_cell,
    steps_per_s,
)
from ddptop.job.record import Job
from ddptop.style import Line, Span, bar, cells_of, line
from ddptop_runner.base import units
from ddptop_runner.jobs.contract import JobRow
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot, Progress

if TYPE_CHECKING:
    from ddptop.job.loss_trend import LossTrend
    from ddptop.job.status import Attention, Listed
    from ddptop_runner.host.tree import RankUsage

BAR_CELLS = 9
MIDDLE, ROOMY, WIDE = 100, 116, 170
"""Widths from which on a table has more columns."""

ARROWS: Mapping[str, Span] = {
    "falling": ("↘", "ok"),
    "flat": ("→", "dim"),
    "rising": ("↗", "warn"),
}
"""Arrows for the trend of a loss."""


class Subject(msgspec.Struct, frozen=True):
    """What the cells of a job are made from."""

    one: Listed
    now: dt.datetime
    progress: Progress | None
    me: str | None = None
    """The current user, whose name is not shown."""
    trend: LossTrend | None = None
    """The trend of its loss."""
    marked: bool = False
    """Whether the user marked it."""
    names_launcher: bool = False
    """Whether the sentence names a foreign job's launcher, because no column does."""

    @property
    def snapshot(self) -> NodeSnapshot:
        """The job's snapshot; cells that need one are left out without it."""
        assert self.one.view.snapshot is not None
        return self.one.view.snapshot

    @property
    def view(self) -> Job:
        """The job."""
        return self.one.view

    @property
    def foreign(self) -> bool:
        """Whether ddptop did not start it."""
        return self.one.view.is_foreign


class PlainJob(msgspec.Struct, frozen=True):
    """What the cells of `ls` and `ps` are made from."""

    row: JobRow
    now: dt.datetime
    usage: RankUsage | None = None
    """Usage of all its processes; measured only for `ps`."""
    gpus: str = ""
    status: str = ""
    """How it ended, or why it pauses; only for `ls`."""


class JobFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a job; if a part is missing, the figure is not shown there."""

    key: str
    title: str = ""
    """Title of its column."""
    width: int = 0
    align: str = "<"
    drop: int = 0
    flex: bool = False
    least: int = 0
    """Minimum table width for it to have a column."""
    last_from: int = 0
    """Minimum table width for its column to come last, after an extra space."""
    fitted: tuple[int, int, int, int] | None = None
    """Its minimum width, then its maximum widths in a narrow, medium, and wide table."""
    spare: bool = False
    """Whether the column is left out if it is empty for all jobs."""
    cell: Callable[[Subject], Cell] | None = None
    always: bool = False
    """Whether it is known for a job without a snapshot."""
    order: str = ""
    """The sort order for a click on its title."""
    number: Callable[[Job, NodeSnapshot, dt.datetime], Any] | None = None
    """Value that a filter compares."""
    unit: str = ""
    ls: Plain | None = None
    ps: Plain | None = None
    """Columns in the tables that these commands print."""
    help: tuple[str, str] | None = None
    """Term and meaning."""


def calm_duration(seconds: float | None) -> str:
    """A duration that rarely changes: `<1m`, `12m`, `3h 22m`, `2d 04h`."""
    if seconds is None or seconds >= 3600:
        return units.duration(seconds)
    return "<1m" if seconds < 60 else units.brief_duration(seconds)


def sentence_cell(needs: Attention, who: str = "") -> Line:
    """The sentence about a job; colored only if it needs attention."""
    style = "dim" if needs.is_calm else needs.style
    return line((who, "dim"), (needs.sentence, style)) if who else line((needs.sentence, style))


def loss_cell(snapshot: NodeSnapshot, trend: LossTrend | None) -> Line:
    """The median of the ranks' losses and its trend."""
    value, state = median_loss(snapshot)
    style = "bad" if state in ("nan", "inf") else unknown(value)
    arrow = (" ", "") if trend is None or value is None else ARROWS[trend.way]
    return line((f"{units.loss(value, state)} ", style), arrow)


def by_text(view: Job, me: str | None) -> Span:
    """Who started the ranks: `torchrun`, or `alice: torchrun` for another user's.

    A job of this user's in another DDPTOP_HOME is `ddptop, other home`.
    """
    if not view.is_foreign:
        from ddptop.job.ranks import launcher_name

        name = launcher_name(view)
        return ("ddptop" if name is None else f"↳ {name}"), "dim"
    user, who = view.user, view.launcher
    if user != me:
        return f"{user}: {who}", ""
    return (f"{who}, other home" if who == "ddptop" else who), ""


def _gpus(snapshot: NodeSnapshot) -> str:
    """`0-3`; on several hosts `2x4`, or `7 in 2` if the hosts have different numbers."""
    held = assigned_devices(snapshot)
    on_each = Counter(host for host, _ in held)
    if len(on_each) < 2:
        return units.ranks([index for _, index in held])
    even = len(set(on_each.values())) == 1
    number, hosts = len(held), len(on_each)
    return f"{hosts}x{number // hosts}" if even else f"{number} in {hosts}"


def _ranks(subject: Subject) -> Cell:
    snapshot = subject.view.snapshot
    world = (snapshot.world_size if snapshot is not None else None) or subject.view.world_size
    return units.count(world), unknown(world)


def _job(subject: Subject) -> Cell:
    name = line((subject.view.name, "strong"))
    return line(("◆ ", "chosen"), *name) if subject.marked else name


def _why(subject: Subject) -> Cell:
    calm = subject.one.attention.is_calm
    who = by_text(subject.view, subject.me)[0]
    named = subject.names_launcher and subject.foreign and calm
    hosts = hosts_of(subject.view.snapshot)
    if len(hosts) > 1 and calm:
        who, named = hosts_in_words(hosts, 3), True
    return sentence_cell(subject.one.attention, f"{who}: " if named else "")


def _state(subject: Subject) -> Cell:
    from ddptop.job.status import state_of

    return state_of(subject.view, subject.now)


def _bar(subject: Subject) -> Cell:
    fraction = None if subject.progress is None else subject.progress.fraction
    style = "busy" if subject.view.is_live else "dim"
    return () if fraction is None else bar(fraction, BAR_CELLS, style)


def _step(subject: Subject) -> Cell:
    run = run_step.of_snapshot(subject.snapshot)
    step = units.NOT_AVAILABLE if run is None else units.count(run.step)
    return step + "*" * (run is not None and run.counts == "attempt"), unknown(step)


def _rate(subject: Subject) -> Cell:
    """`3.1/s`; empty for an ended job."""
    pace = steps_per_s(subject.snapshot.ranks) if subject.view.is_live else None
    return "" if pace is None else units.rate(pace).replace(" steps", ""), ""


def _uneven(subject: Subject) -> Cell:
    from ddptop.job.outliers import worst_figure

    return worst_figure(subject.snapshot) if subject.view.is_live else ("", "")


def _eta(subject: Subject) -> Cell:
    eta_s = None if subject.progress is None else subject.progress.eta_s
    if not subject.view.is_live or (subject.foreign and eta_s is None):
        return "", ""
    guessed = subject.progress is not None and subject.progress.estimated and eta_s is not None
    return f"{'~' * guessed}{units.duration(eta_s)}", unknown(eta_s)


def _restarts(subject: Subject) -> Cell:
    used, left = subject.snapshot.restarts_used, subject.snapshot.restarts_left
    if subject.foreign:
        return "", ""
    return f"{used}/{used + left}", ""


def _done(view: Job) -> float | None:
    progress = progress_of(view)
    fraction = None if progress is None else progress.fraction
    return None if fraction is None else 100 * fraction


def _left_s(view: Job) -> float | None:
    progress = progress_of(view)
    return progress.eta_s if progress is not None and view.is_live else None


def _plain_state(job: PlainJob) -> str:
    pause = None if job.row.state == "hung" else job.row.pause
    if pause is None:
        return job.row.state
    from ddptop.job.status import pause_brief

    return pause_brief(pause, job.now)


def _here_and_world(job: PlainJob) -> str:
    here, world = len(job.row.ranks), job.row.world_size
    return str(here) if world == here else f"{here} of {_digits(world)}"


def _digits(value: int | None) -> str:
    return units.NOT_AVAILABLE if value is None else str(value)


_PLAIN_JOB = Plain(0, "JOB", lambda job: job.row.job, "<")
_PLAIN_COMMAND = Plain(14, "COMMAND", lambda job: job.row.command, "<")
_PLAIN_STEP = Plain(9, "STEP", lambda job: step_cell(job.row))
_PLAIN_ETA = Plain(11, "ETA", lambda job: eta(job.row.progress, job.row.eta_s))


def _elapsed(job: PlainJob) -> str:
    return units.duration(job.row.elapsed_s)


def _live(view: Job) -> str:
    return "" if view.is_live else "dim"


FIGURES: tuple[JobFigure, ...] = (
    JobFigure(
        key="state", cell=_state, always=True,
        title="state", width=12, fitted=(9, 15, 15, 15), order="need",
        ls=Plain(1, "STATE", _plain_state, "<"),
    ),
    JobFigure(
        key="job", cell=_job, always=True,
        title="job", width=12, fitted=(8, 16, 24, 30), order="name",
        ls=_PLAIN_JOB, ps=_PLAIN_JOB,
    ),
    JobFigure(
        key="by", cell=lambda subject: by_text(subject.view, subject.me), always=True,
        title="by", width=14, drop=6, least=MIDDLE, fitted=(6, 18, 18, 18),
        ps=Plain(1, "LAUNCHER", lambda job: job.row.launcher, "<"),
        help=("by", "what started the ranks, such as ddptop, torchrun, or mp.spawn; ↳ marks a job "
              "that ddptop launched; for another user's job, the user's name comes first"),
    ),
    JobFigure(
        key="ranks",
        cell=_ranks, always=True,
        title="ranks", width=5, align=">", drop=12, least=ROOMY,
        number=lambda view, snapshot, now: snapshot.world_size or view.world_size,
        ls=Plain(3, "RANKS", lambda job: _digits(job.row.world_size), drop=2),
        ps=Plain(3, "RANKS", _here_and_world, "<"),
        help=("ranks", "the number of ranks; for a command, the number discovered so far"),
    ),
    JobFigure(
        key="gpus",
        cell=lambda subject: (text, "") if (text := _gpus(subject.snapshot)) else ("-", "dim"),
        title="GPUs", width=6, drop=5, least=MIDDLE, spare=True, order="gpus",
        number=lambda view, snapshot, now: len(assigned_devices(snapshot)),
        ps=Plain(5, "GPUS", lambda job: job.gpus or "-", "<"),
    ),
    JobFigure(
        key="why", cell=_why, always=True,
        title="status", width=22, flex=True, last_from=WIDE, order="need",
        ls=Plain(13, "STATUS", lambda job: job.status or "-", "<"),
        help=("status", "the most urgent thing to know about this job"),
    ),
    JobFigure(
        key="bar", cell=_bar,
        title="progress", width=BAR_CELLS, drop=11, least=MIDDLE, spare=True,
        help=("progress", "how far along the run is, if the total number of steps is known"),
    ),
    JobFigure(
        key="done", cell=lambda subject: (percent_text(subject.progress), _live(subject.view)),
        title="done", width=5, align=">", drop=2, spare=True,
        number=lambda view, snapshot, now: _done(view), unit="%",
        ls=Plain(10, "DONE", lambda job: bar_and_share(job.row.progress), drop=1),
        ps=Plain(10, "DONE", lambda job: share(job.row.progress)),
        help=("done", "percentage of the run completed; n/a if the total is unknown"),
    ),
    JobFigure(
        key="step", cell=_step,
        title="step", width=7, align=">", drop=7, least=ROOMY,
        number=lambda view, snapshot, now: (
            None if (run := run_step.of_snapshot(snapshot)) is None else run.step
        ),
        ls=_PLAIN_STEP, ps=_PLAIN_STEP,
        help=("step", "the run's step, counted across restarts; if an attempt's starting step is "
              "unknown, the steps taken in that attempt, marked *"),
    ),
    JobFigure(
        key="rate", cell=_rate,
        title="pace", width=8, align=">", drop=8, least=ROOMY, spare=True,
        number=lambda view, snapshot, now: steps_per_s(snapshot.ranks) if view.is_live else None,
        help=("pace", "steps per second (/s), minute (/min), or hour (/h) over the last steps"),
    ),
    JobFigure(
        key="loss",
        cell=lambda subject: loss_cell(
            subject.snapshot,
            subject.trend if subject.view.is_live and subject.view.pause is None else None,
        ),
        title="loss ", width=9, align=">", drop=3,
        number=lambda view, snapshot, now: median_loss(snapshot)[0],
    ),
    JobFigure(
        key="uneven", cell=_uneven,
        title="uneven", width=11, align=">", drop=10, least=WIDE, spare=True,
        help=("uneven", "the job's worst imbalance in mem, util, power, or step: how far the "
              "highest value is above the median"),
    ),
    JobFigure(
        key="eta", cell=_eta,
        title="ETA", width=7, align=">", drop=4, spare=True,
        number=lambda view, snapshot, now: _left_s(view), unit="s",
        ls=_PLAIN_ETA, ps=_PLAIN_ETA,
        help=("ETA", "time left at the current pace; requires a known total"),
    ),
    JobFigure(
        key="elapsed",
        cell=lambda subject: (
            calm_duration(elapsed_s(subject.view, subject.now)), _live(subject.view)
        ),
        title="elapsed", width=7, align=">", drop=9, least=WIDE, order="started",
        number=lambda view, snapshot, now: elapsed_s(view, now), unit="s",
        ls=Plain(12, "ELAPSED", _elapsed), ps=Plain(8, "ELAPSED", _elapsed),
        help=("elapsed",
              "time since launch, including restarts; for this attempt only where noted"),
    ),
    JobFigure(
        key="started",
        ls=Plain(12, "STARTED", lambda job: units.local_time(job.row.started_at), "<", drop=3),
    ),
    JobFigure(
        key="restarts", cell=_restarts,
        title="restarts", width=8, align=">", drop=13, least=WIDE, spare=True,
        number=lambda view, snapshot, now: snapshot.restarts_used,
        ls=Plain(4, "ATTEMPT", lambda job: _digits(job.row.attempt), drop=4),
        help=("restarts", "used and allowed, as in 1/3; progress resets the number used"),
    ),
    JobFigure(
        key="alerts",
        number=lambda view, snapshot, now: len(snapshot.alerts) if view.is_live else 0,
    ),
    JobFigure(
        key="util", unit="%",
        number=lambda view, snapshot, now: min(
            (gpu.util_percent for gpu in snapshot.gpus if gpu.util_percent is not None),
            default=None,
        ),
    ),
    JobFigure(
        key="mem", unit="bytes",
        number=lambda view, snapshot, now: max(
            (gpu.mem_used_bytes for gpu in snapshot.gpus if gpu.mem_used_bytes is not None),
            default=None,
        ),
    ),
    JobFigure(key="user", ps=Plain(2, "USER", lambda job: job.row.user, "<")),
    JobFigure(
        key="cpu",
        ps=Plain(6, "CPU", lambda job: units.percent(job.usage and job.usage.cpu_percent)),
    ),
    JobFigure(
        key="memory",
        ps=Plain(7, "MEMORY", lambda job: units.size(job.usage and job.usage.rss_bytes)),
    ),
    JobFigure(key="command", ls=_PLAIN_COMMAND, ps=_PLAIN_COMMAND),
)  # fmt: skip
"""In table order; a filter compares the lowest `util` and the highest `mem` of the devices."""

ORDER_OF_COLUMN = {one.key: one.order for one in FIGURES if one.order}
"""Sort order by column, for clicks on titles."""

COLUMN_OF_ORDER = {order: key for key, order in reversed(ORDER_OF_COLUMN.items())}


def columns_for(
    cells: int,
    names: Sequence[str] = (),
    states: Sequence[str] = (),
    by: Sequence[str] = (),
) -> tuple[Column, ...]:
    """The columns of a table of this width; the sentence gets the remaining width.

    Args:
        cells: the width.
        names: names of the jobs, with their marks.
        states: states of the jobs, with their symbols.
        by: what started the jobs; empty if ddptop started all of them, which is not shown.
    """
    texts = {"job": names, "state": states, "by": by}
    size = (cells >= MIDDLE) + (cells >= WIDE)
    columns, last = [], []
    for one in FIGURES:
        if not one.title or cells < one.least or (one.key == "by" and not by):
            continue
        column = Column(one.key, one.title, one.width, one.align, one.drop, one.flex)
        if one.fitted is not None:
            widest = max(map(cells_of, texts[one.key]), default=0)
            fitting = min(one.fitted[1 + size], max(one.fitted[0], widest))
            column = replace(column, width=fitting)
        elif one.flex:
            column = replace(column, width=max(one.width, cells // 4))
        if one.last_from and cells >= one.last_from:
            last.append(replace(column, title=f" {one.title}"))
        else:
            columns.append(column)
    return (*columns, *last)


def without_empty(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns without empty optional ones, whose width goes to the sentence."""
    spare = {one.key for one in FIGURES if one.spare}
    return tuple(
        column
        for column in columns
        if column.key not in spare
        or any(plain_cell(row.get(column.key, ("", ""))).strip(" -") for row in rows)
    )


def plain_table(
    jobs: Sequence[PlainJob], of: Literal["ls", "ps"], cells: int | None = None
) -> tuple[list[str], list[list[str]], list[int]]:
    """Headers, rows, and right-aligned columns of the plain-text table.

    `ps` has columns for steps and progress only if a job reports them. In a terminal of `cells`,
    columns that may be dropped make room for the others, except the command.
    """
    counts = of == "ls" or any(j.row.step is not None or j.row.progress is not None for j in jobs)
    parts: list[Plain] = [
        part
        for one in FIGURES
        if (part := one.ls if of == "ls" else one.ps) is not None
        and (counts or one.key not in ("step", "done", "eta"))
    ]
    parts.sort(key=lambda part: part.place)
    rows = [[part.text(job) for part in parts if part.text is not None] for job in jobs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while cells is not None and sum(widths[:-1]) + 2 * len(widths) > cells:
        at = max(range(len(parts)), key=lambda place: parts[place].drop)
        if not parts[at].drop:
            break
        del parts[at], widths[at]
        for row in rows:
            del row[at]
    right = [at for at, part in enumerate(parts) if part.align == ">"]
    return [part.header for part in parts], rows, right


def job_row(
    one: Listed,
    now: dt.datetime,
    me: str | None = None,
    trend: LossTrend | None = None,
    *,
    marked: bool = False,
    names_launcher: bool = False,
) -> Row:
    """A job's cells by column, for the overview; see Subject."""
    seen = one.view.snapshot is not None
    subject = Subject(one, now, progress_of(one.view), me, trend, marked, names_launcher)
    return {
        of.key: of.cell(subject) for of in FIGURES if of.cell is not None and (seen or of.always)
    }


# --- the filter -----------------------------------------------------------------------------------

JOB_WORDS = Vocabulary(
    ("state", "user", "gpu", "by", "host", "name"),
    {one.key: one.unit for one in FIGURES if one.number is not None},
)
"""What a filter of jobs can use."""


def job_facts(view: Job, user: str, now: dt.datetime, sentence: str = "") -> Facts:
    """What a filter examines of a job.

    Args:
        view: the job.
        user: its owner.
        now: the current time, for durations.
        sentence: what else the table shows about it.
    """
    snapshot = view.snapshot
    is_own = not view.is_foreign
    by = f"ddptop {view.launcher}" if is_own else view.launcher
    state = "gone" if not is_own and view.state == "lost" else view.state
    pause = view.pause
    held = () if snapshot is None else sorted(assigned_devices(snapshot))
    fields: dict[str, tuple[str, ...]] = {
        "state": (state, *(() if pause is None else (pause.state.replace("_", " "),))),
        "user": (user,),
        "by": tuple(by.split()),
        "host": tuple(dict.fromkeys((view.host, *hosts_of(snapshot)))),
        "name": (view.name,),
        "gpu": tuple(str(index) for _, index in held),
    }
    text = " ".join((view.name, state, user, by, view.host, view.command, sentence))
    if snapshot is None:
        return Facts(text, fields, {"ranks": view.world_size})
    numbers = {
        one.key: one.number(view, snapshot, now) for one in FIGURES if one.number is not None
    }
    return Facts(text, fields, numbers)
