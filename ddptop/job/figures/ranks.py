"""Defines every figure of a rank.

An entry in FIGURES defines how a figure is read and formatted, what it is compared with, where it
is shown, and what it means. The tables, the cards, the map, the filter, `ddptop status`, and the
help all use it; a new figure only needs a new entry.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ddptop.job.figures.devices import FULL_SHARE
from ddptop.job.filter import Facts, Filter, Vocabulary
from ddptop.job.ranks import (
    CALM,
    busy_share,
    counts_own,
    data_share,
    device_text,
    lasting_phase,
    loss_text,
    memory_share,
    parts_text,
    power_share,
    rank_step,
    sync_share,
)
from ddptop.job.status import rank_state
from ddptop.style import Column, Line, Plain, Span, cells_of, join, line, plain_table, unknown
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import (
    Figure,
    RankDeviation,
    busy_s,
    slow_ranks,
)
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample

NOTHING = RankDeviation()
NO_HOSTS: Mapping[str, str] = {}
STATE_CELLS = 10
"""Width of the state column."""


class Subject(msgspec.Struct, frozen=True):
    """What the cells of a rank are made from."""

    rank: RankSample
    now: dt.datetime
    live: bool
    apart: RankDeviation = NOTHING
    hosts: Mapping[str, str] = NO_HOSTS
    """Short host names, if there are several hosts."""
    verdict: Span = ("", "")
    """The rank's state, or what is odd about it while it runs."""


class Drop(msgspec.Struct, frozen=True):
    """When a column is left out for lack of width: highest numbers first, 0 never."""

    drop: int = 0
    vs: int = 0
    """The same for the column with the distance from the median; 0 if there is none."""


class Compared(msgspec.Struct, frozen=True):
    """How a figure's distance from the median of all ranks is described."""

    of: Figure
    name: str
    brief: str


class Card(msgspec.Struct, frozen=True):
    """A row of a rank's card."""

    label: str
    drop: int
    """Rows with the highest number are dropped first."""
    share: Callable[[RankSample, GpuSample | None], float | None] | None = None
    """Fraction that its bar shows, from a rank and its device."""
    style: str = "busy"
    """Style of its bar."""
    warns: Callable[[float, RankDeviation], bool] | None = None
    """Whether its bar is a warning, from that fraction and the distance from the others."""


_TWENTY = ("≤-20%", "-20..-5%", "±5%", "+5..20%", "≥+20%")
_SHARES = (
    (5, 15, 30, 60), ("<5%", "5-15%", "15-30%", "30-60%", "≥60%"),
    ("band", "median", "median", "busy", "busy"), lambda percent: percent,
)  # fmt: skip
"""Levels of a fraction of a step, in percent."""
_SIDES = ("busy", "median", "band", "median", "busy")
"""Styles by level, except for ranks that an alert names, which are drawn as warnings."""


class Map(msgspec.Struct, frozen=True):
    """What the cells of the map of ranks show, in five levels."""

    name: str
    read: Callable[[RankSample, RankDeviation], float | None]
    edges: tuple[float, float, float, float] = (-0.2, -0.05, 0.05, 0.2)
    """Boundaries between the levels."""
    legend: tuple[str, str, str, str, str] = _TWENTY
    styles: tuple[str, ...] = _SIDES
    worst: Callable[[float], float] = abs
    """How urgent a value is; higher is worse."""
    text: Callable[[float], str] = units.deviation
    calm: tuple[int, ...] = (2,)
    """Levels that need no attention."""
    is_time: bool = False
    """Whether the cell of a slow rank is marked."""


def on_devices(rank: RankSample) -> bool:
    """Whether the rank has a device."""
    return rank.gpu is not None or bool(rank.gpus)


def _any_device(ranks: Sequence[RankSample]) -> bool:
    return any(map(on_devices, ranks))


class RankFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a rank; if a part is missing, the figure is not shown there."""

    key: str
    read: Callable[[RankSample], Any] = lambda rank: None
    form: Callable[[Any], str] = units.count
    written: Callable[[RankSample], str] | None = None
    """Formats its text, if that needs more than the value."""
    cell: Callable[[Subject], Span] | None = None
    """Makes its cell, if that is more than the text."""
    apart: Compared | None = None
    """How it is compared with the median of all ranks."""
    title: str = ""
    """Title of its column."""
    width: int = 0
    align: str = ">"
    flex: bool = False
    fitted: Callable[[Column, Sequence[RankSample], Mapping[str, str]], Column] | None = None
    """Adapts its column to the ranks and the short names of their hosts."""
    known: Callable[[Sequence[RankSample]], bool] | None = None
    """Whether these ranks need the column; None for always."""
    own: Drop | None = None
    """Its place in the table for ddptop's own jobs."""
    foreign: Drop | None = None
    """Its place in the table for foreign jobs."""
    without_device: str = ""
    """Key of the figure that replaces it for ranks without a device."""
    filter: str | None = None
    """Its name in a filter, if it is a number to compare."""
    unit: str = ""
    """Unit of the number in a filter."""
    plain: Plain | None = None
    """Its column in the output of `ddptop status`."""
    card: Card | None = None
    map: Map | None = None
    help: tuple[str, str] | None = None
    """Term and meaning."""

    @property
    def label(self) -> str:
        """Its label on a card."""
        return self.title.strip() if self.card is None else self.card.label

    def text(self, rank: RankSample) -> str:
        """Its formatted value."""
        return self.form(self.read(rank)) if self.written is None else self.written(rank)


def figure(key: str) -> RankFigure:
    """The figure with this key."""
    return _BY_KEY[key]


def shown(key: str, rank: RankSample) -> RankFigure:
    """The figure, or the one that replaces it if the rank has no device."""
    one = _BY_KEY[key]
    return one if on_devices(rank) or not one.without_device else _BY_KEY[one.without_device]


# --- cells ----------------------------------------------------------------------------------------


def _last(subject: Subject) -> Span:
    ago = ""
    if subject.live and subject.rank.last_progress_at is not None:
        ago = units.brief_duration((subject.now - subject.rank.last_progress_at).total_seconds())
    return ago, "warn" if subject.rank.state == "hung" else "dim"


def loss_style(rank: RankSample) -> str:
    """The style of a loss: bad if not finite."""
    return "bad" if rank.loss_state in ("nan", "inf") else unknown(rank.loss)


def _ended(rank: RankSample) -> str:
    """`failed (SIGKILL)`."""
    how = rank.signal if rank.signal is not None else rank.exit_code or None
    return rank.state if how is None else f"{rank.state} ({how})"


def _percent(value: float | None) -> float | None:
    return None if value is None else value / 100


def _digits(value: int | None) -> str:
    return units.NOT_AVAILABLE if value is None else str(value)


def _cell(one: RankFigure, subject: Subject) -> Span:
    if one.cell is not None:
        return one.cell(subject)
    text = one.text(subject.rank)
    return text + " " * one.title.endswith(" "), unknown(text)


def deviation_cell(apart: RankDeviation, of: Figure) -> Span:
    """The distance from the median: `+47%`, or `▲+47%` for a slow rank."""
    ratio, warns = apart.of(of), apart.warns(of)
    if ratio is None:
        return "", ""
    return f"{'▲' * warns}{units.deviation(ratio)}", "warn" if warns else "dim"


def rank_row(subject: Subject) -> dict[str, Span]:
    """A rank's cells by column."""
    row = {}
    for one in FIGURES:
        if one.title:
            row[one.key] = _cell(one, subject)
            if one.apart is not None:
                row[f"{one.key}_vs"] = deviation_cell(subject.apart, one.apart.of)
    return row


# --- the table ------------------------------------------------------------------------------------


def _any_busy(ranks: Sequence[RankSample]) -> bool:
    return any(busy_s(rank) is not None for rank in ranks)


def _with_host(column: Column, ranks: Sequence[RankSample], hosts: Mapping[str, str]) -> Column:
    return replace(column, width=max(4, *map(cells_of, hosts.values())))


def _own_step(column: Column, ranks: Sequence[RankSample], hosts: Mapping[str, str]) -> Column:
    return replace(column, title="step*") if any(map(counts_own, ranks)) else column


def _with_parts(column: Column, ranks: Sequence[RankSample], hosts: Mapping[str, str]) -> Column:
    return replace(column, width=11) if any(map(parts_text, ranks)) else column


