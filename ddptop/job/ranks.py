"""Describes a rank and its host: its state, its place, and how far it is from the others. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from ddptop.job.record import Job
from ddptop.style import Span
from ddptop_runner.base import units
from ddptop_runner.base.median import median
from ddptop_runner.judge.balance.imbalance import RankDeviation, busy_s
from ddptop_runner.judge.balance.rank_devices import is_own
from ddptop_runner.model import run_step
from ddptop_runner.model.snapshot import (
    GpuSample,
    LauncherSample,
    NodeSnapshot,
    NodeStatus,
    RankSample,
)
from ddptop_runner.model.words import Phase

LASTING_PHASE_S = 2.0
"""A rank that evaluates, saves, or compiles for less time is shown as running."""

REPLICATING = ("DataParallel", "MirroredStrategy")
"""Launchers that run one process on several devices."""

CERTAIN = ("probe", "environment", "single")
"""Sources from which a rank's number is certain."""


def lasting_phase(rank: RankSample, now: dt.datetime) -> Phase | None:
    """The rank's phase, once it has lasted a while, so that the screen does not flicker."""
    if rank.phase_since is None or (now - rank.phase_since).total_seconds() < LASTING_PHASE_S:
        return None
    return rank.phase


def rank_step(rank: RankSample) -> int | None:
    """The rank's step in the run, or in this attempt if that is unknown."""
    return rank.step if rank.run_step is None else rank.run_step


def counts_own(rank: RankSample) -> bool:
    """Whether `rank_step` counts only this attempt."""
    return rank.run_step is None and rank.step_counts == "attempt"


def data_share(rank: RankSample) -> float | None:
    """Fraction of a step spent waiting for data; None if unknown."""
    return _share(rank, rank.data_wait_s)


def sync_share(rank: RankSample) -> float | None:
    """Fraction of a step spent waiting for other ranks; None if unknown."""
    return _share(rank, rank.sync_s)


def busy_share(rank: RankSample) -> float | None:
    """Fraction of a step in which the rank does not wait for other ranks; None if unknown."""
    return _share(rank, busy_s(rank))


def step_parts(rank: RankSample | None) -> str:
    """`step time: backward 8 ms, forward 3 ms`: the parts from 2% of it, the longest first.

    The wait for data has its own curve; `other` is what the script does outside of all of these.
    """
    if rank is None:
        return "step time"
    forward_s = None if rank.forward_s is None else rank.forward_s - (rank.input_s or 0.0)
    parts = {
        "input": rank.input_s,
        "forward": forward_s,
        "backward": rank.backward_s,
        "optimizer": rank.optimizer_s,
    }
    step_s = rank.step_time_s or 0.0
    if None not in (forward_s, rank.backward_s, rank.optimizer_s):
        rest_s = step_s - (rank.data_wait_s or 0.0) - sum(filter(None, parts.values()))
        parts["other"] = rest_s if rest_s >= NOTABLE_WAIT * step_s else None
    longest = sorted((-s, name) for name, s in parts.items() if s and s >= 0.02 * step_s)
    known = [f"{name} {units.step_time(-s)}" for s, name in longest]
    return f"step time: {', '.join(known)}" if known else "step time"


def memory_share(rank: RankSample, gpu: GpuSample | None) -> float | None:
    """Fraction of its device's memory that the rank uses; None if unknown."""
    if gpu is None or not gpu.mem_total_bytes or rank.gpu_mem_used_bytes is None:
        return None
    return rank.gpu_mem_used_bytes / gpu.mem_total_bytes


def power_share(rank: RankSample, gpu: GpuSample | None) -> float | None:
    """Fraction of its device's power limit in use; None if unknown."""
    if gpu is None or not gpu.power_limit_w or rank.gpu_power_w is None:
        return None
    return rank.gpu_power_w / gpu.power_limit_w


def _share(rank: RankSample, wait_s: float | None) -> float | None:
    return wait_s / rank.step_time_s if wait_s is not None and rank.step_time_s else None


