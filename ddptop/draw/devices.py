"""Draws devices: their figures, problems, users, and whether they are wasted. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from ddptop.charts.braille import spark
from ddptop.draw.panels import short_name
from ddptop.job.figures.devices import FIELD_NAMES, FIGURES, known
from ddptop.job.help import slowed_by
from ddptop.job.series import DeviceHistory
from ddptop.style import (
    Cell,
    Column,
    Line,
    Row,
    blocks,
    clip,
    field,
    fill,
    fit,
    join,
    line,
    rule,
    width,
    wrap,
)
from ddptop_runner.base import units
from ddptop_runner.devices import codes
from ddptop_runner.launch.gpus.usage import SMALL_CONTEXT_BYTES, unknown_holder
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

Owners = Mapping[int, "tuple[str, int | None]"]
"""Job and rank by PID."""

NO_HOSTS: Mapping[str, str] = {}
NOBODY: Owners = {}
NOT_IDLE: Mapping[str, float] = {}
LOST_WORDS = "lost: the driver is not responding"
_TROUBLE_CELLS = 200
_HOLDER_CELLS = 100


@functools.lru_cache(256)  # a point is added every few seconds, but rows are drawn every second
def small_curve(values: tuple[float | None, ...], cells: int) -> str:
    """Percentages as a sparkline of up to `cells`; each dot is the mean of its buckets."""
    dots = min(len(values), 2 * cells)
    shares: list[float | None] = []
    for dot in range(dots):
        part = values[dot * len(values) // dots : (dot + 1) * len(values) // dots]
        known_ones = [value for value in part if value is not None]
        shares.append(sum(known_ones) / len(known_ones) if known_ones else None)
    return spark(shares, 0.0, 100.0)


def label(gpu: GpuSample, hosts: Mapping[str, str] = NO_HOSTS) -> str:
    """The device's index, or `node1:0` if `hosts` has short host names.

    A MIG instance is marked as part of its device.
    """
    host = f"{hosts[gpu.host]}:" if gpu.host is not None and gpu.host in hosts else ""
    return f"{host}{gpu.index}m" if gpu.parent_uuid is not None else f"{host}{gpu.index}"


# --- problems of a device -------------------------------------------------------------------------


def device_trouble(gpu: GpuSample, brief: bool = False) -> Line:
    """Throttling, XID errors, or failing memory; `brief` omits reasons."""
    parts: list[Line] = []
    if gpu.xid:
        parts.append(line((f"XID {','.join(map(str, gpu.xid))}", "bad")))
    if gpu.ecc_uncorrected:
        parts.append(line((f"{gpu.ecc_uncorrected} ECC", "bad")))
    if gpu.remap_failed:
        parts.append(
            line(
                ("replace it" if brief else "no spare memory rows left: replace the device", "bad")
            )
        )
    elif gpu.remap_pending:
        parts.append(line(("reset" if brief else "row remap pending: reset the device", "warn")))
    if reasons := slowed_by(gpu):
        text = _brief_reason(reasons) if brief else "; ".join(reasons)
        parts.append(line((f"▼ {text}", "warn")))
    if gpu.note and not (gpu.lost or gpu.remap_failed or gpu.remap_pending):
        parts.append(line((f"i {'note' if brief else gpu.note}", "dim")))
    return fill(parts, _TROUBLE_CELLS, "  ")


def _brief_reason(reasons: Sequence[str]) -> str:
    causes = {codes.throttle(reason).cause for reason in reasons}
    return "hot" if "heat" in causes else "power" if "power" in causes else "throttled"


# --- who uses a device ----------------------------------------------------------------------------


def holder_text(
    gpu: GpuSample,
    owners: Owners = NOBODY,
    idle_s: Mapping[str, float] = NOT_IDLE,
    *,
    brief: bool = False,
) -> Line:
    """Whether a device is wasted, its problems, and who uses it.

    Its users are jobs and ranks, or user and command; for a device split into MIG instances, it is
    their number. `brief` omits reasons to leave room for the user.
    """
    if gpu.lost:
        return line((f"✗ {gpu.note or LOST_WORDS}", "bad"))
    trouble = [wasted_words(gpu, idle_s), device_trouble(gpu, brief)]
    if gpu.mig_instances:
        number = units.plural(len(gpu.mig_instances), "MIG instance")
        return join([*trouble, line((number, "dim"))], "  ")
    held: dict[str, list[int]] = {}
    others: list[str] = []
    for process in gpu.processes or []:
        job, rank = owners.get(process.pid, (process.job, process.rank))
        if job is not None:
            held.setdefault(job, []).extend([] if rank is None else [rank])
        else:
            others.append(stranger(process))
    if gpu.processes is None:  # a busy device may well be used by a job
        others.append("n/a")
    elif (unknown := unknown_holder(gpu)) is not None:
        others.append(unknown if gpu.processes else f"busy: {unknown}")
    elif not gpu.processes:
        others.append("free")
    users = [line((clip(job, 20), ""), (_ranks(held[job]), "dim")) for job in sorted(held)]
    users += [line((text, "dim")) for text in dict.fromkeys(others)]
    return fill([*trouble, *users], _HOLDER_CELLS, "  ")


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return ""
    return f" {units.name_ranks(list(ranks), compact=True)}"


def stranger(process: GpuProcess) -> str:
    """`bob: python eval.py`, or the PID if unknown."""
    if process.user is None and process.command is None:
        return f"pid {process.pid}"
    return f"{process.user or 'n/a'}: {clip(program(process.command), 20)}"


def program(command: str | None) -> str:
    """A command without its program's directory: `/opt/env/bin/python a.py` as `python a.py`."""
    first, space, rest = (command or "?").partition(" ")
    return first.rpartition("/")[2] + space + rest


