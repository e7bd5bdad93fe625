"""Devices and the processes on them as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop.draw.device_words import wasted_words
from ddptop.draw.devices import (
    LOST_WORDS,
    NO_HOSTS,
    Owners,
    device_trouble,
    holder_text,
    label,
    program,
    small_curve,
)
from ddptop.draw.panels import short_name
from ddptop.view.bars import bar
from ddptop.view.figures.columns import Column, Row
from ddptop.view.figures.devices import FIGURES, known
from ddptop.view.text import Line, fill, line
from ddptop_runner.base import units
from ddptop_runner.model.snapshot import GpuProcess, GpuSample

BAR_CELLS = 10

_GPU = Column("gpu", "GPU", 4)
_HELD = Column("held", " used by", 20, flex=True)


def device_columns(cells: int, names_differ: bool, label_cells: int = 4) -> tuple[Column, ...]:
    """The columns of a table of that width; `label_cells` is what names a device."""
    curve = 30 if cells >= 150 else 20 if cells >= 120 else 15
    columns = [replace(_GPU, width=max(4, label_cells))]
    if cells >= 160 and names_differ:
        columns.append(Column("name", "device", 18, drop=10))
    for one in FIGURES:
        if not one.title or cells < one.least:
            continue
        if one.bar is not None:
            columns.append(Column(f"{one.key}_bar", "", BAR_CELLS, drop=one.bar.drop))
        columns.append(Column(one.key, one.title, one.width, ">", one.drop))
        if one.key == "util":
            columns.append(Column("recent", "last 10m", curve, drop=4))
    return (*columns, _HELD)


def device_row(
    gpu: GpuSample,
    owners: Owners,
    recent: Mapping[str, Sequence[float | None]],
    idle_s: Mapping[str, float],
    curve: int,
    *,
    brief: bool = False,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> Row:
    """One device, by column.

    Args:
        gpu: the device.
        owners: job and rank by pid.
        recent: by UUID, how busy each was in the last ten minutes, in percent.
        idle_s: by UUID, for how long each has done nothing.
        curve: cells of its small curve.
        brief: whether there is no room for reasons.
        hosts: short names of the hosts, where there are several.
    """
    head = {
        "gpu": (f"{label(gpu, hosts):>3}", "strong"),
        "name": (short_name(gpu.name), "dim"),
        "recent": (small_curve(recent.get(gpu.uuid or "", ()), curve), "median"),
    }
    if gpu.lost:
        return {**head, "held": line((f" ✗ {gpu.note or LOST_WORDS}", "bad"))}
    shown = [one for one in FIGURES if one.title]
    return {
        **head,
        **{one.key: one.styled(gpu) for one in shown},
        **{
            f"{one.key}_bar": bar(one.bar.share(gpu), BAR_CELLS, one.bar.style(gpu))
            for one in shown
            if one.bar is not None
        },
        "held": _held(gpu, owners, idle_s, brief=brief),
    }


def _held(gpu: GpuSample, owners: Owners, idle_s: Mapping[str, float], *, brief: bool) -> Line:
    """Its problems and who uses it; for a device split into MIG instances, their number."""
    parts = [wasted_words(gpu, idle_s), holder_text(gpu, owners, brief=brief)]
    if gpu.mig_instances:
        parts = [device_trouble(gpu, brief)]
        parts.append(line((f"{units.plural(len(gpu.mig_instances), 'MIG instance')}", "dim")))
    return (" ", ""), *fill(parts, 200, "  ")


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
    """One process on a device, by column."""
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
    """Those that hold most memory first."""
    return sorted(processes, key=lambda process: -(process.mem_used_bytes or 0))
