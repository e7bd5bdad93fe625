"""Jobs on disk for tests: a spec and a snapshot, with valid defaults for everything else."""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import msgspec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.files import write_atomic
from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.host import procs
from ddptop_runner.model.snapshot import NodeSnapshot, ProcessId, encode
from ddptop_runner.model.spec import JobSpec, write_spec

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
    return msgspec.structs.replace(snapshot, **changes)


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
