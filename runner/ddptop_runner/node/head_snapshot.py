"""Combines the snapshots of a job's nodes into one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from ddptop_runner.job.state import JobState, NodeLife, RankLife
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import (
    NodeSnapshot,
    NodeStatus,
    Pause,
    RankSample,
)
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import ENDED, LIVE_STATES, NodePart

AT_WORK = ("starting", "running", "quiet")
"""States in which a node may show a rank that hangs."""
WELL = RankLife()


@dataclass(frozen=True)
class NodeView:
    """The head's view of one node."""

    host: str
    snapshot: NodeSnapshot | None
    """The last snapshot in the current attempt."""
    is_live: bool
    """Whether the snapshot is current."""
    attempt: int | None
    ended: bool
    clock_offset_s: float | None


def merged(
    begun: NodeSnapshot,
    job: JobState,
    spec: JobSpec,
    views: Sequence[NodeView],
    pause: Pause | None,
    parts: dict[str, Any],
) -> NodeSnapshot:
    """The job's current snapshot, without alerts.

    Args:
        begun: the snapshot's fields that follow from the job's state.
        job: the job's state.
        spec: the job.
        views: of all nodes, in their order.
        pause: the current pause, if any.
        parts: each node's data that a restarted head restores.
    """
    shown = [(view, view.snapshot) for view in views if view.snapshot is not None]
    taking_part = {host for host, life in job.nodes.items() if life.takes_part}
    at_work = [(view, one) for view, one in shown if view.host in taking_part]
    began: dict[int, int] = {}  # only the node that saved a checkpoint knows its step
    for _, one in shown:
        for attempt, step in one.attempts_began.items():
            began[attempt] = max(step, began.get(attempt, 0))
    ranks = [rank for view, one in at_work for rank in _ranks(view, one, job)]
    started_at = None if job.attempt is None else began.get(job.attempt)
    if started_at is not None:
        ranks = [
            run_step.placed(replace(rank, run_step=None), started_at)
            if rank.step_source == "probe" and rank.global_step is None
            else rank
            for rank in ranks
        ]
    run = run_step.of_job(ranks, job.attempt, started_at)
    if started_at is None and at_work:
        run = at_work[0][1].run_step
    ranks = run_step.alike(ranks)
    gpus = [replace(gpu, host=view.host) for view, one in shown for gpu in one.gpus]
    steps = [rank.step for rank in ranks if rank.step is not None]
    first = at_work[0][1] if at_work else None
    etas = [one.eta_s for _, one in at_work if one.eta_s is not None]
    sources = [one.source for _, one in shown if one.source is not None]
    notes = [f"{view.host}: {one.device_note}" for view, one in shown if one.device_note]
    return replace(
        begun,
        step=min(steps, default=None if first is None else first.step),
        total_steps=None if first is None else first.total_steps,
        eta_s=max(etas, default=None),
        ranks=ranks,
        gpus=gpus,
        imbalance=imbalance.of_job(ranks, gpus),
        source=sources[0] if sources else None,
        driver=first.driver if first is not None else None,
        device_note="; ".join(notes) or None,
        progress=None if first is None else first.progress,
        run_step=run,
        attempts_began=began,
        pause=pause,
        nodes=[_status(view, job, spec) for view in views],
        memory={**begun.memory, "parts": parts},
    )


def _ranks(view: NodeView, snapshot: NodeSnapshot, job: JobState) -> list[RankSample]:
    """The ranks of a node; their state is unknown if the node is unreachable.

    Hangs are judged here, because a node only sees its own ranks.
    """
    found = [
        replace(rank, host=view.host, state="hung")
        if rank.state in AT_WORK and job.ranks.get(rank.rank, WELL).hung
        else replace(rank, host=view.host)
        for rank in snapshot.ranks
    ]
    if view.is_live or view.ended or job.phase not in LIVE_STATES:
        return found
    away = job.nodes.get(view.host, NodeLife())
    since_words = ""
    if away.unknown_since is not None:
        since_words = f" since {away.unknown_since.astimezone():%H:%M:%S}"
    reason = f"{view.host} cannot be reached{since_words}"
    unseen = dict.fromkeys(("cpu_percent", "steps_per_s", "gpu_util_percent", "gpu_power_w"))
    return [
        rank
        if rank.state in ENDED
        else replace(rank, state="unknown", state_reason=reason, **unseen)
        for rank in found
    ]


def _status(view: NodeView, job: JobState, spec: JobSpec) -> NodeStatus:
    life = job.nodes.get(view.host, NodeLife())
    ranks = [] if view.snapshot is None else [rank.rank for rank in view.snapshot.ranks]
    return NodeStatus(
        host=view.host,
        state=_part(view, life, job),
        unknown_since=life.unknown_since,
        attempt=view.attempt,
        ranks=ranks if life.takes_part else [],
        clock_offset_s=view.clock_offset_s,
        why=life.why,
    )


def _part(view: NodeView, life: NodeLife, job: JobState) -> NodePart:
    if job.phase not in LIVE_STATES:
        return "ended"
    if life.lost:
        return "lost"
    if life.unknown_since is not None:
        return "unreachable"
    if not life.takes_part or view.attempt is None:
        return "waiting"
    if life.ended is not None:
        return "ended"
    if life.failed:
        return "held"
    return "running" if life.started else "starting"
