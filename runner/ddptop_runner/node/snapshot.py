"""Builds a node snapshot from the supervisor's parts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import msgspec

from ddptop_runner.base.clock import boottime_s, utc_from_boottime
from ddptop_runner.base.paths import LAUNCHER, RunFolder, log_name
from ddptop_runner.devices.feed import DeviceFeed
from ddptop_runner.host import procs
from ddptop_runner.job.attempt import Attempt
from ddptop_runner.job.progress import JobProgress
from ddptop_runner.judge.balance import imbalance, rank_devices
from ddptop_runner.launch.gpus.queue import QueueWatch
from ddptop_runner.model import run_step
from ddptop_runner.model.run_step import RankSteps, RunSteps
from ddptop_runner.model.snapshot import (
    GpuSample,
    LauncherSample,
    NodeSnapshot,
    RankSample,
)
from ddptop_runner.model.spec import JobSpec
from ddptop_runner.model.words import LIVE_STATES, StepCounts
from ddptop_runner.node.driver import JobDriver
from ddptop_runner.reading.progress.combine import ended, total_steps


def launcher_sample(attempt: Attempt, now_s: float) -> LauncherSample | None:
    """The sample of a command's process; None if the job is not a command."""
    record = attempt.table.launcher
    if record is None:
        return None
    sample = record.sample(now_s, probe=False)
    return LauncherSample(
        name=attempt.spec.launcher or "python",
        pid=sample.pid,
        state=sample.state,
        exit_code=sample.exit_code,
        signal=sample.signal,
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
    samples: list[RankSample],
    sizes: Mapping[str, int],
    steps: Mapping[int, RankSteps],
    run: RunSteps,
    *,
    is_command: bool,
) -> list[RankSample]:
    """The ranks, each with the size of its log and its step of the run.

    Args:
        samples: the ranks.
        sizes: see `log_sizes`; ranks of a command share one log.
        steps: by rank.
        run: where the run began. Without it, a rank has what its own step counts.
        is_command: whether the job is a command.
    """
    found = []
    for sample in samples:
        step = run_step.of_rank(steps[sample.rank], run.began, run.resumed)
        counts: StepCounts | None = None
        if step is None and sample.step is not None:
            printed = steps[sample.rank].printed
            is_epoch = sample.step_source == "log" and printed is not None and not printed.of_run
            counts = "epoch" if is_epoch else "attempt"
        size = sizes.get(log_name(LAUNCHER if is_command else sample.rank))
        found.append(
            msgspec.structs.replace(sample, log_bytes=size, run_step=step, step_counts=counts)
        )
    return found


def for_history(snapshot: NodeSnapshot) -> list[RankSample]:
    """The ranks to record; while there are no steps, without values that depend on steps."""
    ranks = snapshot.ranks
    if snapshot.nodes:  # nothing is known about an unreachable node
        ranks = [rank for rank in ranks if rank.state != "unknown"]
    if snapshot.pause is None:
        return ranks
    return [
        msgspec.structs.replace(
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


def take(
    begun: NodeSnapshot,
    driver: JobDriver,
    spec: JobSpec,
    feed: DeviceFeed | QueueWatch | None,
    *,
    folder: RunFolder,
    progress: JobProgress,
) -> NodeSnapshot:
    """The current snapshot of the job on this host, without alerts.

    Args:
        begun: the snapshot's fields that follow from the job's state.
        driver: the job's driver.
        spec: the job, as it currently runs.
        feed: samples its devices; None without any.
        folder: the run folder with its ranks' logs.
        progress: the progress from its output.
    """
    now_s = boottime_s()
    job, attempt, started = driver.job, driver.attempt, not driver.job.in_queue
    samples = [record.sample(now_s, spec.probe) for record in attempt.table if started]
    samples = progress.fill(samples, attempt.number)
    reported = progress.steps(attempt.table, attempt.number) if started else {}
    sizes = log_sizes(folder, attempt.number)
    samples = with_output(samples, sizes, reported, attempt.run_steps, is_command=spec.is_command)
    counted = {
        rank: run_step.counted(one, attempt.run_steps.resumed) for rank, one in reported.items()
    }
    run_steps = counted | {one.rank: one.run_step for one in samples if one.run_step is not None}
    done = progress.of_job(attempt.table, attempt.number, run_steps) if started else None
    report = None if feed is None else feed.latest
    gpus = [] if report is None else list(report.gpus)
    trees = {
        record.rank: record.usage.tree_pids for record in attempt.table if record.usage is not None
    }
    samples, gpus = rank_devices.join(samples, gpus, trees, spec.devices or [], spec.job)
    if done is not None and job.phase not in LIVE_STATES:
        done = ended(done)
    steps = [sample.step for sample in samples if sample.step is not None]
    return msgspec.structs.replace(
        begun,
        attempt=attempt.number,
        world_size=attempt.table.world_size,
        attempt_started_at=utc_from_boottime(attempt.started_s),
        step=min(steps, default=None if done is None or done.counts != "run" else done.step),
        total_steps=total_steps(done),
        eta_s=None if done is None else done.eta_s,
        agent=None if driver.agent_pid is None else procs.identify(driver.agent_pid),
        ranks=samples,
        gpus=gpus,
        imbalance=imbalance.of_job(samples, gpus if started else []),
        source=None if report is None else report.source,
        driver=None if report is None else report.driver,
        device_note=None if feed is None else feed.note,
        checkpoint=attempt.checkpoints.last,
        set_aside=[one.device.index for one in job.set_aside],
        launcher=launcher_sample(attempt, now_s),
        progress=done,
        run_step=run_step.of_job(
            samples, attempt.number, attempt.run_steps.began, counted.values()
        ),
        attempts_began=attempt.run_steps.attempts_began,
        pause=attempt.trouble.pause,
        memory=begun.memory | driver.learned(),
    )
