"""Jobs, ranks and events as rows of tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from ddptop.tui.render import units, words
from ddptop.tui.render.launched import launcher_name, loss_text
from ddptop.tui.render.panels import elapsed_s, median_loss
from ddptop.tui.render.progress import percent_text, progress_of, step_of
from ddptop.tui.render.text import Span
from ddptop.tui.render.uneven import worst_figure
from ddptop_runner.balance.imbalance import Figure, RankDeviation
from ddptop_runner.foreign.view import ForeignView
from ddptop_runner.model import Event, NodeSnapshot, RankSample
from ddptop_runner.model_words import Phase
from ddptop_runner.registry import AnyJob

UNKNOWN_DEVIATION = RankDeviation()

LASTING_PHASE_S = 2.0
"""A rank that evaluates, saves or compiles for less is shown as running."""

_STATE_ORDER = ("hung", "restarting", "running", "starting", "queued", "stopping")
_SEVERITIES = ("error", "warning", "info")


def sorted_jobs(views: Sequence[AnyJob]) -> list[AnyJob]:
    """Live jobs first, what needs attention before the rest, then the newest."""

    def key(view: AnyJob) -> tuple[int, int, int, float]:
        newest = -(view.ended_at or view.created_at).timestamp()
        if not view.is_live:
            return 1, 0, 0, newest
        state, worst = view.state, worst_severity(view)
        order = _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)
        alarm = _SEVERITIES.index(worst) if worst in _SEVERITIES[:2] else len(_SEVERITIES)
        return 0, 0 if state == "hung" else 1 + alarm, order, newest

    return sorted(views, key=key)


def worst_severity(view: AnyJob) -> str | None:
    """Of a live job's alerts; None without any."""
    alerts = view.snapshot.alerts if view.snapshot is not None and view.is_live else []
    present = {alert.severity for alert in alerts}
    return next((severity for severity in _SEVERITIES if severity in present), None)


def job_row(view: AnyJob, now: dt.datetime, me: str | None = None) -> dict[str, Span]:
    """One job of the overview, by column; `me` is the user whose name need not be said."""
    snapshot = view.snapshot
    row: dict[str, Span] = {
        "state": words.state_of(view),
        "job": (view.job, "strong"),
        "by": by_text(view, me),
        "ranks": (units.count(view.world_size), _unknown(view.world_size)),
        "command": (" " + view.command, "dim"),
    }
    if snapshot is None:
        return row
    progress, live = progress_of(view), view.is_live
    step, eta_s = units.count(step_of(snapshot, progress)), progress.eta_s if progress else None
    value, state = median_loss(snapshot)
    gpus = held_gpus(snapshot)
    foreign = isinstance(view, ForeignView)
    row |= {
        "ranks": (units.count(snapshot.world_size or view.world_size), ""),
        "gpus": (gpus or "-", "" if gpus else "dim"),
        "restarts": ("", "")
        if foreign
        else (
            f"{snapshot.restarts_used}/{snapshot.restarts_used + snapshot.restarts_left}",
            "warn" if snapshot.restarts_used and live else "",
        ),
        "step": (step, _unknown(step)),
        "done": (percent_text(progress), ""),
        "eta": ("", "")
        if not live or (foreign and eta_s is None)
        else (units.duration(eta_s), _unknown(eta_s)),
        "loss": (units.loss(value, state), "bad" if state in ("nan", "inf") else _unknown(value)),
        "uneven": worst_figure(snapshot) if live else ("", ""),
        "elapsed": (units.duration(elapsed_s(view, now)), ""),
        "alerts": _alerts(view),
        "host": (" " + snapshot.host, "warn" if view.on_other_host else "dim"),
    }
    return row


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


def held_gpus(snapshot: NodeSnapshot) -> str:
    """The devices of a job, folded: `0-3`; empty without any."""
    indices = {gpu.index for gpu in snapshot.gpus}
    return units.ranks(list(indices | {r.gpu for r in snapshot.ranks if r.gpu is not None}))


def _alerts(view: AnyJob) -> Span:
    worst = worst_severity(view)
    if view.snapshot is None or worst is None:
        return "", ""
    symbol, style = words.severity(worst)
    number = sum(alert.severity == worst for alert in view.snapshot.alerts)
    return f"{symbol} {number}", style


def _unknown(value: object) -> str:
    return "dim" if value is None or value == units.NOT_KNOWN else ""


def rank_row(
    rank: RankSample, now: dt.datetime, live: bool, apart: RankDeviation = UNKNOWN_DEVIATION
) -> dict[str, Span]:
    """One rank, by column."""
    loss = loss_text(rank)
    step_time = units.step_time(rank.step_time_s)
    ago = None
    if live and rank.last_progress_at is not None:
        ago = units.brief_duration((now - rank.last_progress_at).total_seconds())
    waits = rank.state in ("quiet", "hung")
    device = _device(rank)
    on_device = rank.gpu is not None or bool(rank.gpus)
    rss = _marked(units.size(rank.rss_bytes), apart, None if on_device else "memory")
    cpu = _marked(units.percent(rank.cpu_percent), apart, None if on_device else "utilization")
    return {
        "rank": (str(rank.rank), "strong"),
        "device": (device, _unknown(device)),
        "pid": (str(rank.pid) if rank.pid is not None else units.NOT_KNOWN, "dim"),
        "state": words.rank_state(
            rank.state, rank.exit_code, rank.signal, _lasting_phase(rank, now) if live else None
        ),
        "why": (" " + (rank.state_reason or ""), "dim"),
        "step": (units.count(rank.step), _unknown(rank.step)),
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


def _lasting_phase(rank: RankSample, now: dt.datetime) -> Phase | None:
    """What it is doing, once it has been for a while: a table that blinks says nothing."""
    if rank.phase_since is None or (now - rank.phase_since).total_seconds() < LASTING_PHASE_S:
        return None
    return rank.phase


def _device(rank: RankSample) -> str:
    if rank.gpu is not None:
        return f"GPU {rank.gpu}"
    return f"{len(rank.gpus)} GPUs" if rank.gpus else "CPU"


def _marked(text: str, apart: RankDeviation, figure: Figure | None) -> Span:
    """A figure; an outlier is marked by its side of the median, not by colour alone."""
    if figure is None or figure not in apart.outliers:
        return f"{text} ", _unknown(text)
    return f"{text}{'▲' if (apart.of(figure) or 0) > 0 else '▼'}", "warn"


def _deviation(apart: RankDeviation, figure: Figure) -> Span:
    ratio = apart.of(figure)
    if ratio is None:
        return "", ""
    faster = figure == "step_time" and ratio < 0
    return units.deviation(ratio), "warn" if figure in apart.outliers and not faster else "dim"


def event_row(event: Event) -> dict[str, Span]:
    """One event, by column; times in this machine's zone."""
    style = words.event_style(event.type)
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