def device_text(rank: RankSample) -> str:
    """`GPU 3`, `2 GPUs`, or `CPU`."""
    if rank.gpu is not None:
        return f"GPU {rank.gpu}"
    return f"{len(rank.gpus)} GPUs" if rank.gpus else "CPU"


def parts_text(rank: RankSample) -> str:
    """` Σ4` if the loss is the sum of 4 parts, ` μ4` for their mean; else empty."""
    if rank.loss is None or not rank.loss_parts or rank.loss_parts < 2 or rank.loss_is is None:
        return ""
    return f" {'Σ' if rank.loss_is == 'sum' else 'μ'}{rank.loss_parts}"


def loss_text(rank: RankSample) -> str:
    """The loss and, if it combines several backward passes, their number: `0.5320 Σ4`."""
    return units.loss(rank.loss, rank.loss_state) + parts_text(rank)


def parts_in_words(rank: RankSample) -> str:
    """`sum of 4 backward passes`; empty for a single pass or if unknown."""
    if not parts_text(rank):
        return ""
    return f"{'sum' if rank.loss_is == 'sum' else 'mean'} of {rank.loss_parts} backward passes"


def replicas_in_words(rank: RankSample, launcher: LauncherSample | None) -> str:
    """`1 process, 4 GPUs (DataParallel): no per-device loss`; empty for one device."""
    if not rank.replicas or rank.replicas < 2:
        return ""
    kind = launcher.name if launcher is not None and launcher.name in REPLICATING else None
    where = f"1 process, {rank.replicas} {'GPUs' if rank.gpus else 'devices'}"
    return f"{where}{f' ({kind})' if kind else ''}: no per-device loss"


def source_in_words(rank: RankSample) -> str:
    """How its number was inferred if the rank did not report it."""
    source = rank.rank_source
    if source is None or source in CERTAIN:
        return ""
    return f"rank inferred from {source}"


def is_rank_too(launcher: LauncherSample, ranks: list[RankSample]) -> bool:
    """Whether the process that a command started is its only rank."""
    return len(ranks) == 1 and launcher.pid is not None and ranks[0].pid == launcher.pid


def launcher_in_words(view: Job) -> str:
    """What starts a command's ranks, or if unknown, the name of the running program."""
    if view.spec.launcher is None and view.launcher == "python":
        return PurePath(view.spec.target).name or view.launcher
    return view.launcher


def launcher_name(view: Job) -> str | None:
    """What starts the ranks; None if ddptop starts them itself."""
    if view.members:
        return launcher_name(view.members[0])
    if not view.is_foreign:
        return launcher_in_words(view) if view.spec.is_command else None
    return view.launcher if view.snapshot.launcher is not None else None


def find_rank(snapshot: NodeSnapshot, rank: int | None) -> RankSample | None:
    """The rank with this number, if any."""
    return next((one for one in snapshot.ranks if one.rank == rank), None)


def device_of(snapshot: NodeSnapshot, rank: int | None) -> GpuSample | None:
    """The rank's own device, or the first that it uses; None without a device."""
    one = find_rank(snapshot, rank)
    if one is None:
        return None
    for gpu in snapshot.gpus:
        if is_own(one, gpu) and gpu.parent_uuid is None:
            return gpu
    return next((gpu for gpu in snapshot.gpus if gpu.uuid in one.gpus), None)


def device_uuid(snapshot: NodeSnapshot, rank: int | None) -> str | None:
    """UUID of the rank's device; None without a device."""
    gpu = device_of(snapshot, rank)
    return None if gpu is None else gpu.uuid


NOTABLE_WAIT = 0.1
"""Minimum fraction of a step spent waiting that is worth showing."""


class PhaseText(NamedTuple):
    """What a rank does instead of taking steps."""

    brief: str
    """For a narrow column; empty if it is shown as running."""
    doing: str
    sentence: str


