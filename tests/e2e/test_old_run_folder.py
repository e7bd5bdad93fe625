"""A run folder from before typed events: it opens, replays, and restarts.

A real job with two ranks wrote `tests/samples/run`; one rank was killed at step 120. Only its
paths, host, and names of environment variables were replaced.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import Job

from ddptop_runner.base.paths import RunFolder, run_folder
from ddptop_runner.host import procs
from ddptop_runner.job.moment import MomentReader
from ddptop_runner.job.registry import read_job

pytestmark = [pytest.mark.torch, pytest.mark.tmux]

SAMPLE = Path(__file__).parents[1] / "samples" / "run"
KILLED = "Rank 1 (pid 30417) was the first to end: SIGKILL."


@pytest.fixture
def folder(ddptop_home, trainer) -> RunFolder:
    folder, host = run_folder("train"), procs.host_name()
    shutil.copytree(SAMPLE / "logs", folder.logs_dir)
    folder.path.chmod(0o700)
    folder.nodes_dir.mkdir()
    spec = json.loads((SAMPLE / "job.json").read_text())
    args = ["10000", "0.03", str(trainer)]
    spec |= {"host": host, "cwd": str(trainer), "python": sys.executable, "args": args}
    (folder.path / "job.json").write_text(json.dumps(spec))
    node = (SAMPLE / "node.json").read_text().replace('"here"', json.dumps(host))
    folder.node_file(host).write_text(node)
    with contextlib.closing(sqlite3.connect(folder.history_db)) as history, history:
        history.executescript((SAMPLE / "history.sql").read_text())
    history.close()
    return folder


def test_it_opens_replays_and_restarts(folder, ddptop_cli, wait_until):
    job = Job("train", ddptop_cli)
    status = job.status()
    assert (status["state"], status["attempt"], status["restarts_used"]) == ("finished", 1, 1)
    before = job.events()
    types = [event["type"] for event in before]
    assert types[:4] == ["launched", "attempt_started", "rank_started", "rank_started"]
    (failure,) = job.events("failure")
    assert failure["message"].startswith(KILLED) and failure["signal"] == "SIGKILL"
    assert "loss 4.1681" in ddptop_cli("logs", "train", "-r", "0").stdout

    view = read_job(folder)
    reader = MomentReader(folder, view.spec)
    span = reader.span()
    assert span is not None and span[1] - span[0] > 30
    failed_at = next(one.ts for one in reader.events() if one.type == "failure").timestamp()
    moment = reader.read(failed_at + 0.5, view.snapshot).snapshot
    assert (moment.attempt, moment.restarts_used) == (1, 1)
    assert moment.previous_cause is not None
    assert moment.previous_cause.summary.startswith(KILLED)
    assert reader.read(span[1], view.snapshot).snapshot.state == "finished"

    assert ddptop_cli("restart", "train").returncode == 0
    wait_until(lambda: job.trains(attempt=2))
    after = job.events()
    assert [event["message"] for event in after[: len(before)]] == [
        event["message"] for event in before
    ]
    assert [event["seq"] for event in after] == sorted({event["seq"] for event in after})
    assert ddptop_cli("stop", "train").returncode == 0
    assert job.status()["state"] == "stopped"
