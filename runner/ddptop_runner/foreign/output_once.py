"""What the ends of foreign jobs' outputs tell, for a verb that looks once."""

from __future__ import annotations

import datetime as dt

from ddptop_runner.clock import boottime_s
from ddptop_runner.foreign.job_output import CLOSE_READ_BYTES, JobOutput
from ddptop_runner.foreign.job_record import JobRecord
from ddptop_runner.foreign.types import Census
from ddptop_runner.model import NodeSnapshot

MAX_JOBS = 16


def read_outputs(census: Census, now: dt.datetime) -> dict[str, NodeSnapshot]:
    """By job: a snapshot with what the end of its output tells; of many jobs, of the newest.

    Terminals are not asked: of what stands there at first nobody knows whose it is.
    """
    found = {}
    for job in census.jobs[:MAX_JOBS]:
        now_s = boottime_s()
        record = JobRecord(job, JobOutput(lambda _: {}), now)
        record.output.find(job, now_s, closely=True)
        heard, _, grew = record.output.read(now_s, CLOSE_READ_BYTES, may_capture=False)
        record.hear(heard, grew, now, now_s)
        found[job.name] = record.view([], {}, census.facts, now, now_s).snapshot
        record.close()
    return found
