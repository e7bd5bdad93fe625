"""Starting a guardian, with a substitute for the guardian's program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import make_spec, put_job

from ddptop_runner.base.errors import DdptopError
from ddptop_runner.base.paths import RunFolder
from ddptop_runner.base.start import own_words
from ddptop_runner.host import handover, procs, tmux_server
from ddptop_runner.node import guardian_start
from ddptop_runner.node.guardian_start import start_guardian

TAKES = """
import json, os, sys, time
folder = sys.argv[1]
with open(folder + "/started", "a") as file:
    file.write(json.dumps(dict(os.environ)) + "\\n")
os.rename(folder + "/handover.json", folder + "/taken.json")
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(params=["tmux", "daemon"])
def backing(request) -> str:
    if request.param == "tmux":
        request.applymarker(pytest.mark.tmux)
    return request.param


@pytest.fixture
def folder(ddptop_home) -> RunFolder:
    return put_job()


def started(folder: RunFolder) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder.path / "started").read_text().splitlines()]


def pretend(monkeypatch, code: str, seconds: float = 0.1) -> None:
    """Run this code as the guardian."""
    monkeypatch.setattr(
        guardian_start,
        "guardian_argv",
        lambda folder: [sys.executable, "-S", "-c", code, str(folder.path), str(seconds)],
    )


def wrapper(tmp_path: Path, text: str) -> str:
    path = tmp_path / "systemd-run"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_guardian_gets_the_hand_over_and_the_jobs_id(folder, backing, monkeypatch):
    monkeypatch.setenv("DDPTOP_ATTEMPT", "7")  # launched from a rank of another job
    monkeypatch.setenv("SECRET", "s3cret")
    pretend(monkeypatch, TAKES)
    spec = make_spec(backing=backing)
    assert start_guardian(folder, spec, {"A": "1"}, (), attempt=2) is None
    (env,) = started(folder)
    assert env["DDPTOP_JOB_ID"] == spec.job_id
    # every user can read a command line, and a tmux server keeps that of whoever started it
    assert not [words for pid in procs.all_pids() if spec.job_id in (words := str(procs.argv(pid)))]
    assert "DDPTOP_ATTEMPT" not in env
    assert os.environ["DDPTOP_ATTEMPT"] == "7"
    taken = handover.take(folder.path / "taken.json")
    assert (taken.attempt, taken.job_env, taken.env["SECRET"]) == (2, {"A": "1"}, "s3cret")


@pytest.mark.parametrize("text", ["exit 1", "exec sleep 60"], ids=["refuses", "hangs"])
def test_without_the_wrapper_where_that_does_not_work(
    folder, backing, monkeypatch, tmp_path, text, wait_until
):
    monkeypatch.setattr(guardian_start, "WRAPPED_START_S", 0.3)
    pretend(monkeypatch, TAKES)
    scope = wrapper(tmp_path, text)
    spec = make_spec(backing=backing)
    note = start_guardian(folder, spec, {}, (scope,), attempt=0)
    assert note == f"{scope} could not start the job; the job may end with this login session"
    assert len(started(folder)) == 1
    wait_until(lambda: procs.pids_of_job(spec.job_id) == [], what="nothing to be left")


def test_a_guardian_that_does_not_come_up(folder, backing, monkeypatch, wait_until):
    taken_over = guardian_start._taken_over

    def when_it_has_ended(folder: RunFolder, timeout_s: float) -> bool:
        if backing == "daemon":
            wait_until(lambda: "no room" in folder.supervisor_log.read_text(), what="its words")
        return taken_over(folder, timeout_s)

    monkeypatch.setattr(guardian_start, "GUARDIAN_START_S", 0.3)
    monkeypatch.setattr(guardian_start, "_taken_over", when_it_has_ended)
    pretend(monkeypatch, "import sys; sys.exit('no room in here')")
    with pytest.raises(DdptopError, match="the guardian for train did not start") as caught:
        start_guardian(folder, make_spec(backing=backing), {}, (), attempt=0)
    if backing == "daemon":  # in tmux, its output was lost with the pane
        assert "(no room in here)" in str(caught.value)
    assert not folder.handover_file.exists()  # the variables' values are not stored anywhere


@pytest.mark.tmux
def test_a_pane_that_was_killed_before_the_guardian_was_up_is_replaced(
    folder, monkeypatch, wait_until
):
    start, calls = tmux_server.start_session, []

    def start_session(job: str, argv: Sequence[str], *others: Any) -> None:
        calls.append(job)
        start(job, ["true"] if len(calls) == 1 else argv, *others)
        if len(calls) == 1:
            wait_until(lambda: not tmux_server.holds(job), what="the pane to go")

    monkeypatch.setattr(tmux_server, "start_session", start_session)
    monkeypatch.setattr(guardian_start, "PANE_START_S", 0.3)
    pretend(monkeypatch, TAKES)
    assert start_guardian(folder, make_spec(backing="tmux"), {}, (), attempt=0) is None
    assert len(calls) == 2 and len(started(folder)) == 1


def test_the_real_guardian_is_started_by_path():
    argv = guardian_start.guardian_argv(RunFolder(Path("/runs/train")))
    assert argv[0] == sys.executable
    assert own_words(argv) == ["guardian", "/runs/train"]
    file = Path(argv[argv.index("guardian") - 1])
    assert file.is_absolute() and file.is_file()