PHASES: Mapping[Phase | None, PhaseText] = {
    "compile": PhaseText("compile", "compiling", "is compiling"),
    "evaluation": PhaseText("eval", "evaluating", "is evaluating"),
    "checkpoint": PhaseText("ckpt", "saving", "is saving or loading a checkpoint"),
    "data": PhaseText("no batch", "waiting for data", "is waiting for its data loader"),
    "end": PhaseText("exiting", "exiting", "is exiting: its script has finished"),
    "collective": PhaseText("", "", "is waiting for other ranks in a collective"),
}


def sentence(rank: RankSample, job: Job, apart: RankDeviation, now: dt.datetime) -> Span:
    """`rank 3 is evaluating (since 12:03:10); this is normal`; empty for an outlier."""
    from ddptop.job.series import bad_loss  # `ls` prints no sentence about a rank

    several_hosts = has_several(job.snapshot)
    name = f"rank {rank.rank}" + (f" on {rank.host}" if several_hosts else "")
    if rank.state in ("failed", "exited", "stopped") or not job.is_live:
        return _ended(rank, job, name)
    if bad := bad_loss([rank]):
        return f"{name}'s loss: {bad[0]}", bad[1]
    if rank.state not in CALM:
        style = "busy" if rank.state == "quiet" else "warn"
        return _still(rank, name, several_hosts), "bad" if rank.state == "hung" else style
    if rank.state == "starting" and rank.step is None:
        return f"{name} has not taken a step yet{_place(rank)}", "busy"
    if apart.is_slow:
        return "", ""
    phase = lasting_phase(rank, now)
    if phase in PHASES:
        since = "" if rank.phase_since is None else f" (since {_clock(rank.phase_since)})"
        return f"{name} {PHASES[phase].sentence}{since}; this is normal", "busy"
    return _well(rank, job, name)


def _well(rank: RankSample, job: Job, name: str) -> Span:
    """How long it is busy and waits, compared with the other ranks."""
    if rank.step_time_s is None and rank.loss is None:
        why = " (not started by ddptop)" if job.is_foreign else ""
        return f"{name} is running; its steps and losses are unknown{why}", ""
    ranks = job.snapshot.ranks
    others = [one for one in ranks if one.rank != rank.rank]
    if not others:
        return f"{name} is training; there are no other ranks to compare it with", "ok"
    wait, sync = data_share(rank) or 0.0, sync_share(rank) or 0.0
    tail = f"; it waits {_percent(wait)} of a step for data" if wait >= NOTABLE_WAIT else ""
    mine = busy_s(rank)
    busy = {one.rank: spent_s for one in others if (spent_s := busy_s(one)) is not None}
    if mine is None or not busy:
        return f"{name} is training; how long it waits for the others is unknown{tail}", ""
    them = "the other rank" if len(others) == 1 else "the others"
    slowest, usual = max(busy, key=lambda one: busy[one]), median(busy.values())
    if sync >= NOTABLE_WAIT and busy[slowest] > mine:
        named = "" if len(others) == 1 else f"; rank {slowest} is the slowest"
        return f"{name} waits {_percent(sync)} of a step for {them}{named}{tail}", "ok"
    if usual and mine / usual - 1 >= NOTABLE_WAIT:
        more = f"{units.step_time(mine)} of each step, {_percent(mine / usual - 1)} longer"
        return f"{name} is busy {more} than {them}{tail}", ""
    return f"{name} is busy as long as {them}{tail}", "ok"


def _still(rank: RankSample, name: str, several_hosts: bool) -> str:
    """For a rank that is not taking steps: since when, and where it was last seen."""
    if rank.state == "paused":
        go = "" if rank.pid is None else f"; to resume it, run kill -CONT {rank.pid}"
        go += " there" if go and several_hosts else ""
        return f"{name} is stopped by SIGSTOP{go}"
    since = rank.quiet_since or rank.last_progress_at
    when = "" if since is None else f" since {_clock(since)}"
    why = f" ({rank.state})" if rank.state != "blocked" else ": in uninterruptible sleep"
    reason = f": {rank.state_reason}" if rank.state_reason else ""
    return f"{name} has not taken a step{when}{why}{reason}{_place(rank)}"


