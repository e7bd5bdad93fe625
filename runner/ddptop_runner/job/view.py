"""Projects a job's state and samples onto its snapshot. Pure.

Live, restored, replayed, and rebuilt snapshots all come from here; they differ in their samples.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop_runner.base.exit_status import split_status
from ddptop_runner.job.state import JobState, NodeLife, RankLife, hosts_of_ranks
from ddptop_runner.judge.balance import imbalance
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import (
    GpuSample,
    LauncherSample,
    NodeSnapshot,
    NodeStatus,
    RankSample,
    Sampled,
)
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import ENDED, LIVE_STATES, NodePart


class Samples(Sampled, frozen=True, kw_only=True):
    """What is known about a job at one moment besides its state.

    Where `view` changes a value: the states of `ranks` are those of living processes, ends and
    hangs come from the job's state; `world_size` is that of a command, as its ranks report it;
    `run_step` and `step` are those that do not follow from the ranks; `checkpoint` is one that is
    newer than the last one recorded.
    """

    counts: list[int | None] = []
    """By rank, the step of the run according to its output."""
    stale: list[str] = []
    """Nodes whose samples are not current."""
    clock_offsets: dict[str, float | None] = {}
    """By node."""


def view(spec: JobSpec, state: JobState, samples: Samples, at: dt.datetime) -> NodeSnapshot:
    """The job's snapshot.

    Args:
        spec: the job, as requested.
        state: its state at that moment.
        samples: everything else.
        at: the moment.
    """
    started_at, ended_at, restart = samples.started_at, state.ended_at, state.restart
    began = None if state.attempt is None else samples.attempts_began.get(state.attempt)
    ranks = [_with_life(rank, state, samples.stale) for rank in _all_ranks(spec, state, samples)]
    ranks = [run_step.placed(rank, began) for rank in ranks]
    run = samples.run_step or run_step.of_job(ranks, state.attempt, began, samples.counts)
    ranks = run_step.alike(ranks)
    steps = [rank.step for rank in ranks if rank.step is not None]
    sampled = {name: getattr(samples, name) for name in Sampled.__struct_fields__}
    sampled |= {
        "ts": at,
        "state": state.phase,
        "attempt": state.attempt,
        "restarts_used": state.budget.used,
        "restarts_left": state.restarts_left(spec.max_restarts),
        "world_size": _world_size(spec, state, samples),
        "attempt_started_at": state.attempt_started_at,
        "ended_at": None if ended_at is None else max(ended_at, started_at),
        "exit_code": state.exit_code,
        "cause": state.cause,
        "previous_cause": state.previous_cause,
        "resume": state.resume,
        "step": min(steps, default=samples.step),
        "ranks": ranks,
        "imbalance": imbalance.of_job(ranks, [] if state.in_queue else samples.gpus),
        "requeue": None if state.ending is None else state.ending.requeue,
        "checkpoint": samples.checkpoint or state.checkpoint,
        "policy": state.policy,
        "restarts_refilled": state.history.refilled,
        "restart_at": None if restart is None or restart.at_s is None else restart.at,
        "set_aside": [one.device.index for one in state.set_aside],
        "launcher": _launcher(spec, state, samples.launcher),
        "run_step": run,
        "nodes": _nodes(spec, state, samples.clock_offsets),
    }
    return NodeSnapshot(job=spec.job, job_id=spec.job_id, host=spec.host, seq=0, **sampled)


def _world_size(spec: JobSpec, state: JobState, samples: Samples) -> int | None:
    if spec.is_command:
        return samples.world_size
    return state.world if spec.placement is not None else state.spec_in_force(spec).nproc


# -- ranks -----------------------------------------------------------------------------------------


def _all_ranks(spec: JobSpec, state: JobState, samples: Samples) -> Sequence[RankSample]:
    """The sampled ranks and those that have yet to start."""
    is_one_of_several = spec.placement is not None or spec.membership is not None
    if is_one_of_several or spec.is_command or state.in_queue or state.attempt is None:
        return samples.ranks
    known = {rank.rank: rank for rank in samples.ranks}
    numbers = sorted({*known, *state.ranks, *range(state.spec_in_force(spec).nproc)})
    return [
        known.get(n) or RankSample(rank=n, local_rank=n, host=spec.host, state="starting")
        for n in numbers
    ]


def _with_life(rank: RankSample, state: JobState, stale: Sequence[str]) -> RankSample:
    """The rank with its end or hang; its state is unknown if its node cannot be reached."""
    life = state.ranks.get(rank.rank)
    if life is not None and (None in (life.pid, rank.pid) or life.pid == rank.pid):
        working, (exit_code, signal) = life.state(rank.state), _status(life)
        pid = life.pid if rank.pid is None else rank.pid
        known = (rank.pid, rank.state, rank.exit_code, rank.signal)
        if (pid, working, exit_code, signal) != known:
            rank = replace(rank, pid=pid, state=working, exit_code=exit_code, signal=signal)
    node = state.nodes.get(rank.host)
    if node is None or rank.state in ENDED or node.ended is not None or state.is_over:
        return rank
    if node.unknown_since is None and rank.host not in stale:
        return rank
    since = (
        "" if node.unknown_since is None else f" since {node.unknown_since.astimezone():%H:%M:%S}"
    )
    return replace(
        rank,
        state="unknown",
        state_reason=f"{rank.host} cannot be reached{since}",
        cpu_percent=None,
        steps_per_s=None,
        gpu_util_percent=None,
        gpu_power_w=None,
    )


def _launcher(spec: JobSpec, job: JobState, sample: LauncherSample | None) -> LauncherSample | None:
    if not spec.is_command:
        return None
    life = job.launcher
    sample = sample or LauncherSample(
        name=spec.launcher or "python", state="starting" if life is None else "running"
    )
    if life is None:
        return sample
    exit_code, signal = _status(life)
    state = life.state(sample.state)
    return replace(sample, pid=life.pid, state=state, exit_code=exit_code, signal=signal)


def _status(life: RankLife) -> tuple[int | None, str | None]:
    """(exit code, signal) of a process; None while it lives, or if unknown."""
    return (None, None) if life.status is None else split_status(life.status)


# -- nodes -----------------------------------------------------------------------------------------


def _nodes(
    spec: JobSpec, state: JobState, clock_offsets: Mapping[str, float | None]
) -> list[NodeStatus]:
    if spec.placement is None:
        return []
    ranks: dict[str, list[int]] = {}
    for rank, host in hosts_of_ranks(state, spec).items():
        ranks.setdefault(host, []).append(rank)
    started = state.hosts_with_processes
    found = []
    for node in spec.placement.nodes:
        life = state.nodes.get(node.host, NodeLife())
        found.append(
            NodeStatus(
                host=node.host,
                state=_part(life, state, has_started=node.host in started),
                unknown_since=life.unknown_since,
                attempt=state.attempt if life.takes_part else None,
                ranks=ranks.get(node.host, []),
                clock_offset_s=clock_offsets.get(node.host),
                why=life.why,
            )
        )
    return found


def _part(life: NodeLife, state: JobState, *, has_started: bool) -> NodePart:
    if state.phase not in LIVE_STATES:
        return "ended"
    if life.lost:
        return "lost"
    if life.unknown_since is not None:
        return "unreachable"
    if not life.takes_part:
        return "waiting"
    if life.ended is not None:
        return "ended"
    if life.failed:
        return "held"
    return "running" if has_started else "starting"


# -- the history -----------------------------------------------------------------------------------


def for_history(snapshot: NodeSnapshot) -> list[RankSample]:
    """The ranks to record; while there are no steps, without values that depend on steps."""
    ranks = snapshot.ranks
    if snapshot.nodes:  # nothing is known about an unreachable node
        ranks = [rank for rank in ranks if rank.state != "unknown"]
    if snapshot.pause is None:
        return ranks
    return [
        replace(
            rank,
            **dict.fromkeys(("loss", "loss_min", "loss_max", "step_time_s")),
            **dict.fromkeys(("data_wait_s", "sync_s", "compute_s")),
        )
        for rank in ranks
    ]


def devices_for_history(snapshot: NodeSnapshot) -> list[GpuSample]:
    """The devices to record, without those of unreachable nodes."""
    away = {node.host for node in snapshot.nodes if node.state in ("unreachable", "lost")}
    return [gpu for gpu in snapshot.gpus if gpu.host not in away] if away else snapshot.gpus