WASTED_S = 120.0
"""A device that is in use but idle for this long is wasted."""


def wasted_words(gpu: GpuSample, idle_s: Mapping[str, float]) -> Line:
    """`▲ idle for 12m` for a device in use; empty if it is busy or free."""
    spent_s = idle_s.get(gpu.uuid or "", 0.0)
    held = any((p.mem_used_bytes or 0) > SMALL_CONTEXT_BYTES for p in gpu.processes or [])
    if not held or spent_s < WASTED_S or (gpu.util_percent or 0) > 1:
        return ()
    return line((f"▲ idle for {units.brief_duration(spent_s)}", "warn"))


def common_name(gpus: Sequence[GpuSample]) -> str | None:
    """The devices' name if all have the same one."""
    names = {gpu.name for gpu in gpus if gpu.parent_uuid is None}
    return names.pop() if len(names) == 1 else None


BAR_CELLS, BAR_MOST = 5, 14


def device_columns(
    cells: int,
    gpus: Sequence[GpuSample],
    hosts: Mapping[str, str] = NO_HOSTS,
    *,
    has_history: bool = False,
) -> tuple[Column, ...]:
    """The columns of a table of these devices, `cells` wide."""
    label_cells = max((len(label(gpu, hosts)) for gpu in gpus), default=0)
    columns = [Column("gpu", "GPU", max(3, label_cells))]
    if cells >= 160 and len({gpu.name for gpu in gpus}) > 1:
        columns.append(Column("name", "device", 18, drop=10))
    for one in FIGURES:
        if not one.title or cells < one.least:
            continue
        if one.bar is not None:
            bar = Column(f"{one.key}_bar", "", BAR_CELLS, "<", one.bar.drop, True, BAR_MOST)
            columns.append(bar)
        columns.append(Column(one.key, one.title, one.width, ">", one.drop))
        if one.key == "util" and has_history:
            columns.append(Column("recent", "last 10m", 15, drop=7, flex=cells >= 140, most=30))
    return (*columns, Column("held", " used by", 22, flex=True))


