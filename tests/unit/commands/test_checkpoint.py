"""`ddptop checkpoint`, `stop --save` and the checkpoint in `status`, without a running job."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from ddptop.commands.status import describe
from ddptop.job.record import own_job
from tests.support.builders import make_snapshot, make_spec, put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import JobView
from ddptop_runner.model.snapshot import Checkpoint

WRONG = {
    "an ended job": (["checkpoint", "ended"], ["ended has ended (finished)"]),
    "an ended job to be saved first": (["stop", "ended", "--save"], ["ended has ended (finished)"]),
    "a time for nothing": (["stop", "ended", "--timeout", "5"], ["--timeout", "add --save"]),
    "a time that is none": (["checkpoint", "ended", "--timeout", "-1"], ["--timeout", "-1"]),
    "no job at all": (["checkpoint"], ["no active jobs"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_done_is_one_line(ddptop_cli, name):
    arguments, words = WRONG[name]
    put_job("ended", {"state": "finished", "ended_at": utc_now()})
    answer = ddptop_cli(*arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert len(answer.stderr.splitlines()) == 1
    for word in words:
        assert word in answer.stderr


NOW = utc_now()
SAVED = Checkpoint(
    path="/run/out/epoch-3.pt",
    at=NOW - dt.timedelta(seconds=4.5),
    attempt=1,
    step=120,
    size_bytes=12_900_000,
)


def view(*, state: str = "running", age_s: float = 300.0, probe: bool = True, **changes) -> JobView:
    spec = make_spec("train", probe=probe)
    started = NOW - dt.timedelta(seconds=age_s)
    fields = {"state": state, "attempt": 1, "step": 130, "started_at": started, **changes}
    made = JobView(RunFolder(Path(spec.job)), spec, make_snapshot(spec, **fields), NOW)
    made.__dict__["state"] = state  # its processes are not checked
    return made


def test_status_says_which_checkpoint_was_the_last():
    told = ", checkpoint step 120 of this attempt, 4s ago, "
    assert told in describe(own_job(view(checkpoint=SAVED)))
    assert "checkpoint" not in describe(own_job(view()))


def test_status_has_it_for_scripts(ddptop_home, ddptop_cli):
    put_job("ended", {"state": "finished", "ended_at": utc_now(), "checkpoint": SAVED})
    put_job("other", {"state": "finished", "ended_at": utc_now()})
    seen = json.loads(ddptop_cli("status", "ended", "--json").stdout)["checkpoint"]
    assert (seen["path"], seen["step"], seen["size_bytes"]) == (SAVED.path, 120, 12_900_000)
    assert json.loads(ddptop_cli("status", "other", "--json").stdout)["checkpoint"] is None
