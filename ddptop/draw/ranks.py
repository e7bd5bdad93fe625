"""Draws ranks as cards, and the figures of one rank. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec

from ddptop.charts.braille import DOTS_X, bridged, limits, spark
from ddptop.draw.devices import device_trouble
from ddptop.draw.panels import about_process, short_name
from ddptop.job.figures.devices import heat
from ddptop.job.figures.ranks import (
    FIGURES,
    IN_PLACE,
    Card,
    RankFigure,
    deviation_cell,
    loss_style,
    on_devices,
    severity,
    shown,
    state_of,
    verdict,
)
from ddptop.job.ranks import (
    counts_own,
    device_of,
    device_text,
    loss_text,
    parts_text,
    rank_step,
    short_names,
)
from ddptop.job.series import Points, bin_points
from ddptop.style import Line, Span, bar, clip, field, fill, fit, line, width
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import Figure, RankDeviation, busy_s
from ddptop_runner.judge.balance.rank_devices import own_devices
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample

MOST = 8
"""Maximum number of ranks shown as cards by default."""

LEAST_WIDTH = 19
LEAST_HEIGHT = 4
"""Minimum height of a card, unless fewer rows show everything."""

LEAST_BOX = 21
"""Minimum width for a full border; narrower cards have only a left edge."""

BEST_WIDTH = 40
"""If cards could have several widths, the one closest to this is used."""

GAP = 1
"""Cells between two cards."""


class Grid(msgspec.Struct, frozen=True):
    """The layout of cards."""

    columns: int
    rows: int
    width: int
    """Width of a card."""
    height: int


def grid(number: int, cells: int, most_rows: int, wanted: int) -> Grid | None:
    """The best layout of `number` cards in `cells` by `most_rows`; None if they do not fit.

    Prefers a grid without holes, then cards that show more, then a readable width.

    Args:
        number: number of cards.
        cells: width of the terminal.
        most_rows: most rows for all cards together.
        wanted: rows of a card that shows everything, including a full border.
    """
    best: tuple[tuple[int, bool, int, int], Grid] | None = None
    for columns in range(1, min(number, cells // LEAST_WIDTH + 1) + 1):
        card = (cells + GAP) // columns - GAP
        rows = -(-number // columns)
        all_of_it = wanted if card >= LEAST_BOX else wanted - 1
        height = min(all_of_it, most_rows // rows)
        least = min(LEAST_HEIGHT, all_of_it)
        if card < LEAST_WIDTH or height < least or (rows - 1) * columns >= number:
            continue
        holes = rows * columns - number
        key = (holes, height < all_of_it, -height, abs(card - BEST_WIDTH))
        if best is None or key < best[0]:
            best = key, Grid(columns, rows, card, height)
    return None if best is None else best[1]


BOXED = 6
"""Minimum rows for a full border, which cards that show everything always have."""

CARD_ROWS = [(one.card, one) for one in FIGURES if one.card is not None]
"""Rows of a card, from top to bottom."""

LABEL, VALUE, ASIDE = 5, 8, 7
"""Widths of a row's columns; bars and curves get the remaining cells."""
TIGHT = 6
"""Width of the value and of the distance on a narrow card."""


class Around(msgspec.Struct, frozen=True):
    """Context for a card: the other ranks, and the last minutes."""

    now: dt.datetime
    live: bool
    gpus: Mapping[int, GpuSample] = msgspec.field(default_factory=dict)
    """Each rank's own device, by rank."""
    losses: Mapping[int, Points] = msgspec.field(default_factory=dict)
    since: float = 0.0
    until: float = 0.0
    """Time range of the sparklines, in unix seconds."""
    rows: frozenset[str] = frozenset(one.key for _, one in CARD_ROWS)
    """Rows to show: figures known for at least one rank."""
    hosts: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Short host names, if there are several hosts."""


def around(
    ranks: Sequence[RankSample],
    gpus: Sequence[GpuSample],
    now: dt.datetime,
    live: bool,
    losses: Mapping[int, Points],
    span_s: float,
) -> Around:
    """The context that a job's cards share; curves span the first to the last sample."""
    known = [points.t for points in losses.values() if points.t]
    until = max((t[-1] for t in known), default=now.timestamp())
    since = max(until - span_s, min((t[0] for t in known), default=until - span_s))
    hosts = dict.fromkeys(rank.host for rank in ranks)
    return Around(
        now=now,
        live=live,
        gpus=own_devices(ranks, gpus),
        losses=losses,
        since=since,
        until=until,
        rows=known_rows(ranks),
        hosts=short_names(hosts) if len(hosts) > 1 else {},
    )


def known_rows(ranks: Sequence[RankSample]) -> frozenset[str]:
    """Row keys of the figures that are known for at least one of these ranks."""
    known = {
        one.key
        for rank in ranks
        for _, one in CARD_ROWS
        if (on_devices(rank) or one.key not in IN_PLACE)
        and shown(one.key, rank).text(rank) != units.NOT_AVAILABLE
    }
    if "busy" in known:
        known.discard("time")  # which is the same for all ranks
    if known & {"loss", "time", "busy"}:
        known.discard("cpu")  # the loss chart makes better use of the space
    return frozenset(known)