FIGURES: tuple[RankFigure, ...] = (
    RankFigure(
        key="rank",
        cell=lambda subject: (str(subject.rank.rank), "strong"),
        title="rank", width=4, own=Drop(), foreign=Drop(),
        plain=Plain(0, "RANK", lambda rank: str(rank.rank)),
        help=("rank", "one training process; ranks are numbered from 0"),
    ),
    RankFigure(
        key="host",
        cell=lambda subject: (subject.hosts.get(subject.rank.host, subject.rank.host), "dim"),
        title="host", width=8, align="<", own=Drop(), foreign=Drop(), fitted=_with_host,
        help=("host", "the machine that the rank runs on"),
    ),
    RankFigure(
        key="device",
        cell=lambda subject: (device_text(subject.rank), ""),
        title="device", width=7, align="<", own=Drop(5), foreign=Drop(3),
        plain=Plain(1, "GPU", lambda rank: _digits(rank.gpu)),
    ),
    RankFigure(
        key="state",
        cell=lambda subject: subject.verdict,
        title="state", width=STATE_CELLS, align="<", own=Drop(), foreign=Drop(),
        plain=Plain(3, "STATE", _ended, "<"),
    ),
    RankFigure(
        key="step",
        read=rank_step,
        title="step", width=8, own=Drop(), foreign=Drop(7), fitted=_own_step,
        filter="step",
        plain=Plain(4, "STEP", lambda rank: _digits(rank_step(rank))),
        card=Card("step", 5),
    ),
    RankFigure(
        key="loss",
        read=lambda rank: rank.loss,
        form=units.loss,
        written=loss_text,
        cell=lambda subject: (loss_text(subject.rank), loss_style(subject.rank)),
        apart=Compared("loss", "loss", "loss"),
        title="loss", width=7, own=Drop(0, 2), foreign=Drop(6), fitted=_with_parts,
        filter="loss",
        plain=Plain(5, "LOSS"),
        card=Card("loss", 0),
        map=Map("loss vs median", lambda rank, apart: apart.loss,
                (-0.5, -0.1, 0.1, 0.5), ("≤-50%", "-50..-10%", "±10%", "+10..50%", "≥+50%")),
        help=("loss", "this rank's latest loss; NaN and inf are shown as such"),
    ),
    RankFigure(
        key="time",
        read=lambda rank: rank.step_time_s,
        form=units.step_time,
        apart=Compared("step_time", "step time", "step"),
        title="time", width=7, own=Drop(0, 1),
        known=lambda ranks: not _any_busy(ranks),
        filter="time", unit="s",
        plain=Plain(6, "STEP TIME"),
        card=Card("time", 1),
        map=Map("step time vs median", lambda rank, apart: apart.step_time,
                worst=lambda ratio: ratio, is_time=True),
        help=("time", "step time, from one optimizer step to the next"),
    ),
    RankFigure(
        key="busy",
        read=busy_s,
        form=units.step_time,
        apart=Compared("own_time", "busy time", "busy"),
        title="busy", width=7, own=Drop(0, 1), known=_any_busy,
        filter="busy", unit="s",
        card=Card("busy", 1, lambda rank, gpu: busy_share(rank)),
        map=Map("busy time vs others", lambda rank, apart: apart.own_time,
                worst=lambda ratio: ratio, is_time=True),
        help=("busy", "the part of a step in which a rank does not wait for others, which all "
              "take the same step time; its percentage is what it adds to each step, compared with "
              "the median of the other ranks"),
    ),
    RankFigure(
        key="wait",
        read=lambda rank: rank.data_wait_s,
        form=units.step_time,
        title="data wait", width=9, own=Drop(3),
        filter="wait", unit="s",
        card=Card("data", 4, lambda rank, gpu: data_share(rank), "band",
                  lambda share, apart: apart.is_slow and share >= 0.3),
        map=Map("data wait per step",
                lambda rank, apart: None if (part := data_share(rank)) is None else 100 * part,
                *_SHARES, units.percent, (0, 1), is_time=True),
        help=("data wait", "the part of a step spent waiting for the data loader"),
    ),
    RankFigure(
        key="sync",
        read=lambda rank: rank.sync_s,
        form=units.step_time,
        title="sync", width=7, own=Drop(4),
        known=_any_busy,
        filter="sync", unit="s",
        card=Card("sync", 6, lambda rank, gpu: sync_share(rank), "band"),
        map=Map("sync per step",
                lambda rank, apart: None if (part := sync_share(rank)) is None else 100 * part,
                *_SHARES, units.percent, (0, 1), is_time=True),
        help=("sync", "the part of a step spent waiting for other ranks"),
    ),
    RankFigure(
        key="last",
        cell=_last,
        title="last", width=4, own=Drop(9),
        help=("last", "time since this rank's last step"),
    ),
    RankFigure(
        key="util",
        read=lambda rank: rank.gpu_util_percent,
        form=units.percent,
        apart=Compared("utilization", "util", "util"),
        title="util ", width=6, own=Drop(7, 14), foreign=Drop(0, 9),
        known=_any_device, without_device="cpu",
        filter="util", unit="%",
        card=Card("util", 2, lambda rank, gpu: _percent(rank.gpu_util_percent)),
        map=Map("util", lambda rank, apart: shown("util", rank).read(rank),
                (20, 40, 60, 80), ("<20%", "20-40%", "40-60%", "60-80%", "≥80%"),
                ("busy", "busy", "median", "median", "band"), lambda percent: -percent,
                units.percent, (3, 4)),
    ),
    RankFigure(
        key="mem",
        read=lambda rank: rank.gpu_mem_used_bytes,
        form=units.size,
        apart=Compared("memory", "memory", "mem"),
        title="memory ", width=9, own=Drop(6, 13), foreign=Drop(0, 8),
        known=_any_device, without_device="rss",
        filter="mem", unit="bytes",
        card=Card("mem", 3, memory_share, "median", lambda share, apart: share >= FULL_SHARE),
        map=Map("memory vs median", lambda rank, apart: apart.memory),
    ),
    RankFigure(
        key="power",
        read=lambda rank: rank.gpu_power_w,
        form=units.watts,
        apart=Compared("power", "power", "power"),
        title="power ", width=6, own=Drop(8, 15), foreign=Drop(1, 10),
        known=_any_device,
        filter="power",
        card=Card("power", 7, power_share),
        map=Map("power vs median", lambda rank, apart: apart.power),
    ),
    RankFigure(
        key="cpu",
        read=lambda rank: rank.cpu_percent,
        form=units.percent,
        title="CPU ", width=7, own=Drop(10), foreign=Drop(),
        filter="cpu", unit="%",
        plain=Plain(7, "CPU"),
        card=Card("CPU", 8, lambda rank, gpu: _percent(rank.cpu_percent)),
        help=("CPU", "CPU used by this process and its helpers; 100% is one core"),
    ),
    RankFigure(
        key="rss",
        read=lambda rank: rank.rss_bytes,
        form=units.size,
        title="RSS ", width=9, own=Drop(11), foreign=Drop(4),
        filter="rss", unit="bytes",
        plain=Plain(8, "RSS"),
        help=("RSS", "RAM used by this process, excluding GPU memory"),
    ),
    RankFigure(
        key="pid",
        cell=lambda subject: (_digits(subject.rank.pid), "dim"),
        title="PID", width=8, own=Drop(12), foreign=Drop(5),
        plain=Plain(2, "PID", lambda rank: _digits(rank.pid)),
        help=("PID", "process ID of the rank on its host"),
    ),
    RankFigure(
        key="why",
        cell=lambda subject: (" " + (subject.rank.state_reason or ""), "dim"),
        title=" why", width=21, align="<", flex=True, foreign=Drop(2),
        known=lambda ranks: any(rank.state_reason for rank in ranks),
    ),
)  # fmt: skip
"""In the order of the rank table, of a card's rows, and in which a key cycles through the map."""

