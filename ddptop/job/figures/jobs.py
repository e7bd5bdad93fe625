"""Defines every figure of a job.

An entry in FIGURES defines how a figure is read and formatted, which tables of jobs have a column
for it, what a filter compares, how rows are sorted by it, and what it means. What only cells of a
screen need is imported where they are made, for `ls` has none.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from ddptop.job.filter import Facts, Vocabulary
from ddptop.job.groups import by_loss, validation_loss
from ddptop.job.progress import (
    assigned_devices,
    eta,
    median_loss,
    progress_of,
    share,
    step_text,
    steps_per_s,
)
from ddptop.job.ranks import hosts_in_words, hosts_of, launcher_name
from ddptop.job.record import Job
from ddptop.job.status import Attention, state_of
from ddptop.style import (
    Cell,
    Column,
    Line,
    Plain,
    Row,
    Span,
    bar,
    cells_of,
    line,
    plain_cell,
    plain_table,
    unknown,
)
from ddptop_runner.base import units
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot, Progress

if TYPE_CHECKING:
    from ddptop.job.series import LossTrend
    from ddptop_runner.host.tree import RankUsage

BAR_CELLS = 9
MIDDLE, ROOMY, WIDE = 100, 116, 170
"""Widths from which on a table has more columns."""


class Subject(msgspec.Struct, frozen=True, dict=True):
    """What the cells of a job are made from."""

    needs: Attention
    now: dt.datetime
    me: str | None = None
    """The current user, whose name is not shown."""
    trend: LossTrend | None = None
    """The trend of its loss."""
    marked: bool = False
    """Whether the user marked it."""
    label: str = ""
    """What the table calls it; empty for its name."""
    names_launcher: bool = False
    """Whether the sentence names a foreign job's launcher, because no column does."""
    usage: RankUsage | None = None
    """Usage of all its processes; measured only for `ps`."""

    @property
    def job(self) -> Job:
        """The job."""
        return self.needs.job

    @property
    def snapshot(self) -> NodeSnapshot:
        """The job's figures."""
        return self.needs.job.snapshot

    @functools.cached_property
    def progress(self) -> Progress | None:
        """How far the job is; None if no total is known."""
        return progress_of(self.job)


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
    order: str = ""
    """The sort order for a click on its title."""
    number: Callable[[Job, dt.datetime], Any] | None = None
    """Value that a filter compares."""
    unit: str = ""
    ls: Plain | None = None
    ps: Plain | None = None
    """Columns in the tables that these commands print."""
    help: tuple[str, str] | None = None
    """Term and meaning."""

    def text(self, subject: Subject) -> str:
        """Its cell without styles."""
        cell = () if self.cell is None else self.cell(subject)
        return " ".join(plain_cell(cell).split()) or "-"


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
    from ddptop.job.series import ARROWS  # `ls` prints no loss

    style = "bad" if state in ("nan", "inf") else unknown(value)
    arrow = (" ", "") if trend is None or value is None else ARROWS[trend.way]
    return line((f"{units.loss(value, state)} ", style), arrow)


def by_text(job: Job, me: str | None) -> Span:
    """Who started the ranks: `torchrun`, or `alice: torchrun` for another user's.

    A job of this user's in another DDPTOP_HOME is `ddptop, other home`.
    """
    if not job.is_foreign:
        name = launcher_name(job)
        return ("ddptop" if name is None else f"↳ {name}"), "dim"
    if job.user != me:
        return f"{job.user}: {job.launcher}", ""
    return (f"{job.launcher}, other home" if job.launcher == "ddptop" else job.launcher), ""


def _gpus(snapshot: NodeSnapshot) -> str:
    """`0-3`; on several hosts `2x4`, or `7 in 2` if the hosts have different numbers."""
    held = assigned_devices(snapshot)
    on_each = Counter(host for host, _ in held)
    if len(on_each) < 2:
        return units.ranks([index for _, index in held])
    even = len(set(on_each.values())) == 1
    number, hosts = len(held), len(on_each)
    return f"{hosts}x{number // hosts}" if even else f"{number} in {hosts}"


def _world_size(job: Job) -> int | None:
    return job.snapshot.world_size or job.world_size


def _ranks(subject: Subject) -> Cell:
    world = _world_size(subject.job)
    return units.count(world), unknown(world)


