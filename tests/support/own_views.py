"""Views of ddptop's own jobs, in memory."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from ddptop.job.figures import jobs
from ddptop.job.figures.jobs import job_row
from ddptop.job.figures.ranks import NOTHING, Subject, rank_row, verdict
from ddptop.job.record import Job, own_job, own_view
from ddptop.job.status import Seen, attention
from ddptop.style import Row
from tests.support.fake_home import HOST, NOW, snapshot_of, spec_of

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.judge.balance.imbalance import RankDeviation
from ddptop_runner.model.snapshot import RankSample


def view_of(snapshot: object = None, **more: object) -> Job:
    """A record whose processes are not checked."""
    spec = spec_of("llama-ft", 2, 4330)
    if snapshot is None:
        snapshot = snapshot_of(spec, guardian=None, **more)
    folder = RunFolder(Path("/nowhere"))
    view = JobView(folder=folder, spec=spec, snapshot=snapshot, read_at=NOW)
    view.__dict__.update(state=snapshot.state, guarded=True, on_other_host=False)
    return own_job(view)


def read(folder: RunFolder) -> Job:
    """The record of a job on disk."""
    return own_job(read_job(folder))


def engine_view(job: Job) -> JobView:
    """The engine's view of the same job, whose processes are not checked."""
    view = own_view(job)
    view.__dict__.update(state=job.state, guarded=job.guarded, on_other_host=False)
    return view


def rank(number: int = 0, **more: object) -> RankSample:
    """A rank in one update."""
    return RankSample(rank=number, local_rank=number, host=HOST, **more)


def row_of(job: Job, seen: Seen = (), **more: object) -> Row:
    """Its row on the overview."""
    needs = attention(job, NOW, seen)
    return job_row(jobs.Subject(needs, NOW, **more))


def row_of_rank(
    rank: RankSample, now: dt.datetime, live: bool, apart: RankDeviation = NOTHING
) -> Row:
    """Its row in the rank table."""
    return rank_row(Subject(rank, now, live, apart, verdict=verdict(rank, apart, now, live)))
