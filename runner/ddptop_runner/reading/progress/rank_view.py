"""Merges what all sources report about a rank into one view, for own and foreign jobs. Pure.

Precedence: `ddptop.report` and the probe, which share a message; then the output; then files that
the rank logs to. Losses from two sources are never mixed: once the probe or `report` has reported a
loss in an attempt, no other source is used. Values from output and files are shown and recorded,
but prove no life: the hang watch uses only probe messages.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from ddptop_runner.model.probe_message import MAX_METRICS, VERSION, ProbeMessage
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.reading.progress.from_text import TextProgress

NOTHING = ProbeMessage(v=VERSION, pid=1, seq=0, t=0.0)
"""Stands for a probe that has not reported."""
OF_MOMENT = (
    *("epoch_batches", "not_learning", "phase", "phase_t", "repeated_epoch", "saved"),
    *("stack_signal", "stands_at"),
)
"""Valid at the time of the message only."""
OF_STEPS = ("backward_s", "compute_s", "forward_s", "input_s", "optimizer_s", "sync_s")
"""Parts of `step_time_s`; they change together."""
OF_LOSS = (
    *("loss", "loss_bad_since", "loss_is", "loss_last_good", "loss_parts", "loss_source"),
    *("loss_state", "loss_step"),
)
"""These change together."""
RANGE = ("loss_max", "loss_min")
"""Over the time since the previous snapshot."""
_OTHERS = {"metrics", *OF_MOMENT, *OF_STEPS, *OF_LOSS, *RANGE}
LATEST = tuple(name for name in ProbeMessage.__struct_fields__ if name not in _OTHERS)
"""Each is kept until a message has another value."""
_COMPUTED = {"rank", "local_rank", "pid", "phase", "stands_at", "collectives"}
_SHARED = {*ProbeMessage.__struct_fields__} & {*RankSample.__struct_fields__}
SHOWN = tuple(sorted(_SHARED - _COMPUTED))
"""Copied as they are to the sample of a rank, alive or ended."""
RESTORED = tuple(name for name in SHOWN if name not in {"batches", *RANGE})
"""Restored by a restarted supervisor from a rank's last sample; the others are measured again."""
PROVEN_BY_STEPS = ("global_step", "step_time_s")
"""Not restored from a sample whose steps came from output, which is read again."""


def merged(before: ProbeMessage, message: ProbeMessage) -> ProbeMessage:
    """The message, with what still applies from those before it."""
    stays = [name for name in LATEST if not _has_value(getattr(message, name))]
    if message.step_time_s is None:
        stays += OF_STEPS
    if message.loss_state is None:
        stays += [*OF_LOSS, *RANGE]
    changes = {name: getattr(before, name) for name in stays}
    if message.loss_state is not None:
        lows = [x for x in (before.loss_min, message.loss_min) if x is not None]
        highs = [x for x in (before.loss_max, message.loss_max) if x is not None]
        changes["loss_min"], changes["loss_max"] = min(lows, default=None), max(highs, default=None)
    changes["metrics"] = dict(before.metrics)
    for name, value in message.metrics.items():
        if name in before.metrics or len(changes["metrics"]) < MAX_METRICS:
            changes["metrics"][name] = value
    return msgspec.structs.replace(message, **changes)


def _has_value(value: object) -> bool:
    return value is not None and value != [] and value != {}


def shown(reported: ProbeMessage) -> dict[str, Any]:
    """The fields of a rank's sample that its probe reports."""
    losses = {name: figures[-1] for name, figures in reported.optimizers.items()}
    return {"losses": losses, **{name: getattr(reported, name) for name in SHOWN}}


def restored(sample: RankSample) -> ProbeMessage:
    """The message that a restarted supervisor derives from a rank's last sample."""
    left: set[str] = set()
    if sample.step_source == "log":
        left.update(PROVEN_BY_STEPS)
    if sample.loss_source == "log":
        left.update(OF_LOSS)
    if sample.loss_source != "api":
        left.update({"metrics", "metric_reports"})  # of output or files, which are read again
    changes = {name: getattr(sample, name) for name in RESTORED if name not in left}
    optimizers = {name: [None, loss] for name, loss in sample.losses.items()}
    return msgspec.structs.replace(NOTHING, **changes, optimizers=optimizers)


