"""Jobs as rows of a table: its columns, its cells, and its order."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop.charts.bars import bar
from ddptop.draw.launched import launcher_name
from ddptop.view import words
from ddptop.view.attention import Attention
from ddptop.view.figures.columns import Column, Row, plain_cell
from ddptop.view.filter_facts import held_by
from ddptop.view.host_words import hosts_of
from ddptop.view.jobs import elapsed_s, median_loss
from ddptop.view.learning import LossTrend
from ddptop.view.listed import Listed
from ddptop.view.need import Need
from ddptop.view.progress import percent_text, progress_of
from ddptop.view.text import Line, Span, cells_of, line
from ddptop.view.uneven import worst_figure
from ddptop_runner.base import units
from ddptop_runner.foreign.types import ForeignView
from ddptop_runner.job.registry import AnyJob, pause_of
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import NodeSnapshot

BAR_CELLS = 9

ARROWS: Mapping[str, Span] = {
    "falling": ("↘", "ok"),
    "flat": ("→", "dim"),
    "rising": ("↗", "warn"),
}
"""Which way a loss goes."""

_STATE = Column("state", "state", 12)
_JOB = Column("job", "job", 12)
_WHY = Column("why", "status", 22, flex=True)
_DONE = Column("done", "done", 5, ">", drop=2)
_LOSS = Column("loss", "loss ", 9, ">", drop=3)
_ETA = Column("eta", "ETA", 7, ">", drop=4)
_GPUS = Column("gpus", "GPUs", 6, drop=5)
_BAR = Column("bar", "progress", BAR_CELLS, drop=11)
_BY = Column("by", "by", 14, drop=6)
_ELAPSED = Column("elapsed", "elapsed", 7, ">", drop=9)

NARROW = (_STATE, _JOB, _WHY, _DONE, _LOSS, _ETA)
MIDDLE = (_STATE, _JOB, _BY, _GPUS, _WHY, _BAR, _DONE, _LOSS, _ETA, _ELAPSED)
WIDE = (
    _STATE,
    _JOB,
    _BY,
    Column("ranks", "ranks", 5, ">", drop=12),
    _GPUS,
    _BAR,
    _DONE,
    Column("step", "step", 9, ">", drop=7),
    _LOSS,
    Column("uneven", "uneven", 11, ">", drop=10),
    _ETA,
    _ELAPSED,
    Column("restarts", "restarts", 8, ">", drop=13),
    Column("why", " status", 22, flex=True),
)


def columns_for(
    cells: int, names: Sequence[str], states: Sequence[str], by: Sequence[str]
) -> tuple[Column, ...]:
    """The columns of a table of that width; what the others leave is for the sentence.

    Args:
        cells: the width.
        names: of the jobs, with their marks.
        states: of the jobs, with their symbols.
        by: who starts the ranks; empty where that is ddptop for all of them, and not said.
    """
    columns, most = (WIDE, 30) if cells >= 170 else (MIDDLE, 24) if cells >= 100 else (NARROW, 16)
    sized = {
        _JOB: replace(_JOB, width=_fitting(names, 8, most)),
        _STATE: replace(_STATE, width=_fitting(states, 9, 15)),
        _BY: replace(_BY, width=_fitting(by, 6, 18)),
    }
    sized |= {
        one: replace(one, width=max(one.width, cells // 3)) for one in columns if one.key == "why"
    }
    return tuple(sized.get(one, one) for one in columns if by or one.key != "by")


_SPARE = frozenset({"bar", "done", "eta", "gpus", "uneven", "restarts"})


def without_empty(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns without those that no job has anything in: their room is for the sentence."""
    return tuple(
        column
        for column in columns
        if column.key not in _SPARE
        or any(plain_cell(row.get(column.key, ("", ""))).strip(" -") for row in rows)
    )


def _fitting(texts: Sequence[str], least: int, most: int) -> int:
    return min(most, max(least, max(map(cells_of, texts), default=0)))


# --- the order ------------------------------------------------------------------------------------

ORDERS: Mapping[str, str] = {
    "need": "attention",
    "name": "name",
    "started": "start",
    "gpus": "GPUs",
}
"""Orders of the table, in words."""

ORDER_OF_COLUMN: Mapping[str, str] = {
    "state": "need",
    "why": "need",
    "job": "name",
    "elapsed": "started",
    "gpus": "gpus",
}
"""The order that a click on a column's name asks for."""

COLUMN_OF_ORDER: Mapping[str, str] = {
    "need": "state",
    "name": "job",
    "started": "elapsed",
    "gpus": "gpus",
}


# --- rows -----------------------------------------------------------------------------------------


