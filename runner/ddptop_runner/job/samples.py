"""Collects what is known about a live job besides its state."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ddptop_runner.base.paths import LAUNCHER, RunFolder, log_name
from ddptop_runner.devices.report import DeviceReport
from ddptop_runner.job.attempt import Attempt
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.job.state import JobState
from ddptop_runner.job.view import Samples
from ddptop_runner.judge.balance import rank_devices
from ddptop_runner.model import run_step
from ddptop_runner.model.run_step import RankSteps
from ddptop_runner.model.snapshot import (
    Checkpoint,
    LauncherSample,
    NodeSnapshot,
    Pause,
    ProcessId,
    RankSample,
)
from ddptop_runner.model.words import LIVE_STATES, StepCounts
from ddptop_runner.reading.progress.combine import ended, total_steps


def of_attempt(
    attempt: Attempt,
    progress: JobProgress,
    report: DeviceReport | None,
    *,
    folder: RunFolder,
    started_at: dt.datetime,
    agent: ProcessId | None,
    device_note: str | None,
) -> Samples:
    """The samples of the job on this host.

    Args:
        attempt: the current attempt.
        progress: the progress from its output.
        report: the latest report on its devices.
        folder: the run folder with its ranks' logs.
        started_at: when the job was started.
        agent: the attempt's agent.
        device_note: why devices are missing.
    """
    job, spec, number = attempt.job, attempt.spec, attempt.number
    table = attempt.table
    started = not job.in_queue
    ranks = [record.sample(spec.probe) for record in table if started]
    ranks = progress.fill(ranks, number, table)
    reported = progress.steps(table, number) if started else {}
    ranks = with_output(ranks, reported, attempt, folder)
    counted = {
        rank: run_step.counted(one, attempt.run_steps.resumed) for rank, one in reported.items()
    }
    run_steps = counted | {one.rank: one.run_step for one in ranks if one.run_step is not None}
    done = progress.of_job(table, number, run_steps) if started else None
    if done is not None and job.phase not in LIVE_STATES:
        done = ended(done)
    gpus = [] if report is None else list(report.gpus)
    trees = {record.rank: record.usage.tree_pids for record in table if record.usage is not None}
    ranks, gpus = rank_devices.join(ranks, gpus, trees, spec.devices or [], spec.job)
    return Samples(
        started_at=started_at,
        ranks=ranks,
        gpus=gpus,
        launcher=_launcher(attempt),
        world_size=table.world_size,
        counts=list(counted.values()),
        attempts_began=attempt.run_steps.attempts_began,
        step=done.step if done is not None and done.counts == "run" else None,
        total_steps=total_steps(done),
        eta_s=None if done is None else done.eta_s,
        progress=done,
        pause=attempt.trouble.pause,
        checkpoint=attempt.checkpoints.last,
        source=None if report is None else report.source,
        driver=None if report is None else report.driver,
        device_note=device_note,
        agent=agent,
    )


def _launcher(attempt: Attempt) -> LauncherSample | None:
    """The sample of a command's process; None if the job is not a command."""
    record = attempt.table.launcher
    if record is None:
        return None
    sample = record.sample(probe=False)
    return LauncherSample(
        name=attempt.spec.launcher or "python",
        pid=sample.pid,
        state=sample.state,
        cpu_percent=sample.cpu_percent,
        rss_bytes=sample.rss_bytes,
    )


def log_sizes(folder: RunFolder, attempt: int) -> dict[str, int]:
    """How much has been printed in an attempt, by the log's name."""
    found = {}
    logs = folder.log_file(attempt, LAUNCHER).parent
    with contextlib.suppress(OSError), os.scandir(logs) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found[entry.name] = entry.stat().st_size
    return found


def with_output(
    ranks: Sequence[RankSample], steps: Mapping[int, RankSteps], attempt: Attempt, folder: RunFolder
) -> list[RankSample]:
    """The ranks, each with the size of its log and its step of the run.

    Args:
        ranks: the ranks.
        steps: by rank.
        attempt: knows where the run began. Without that, a rank has what its own step counts.
        folder: has the logs; ranks of a command share one.
    """
    found, run, sizes = [], attempt.run_steps, log_sizes(folder, attempt.number)
    for rank in ranks:
        step = run_step.of_rank(steps[rank.rank], run.began, run.resumed)
        counts: StepCounts | None = None
        if step is None and rank.step is not None:
            printed = steps[rank.rank].printed
            is_epoch = rank.step_source == "log" and printed is not None and not printed.of_run
            counts = "epoch" if is_epoch else "attempt"
        size = sizes.get(log_name(LAUNCHER if attempt.spec.is_command else rank.rank))
        found.append(replace(rank, log_bytes=size, run_step=step, step_counts=counts))
    return found


def of_nodes(
    job: JobState,
    snapshots: Mapping[str, NodeSnapshot],
    *,
    stale: Sequence[str],
    clock_offsets: Mapping[str, float | None],
    started_at: dt.datetime,
    pause: Pause | None,
    checkpoint: Checkpoint | None,
) -> Samples:
    """The samples of a job on several nodes, combined from its nodes' snapshots.

    Args:
        job: the job's state.
        snapshots: by host, the last one of each node in the current attempt.
        stale: hosts of nodes about which nothing current is known.
        clock_offsets: by host, its wall clock minus the head's.
        started_at: when the job was started.
        pause: the current pause, if any.
        checkpoint: the last one of any node.
    """
    members = {host for host, life in job.nodes.items() if life.takes_part}
    at_work = [(host, one) for host, one in snapshots.items() if host in members]
    first = at_work[0][1] if at_work else None
    began: dict[int, int] = {}  # only the node that saved a checkpoint knows its step
    for one in snapshots.values():
        for attempt, step in one.attempts_began.items():
            began[attempt] = max(step, began.get(attempt, 0))
    is_placed = job.attempt in began
    ranks = [
        replace(
            rank,
            host=host,
            run_step=None
            if is_placed and rank.step_source == "probe" and rank.global_step is None
            else rank.run_step,
        )
        for host, one in at_work
        for rank in one.ranks
    ]
    sources = [one.source for one in snapshots.values() if one.source is not None]
    notes = [f"{host}: {one.device_note}" for host, one in snapshots.items() if one.device_note]
    return Samples(
        started_at=started_at,
        ranks=ranks,
        gpus=[replace(gpu, host=host) for host, one in snapshots.items() for gpu in one.gpus],
        run_step=None if is_placed or first is None else first.run_step,
        attempts_began=began,
        step=None if first is None else first.step,
        total_steps=None if first is None else first.total_steps,
        eta_s=max((one.eta_s for _, one in at_work if one.eta_s is not None), default=None),
        progress=None if first is None else first.progress,
        pause=pause,
        checkpoint=checkpoint,
        source=sources[0] if sources else None,
        driver=None if first is None else first.driver,
        device_note="; ".join(notes) or None,
        stale=list(stale),
        clock_offsets=dict(clock_offsets),
    )
