"""`ddptop checkpoint`, `stop --save` and the checkpoint in `status`, without a running job."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from ddptop.commands import control
from tests.support.builders import put_job

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import DdptopError, WaitTimeoutError
from ddptop_runner.job.registry import read_job
from ddptop_runner.model.protocol import SaveAsked
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


def test_what_is_waited_for_is_said_before_the_wait(ddptop_home, monkeypatch, capfd):
    asked = SaveAsked(signalled={0: "SIGUSR1"}, flag_file="/run/flag")
    said = []

    def wait(*_: object) -> None:
        said.append(capfd.readouterr().err)
        raise WaitTimeoutError("no checkpoint", "wait longer")

    monkeypatch.setattr(control.wanted, "ask", lambda view: asked)
    monkeypatch.setattr(control.wanted, "wait", wait)
    with pytest.raises(DdptopError, match="a was not stopped"):
        control._saved(read_job(put_job("a")), 9.0)
    how = f"by {asked.in_words()}; waiting up to 9 s for it"
    assert said == [f"ddptop: requested a checkpoint from a {how}\n"]


SAVED = Checkpoint(
    path="/run/out/epoch-3.pt", at=utc_now() - dt.timedelta(hours=2), attempt=0, step=120,
    size_bytes=12_900_000,
)  # fmt: skip


def test_status_says_which_checkpoint_was_the_last(ddptop_home, ddptop_cli):
    put_job("ended", {"state": "finished", "ended_at": utc_now(), "checkpoint": SAVED})
    put_job("other", {"state": "finished", "ended_at": utc_now()})
    said = {job: ddptop_cli("status", job).stdout for job in ("ended", "other")}
    assert ", checkpoint step 120 of this attempt, 2h ago" in said["ended"]
    assert "checkpoint" not in said["other"]
    seen = json.loads(ddptop_cli("status", "ended", "--json").stdout)["checkpoint"]
    assert (seen["path"], seen["step"], seen["size_bytes"]) == (SAVED.path, 120, 12_900_000)
    assert json.loads(ddptop_cli("status", "other", "--json").stdout)["checkpoint"] is None
