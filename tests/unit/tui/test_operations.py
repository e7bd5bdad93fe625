"""What a user is told before something is done to a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddptop.job.record import own_job
from ddptop.tui import operations
from tests.support.fake_home import NOW, snapshot_of, spec_of

from ddptop_runner.base.errors import UsageError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import JobView


def test_a_queued_job_has_no_ranks_to_be_ended() -> None:
    spec = spec_of("waits", 2, 60)
    snapshot = snapshot_of(spec, state="queued")
    queued = JobView(RunFolder(Path("/nowhere")), spec, snapshot, NOW)
    queued.__dict__["state"] = "queued"  # its processes are not checked
    for make in (operations.stop, operations.kill):
        assert make(own_job(queued)).effect.startswith("Removes the job from the queue")
    with pytest.raises(UsageError, match="waits is queued and has no ranks"):
        operations.restart_group(own_job(queued))