_BY_KEY = {one.key: one for one in FIGURES}
IN_PLACE = {one.without_device: one.key for one in FIGURES if one.without_device}
COMPARED: Mapping[Figure, Compared] = {
    one.apart.of: one.apart for one in FIGURES if one.apart is not None
}
"""Figures in which ranks are compared with the median."""


def columns_of(
    ranks: Sequence[RankSample], foreign: bool, hosts: Mapping[str, str] = NO_HOSTS
) -> tuple[Column, ...]:
    """The columns of a table of these ranks.

    Args:
        ranks: the job's ranks.
        foreign: whether only resource usage is known for sure.
        hosts: short host names, if there are several hosts.
    """
    columns = []
    for one in FIGURES:
        place = one.foreign if foreign else one.own
        if place is None or (one.known is not None and not one.known(ranks)):
            continue
        if one.key == "host" and not hosts:
            continue
        column = Column(one.key, one.title, one.width, one.align, place.drop, one.flex)
        columns.append(column if one.fitted is None else one.fitted(column, ranks, hosts))
        if one.apart is not None and place.vs:
            columns.append(Column(f"{one.key}_vs", "vs med", 6, ">", place.vs))
    return tuple(columns)


def rank_table(ranks: Sequence[RankSample]) -> tuple[list[str], list[list[str]], list[int]]:
    """The table that `status` prints; see `plain_table`."""
    own = any(map(counts_own, ranks))
    columns = [
        (replace(one.plain, header="STEP*") if own and one.key == "step" else one.plain, one)
        for one in FIGURES
        if one.plain is not None
    ]
    return plain_table(((part, part.text or one.text) for part, one in columns), ranks)