def wanted_rows(ranks: Sequence[RankSample]) -> int:
    """Number of rows on a card that shows every known figure of these ranks."""
    return max(1, len(known_rows(ranks))) + 2


def card_lines(
    rank: RankSample,
    apart: RankDeviation,
    others: Around,
    cells: int,
    rows: int,
    chosen: bool,
) -> list[Line]:
    """One card in exactly `rows` lines of `cells`."""
    worst = severity(rank, apart, others.live)
    edge = ("chosen" if chosen else "faint", "warn", "bad")[worst]
    boxed = rows >= min(BOXED, len(others.rows) + 2) and cells >= LEAST_BOX
    inner = cells - (4 if boxed else 2)
    body = _body(rank, apart, others, inner, rows - (2 if boxed else 1))
    if not boxed:
        mark = "▌" if worst or chosen else "▏"
        head = _head(rank, apart, others, inner, chosen, " ")
        return [fit(line((mark, edge), " ", *text), cells) for text in (head, *body)]
    corners = "┏━┓┃┗┛" if chosen else "╭─╮│╰╯"
    head = _head(rank, apart, others, inner - 1, chosen, corners[1], edge, after=1)
    top = line((corners[0] + corners[1], edge), " ", *head, (corners[1] + corners[2], edge))
    middle = [
        line((corners[3] + " ", edge), *fit(text, inner), (" " + corners[3], edge)) for text in body
    ]
    bottom = line((corners[4] + corners[1] * (cells - 2) + corners[5], edge))
    return [top, *middle, bottom]


def _head(
    rank: RankSample,
    apart: RankDeviation,
    others: Around,
    cells: int,
    chosen: bool,
    filler: str,
    edge: str = "",
    after: int = 0,
) -> Line:
    """The rank's number, its state or outlying figure, and its device at the right.

    Args:
        rank: the rank.
        apart: its distance from the other ranks.
        others: the context that it shares with other cards.
        cells: total width.
        chosen: whether it has the cursor.
        filler: fills the space between the state and the device, or to the end without a device.
        edge: the filler's style.
        after: empty cells after the last word.
    """
    text, style = verdict(rank, apart, others.now, others.live)
    mark = "▸" if chosen else ""
    number: Span = (f"{mark}{rank.rank} ", "strong")
    device = device_text(rank)
    if (host := others.hosts.get(rank.host)) is not None:
        device = f"{host}:{rank.gpu}" if rank.gpu is not None else host
    room = cells - width((number,)) - len(device) - 2 - after
    if room < 6 or len(text) > room:
        device, room = "", cells - width((number,)) - after
    left = line(number, (clip(text, room), style))
    space = cells - width(left)
    if not device:
        return line(*left, (f" {filler * (space - 1)}" if space else "", edge))
    gap = f" {filler * (space - len(device) - after - 2)} "
    return line(*left, (gap, edge), (device, "dim"), *[" "] * after)


def _body(
    rank: RankSample, apart: RankDeviation, others: Around, cells: int, rows: int
) -> list[Line]:
    """As many rows as fit, in the usual order; the least informative are dropped first."""
    by_priority = sorted(CARD_ROWS, key=lambda row: row[0].drop)
    keep = [one.key for _, one in by_priority if one.key in others.rows][:rows]
    body = [
        (_loss if one.key == "loss" else _figure)(one, rank, apart, others, cells)
        for _, one in CARD_ROWS
        if one.key in keep
    ]
    return [*body, *[()] * (rows - len(body))]


def _row(label: str, value: str, aside: Span, graphic: Line, cells: int, style: str = "") -> Line:
    size, side = VALUE, ASIDE
    if cells < LABEL + VALUE + ASIDE:
        size, side, value = TIGHT, TIGHT, _brief(value)
    return line(
        (f"{label:<{LABEL}}", "dim"),
        (f"{value:>{size}}", style or ("dim" if value == units.NOT_AVAILABLE else "")),
        (f" {aside[0]:>{side - 1}}", aside[1]),
        *graphic,
    )


def _brief(text: str) -> str:
    """`74.0 GiB` as `74.0G`, for narrow cards."""
    return text.replace(" KiB", "K").replace(" MiB", "M").replace(" GiB", "G").replace(" TiB", "T")


def _room(cells: int) -> int:
    """Cells for a bar or curve at the right; 0 without room."""
    left = cells - LABEL - VALUE - ASIDE - 1
    return left if left >= 4 else 0


