"""`ddptop ls` on a Slurm login node, with a fake squeue."""

from __future__ import annotations

import json

import pytest
from tests.support.builders import put_job

HEAD = "\x1f2\x1f\x1f%s\x1f2026-11-22T10:00:00\x1f2026-11-22T12:00:00\x1f1:00:00\x1f1:00:00\x1f"
PENDING = "7\x1fwaits\x1fPENDING\x1fgpu" + HEAD % "Resources" + "7"
RUNNING = "9\x1ftrains\x1fRUNNING\x1fgpu" + HEAD % "None" + "9"


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """`squeue(text, status)`: configures the fake; returns the file that counts its calls."""
    calls = tmp_path / "calls"
    calls.write_text("")

    def put(text, status=0):
        (tmp_path / "printed").write_text(text)
        program = tmp_path / "squeue"
        program.write_text(
            f"#!/bin/sh\necho $TZ >>{calls}\ncat {tmp_path}/printed\n"
            f"[ {status} = 0 ] || echo 'squeue: error: no controller' >&2\nexit {status}\n"
        )
        program.chmod(0o755)
        return calls

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", "/dev/null")
    return put


def test_the_queue_is_listed_beside_the_jobs(ddptop_cli, squeue):
    calls = squeue(f"{PENDING}\n{RUNNING}\n")
    shown = ddptop_cli("ls").stdout
    assert "Slurm 7 waits: pending (Resources), starts in about " in shown
    assert shown.splitlines()[-1].endswith(", 2 nodes, partition gpu")
    listed = json.loads(ddptop_cli("ls", "--json").stdout)
    assert listed["jobs"] == []
    assert [(one["id"], one["state"], one["job"]) for one in listed["slurm"]] == [
        ("7", "PENDING", None),
        ("9", "RUNNING", None),
    ]
    assert listed["slurm"][0]["start_estimate"] == "2026-11-22T12:00:00Z"
    assert calls.read_text() == "UTC\n", "squeue was asked twice within 15 s"


def test_a_job_of_ddptop_is_listed_once(ddptop_cli, squeue):
    put_job("bert", {}, slurm_job="9", host="elsewhere")
    squeue(f"{PENDING}\n{RUNNING}\n")
    shown = ddptop_cli("ls").stdout
    assert "trains" not in shown
    assert "waits" in shown
    listed = json.loads(ddptop_cli("ls", "--json").stdout)
    assert [one["job"] for one in listed["slurm"]] == [None, "bert"]


def test_a_controller_that_does_not_answer_costs_one_line(ddptop_cli, squeue):
    squeue("", status=1)
    done = ddptop_cli("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ddptop: squeue failed: squeue: error: no controller" in done.stderr
    assert json.loads(ddptop_cli("ls", "--json").stdout)["slurm"] is None


def test_without_slurm_there_is_no_such_key(ddptop_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "slurm" not in json.loads(ddptop_cli("ls", "--json").stdout)
