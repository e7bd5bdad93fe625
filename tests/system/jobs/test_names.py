"""A new job can take the name of an ended one, whose files move to another name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import run_folder
from ddptop_runner.foreign.census import is_own_job
from ddptop_runner.jobs import launch as launching
from ddptop_runner.model.spec import read_spec

FAIL = ["sh", "-c", "echo one says; exit 3"]
STAY = ["sh", "-c", "echo two says; exec sleep 600"]


def test_ended_job_gives_up_its_name_but_keeps_its_files(
    launch_command, ddptop_cli, ddptop_home, wait_until
):
    def take(argv):
        return ddptop_cli("launch", "-d", "--gpus", "none", "--name", "lm", "--", *argv)

    launch_command(FAIL, "--name", "lm", "--max-restarts", "0")
    assert ddptop_cli("wait", "lm").returncode == 1
    cause = json.loads(ddptop_cli("status", "lm", "--json").stdout)["cause"]
    assert (cause["kind"], cause["rank"], cause["exit_code"]) == ("exit_code", None, 3)
    assert cause["summary"].startswith("The command (pid ") and "'one says'" in cause["summary"]
    job_id = read_spec(run_folder("lm")).job_id
    done = take(STAY)
    assert done.returncode == 0 and done.stdout.strip() == "lm"
    assert "ddptop: the last lm is now lm-1" in done.stderr.splitlines()

    refused = take(STAY)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "the name 'lm' is in use: that job is " in line and "ddptop stop lm" in line

    old = json.loads(ddptop_cli("status", "lm-1", "--json").stdout)
    assert (old["job"], old["state"]) == ("lm-1", "failed")
    runs = ddptop_home / "runs"
    assert Path(old["cause"]["evidence"]).is_relative_to(runs / "lm-1")
    assert Path(old["cause"]["evidence"]).exists()
    assert "one says" in ddptop_cli("logs", "lm-1").stdout
    wait_until(lambda: "two says" in ddptop_cli("logs", "lm").stdout)
    events = ddptop_cli("events", "lm-1", "--json").stdout
    assert f"{runs / 'lm-1'}/" in events and f"{runs / 'lm'}/" not in events
    names = {job["job"] for job in json.loads(ddptop_cli("ls", "--all", "--json").stdout)["jobs"]}
    assert names == {"lm", "lm-1"}

    assert ddptop_cli("restart", "lm-1").returncode == 0  # besides the one that took its name
    assert ddptop_cli("wait", "lm-1").returncode == 1
    again = json.loads(ddptop_cli("status", "lm-1", "--json").stdout)
    assert again["attempt"] == old["attempt"] + 1
    assert read_spec(run_folder("lm-1")).job_id == job_id
    assert is_own_job(job_id, os.getuid())
    ddptop_cli("stop", "lm", "--grace", "1")
    assert "the last lm is now lm-2" in take(FAIL).stderr
    ddptop_cli("wait", "lm")


def test_one_of_two_simultaneous_launches_gets_the_name(launch_command, ddptop_cli, ddptop_home):
    launch_command(FAIL, "--name", "lm", "--max-restarts", "0")
    ddptop_cli("wait", "lm")
    words = ["launch", "-d", "--gpus", "none", "--name", "lm", "--", *STAY]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "ddptop", *words], stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = [one.communicate()[1] for one in both]
    assert sorted(one.returncode for one in both) == [0, 2], told
    assert sum("the last lm is now lm-1" in text for text in told) == 1
    assert {path.name for path in (ddptop_home / "runs").iterdir() if path.name[0] != "."} == {
        "lm",
        "lm-1",
    }
    ddptop_cli("stop", "lm", "--grace", "1")


def test_failed_launch_gives_the_name_back(launch_command, ddptop_cli, ddptop_home, monkeypatch):
    launch_command(FAIL, "--name", "lm", "--max-restarts", "0")
    ddptop_cli("wait", "lm")

    def refuse(*_: object, **__: object) -> None:
        raise DdptopError("no guardian today")

    request = launching.LaunchRequest(kind="command", target="sh", args=("-c", "true"), name="lm")
    plan = launching.prepare(request, dict(os.environ))
    monkeypatch.setattr(launching, "start_guardian", refuse)
    with pytest.raises(DdptopError, match="no guardian today"):
        launching.start(plan)
    assert not (ddptop_home / "runs" / "lm-1").exists()
    status = json.loads(ddptop_cli("status", "lm", "--json").stdout)
    assert (status["job"], status["state"]) == ("lm", "failed")
    assert Path(status["cause"]["evidence"]).is_relative_to(ddptop_home / "runs" / "lm")
    assert read_spec(run_folder("lm")).job == "lm"