def _loss(
    one: RankFigure, rank: RankSample, apart: RankDeviation, others: Around, cells: int
) -> Line:
    text = units.loss(rank.loss, rank.loss_state)
    if len(parts := parts_text(rank)) + len(text) <= VALUE:
        text += parts
    room, points = _room(cells), others.losses.get(rank.rank)
    curve: Line = ()
    if room and points is not None:
        values = bin_points(points, others.since, others.until, DOTS_X * room).mean
        drawn = spark(bridged(values, max(4, room // 15)), *limits(others.losses))
        curve = line(" ", (drawn, "median"))
    style = loss_style(rank) or "strong"
    return _row("loss", text, deviation_cell(apart, "loss"), curve, cells, style)


def _figure(
    one: RankFigure, rank: RankSample, apart: RankDeviation, others: Around, cells: int
) -> Line:
    """Any other figure, with its distance from the median or the percentage that its bar shows."""
    seen = shown(one.key, rank)
    card, share = seen.card or Card("", 0), None
    if card.share is not None:
        share = card.share(rank, others.gpus.get(rank.rank))
    warns = share is not None and card.warns is not None and card.warns(share, apart)
    if one.apart is not None:
        aside = deviation_cell(apart, one.apart.of)
        warns = warns or aside[1] == "warn"
    else:
        part = "" if share is None else f"{min(999, 100 * share):.0f}%"
        aside = "" if seen.form is units.percent else part, "warn" if warns else "dim"
    graphic: Line = ()
    if card.share is not None and (room := _room(cells)):
        graphic = line(" ", *bar(share, room, "warn" if warns else card.style))
    return _row(seen.label, seen.text(rank), aside, graphic, cells)


def fact_lines(
    rank: RankSample, apart: RankDeviation, snapshot: NodeSnapshot, now: dt.datetime, live: bool
) -> list[list[Line]]:
    """Three rows of parts: what it does, its device, its process; the first part is the label."""
    rows = {
        "status": _doing(rank, apart, now, live),
        "device": _device(rank, apart, device_of(snapshot, rank.rank)),
        "process": _process(rank, snapshot),
    }
    return [[line((f" {name:<8}", "title")), *parts] for name, parts in rows.items()]


def rank_line(
    rank: RankSample,
    apart: RankDeviation,
    device: GpuSample | None,
    now: dt.datetime,
    live: bool,
    cells: int,
) -> Line:
    """What a rank does and its device, in one row."""
    head = line((f" rank {rank.rank} ", "strong"))
    parts = [*_doing(rank, apart, now, live), field("host", rank.host, "")]
    return (*head, *fill([*parts, *_device(rank, apart, device)], cells - width(head)))


def _far(apart: RankDeviation, figure: Figure) -> Line:
    text, style = deviation_cell(apart, figure)
    return line((f" {text}", style)) if text else ()


def _field(label: str, value: str, far: Line = (), style: str = "strong") -> Line:
    return (*field(label, value, "dim" if value == units.NOT_AVAILABLE else style), *far)


def _doing(rank: RankSample, apart: RankDeviation, now: dt.datetime, live: bool) -> list[Line]:
    parts = [
        line(state_of(rank, now, live)),
        _field("step", units.count(rank_step(rank)) + " of this attempt" * counts_own(rank)),
        _field("loss", loss_text(rank), _far(apart, "loss"), loss_style(rank) or "strong"),
        _field("time", units.step_time(rank.step_time_s), _far(apart, "step_time")),
    ]
    if (busy := busy_s(rank)) is not None:
        parts[-1] = _field("busy", units.step_time(busy), _far(apart, "own_time"))
        parts.append(field("of", units.step_time(rank.step_time_s), ""))
    if live and rank.last_progress_at is not None:
        ago = units.brief_duration(max(0.0, (now - rank.last_progress_at).total_seconds()))
        parts.append(field("last step", f"{ago} ago", ""))
    if len(rank.losses) > 1:
        parts += [field(f"loss ({name})", units.loss(v), "") for name, v in rank.losses.items()]
    return parts


def _device(rank: RankSample, apart: RankDeviation, device: GpuSample | None) -> list[Line]:
    if device is None:
        where = f"{device_text(rank)}: no metrics" if rank.gpu is not None else "none (on CPU)"
        return [line((where, "dim"))]
    memory = units.size_of(device.mem_used_bytes, device.mem_total_bytes)
    parts = [
        line((f"GPU {device.index}", "strong"), (f" {short_name(device.name)}", "dim")),
        _field("util", units.percent(device.util_percent), _far(apart, "utilization")),
        _field("memory", memory, _far(apart, "memory")),
        _field("power", units.watts(device.power_w, device.power_limit_w), _far(apart, "power")),
        line((units.celsius(device.temperature_c), heat(device))),
        device_trouble(device),
    ]
    if rank.gpu_mem_peak_bytes is not None:
        parts.append(field("peak", units.size(rank.gpu_mem_peak_bytes), ""))
    return [part for part in parts if part]


def _process(rank: RankSample, snapshot: NodeSnapshot) -> list[Line]:
    parts = [
        field("pid", units.NOT_AVAILABLE if rank.pid is None else str(rank.pid), ""),
        field("host", rank.host, ""),
        field("CPU", units.percent(rank.cpu_percent), ""),
        field("RSS", units.size(rank.rss_bytes), ""),
    ]
    if rank.stands_at is not None:
        parts.append(field("last seen at", rank.stands_at, ""))
    if rank.has_probe is False:
        parts.append(line(("no reports from its probe", "warn")))
    return [*parts, *about_process(rank, snapshot.launcher)]
