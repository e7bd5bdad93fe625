"""Merges what the sources know of a rank into one view, for own and foreign jobs. Pure.

Precedence: `ddptop.report` and the probe, which share a message; then the output; then files that
the rank logs to. Losses of two sources are never mixed: once a probe or `report` has told a loss in
an attempt, no other is taken. What comes from output and files is shown and recorded, and proves no
life: the hang watch has only what probes report.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from ddptop_runner.model.probe_message import ProbeMessage
from ddptop_runner.model.snapshot import RankSample
from ddptop_runner.reading.progress.from_text import TextProgress

LATEST = (
    *("batches", "data_wait_s", "epoch", "epochs", "flight_record", "frameworks", "global_step"),
    *("replicas", "step_time_s", "total_source", "total_steps"),
)
"""Each stays until a message of the probe brings another value."""
OF_MOMENT = ("phase", "stands_at")
"""True of the moment of the message alone."""
OF_STEPS = ("compute_s", "sync_s")
"""Parts of the steps whose mean duration `step_time_s` is."""
OF_LOSS = (
    *("loss", "loss_bad_since", "loss_is", "loss_last_good", "loss_parts", "loss_source"),
    *("loss_state", "loss_step"),
)
"""Replaced together."""
SHOWN = (
    *("batches", "compute_s", "data_wait_s", "frameworks", "global_step", "gpu_mem_peak_bytes"),
    *("loss_max", "loss_min", "losses", "metrics", "rank_source", "replicas", "step_time_s"),
    *("sync_s", *OF_LOSS),
)
"""What a rank's sample has as it is, alive or ended."""
PROVEN_BY_STEPS = ("global_step", "step_time_s")
"""Not restored from a sample whose steps were printed: those are read again."""
NOT_RESTORED = ("batches", "loss_max", "loss_min")
"""Counted or measured anew."""


def of_message(message: ProbeMessage) -> dict[str, Any]:
    """What a message of the probe changes in the view."""
    changes = {name: getattr(message, name) for name in OF_MOMENT}
    for name in LATEST:
        if (value := getattr(message, name)) not in (None, []):
            changes[name] = value
    if message.step_time_s is not None:
        changes |= {name: getattr(message, name) for name in OF_STEPS}
    if message.loss_state is not None:
        changes |= {name: getattr(message, name) for name in OF_LOSS}
    return changes


def of_sample(sample: RankSample) -> dict[str, Any]:
    """What a supervisor that was restarted takes over from the last sample of a rank."""
    left = {*NOT_RESTORED}
    if sample.step_source == "log":
        left.update(PROVEN_BY_STEPS)
    if sample.loss_source == "log":
        left.update(OF_LOSS)
    changes = {name: getattr(sample, name) for name in SHOWN if name not in left}
    return {name: copied(value) for name, value in changes.items()}


def copied(value: Any) -> Any:
    """The value, or a copy of one that would change along with its source."""
    return value.copy() if isinstance(value, (dict, list)) else value


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
    metrics = dict(sample.metrics)
    if told.epoch is not None:
        metrics.setdefault("epoch", told.epoch)
    if told.validation_loss is not None:
        metrics.setdefault("validation loss", told.validation_loss)
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
        "metrics": metrics,
    }