PATIENCE_S = 5.0
"""How long after the output's first loss or step the probe's is awaited."""
_ALIVE = ("starting", "running", "paused", "quiet", "hung", "blocked")


def fill(
    sample: RankSample,
    text: TextProgress | None,
    trace: TextProgress | None,
    now: dt.datetime,
    *,
    scalars: TextProgress | None = None,
    is_over: bool = False,
) -> RankSample:
    """Fill gaps in a sample from other sources.

    Args:
        sample: from the rank's probe.
        text: from its output, if that shows any progress.
        trace: from files that it logs to; used after `text`.
        now: the wall clock.
        scalars: from such files of a rank whose losses are known; their steps and losses are not
            used.
        is_over: whether the rank has exited, so that its probe is no longer awaited.
    """
    patience_s = 0.0 if is_over else PATIENCE_S
    changes: dict[str, Any] = {}
    for seen in (text, trace):
        if seen is None:
            continue
        if "step" not in changes and _may_step(sample, seen, now, patience_s):
            changes |= _step(sample, seen, now)
        if "loss_state" not in changes and _may_lose(sample, seen, now, patience_s):
            changes = _loss(sample, seen, from_same="step" in changes) | changes
    changes |= _metrics(sample, (text, trace, scalars))
    return msgspec.structs.replace(sample, **changes) if changes else sample


def _waited(
    sample: RankSample, since: dt.datetime | None, now: dt.datetime, patience_s: float
) -> bool:
    if sample.has_probe is None or since is None:
        return True
    return not 0 <= (now - since).total_seconds() < patience_s


def _may_step(sample: RankSample, seen: TextProgress, now: dt.datetime, patience_s: float) -> bool:
    if sample.step is not None or seen.step is None:
        return False
    return _waited(sample, seen.step_since, now, patience_s)


def _may_lose(sample: RankSample, seen: TextProgress, now: dt.datetime, patience_s: float) -> bool:
    if seen.loss_state is None or (sample.loss_state is not None and sample.loss_source != "log"):
        return False
    return _waited(sample, seen.loss_since, now, patience_s)


def _step(sample: RankSample, seen: TextProgress, now: dt.datetime) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "step": seen.step,
        "step_source": "log",
        "global_step": seen.step if seen.counts_run else sample.global_step,
        "last_progress_at": seen.last_at or sample.last_progress_at,
    }
    if sample.state == "starting" and sample.pid is not None and seen.step:
        changes["state"] = "running"
    rate = seen.steps_per_s(now) if sample.state in _ALIVE else None
    if rate is not None and sample.steps_per_s is None:
        changes |= {"steps_per_s": rate, "step_time_s": 1 / rate}
    return changes


def _loss(sample: RankSample, seen: TextProgress, from_same: bool) -> dict[str, Any]:
    return {
        "loss": seen.loss,
        "loss_state": seen.loss_state,
        "loss_source": "log",
        # as printed, so only valid beside a printed step
        "loss_step": seen.loss_step if from_same else None,
        "loss_min": seen.loss_min,
        "loss_max": seen.loss_max,
        "loss_last_good": seen.loss_last_good,
        "last_progress_at": sample.last_progress_at or seen.last_at,
    }


def _metrics(sample: RankSample, sources: Iterable[TextProgress | None]) -> dict[str, Any]:
    """Those that the script reports, then those in its output, then those in its files."""
    metrics, reports = dict(sample.metrics), dict(sample.metric_reports)
    for seen in filter(None, sources):
        known = dict(seen.scalars)
        if seen.epoch is not None:
            known["epoch"] = seen.epoch
        for name, value in known.items():
            if len(metrics) < MAX_METRICS and math.isfinite(value) and name not in metrics:
                metrics[name] = value
                reports[name] = seen.reports.get(name, 0)
    return {} if metrics == sample.metrics else {"metrics": metrics, "metric_reports": reports}
