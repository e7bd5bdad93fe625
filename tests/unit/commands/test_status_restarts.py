"""What `status` shows about restarts and devices that are set aside."""

from __future__ import annotations

import datetime as dt
import os

import pytest
from ddptop.commands.status import describe
from ddptop.job.record import own_job
from tests.support.builders import put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.host import procs
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs.contract import job_row, job_status
from ddptop_runner.model.snapshot import Cause, RankSample
from ddptop_runner.model.spec import Device

DEVICES = [Device(index=n, uuid=f"GPU-{n}", name="H100") for n in (0, 1)]
CASES = {
    "the wait for the next attempt": (
        {"policy": "2 in a row without a step: waiting 3.1 s", "in_s": 12.5},
        ["next attempt in 12s: 2 in a row without a step"],
    ),
    "an attempt that is due": ({"policy": "why", "in_s": -3.0}, ["next attempt now: why"]),
    "a budget that was filled again": (
        {"restarts_used": 1, "restarts_left": 2, "restarts_refilled": "step 120"},
        ["restarts 1 used, 2 left", "restart count last reset at step 120"],
    ),
    "the last restart": ({"policy": "the attempt made progress"}, ["last restart: the att"]),
    "no restart": ({"policy": "same place twice", "state": "failed"}, ["not restarted: same"]),
    "why the attempt before failed": (
        {"previous_cause": Cause(kind="signal", summary="Rank 1 was killed.", evidence="/ev")},
        ["  previous attempt: Rank 1 was killed.\n  evidence: /ev\n"],
    ),
    "a device set aside": ({"set_aside": [1]}, ["devices: GPU 0, as cuda:0\n"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_status_says_what_the_restart_policy_does(case, ddptop_home):
    changes, words = dict(case[0]), case[1]
    in_s = changes.pop("in_s", None)
    if in_s is not None:
        changes["restart_at"] = utc_now() + dt.timedelta(seconds=in_s)
    snapshot = {"state": "restarting", "guardian": procs.identify(os.getpid()), **changes}
    view = read_job(put_job(snapshot=snapshot, devices=DEVICES))
    status = job_status(view)
    for word in words:
        assert word in describe(own_job(view)) + "\n"
    unknowns = {"policy": None, "restarts_refilled": None, "set_aside": [], "previous_cause": None}
    for name, unknown in unknowns.items():
        assert getattr(status, name) == changes.get(name, unknown)
    row = job_row(view)
    assert (row.policy, row.set_aside) == (status.policy, status.set_aside)
    assert row.restart_at == status.restart_at == changes.get("restart_at")


@pytest.mark.parametrize(("counts", "noted"), [("attempt", True), ("run", False)])
def test_a_step_counted_within_the_attempt_has_a_footnote(counts, noted, ddptop_home):
    rank = RankSample(rank=0, local_rank=0, host="h", state="running", step=98, step_counts=counts)
    view = read_job(put_job(snapshot={"state": "running", "ranks": [rank]}))
    text = describe(own_job(view))
    assert ("STEP*" in text) == noted
    assert ("* steps taken in this attempt; its starting step is unknown" in text) == noted
