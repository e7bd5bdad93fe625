"""Orders jobs in a list, and describes the jobs in Slurm's queue. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec

from ddptop.view.attention import Attention, attention
from ddptop.view.jobs import assigned_devices
from ddptop.view.need import Seen, order_of
from ddptop_runner.base.units import duration
from ddptop_runner.job.registry import AnyJob
from ddptop_runner.launch.slurm import SlurmJob

ORDERS: Mapping[str, str] = {
    "need": "attention",
    "name": "name",
    "started": "start",
    "gpus": "GPUs",
}
"""The table's sort orders, in words."""


class Listed(msgspec.Struct, frozen=True):
    """A job and why it needs attention."""

    view: AnyJob
    attention: Attention


def listed(views: Sequence[AnyJob], now: dt.datetime, seen: Seen, order: str) -> list[Listed]:
    """All jobs in this order; among equals, the more urgent job comes first."""
    found = [Listed(view, attention(view, now, seen)) for view in views]
    found.sort(key=lambda one: order_of(one.view, one.attention.need))
    if order == "name":
        found.sort(key=lambda one: one.view.job.casefold())
    elif order == "started":
        found.sort(key=lambda one: -one.view.created_at.timestamp())
    elif order == "gpus":
        found.sort(key=lambda one: _first_gpu(one.view))
    return found


def _first_gpu(view: AnyJob) -> tuple[int, int]:
    """Sorts live jobs by their first device, then those without a device, then ended jobs."""
    if not view.is_live or view.snapshot is None:
        return 2, 0
    held = assigned_devices(view.snapshot)
    return (0, min(index for _, index in held)) if held else (1, 0)


def sorted_jobs(views: Sequence[AnyJob]) -> list[AnyJob]:
    """Live jobs first, then newest first; the order in which readers return them."""
    return sorted(views, key=lambda v: (not v.is_live, -(v.ended_at or v.created_at).timestamp()))


def others(queue: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Slurm jobs that are not shown as ddptop jobs, pending ones last."""
    return sorted((one for one in queue if one.job is None), key=lambda one: one.state == "PENDING")


def brief(one: SlurmJob, now: dt.datetime) -> str:
    """`12 bert: pending (Resources), starts in about 2h 05m, 2 nodes, partition gpu`."""
    words = [one.state.lower()]
    if one.reason:
        words[0] += f" ({one.reason})"
    if one.start_estimate is not None:
        words.append(f"starts in about {duration((one.start_estimate - now).total_seconds())}")
    elif one.time_left_s is not None and one.started_at is not None:
        words.append(f"{duration(one.time_left_s)} left")
    if one.nodes:
        words.append(f"{one.nodes} node{'s' if one.nodes > 1 else ''}")
    if one.partition:
        words.append(f"partition {one.partition}")
    return f"{one.id} {one.name}: {', '.join(words)}"
