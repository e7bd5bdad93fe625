"""Commands without torch: shells, single processes, commands that wait for a GPU."""

from __future__ import annotations

import json
import sys

import pytest
from tests.support.command_jobs import gone, launcher_of, pids_of
from tests.support.real_jobs import Job

from ddptop_runner.host import procs

pytestmark = pytest.mark.tmux

REPORTS = """
import os, time, ddptop
for step in range(1, 10**6):
    ddptop.report(loss=1 / step, step=step, total=1000)
    time.sleep(0.02)
"""


def log_of(job: Job) -> str:
    return job.cli("logs", job.name).stdout


def test_one_process_that_reports_is_rank_0(launch_command, wait_until):
    job = launch_command(
        ["sh", "-c", 'echo shell; "$0" -c "$1"; echo "then $?"', sys.executable, REPORTS]
    )
    wait_until(
        lambda: [r["step"] for r in job.status()["ranks"] if (r["step"] or 0) > 5], what="steps"
    )
    (rank,) = job.status()["ranks"]
    assert (rank["rank"], rank["loss_source"], job.status()["world_size"]) == (0, "api", 1)
    assert rank["pid"] != launcher_of(job)["pid"]
    pids = [*pids_of(job), launcher_of(job)["pid"]]
    assert job.cli("kill", job.name).returncode == 0
    assert gone(pids)
    assert job.status()["ranks"][0]["signal"] == "SIGKILL"
    assert "then" not in log_of(job)


def test_leftover_processes_end_with_the_command(launch_command, wait_until):
    job = launch_command(
        ["sh", "-c", "(trap '' TERM; echo $$; exec sleep 600) & sleep 0.3; exit 0"]
    )
    assert job.wait() == 0
    job_id = json.loads((job.folder() / "job.json").read_text())["job_id"]
    assert [
        procs.argv(pid) for pid in procs.pids_of_job(job_id) if "sleep" in procs.argv(pid)
    ] == []
