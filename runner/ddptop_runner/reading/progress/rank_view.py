"""Merges what the sources report of a rank into one view, for own and foreign jobs. Pure.

Precedence: `ddptop.report` and the probe, which share a message; then the output; then files that
the rank logs to. Losses of two sources are never mixed: once a probe or `report` has reported a
loss in an attempt, no other is taken. What comes from output and files is shown and recorded, and
proves no life: the hang watch has only what probes report.
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
"""Reported of a rank whose probe has not reported."""
OF_MOMENT = ("phase", "phase_t", "saved", "stack_signal", "stands_at")
"""True of the moment of a message only."""
OF_STEPS = ("compute_s", "sync_s")
"""Parts of the steps whose mean duration `step_time_s` is."""
OF_LOSS = (
    *("loss", "loss_bad_since", "loss_is", "loss_last_good", "loss_parts", "loss_source"),
    *("loss_state", "loss_step"),
)
"""Replaced together."""
RANGE = ("loss_max", "loss_min")
"""Since the previous snapshot."""
_OTHERS = {"metrics", *OF_MOMENT, *OF_STEPS, *OF_LOSS, *RANGE}
LATEST = tuple(name for name in ProbeMessage.__struct_fields__ if name not in _OTHERS)
"""Each stays until a message brings another value."""
_COMPUTED = {"rank", "local_rank", "pid", "phase", "stands_at", "collectives"}
_SHARED = {*ProbeMessage.__struct_fields__} & {*RankSample.__struct_fields__}
SHOWN = tuple(sorted(_SHARED - _COMPUTED))
"""What a rank's sample has as it is, alive or ended."""
RESTORED = tuple(name for name in SHOWN if name not in {"batches", *RANGE})
"""What a restarted supervisor takes over from the last sample of a rank; the others are counted or
measured anew."""
PROVEN_BY_STEPS = ("global_step", "step_time_s")
"""Not restored from a sample whose steps were printed: those are read again."""


def merged(before: ProbeMessage, message: ProbeMessage) -> ProbeMessage:
    """A message, with what stays of those before it."""
    stays = [name for name in LATEST if not _says(getattr(message, name))]
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


def _says(value: object) -> bool:
    return value is not None and value != [] and value != {}


def shown(reported: ProbeMessage) -> dict[str, Any]:
    """The fields of a rank's sample that its probe reports."""
    losses = {name: figures[-1] for name, figures in reported.optimizers.items()}
    return {"losses": losses, **{name: getattr(reported, name) for name in SHOWN}}


def restored(sample: RankSample) -> ProbeMessage:
    """What a restarted supervisor takes over from the last sample of a rank."""
    left: set[str] = set()
    if sample.step_source == "log":
        left.update(PROVEN_BY_STEPS)
    if sample.loss_source == "log":
        left.update(OF_LOSS)
    if sample.loss_source != "api":
        left.add("metrics")  # read from output or files, which are read again
    changes = {name: getattr(sample, name) for name in RESTORED if name not in left}
    optimizers = {name: [None, loss] for name, loss in sample.losses.items()}
    return msgspec.structs.replace(NOTHING, **changes, optimizers=optimizers)


PATIENCE_S = 5.0
"""A probe that may still speak is waited for so long after the first loss or step of the output."""
_ALIVE = ("starting", "running", "paused", "quiet", "hung", "blocked", "stuck")


def fill(
    sample: RankSample, text: TextProgress | None, trace: TextProgress | None, now: dt.datetime
) -> RankSample:
    """The sample with what is known from elsewhere.

    Args:
        sample: by the rank's probe.
        text: by its output; None where that tells nothing.
        trace: by files that it logs to; taken after `text`.
        now: the wall clock.
    """
    changes: dict[str, Any] = {}
    for told in (text, trace):
        if told is None:
            continue
        if "step" not in changes and _may_step(sample, told, now):
            changes |= _step(sample, told, now)
        if "loss_state" not in changes and _may_lose(sample, told, now):
            changes = _loss(sample, told, from_same="step" in changes) | changes
    if (metrics := _metrics(sample, (text, trace))) != sample.metrics:
        changes["metrics"] = metrics
    return msgspec.structs.replace(sample, **changes) if changes else sample


def _waited(sample: RankSample, since: dt.datetime | None, now: dt.datetime) -> bool:
    if sample.has_probe is None or since is None:
        return True
    return not 0 <= (now - since).total_seconds() < PATIENCE_S


def _may_step(sample: RankSample, told: TextProgress, now: dt.datetime) -> bool:
    return sample.step is None and told.step is not None and _waited(sample, told.step_since, now)


def _may_lose(sample: RankSample, told: TextProgress, now: dt.datetime) -> bool:
    if told.loss_state is None or (sample.loss_state is not None and sample.loss_source != "log"):
        return False
    return _waited(sample, told.loss_since, now)


def _step(sample: RankSample, told: TextProgress, now: dt.datetime) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "step": told.step,
        "step_source": "log",
        "global_step": told.step if told.counts_run else sample.global_step,
        "last_progress_at": told.last_at or sample.last_progress_at,
    }
    if sample.state == "starting" and sample.pid is not None and told.step:
        changes["state"] = "running"
    rate = told.steps_per_s(now) if sample.state in _ALIVE else None
    if rate is not None and sample.steps_per_s is None:
        changes |= {"steps_per_s": rate, "step_time_s": 1 / rate}
    return changes


def _loss(sample: RankSample, told: TextProgress, from_same: bool) -> dict[str, Any]:
    return {
        "loss": told.loss,
        "loss_state": told.loss_state,
        "loss_source": "log",
        # as printed, so it can stand only beside a step that is
        "loss_step": told.loss_step if from_same else None,
        "loss_min": told.loss_min,
        "loss_max": told.loss_max,
        "loss_last_good": told.loss_last_good,
        "last_progress_at": sample.last_progress_at or told.last_at,
    }


def _metrics(sample: RankSample, sources: Iterable[TextProgress | None]) -> dict[str, float | None]:
    """What the script reports by name, then what its output says, then what its files say."""
    metrics = dict(sample.metrics)
    for told in filter(None, sources):
        known = dict(told.scalars)
        if told.epoch is not None:
            known["epoch"] = told.epoch
        for name, value in known.items():
            if len(metrics) < MAX_METRICS and math.isfinite(value):
                metrics.setdefault(name, value)
    return metrics
