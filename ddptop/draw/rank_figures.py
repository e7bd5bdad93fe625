"""Draws a rank's figures for its own screen, in three rows. Pure."""

from __future__ import annotations

import datetime as dt

from ddptop.draw.devices import device_trouble
from ddptop.draw.panels import short_name
from ddptop.view.figures.devices import heat
from ddptop.view.odd import state_of
from ddptop.view.rank_words import (
    counts_own,
    device_of,
    device_text,
    parts_text,
    rank_step,
    replicas_in_words,
    source_in_words,
)
from ddptop.view.text import Line, field, line
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import Figure, RankDeviation
from ddptop_runner.model.snapshot import GpuSample, NodeSnapshot, RankSample


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


def _far(apart: RankDeviation, figure: Figure) -> Line:
    ratio, warns = apart.of(figure), apart.warns(figure)
    if ratio is None:
        return ()
    return line((f" {'▲' * warns}{units.deviation(ratio)}", "warn" if warns else "dim"))


def _figure(label: str, value: str, far: Line = (), style: str = "strong") -> Line:
    return (*field(label, value, "dim" if value == units.NOT_AVAILABLE else style), *far)


def _doing(rank: RankSample, apart: RankDeviation, now: dt.datetime, live: bool) -> list[Line]:
    bad = rank.loss_state in ("nan", "inf")
    text = units.loss(rank.loss, rank.loss_state) + parts_text(rank)
    parts = [
        line(state_of(rank, now, live)),
        _figure("step", units.count(rank_step(rank)) + " of this attempt" * counts_own(rank)),
        _figure("loss", text, _far(apart, "loss"), "bad" if bad else "strong"),
        _figure("time", units.step_time(rank.step_time_s), _far(apart, "step_time")),
    ]
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
        _figure("util", units.percent(device.util_percent), _far(apart, "utilization")),
        _figure("memory", memory, _far(apart, "memory")),
        _figure("power", units.watts(device.power_w, device.power_limit_w), _far(apart, "power")),
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
    if text := replicas_in_words(rank, snapshot.launcher):
        parts.append(line((text, "")))
    if text := source_in_words(rank):
        parts.append(line((text, "dim")))
    if rank.frameworks:
        parts.append(field("imports", ", ".join(rank.frameworks), ""))
    return parts