def _place(rank: RankSample) -> str:
    return "" if rank.stands_at is None else f"; last seen at {rank.stands_at}"


def _ended(rank: RankSample, job: Job, name: str) -> Span:
    at = "" if rank.step is None else f" at {run_step.in_words(rank)}"
    if rank.state == "stopped":
        cause = job.snapshot.cause
        if cause is not None and cause.kind == "hang" and cause.rank == rank.rank:
            return f"{name} hung{at}, and all ranks were stopped", "bad"
        return f"{name} was stopped with the others{at}", "dim"
    if rank.signal is not None:
        return f"{name} was killed by {rank.signal}{at}", "bad"
    if rank.state == "exited" or rank.exit_code == 0:
        return f"{name} exited with status 0{at}", "ok"
    if rank.exit_code is not None:
        return f"{name} exited with status {rank.exit_code}{at}", "bad"
    how = "; exit status unknown (not started by ddptop)" if job.is_foreign else ""
    return f"{name} is gone{at}{how}", "dim"


def _clock(at: dt.datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"


def _percent(ratio: float) -> str:
    return f"{abs(round(100 * ratio))}%"


def common_parts(ranks: Sequence[RankSample]) -> str:
    """The parts of the loss (such as ` Σ4`) if equal for all ranks; else empty."""
    found = {parts_text(rank) for rank in ranks if rank.loss is not None}
    return found.pop() if len(found) == 1 else ""


CALM = ("running", "starting", "exited", "stopped", "unknown")
"""States that need no attention."""


MOST_CELLS = 12
"""Cells for a host name in a table."""


def hosts_of(snapshot: NodeSnapshot) -> list[str]:
    """The job's nodes, or else the hosts of its ranks, in order."""
    return list(dict.fromkeys(one.host for one in snapshot.nodes or snapshot.ranks))


def has_several(snapshot: NodeSnapshot) -> bool:
    """Whether the ranks are on several hosts, which makes host names worth showing."""
    return len({one.host for one in snapshot.ranks or snapshot.nodes}) > 1


def hosts_in_words(hosts: Sequence[str], most: int = 4) -> str:
    """`a, b`, or `128 (a to z)` for many hosts."""
    short = list(short_names(hosts, 16).values())
    if len(short) <= most:
        return ", ".join(short)
    return f"{len(short)} ({short[0]} to {short[-1]})"


def node_in_words(node: NodeStatus | None) -> str:
    """`unreachable since 12:03 (no route to host)`; empty if unknown."""
    if node is None:
        return ""
    since = node.unknown_since if node.state == "unreachable" else None
    when = "" if since is None else f" since {since.astimezone():%H:%M}"
    return f"{node.state}{when}{f' ({node.why})' if node.why else ''}"


def host_of(snapshot: NodeSnapshot | None, rank: int) -> str | None:
    """The host of a rank; None unless the job has several hosts."""
    if snapshot is None or not has_several(snapshot):
        return None
    return next((one.host for one in snapshot.ranks if one.rank == rank), None)


def hosts_of_devices(gpus: Sequence[GpuSample], most: int = 8) -> Mapping[str, str]:
    """Short names of these devices' hosts; empty if they share one host."""
    hosts = dict.fromkeys(gpu.host for gpu in gpus if gpu.host is not None)
    return short_names(hosts, most) if len(hosts) > 1 else {}


def short_names(hosts: Collection[str], most: int = MOST_CELLS) -> Mapping[str, str]:
    """Host names shortened to at most `most` cells.

    The user and domain are dropped first, then the start: in `gpu-cluster-node-001` and `-002`,
    only the end distinguishes them.
    """
    short = {host: host.rpartition("@")[2] for host in hosts}
    labels = {
        host: name if name.replace(".", "").isdigit() else name.partition(".")[0] or name
        for host, name in short.items()
    }
    if len(set(labels.values())) == len(set(hosts)):
        short = labels
    if all(len(name) <= most for name in short.values()):
        return short
    return {
        host: name if len(name) <= most else "…" + name[1 - most :] for host, name in short.items()
    }