def _name(subject: Subject) -> Cell:
    name = line((subject.label or subject.job.name, "strong"))
    return line(("◆ ", "chosen"), *name) if subject.marked else name


def _why(subject: Subject) -> Cell:
    calm = subject.needs.is_calm
    who = by_text(subject.job, subject.me)[0]
    named = subject.names_launcher and subject.job.is_foreign and calm
    hosts = hosts_of(subject.snapshot)
    if len(hosts) > 1 and calm:
        who, named = hosts_in_words(hosts, 3), True
    return sentence_cell(subject.needs, f"{who}: " if named else "")


def _bar(subject: Subject) -> Cell:
    fraction = None if subject.progress is None else subject.progress.fraction
    style = "busy" if subject.job.is_live else "dim"
    return () if fraction is None else bar(fraction, BAR_CELLS, style)


def _step(subject: Subject) -> Cell:
    return ("", "") if subject.job.members else step_cell(subject.snapshot)


def step_cell(snapshot: NodeSnapshot) -> Span:
    """`12,340`, or `98*` for steps of this attempt."""
    run = run_step.of_snapshot(snapshot)
    step = units.NOT_AVAILABLE if run is None else units.count(run.step)
    return step + "*" * (run is not None and run.counts == "attempt"), unknown(step)


def _step_of_total(subject: Subject) -> str:
    run = run_step.of_snapshot(subject.snapshot)
    return step_text(run, subject.progress, subject.job.is_live)


def _rate(subject: Subject) -> Cell:
    """`3.1/s`; empty for an ended job."""
    pace = steps_per_s(subject.snapshot.ranks) if subject.job.is_live else None
    return "" if pace is None else units.rate(pace).replace(" steps", ""), ""


def _loss(subject: Subject) -> Cell:
    """The loss; of a sweep, that of its best job."""
    if subject.job.members:
        return loss_cell(by_loss(subject.job.members)[0].snapshot, None)
    has_trend = subject.job.is_live and subject.job.pause is None
    return loss_cell(subject.snapshot, subject.trend if has_trend else None)


def _plain_loss(subject: Subject) -> str:
    """`0.31 (val)`, or the loss in training."""
    validation = validation_loss(subject.job)
    loss = units.loss(*median_loss(subject.snapshot))
    return loss if validation is None else f"{units.loss(validation)} (val)"


def _eta(subject: Subject) -> Cell:
    left = eta(subject.progress)
    hidden = (subject.job.is_foreign or subject.job.members) and left == units.NOT_AVAILABLE
    return ("", "") if hidden or not subject.job.is_live else (left, unknown(left))


def _restarts(subject: Subject) -> Cell:
    used, left = subject.snapshot.restarts_used, subject.snapshot.restarts_left
    counts = not (subject.job.is_foreign or subject.job.members)
    return (f"{used}/{used + left}" if counts else ""), ""


def _elapsed(subject: Subject) -> Cell:
    return calm_duration(subject.job.elapsed_s(subject.now)), _live(subject.job)


def _done(job: Job) -> float | None:
    progress = progress_of(job)
    fraction = None if progress is None else progress.fraction
    return None if fraction is None else 100 * fraction


def _left_s(job: Job) -> float | None:
    progress = progress_of(job)
    return progress.eta_s if progress is not None and job.is_live else None


def _here_and_world(subject: Subject) -> str:
    here, world = len(subject.snapshot.ranks), _world_size(subject.job)
    return str(here) if world == here else f"{here} of {units.count(world)}"


def _state_word(subject: Subject) -> str:
    return state_of(subject.job)[0].partition(" ")[2]


_PLAIN_STEP = Plain(9, "STEP", _step_of_total)
_PLAIN_COMMAND = Plain(14, "COMMAND", lambda subject: subject.job.command, "<")


def _live(job: Job) -> str:
    return "" if job.is_live else "dim"


