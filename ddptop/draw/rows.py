"""Ranks and events as rows of tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from ddptop.view import words
from ddptop.view.odd import device_text, verdict
from ddptop.view.rank_words import loss_text, rank_step
from ddptop.view.text import Span
from ddptop_runner.base import units
from ddptop_runner.judge.balance.imbalance import Figure, RankDeviation
from ddptop_runner.model.snapshot import Event, RankSample

NO_HOSTS: Mapping[str, str] = {}
UNKNOWN_DEVIATION = RankDeviation()


def _unknown(value: object) -> str:
    return "dim" if value is None or value == units.NOT_AVAILABLE else ""


def rank_row(
    rank: RankSample,
    now: dt.datetime,
    live: bool,
    apart: RankDeviation = UNKNOWN_DEVIATION,
    hosts: Mapping[str, str] = NO_HOSTS,
) -> dict[str, Span]:
    """One rank, by column; `hosts` has the short names of several hosts."""
    loss = loss_text(rank)
    step_time = units.step_time(rank.step_time_s)
    ago = None
    if live and rank.last_progress_at is not None:
        ago = units.brief_duration((now - rank.last_progress_at).total_seconds())
    waits = rank.state == "hung"
    device = device_text(rank)
    on_device = rank.gpu is not None or bool(rank.gpus)
    rss = _marked(units.size(rank.rss_bytes), apart, None if on_device else "memory")
    cpu = _marked(units.percent(rank.cpu_percent), apart, None if on_device else "utilization")
    return {
        "rank": (str(rank.rank), "strong"),
        "host": (hosts.get(rank.host, rank.host), "dim"),
        "device": (device, _unknown(device)),
        "pid": (str(rank.pid) if rank.pid is not None else units.NOT_AVAILABLE, "dim"),
        "state": _brief(verdict(rank, apart, now, live)),
        "why": (" " + (rank.state_reason or ""), "dim"),
        "step": (units.count(rank_step(rank)), _unknown(rank.step)),
        "loss": (loss, "bad" if rank.loss_state in ("nan", "inf") else _unknown(rank.loss)),
        "loss_vs": _deviation(apart, "loss"),
        "time": (step_time, _unknown(rank.step_time_s)),
        "time_vs": _deviation(apart, "step_time"),
        "last": (ago or "", "warn" if waits else "dim"),
        "mem": _marked(units.size(rank.gpu_mem_used_bytes), apart, "memory"),
        "mem_vs": _deviation(apart, "memory"),
        "util": _marked(units.percent(rank.gpu_util_percent), apart, "utilization"),
        "util_vs": _deviation(apart, "utilization"),
        "power": _marked(units.watts(rank.gpu_power_w), apart, "power"),
        "power_vs": _deviation(apart, "power"),
        "wait": (units.step_time(rank.data_wait_s), _unknown(rank.data_wait_s)),
        "cpu": cpu,
        "rss": rss,
    }


STATE_CELLS = 10
"""Of the column with the state."""


def _brief(verdict_: Span) -> Span:
    """`▲ slow` of `▲ slow +47%`, which has no room: by how much, another column says."""
    text, style = verdict_
    if len(text) > STATE_CELLS and text[0] in "▲▼":
        text = " ".join(text.split(" ")[:2])
    return text, style


def _marked(text: str, apart: RankDeviation, figure: Figure | None) -> Span:
    """A figure; an outlier is marked by its side of the median, not only by color."""
    if figure is None or figure not in apart.outliers:
        return f"{text} ", _unknown(text)
    return f"{text}{'▲' if (apart.of(figure) or 0) > 0 else '▼'}", "warn"


def _deviation(apart: RankDeviation, figure: Figure) -> Span:
    ratio, is_marked = apart.marked(figure)
    if ratio is None:
        return "", ""
    text = units.deviation(ratio)
    if not is_marked:
        return text, "dim"
    return f"{'▲' if ratio > 0 else '▼'}{text.lstrip('+-')}", "warn"


def event_row(event: Event) -> dict[str, Span]:
    """One event, by column; times in this machine's zone."""
    style = words.event_style(event)
    local = event.ts.astimezone()
    return {
        "time": (f"{local:%H:%M:%S}", "dim"),
        "day": (f"{local:%b %d}", "dim"),
        "type": (words.event_words(event.type), style),
        "rank": ("" if event.rank is None else str(event.rank), ""),
        "message": (event.message, style),
    }


def same(row: Mapping[str, Span], other: Mapping[str, Span] | None) -> bool:
    """Whether two rows look the same."""
    return other is not None and dict(row) == dict(other)
