"""Reads the ends of foreign jobs' outputs, for commands that scan once."""

from __future__ import annotations

import contextlib
import datetime as dt
import os

from ddptop_runner.base.clock import boottime_s
from ddptop_runner.foreign.job_output import CLOSE_READ_BYTES, JobOutput
from ddptop_runner.foreign.job_record import JobRecord
from ddptop_runner.foreign.types import Census, ForeignJob, in_turn
from ddptop_runner.model.snapshot import NodeSnapshot

MAX_JOBS = 16


def read_outputs(census: Census, now: dt.datetime) -> dict[str, NodeSnapshot]:
    """By job: a snapshot with what the end of its output tells; of many jobs, of one's own first.

    Terminals are not asked: of what stands there at first nobody knows whose it is.
    """
    found = {}
    for job in in_turn(census.jobs, os.geteuid())[:MAX_JOBS]:
        record = JobRecord(job, JobOutput(lambda _: {}), now)
        with contextlib.suppress(Exception):  # what one job shows is not to hide the others
            found[job.name] = _snapshot(record, job, census, now)
        record.close()
    return found


def _snapshot(record: JobRecord, job: ForeignJob, census: Census, now: dt.datetime) -> NodeSnapshot:
    now_s = boottime_s()
    record.output.find(job, now_s, closely=True)
    heard, _, grew = record.output.read(now_s, CLOSE_READ_BYTES, may_capture=False)
    record.hear(heard, grew, now, now_s)
    return record.view([], {}, census.facts, now, now_s).snapshot