FIGURES: tuple[JobFigure, ...] = (
    JobFigure(
        key="state", cell=lambda subject: state_of(subject.job),
        title="state", width=12, fitted=(9, 15, 15, 15), order="need",
        ls=Plain(1, "STATE", _state_word, "<"),
    ),
    JobFigure(
        key="job", cell=_name,
        title="job", width=12, fitted=(8, 16, 24, 30), order="name",
        ls=Plain(0, "JOB", align="<"), ps=Plain(0, "JOB", align="<"),
    ),
    JobFigure(
        key="by", cell=lambda subject: by_text(subject.job, subject.me),
        title="by", width=14, drop=6, least=MIDDLE, fitted=(6, 18, 18, 18),
        ps=Plain(1, "LAUNCHER", lambda subject: subject.job.launcher, "<"),
        help=("by", "what started the ranks, such as ddptop, torchrun, or mp.spawn; ↳ marks a job "
              "that ddptop launched; for another user's job, the user's name comes first"),
    ),
    JobFigure(
        key="ranks",
        cell=_ranks,
        title="ranks", width=5, align=">", drop=12, least=ROOMY,
        number=lambda job, now: _world_size(job),
        ls=Plain(3, "RANKS", drop=2),
        ps=Plain(3, "RANKS", _here_and_world, "<"),
        help=("ranks", "the number of ranks; for a command, the number discovered so far"),
    ),
    JobFigure(
        key="gpus",
        cell=lambda subject: (text, "") if (text := _gpus(subject.snapshot)) else ("-", "dim"),
        title="GPUs", width=6, drop=5, least=MIDDLE, spare=True,
        number=lambda job, now: len(assigned_devices(job.snapshot)),
        ps=Plain(5, "GPUS", align="<"),
    ),
    JobFigure(
        key="why", cell=_why,
        title="status", width=22, flex=True, last_from=WIDE, order="need",
        ls=Plain(13, "STATUS", align="<"),
        help=("status", "the most urgent thing to know about this job"),
    ),
    JobFigure(
        key="bar", cell=_bar,
        title="progress", width=BAR_CELLS, drop=11, least=MIDDLE, spare=True,
        help=("progress", "how far along the run is, if the total number of steps is known"),
    ),
    JobFigure(
        key="done", cell=lambda subject: (share(subject.progress), _live(subject.job)),
        title="done", width=6, align=">", drop=2, spare=True,
        number=lambda job, now: _done(job), unit="%",
        ls=Plain(10, "DONE", drop=1),
        ps=Plain(10, "DONE"),
        help=("done", "percentage of the run completed; n/a if the total is unknown"),
    ),
    JobFigure(
        key="step", cell=_step,
        title="step", width=7, align=">", drop=7, least=ROOMY,
        number=lambda job, now: (
            None if (run := run_step.of_snapshot(job.snapshot)) is None else run.step
        ),
        ls=_PLAIN_STEP, ps=_PLAIN_STEP,
        help=("step", "the run's step, counted across restarts; if an attempt's starting step is "
              "unknown, the steps taken in that attempt, marked *"),
    ),
    JobFigure(
        key="rate", cell=_rate,
        title="pace", width=8, align=">", drop=8, least=ROOMY, spare=True,
        number=lambda job, now: steps_per_s(job.snapshot.ranks) if job.is_live else None,
        help=("pace", "steps per second (/s), minute (/min), or hour (/h) over the last steps"),
    ),
    JobFigure(
        key="loss",
        cell=_loss,
        title="loss ", width=9, align=">", drop=3,
        ls=Plain(12, "LOSS", _plain_loss),
        number=lambda job, now: median_loss(job.snapshot)[0],
    ),
    JobFigure(
        key="eta", cell=_eta,
        title="ETA", width=7, align=">", drop=4, spare=True,
        number=lambda job, now: _left_s(job), unit="s",
        ls=Plain(11, "ETA"), ps=Plain(11, "ETA"),
        help=("ETA", "time left at the current pace; requires a known total"),
    ),
    JobFigure(
        key="elapsed",
        cell=_elapsed,
        title="elapsed", width=7, align=">", drop=9, least=WIDE, order="started",
        number=lambda job, now: job.elapsed_s(now), unit="s",
        ls=Plain(12, "ELAPSED"), ps=Plain(8, "ELAPSED"),
        help=("elapsed",
              "time since launch, including restarts; for this attempt only where noted"),
    ),
    JobFigure(
        key="started",
        ls=Plain(12, "STARTED", lambda one: units.local_time(one.snapshot.started_at), "<", drop=3),
    ),
    JobFigure(
        key="restarts", cell=_restarts,
        title="restarts", width=8, align=">", drop=13, least=WIDE, spare=True,
        number=lambda job, now: job.snapshot.restarts_used,
        ls=Plain(4, "ATTEMPT", lambda one: units.count(one.snapshot.attempt), drop=4),
        help=("restarts", "used and allowed, as in 1/3; progress resets the number used"),
    ),
    JobFigure(
        key="alerts",
        number=lambda job, now: len(job.snapshot.alerts) if job.is_live else 0,
    ),
    JobFigure(
        key="util", unit="%",
        number=lambda job, now: min(
            (gpu.util_percent for gpu in job.snapshot.gpus if gpu.util_percent is not None),
            default=None,
        ),
    ),
    JobFigure(
        key="mem", unit="bytes",
        number=lambda job, now: max(
            (gpu.mem_used_bytes for gpu in job.snapshot.gpus if gpu.mem_used_bytes is not None),
            default=None,
        ),
    ),
    JobFigure(key="user", ps=Plain(2, "USER", lambda subject: subject.job.user, "<")),
    JobFigure(
        key="cpu",
        ps=Plain(6, "CPU", lambda one: units.percent(one.usage and one.usage.cpu_percent)),
    ),
    JobFigure(
        key="memory",
        ps=Plain(7, "MEMORY", lambda one: units.size(one.usage and one.usage.rss_bytes)),
    ),
    JobFigure(key="command", ls=_PLAIN_COMMAND, ps=_PLAIN_COMMAND),
)  # fmt: skip
"""In table order; a filter compares the lowest `util` and the highest `mem` of the devices."""