def job_row(
    one: Listed,
    now: dt.datetime,
    me: str | None = None,
    trend: LossTrend | None = None,
    *,
    marked: bool = False,
    says_who: bool = False,
) -> Row:
    """One job of the overview, by column.

    Args:
        one: the job.
        now: for what has passed.
        me: the user whose name need not be said.
        trend: which way its loss goes.
        marked: whether a person marked it.
        says_who: whether no column says who started a foreign job, so that its sentence must.
    """
    view, needs = one.view, one.attention
    snapshot, foreign = view.snapshot, isinstance(view, ForeignView)
    by, name = by_text(view, me), line((view.job, "strong"))
    calm = needs.need >= Need.RUNNING
    who = f"{by[0]}: " if says_who and foreign and calm else ""
    row: dict[str, Span | Line] = {
        "state": words.state_of(view, now),
        "job": line(("◆ ", "chosen"), *name) if marked else name,
        "by": by,
        "why": sentence_cell(needs, who),
        "ranks": (units.count(view.world_size), _unknown(view.world_size)),
        "command": (" " + view.command, "dim"),
    }
    if snapshot is None:
        return row
    progress, live = progress_of(view), view.is_live
    run, eta_s = run_step.of_snapshot(snapshot), progress.eta_s if progress else None
    step = units.NOT_AVAILABLE if run is None else units.count(run.step)
    if run is not None and run.counts == "attempt":
        step += "*"
    guessed = progress is not None and progress.estimated and eta_s is not None
    gpus = _gpus(snapshot)
    fraction = None if progress is None else progress.fraction
    used, left = snapshot.restarts_used, snapshot.restarts_left
    row |= {
        "ranks": (units.count(snapshot.world_size or view.world_size), ""),
        "gpus": (gpus or "-", "" if gpus else "dim"),
        "restarts": ("", "")
        if foreign
        else (f"{used}/{used + left}", "warn" * bool(used and live)),
        "step": (step, _unknown(step)),
        "bar": () if fraction is None else bar(fraction, BAR_CELLS, "busy" if live else "dim"),
        "done": (percent_text(progress), "" if live else "dim"),
        "eta": ("", "")
        if not live or (foreign and eta_s is None)
        else (f"{'~' * guessed}{units.duration(eta_s)}", _unknown(eta_s)),
        "loss": loss_cell(snapshot, trend if live and pause_of(view) is None else None),
        "uneven": worst_figure(snapshot) if live else ("", ""),
        "elapsed": (calm_duration(elapsed_s(view, now)), "" if live else "dim"),
        "host": (" " + _where(snapshot), "warn" if view.on_other_host else "dim"),
    }
    return row


def _gpus(snapshot: NodeSnapshot) -> str:
    """`0-3`; on several hosts `2x4`, or `7 in 2` where they have not equally many."""
    held = held_by(snapshot)
    on_each = Counter(host for host, _ in held)
    if len(on_each) < 2:
        return units.ranks([index for _, index in held])
    even = len(set(on_each.values())) == 1
    number, hosts = len(held), len(on_each)
    return f"{hosts}x{number // hosts}" if even else f"{number} in {hosts}"


def _where(snapshot: NodeSnapshot) -> str:
    hosts = hosts_of(snapshot)
    return f"{len(hosts)} hosts" if len(hosts) > 1 else snapshot.host


def calm_duration(seconds: float | None) -> str:
    """A span of time that does not change at every look: `<1m`, `12m`, `3h 22m`, `2d 04h`."""
    if seconds is None or seconds >= 3600:
        return units.duration(seconds)
    return "<1m" if seconds < 60 else units.brief_duration(seconds)


def sentence_cell(needs: Attention, who: str = "") -> Line:
    """The sentence about a job; colored only if it needs attention."""
    style = needs.style if needs.need < Need.RUNNING else "dim"
    return line((who, "dim"), (needs.sentence, style)) if who else line((needs.sentence, style))


def loss_cell(snapshot: NodeSnapshot, trend: LossTrend | None) -> Line:
    """The median of the ranks' losses, and which way it goes."""
    value, state = median_loss(snapshot)
    style = "bad" if state in ("nan", "inf") else _unknown(value)
    arrow = (" ", "") if trend is None or value is None else ARROWS[trend.way]
    return line((f"{units.loss(value, state)} ", style), arrow)


def by_text(view: AnyJob, me: str | None) -> Span:
    """Who started the ranks: `torchrun`, or `alice: torchrun` for another user's.

    A job of ddptop's that another user or state folder has is `other ddptop`.
    """
    if not isinstance(view, ForeignView):
        name = launcher_name(view)
        return ("ddptop" if name is None else f"↳ {name}"), "dim"
    user = view.foreign.user
    who = "other ddptop" if view.launcher == "ddptop" else view.launcher
    return (who if user == me else f"{user}: {who}"), ""


def _unknown(value: object) -> str:
    return "dim" if value is None or value == units.NOT_AVAILABLE else ""
