"""Jobs on disk for tests: a spec and a snapshot, with valid defaults for everything else."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.host import procs
from ddptop_runner.job.ranks import RankRecord
from ddptop_runner.job.state import JobState, RankLife
from ddptop_runner.model.diagnose import RankExit
from ddptop_runner.model.run_step import is_printed
from ddptop_runner.model.snapshot import NodeSnapshot, ProcessId, Progress, RunStep, encode
from ddptop_runner.model.spec import JobSpec, write_spec
from ddptop_runner.model.words import StepCounts

NONCE = f"{os.getpid():08x}"
"""Unique to this test process, because jobs are found by their ID among all processes."""

LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def gone() -> ProcessId:
    """A dead process of this boot: this test's PID with a different start time."""
    here = procs.identify(os.getpid())
    return msgspec.structs.replace(here, start_ticks=(here.start_ticks or 0) - 1)


def make_spec(job: str = "train", **changes: Any) -> JobSpec:
    spec = JobSpec(
        job=job,
        job_id=f"{job}@{NONCE}",
        host=procs.host_name(),
        created_at=LONG_AGO,
        kind="script",
        target=f"{job}.py",
        python="/usr/bin/python3",
        cwd="/",
        nproc=2,
    )
    return msgspec.structs.replace(spec, **changes)


def put_exit(record: RankRecord, end: RankExit) -> None:
    """The job's state knows of the rank's exit."""
    life = RankLife(
        pid=end.pid,
        exited=True,
        status=end.returncode,
        at_s=end.at_boottime_s,
        by_us=end.ended_by_us,
    )
    record.job = lambda: JobState(ranks={record.rank: life}, launcher=life)


def make_snapshot(spec: JobSpec, **changes: Any) -> NodeSnapshot:
    snapshot = NodeSnapshot(
        job=spec.job,
        job_id=spec.job_id,
        host=spec.host,
        seq=1,
        ts=utc_now(),
        state="running",
        attempt=0,
        restarts_left=3,
        world_size=2,
        started_at=spec.created_at,
    )
    return with_run_step(msgspec.structs.replace(snapshot, **changes), changes)


def with_run_step(snapshot: NodeSnapshot, given: Mapping[str, Any]) -> NodeSnapshot:
    """The snapshot with the step of the run and the progress that belong to its own step.

    Args:
        snapshot: with the step of the present attempt and, maybe, a total.
        given: fields that keep their values.
    """
    own, attempt, total = snapshot.step, snapshot.attempt, snapshot.total_steps
    more: dict[str, Any] = {}
    progress = snapshot.progress
    if total and "progress" not in given:
        is_known = own is not None and own <= total
        fraction = own / total if own is not None and is_known else None
        eta_s = snapshot.eta_s
        progress = Progress(step=own, total=total, fraction=fraction, eta_s=eta_s, source="api")
        more["progress"] = progress
    if "run_step" not in given:
        own_only = attempt and not progress and not is_printed(snapshot)
        step = own
        if progress is not None and progress.counts == "run" and progress.step is not None:
            step, own_only = progress.step, False
        counts: StepCounts = "attempt" if own_only else "run"
        if step is not None:
            more["run_step"] = RunStep(step=step, counts=counts, attempt=attempt)
        if "attempts_began" not in given and step is not None and counts == "run":
            began = {0: 0}
            if attempt and progress and own is not None:
                began[attempt] = step - own
            more["attempts_began"] = began
    return msgspec.structs.replace(snapshot, **more)


def put_job(
    job: str = "train", snapshot: dict[str, Any] | None = None, **spec_changes: Any
) -> RunFolder:
    """Write a job to the state folder; without `snapshot`, it has none."""
    spec = make_spec(job, **spec_changes)
    folder = run_folder(job)
    folder.nodes_dir.mkdir(parents=True)
    write_spec(folder, spec)
    if snapshot is not None:
        write_atomic(folder.node_file(spec.host), encode(make_snapshot(spec, **snapshot)))
    return folder