_ORDERS = {one.key: one.order for one in FIGURES if one.order}
"""Sort order by column, for clicks on titles."""

COLUMN_OF_ORDER = {order: key for key, order in reversed(_ORDERS.items())}


def columns_for(
    cells: int, names: Sequence[str] = (), states: Sequence[str] = (), by: Sequence[str] = ()
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


def job_table(
    jobs: Sequence[Subject], of: Literal["ls", "ps"], cells: int | None = None
) -> tuple[list[str], list[list[str]], list[int]]:
    """The table that `ls` or `ps` prints; see `plain_table`.

    `ps` has columns for steps and progress only if a job reports them, and `ls` has one for losses
    only for the jobs of a sweep.
    """
    counts = of == "ls" or any(
        one.progress is not None or one.snapshot.step is not None for one in jobs
    )
    columns = [
        (part, part.text or figure.text)
        for figure in FIGURES
        if (part := figure.ls if of == "ls" else figure.ps) is not None
        and (counts or figure.key not in ("step", "done", "eta"))
        and (figure.key != "loss" or all(one.job.group is not None for one in jobs))
    ]
    return plain_table(columns, jobs, cells)


def job_row(subject: Subject) -> Row:
    """A job's cells by column, for the overview."""
    return {of.key: of.cell(subject) for of in FIGURES if of.cell is not None}


# --- the filter -----------------------------------------------------------------------------------

JOB_WORDS = Vocabulary(
    ("state", "user", "gpu", "by", "host", "name"),
    {one.key: one.unit for one in FIGURES if one.number is not None},
)
"""What a filter of jobs can use."""


def job_facts(job: Job, now: dt.datetime, sentence: str = "") -> Facts:
    """What a filter examines of a job; `sentence` is what else the table shows about it."""
    by = job.launcher if job.is_foreign else f"ddptop {job.launcher}"
    state = "gone" if job.is_foreign and job.state == "lost" else job.state
    paused = () if job.pause is None else (job.pause.state.replace("_", " "),)
    fields: dict[str, tuple[str, ...]] = {
        "state": (state, *paused),
        "user": (job.user,),
        "by": tuple(by.split()),
        "host": tuple(dict.fromkeys((job.host, *hosts_of(job.snapshot)))),
        "name": (job.name,),
        "gpu": tuple(str(index) for _, index in sorted(assigned_devices(job.snapshot))),
    }
    text = " ".join((job.name, state, job.user, by, job.host, job.command, sentence))
    numbers = {one.key: one.number(job, now) for one in FIGURES if one.number is not None}
    return Facts(text, fields, numbers)
