"""Jobs, ranks and events as rows of tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from ddptop.tui.render import units, words
from ddptop.tui.render.panels import elapsed_s, median_loss
from ddptop.tui.render.text import Span
from ddptop_runner.model import Event, RankSample
from ddptop_runner.registry import JobView

NEUTRAL_DEVIATION = 0.2
"""Below this a rank's distance from the median is not coloured."""

_STATE_ORDER = ("hung", "restarting", "running", "starting", "queued", "stopping")


def sorted_jobs(views: list[JobView]) -> list[JobView]:
    """Live jobs first, what needs attention before the rest, then the newest."""

    def key(view: JobView) -> tuple[int, int, float]:
        state = view.state
        live = 0 if view.is_live else 1
        order = _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)
        newest = (view.ended_at or view.spec.created_at).timestamp()
        return live, order if not live else 0, -newest

    return sorted(views, key=key)


def job_row(view: JobView, now: dt.datetime) -> dict[str, Span]:
    """One job of the overview, by column."""
    snapshot = view.snapshot
    row: dict[str, Span] = {
        "state": words.job_state(view.state),
        "job": (view.job, "strong"),
        "ranks": (str(view.spec.nproc), ""),
        "command": (" " + command_text(view), "dim"),
    }
    if snapshot is None:
        return row
    step = units.count(snapshot.step)
    if snapshot.total_steps:
        step += f"/{units.count(snapshot.total_steps)}"
    value, state = median_loss(snapshot)
    live = view.is_live
    alerts = len(snapshot.alerts) if live else 0
    row |= {
        "ranks": (str(snapshot.world_size or view.spec.nproc), ""),
        "restarts": (
            f"{snapshot.restarts_used}/{snapshot.restarts_used + snapshot.restarts_left}",
            "warn" if snapshot.restarts_used and live else "",
        ),
        "step": (step, _unknown(step)),
        "eta": (units.duration(snapshot.eta_s), _unknown(snapshot.eta_s)) if live else ("", ""),
        "loss": (units.loss(value, state), "bad" if state in ("nan", "inf") else _unknown(value)),
        "elapsed": (units.duration(elapsed_s(view, now)), ""),
        "alerts": (f"▲ {alerts}", "warn") if alerts else ("", ""),
        "host": (" " + snapshot.host, "warn" if view.on_other_host else "dim"),
    }
    return row


def command_text(view: JobView) -> str:
    """What runs, shortly: the script and its arguments."""
    target = f"-m {view.spec.target}" if view.spec.kind == "module" else view.spec.target
    return " ".join([target, *view.spec.args])


def _unknown(value: object) -> str:
    return "dim" if value is None or value == units.NOT_KNOWN else ""


def rank_row(
    rank: RankSample,
    now: dt.datetime,
    live: bool,
    loss_deviation: float | None,
    time_deviation: float | None,
) -> dict[str, Span]:
    """One rank, by column."""
    loss = units.loss(rank.loss, rank.loss_state)
    step_time = units.step_time(rank.step_time_s)
    ago = None
    if live and rank.last_progress_at is not None:
        ago = units.brief_duration((now - rank.last_progress_at).total_seconds())
    stuck = rank.state in ("quiet", "hung")
    device = _device(rank)
    return {
        "rank": (str(rank.rank), "strong"),
        "device": (device, _unknown(device)),
        "pid": (str(rank.pid) if rank.pid is not None else units.NOT_KNOWN, "dim"),
        "state": words.rank_state(rank.state, rank.exit_code, rank.signal),
        "step": (units.count(rank.step), _unknown(rank.step)),
        "loss": (loss, "bad" if rank.loss_state in ("nan", "inf") else _unknown(rank.loss)),
        "loss_vs": _deviation(loss_deviation, both=True),
        "time": (step_time, _unknown(rank.step_time_s)),
        "time_vs": _deviation(time_deviation, both=False),
        "last": (ago or "", "warn" if stuck else "dim"),
        "wait": (units.step_time(rank.data_wait_s), _unknown(rank.data_wait_s)),
        "cpu": (units.percent(rank.cpu_percent), _unknown(rank.cpu_percent)),
        "rss": (units.size(rank.rss_bytes), _unknown(rank.rss_bytes)),
    }


def _device(rank: RankSample) -> str:
    if rank.gpu is not None:
        return f"GPU {rank.gpu}"
    return f"{len(rank.gpus)} GPUs" if rank.gpus else "CPU"


def _deviation(ratio: float | None, *, both: bool) -> Span:
    if ratio is None:
        return "", ""
    size = abs(ratio) if both else ratio
    return units.deviation(ratio), "warn" if size >= NEUTRAL_DEVIATION else "dim"


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
