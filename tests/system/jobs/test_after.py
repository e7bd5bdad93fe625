"""Jobs that wait for other jobs, which fail, restart, or are stopped; without GPUs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.real_jobs import Job

pytestmark = pytest.mark.tmux

WAITS = "until test -e go; do sleep 0.1; done"
KILLED_ONCE = f"test -e ran && {{ {WAITS}; exit 0; }}; touch ran; kill -9 $$"


@pytest.fixture
def launch(ddptop_cli, tmp_path: Path) -> Callable[..., Job]:
    def start(name: str, script: str, *options: str) -> Job:
        options = ("-d", "--cwd", str(tmp_path), "--name", name, *options)
        answer = ddptop_cli("launch", *options, "--", "sh", "-c", script)
        assert answer.returncode == 0, answer.stderr
        return Job(name, ddptop_cli)

    return start


def test_a_job_waits_for_a_restarted_one_and_never_for_a_failed_one(launch, wait_until, tmp_path):
    restarts = launch("restarts", KILLED_ONCE)
    fails = launch("fails", f"{WAITS}; sleep 1; exit 3")
    after = launch("after", "true", "--after", "restarts")
    chained = launch("chained", "true", "--after", "after,restarts")
    never = launch("never", "true", "--after", "fails")
    whatever = launch("whatever", "true", "--after-any", "fails,never")
    os.kill(wait_until(lambda: after.processes().get("guardian")), signal.SIGKILL)
    (tmp_path / "go").touch()
    assert (restarts.wait(), after.wait(), chained.wait(), whatever.wait()) == (0, 0, 0, 0)
    assert len(restarts.events("attempt_started")) == 2
    (ended,), (began,) = restarts.events("finished"), after.events("launched")
    assert began["ts"] >= ended["ts"]
    assert (fails.wait(), never.wait()) == (1, 1)
    assert never.status()["cause"]["summary"] == "not started: job fails failed."
    assert never.events("attempt_started") == []
    refused = never.cli("restart", "never")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "not started: job fails failed; restart that job first" in refused.stderr
    (tmp_path / "go").unlink()
    fails.cli("restart", "fails")
    assert never.cli("restart", "never").returncode == 0
    assert never.status()["state"] == "queued"
    (tmp_path / "go").touch()
    wait_until(lambda: never.status()["state"] == "failed", what="the second failure")


def test_a_queue_that_cannot_be_shared_is_named(ddptop_cli, tmp_path, monkeypatch):
    (tmp_path / "queue").mkdir(mode=0o755)
    monkeypatch.setenv("DDPTOP_QUEUE_DIR", str(tmp_path / "queue"))
    answer = ddptop_cli("launch", "-d", "--name", "late", "--at", "23:59", "--", "true")
    assert (
        "(mode 0755), but its mode must be 1777; other users' jobs are not considered"
        in answer.stderr
    )
    assert ddptop_cli("stop", "late").returncode == 0
    assert "must be 1777" in ddptop_cli("queue", "--json").stdout


def test_unknown_jobs_and_times_queue_nothing(ddptop_cli, ddptop_home):
    for options, status, words in (
        (["--after", "none"], 3, "no job named 'none'"),
        (["--at", "25:00"], 2, "--at 25:00: not a time of day"),
    ):
        answer = ddptop_cli("launch", "-d", *options, "--", "true")
        assert (answer.returncode, answer.stdout) == (status, "")
        assert words in answer.stderr
        assert answer.stderr.count("\n") == 1
    assert not list((ddptop_home / "runs").glob("[a-z]*"))