def device_row(
    gpu: GpuSample,
    layout: Mapping[str, int],
    owners: Owners,
    history: DeviceHistory,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> Row:
    """A device's cells by column.

    Args:
        gpu: the device.
        layout: the width of each column.
        owners: job and rank by PID.
        history: the devices' utilization so far.
        hosts: short host names, if there are several hosts.
    """
    recent = history.recent.get(gpu.uuid or "", ())
    row: dict[str, Cell] = {
        "gpu": (f"{label(gpu, hosts):>3}", "strong"),
        "name": (short_name(gpu.name), "dim"),
        "recent": (small_curve(recent, layout.get("recent", 0)), "median"),
    }
    for one in FIGURES:
        if one.key not in layout:
            continue
        row[one.key] = one.styled(gpu)
        if one.bar is not None:
            cells = layout.get(f"{one.key}_bar", 0)
            row[f"{one.key}_bar"] = blocks(one.bar.share(gpu), cells, one.bar.style(gpu))
    held = holder_text(gpu, owners, history.idle_s)
    if width(held) >= layout.get("held", 0):
        held = holder_text(gpu, owners, history.idle_s, brief=True)
    return {**row, "held": ((" ", ""), *held)}


# --- processes ------------------------------------------------------------------------------------

PROCESS_COLUMNS = (
    Column("pid", "PID", 8, ">"),
    Column("user", "user", 10, drop=3),
    Column("job", "job", 16, flex=True, most=30),
    Column("rank", "rank", 4, ">"),
    Column("memory", "memory", 9, ">"),
    Column("sm", "SM", 5, ">", drop=1),
    Column("command", " command", 14, flex=True, drop=2),
)


def process_row(process: GpuProcess, owners: Owners) -> Row:
    """Cells by column for a process on a device."""
    job, rank = owners.get(process.pid, (process.job, process.rank))
    command = program(process.command) if process.command else process.note or units.NOT_AVAILABLE
    return {
        "pid": (str(process.pid), "strong"),
        "user": (process.user or units.NOT_AVAILABLE, known(process.user)),
        "job": (job or (units.NOT_AVAILABLE if process.note else "no job"), "" if job else "dim"),
        "rank": ("" if rank is None else str(rank), ""),
        "memory": (units.size(process.mem_used_bytes), known(process.mem_used_bytes)),
        "sm": (units.percent(process.sm_util_percent), known(process.sm_util_percent)),
        "command": (f" {command}", "dim"),
    }


def heaviest_first(processes: Sequence[GpuProcess]) -> list[GpuProcess]:
    """The processes that use the most memory first."""
    return sorted(processes, key=lambda process: -(process.mem_used_bytes or 0))


_LABEL_CELLS = 10

Fact = tuple[str, Sequence[Line]]
"""The label of a row, and its parts."""


def detail_lines(gpu: GpuSample, cells: int, rows: int) -> list[Line]:
    """The device's identity, its state with remedies, its figures, and what is unknown."""
    title = f"GPU {gpu.index}" + ", MIG instance" * (gpu.parent_uuid is not None)
    names = [text for text in (gpu.name, gpu.pci_bus_id, gpu.uuid) if text]
    lines = [rule(title, cells, line(("   ".join(names), "dim")))]
    for name, parts in (*_state(gpu), *_figures(gpu), *_unknown(gpu)):
        lines += _flow(name, parts, cells)
    if len(lines) <= rows or rows < 1:
        return lines[:rows]
    missing = len(lines) - rows + 1
    return [*lines[: rows - 1], line((f" and {units.plural(missing, 'line')} more", "dim"))]


def _state(gpu: GpuSample) -> list[Fact]:
    if gpu.lost:
        return [("state", [line((f"✗ {gpu.note or LOST_WORDS}", "bad"))])]
    facts: list[Fact] = []
    if gpu.note:
        facts.append(("state", [line((f"i {gpu.note}", "dim"))]))
    if slowed := slowed_by(gpu):
        facts.append(("slowed", [line((f"▼ {'; '.join(slowed)}", "warn"))]))
        facts.append(("", [line((codes.throttle(slowed[0]).remedy, "dim"))]))
    for code in gpu.xid or []:
        xid = codes.xid(code)
        facts.append(("XID", [line((f"✗ {code}: {xid.meaning}", "bad"))]))
        facts.append(("", [line((xid.remedy, "dim"))]))
    if facts:
        return facts
    if gpu.throttle_reasons is None and gpu.xid is None:
        return [("state", [line(("n/a", "dim"))])]
    return [("state", [line(("● the driver reports no problems", "ok"))])]


def _figures(gpu: GpuSample) -> list[Fact]:
    """Every figure, by the name of its row."""
    if gpu.lost:
        return []
    rows: dict[str, list[Line]] = {
        name: [] for name in ("load", "memory", "thermal", "clocks", "errors")
    }
    for one in FIGURES:
        if one.detail is None:
            continue
        name, label = one.detail
        text, style = one.styled(gpu)
        if one.value(gpu) is None:
            style = "dim"
        elif style == "dim" or one.key == "memory":
            style = ""
        rows[name].append(field(label, text, style))
    calm = [reason for reason in gpu.throttle_reasons or [] if reason not in slowed_by(gpu)]
    if calm:
        rows["clocks"].append(field("limited by", "; ".join(calm), ""))
    if gpu.remap_pending:
        rows["errors"].append(line(("row remap pending: reset the device", "warn")))
    if gpu.remap_failed:
        rows["errors"].append(line(("no spare rows left: replace the device", "bad")))
    xid = units.NOT_AVAILABLE if gpu.xid is None else ", ".join(map(str, gpu.xid)) or "none"
    rows["errors"].append(field("XID", xid, known(gpu.xid)))
    if gpu.mig_instances:
        rows["MIG"] = [line((uuid, "")) for uuid in gpu.mig_instances]
    return list(rows.items())


def _unknown(gpu: GpuSample) -> list[Fact]:
    """Why figures are missing, grouped by reason."""
    reasons: dict[str, dict[str, None]] = {}
    for name, reason in gpu.unknown.items():
        word = FIELD_NAMES.get(name, name.replace("_", " "))
        reasons.setdefault(reason, {})[word] = None
    texts = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [("" if at else "n/a", [line((text, "dim"))]) for at, text in enumerate(texts)]


def _flow(name: str, parts: Sequence[Line], cells: int) -> list[Line]:
    """Parts after a label, wrapped if they do not fit, as is a long text."""
    rows: list[list[Line]] = [[]]
    room = max(10, cells - _LABEL_CELLS - 2)
    for part in parts:
        (text, style), *more = part
        pieces = [part] if more else [line((piece, style)) for piece in wrap(text, room, 3)]
        for piece in pieces:
            if rows[-1] and width(join([*rows[-1], piece])) > room:
                rows.append([])
            rows[-1].append(piece)
    labels = [name, *[""] * len(rows)]
    return [
        fit(line((f" {label:<{_LABEL_CELLS}}", "dim"), *join(row)), cells)
        for label, row in zip(labels, rows, strict=False)
        if row
    ]