# --- the filter -----------------------------------------------------------------------------------

RANK_WORDS = Vocabulary(
    ("rank", "state", "gpu", "host"), {one.filter: one.unit for one in FIGURES if one.filter}
)
"""What a filter of ranks can use."""


def rank_facts(rank: RankSample) -> Facts:
    """What a filter examines of a rank."""
    numbers = {one.filter: one.read(rank) for one in FIGURES if one.filter}
    gpus = () if rank.gpu is None else (str(rank.gpu),)
    text = f"rank {rank.rank} {rank.state} {rank.host} {rank.state_reason or ''} {rank.pid or ''}"
    return Facts(
        text,
        {"rank": (str(rank.rank),), "state": (rank.state,), "gpu": gpus, "host": (rank.host,)},
        numbers,
    )


def ranks_that_match(snapshot: NodeSnapshot, wanted: Filter) -> frozenset[int] | None:
    """The ranks that match a filter; None if all are shown."""
    if not wanted:
        return None
    return frozenset(rank.rank for rank in snapshot.ranks if wanted.matches(rank_facts(rank)))


def state_of(rank: RankSample, now: dt.datetime, live: bool) -> Span:
    """The rank's state as a symbol and words, and a style."""
    phase = lasting_phase(rank, now) if live else None
    return rank_state(rank.state, rank.exit_code, rank.signal, phase)


def oddity(rank: RankSample, apart: RankDeviation) -> Span | None:
    """`▲ slow` or `✕ loss NaN`; None if no alert names the rank."""
    if rank.loss_state in ("nan", "inf"):
        return f"✕ loss {'NaN' if rank.loss_state == 'nan' else 'inf'}", "bad"
    return ("▲ slow", "warn") if apart.is_slow else None


def verdict(rank: RankSample, apart: RankDeviation, now: dt.datetime, live: bool) -> Span:
    """The rank's state, or what is odd about it while it runs."""
    state = state_of(rank, now, live)
    if rank.state in CALM and live and (odd := oddity(rank, apart)) is not None:
        return odd
    return state


def severity(rank: RankSample, apart: RankDeviation, live: bool) -> int:
    """0 for a healthy rank, 1 for an outlier, 2 for a problem."""
    if rank.state in ("failed", "hung", "zombie") or rank.loss_state in ("nan", "inf"):
        return 2
    if rank.state not in CALM:
        return 1
    return int(live and oddity(rank, apart) is not None)


def farthest(apart: RankDeviation) -> float:
    """The largest relative distance from the median in any figure: 0.5 is 50%."""
    known = [apart.of(figure) for figure in COMPARED]
    return max((abs(ratio) for ratio in known if ratio is not None), default=0.0)


def worst_first(
    ranks: Sequence[RankSample], apart: Mapping[int, RankDeviation], live: bool
) -> list[RankSample]:
    """Problems before outliers, then by distance from the median."""
    nothing = RankDeviation()

    def need(rank: RankSample) -> tuple[int, float]:
        own = apart.get(rank.rank, nothing)
        return -severity(rank, own, live), -farthest(own)

    return sorted(ranks, key=need)


def imbalance_note(snapshot: NodeSnapshot) -> Line:
    """`imbalance  rank 1 slow  memory +34%  power +2%`, worst first; empty if nothing is known.

    Whether a rank is slow is for the alert on it to say; its ratio is in its row. A ratio of
    utilization would mislead: it may be 2% of CPU against 1%.
    """
    ratios = {of: getattr(snapshot.imbalance, of, None) for of in COMPARED if of != "utilization"}
    known = {of: ratio for of, ratio in ratios.items() if ratio is not None}
    parts = [
        line((f"{COMPARED[of].name} {units.deviation(known[of])}", "dim"))
        for of in sorted(known, key=lambda of: -known[of])
    ]
    if slow := sorted(slow_ranks(snapshot.alerts)):
        parts.insert(0, ((f"{units.name_ranks(slow)} slow", "warn"),))
    return line(("imbalance  ", "dim"), *join(parts, "  ")) if parts else ()
