"""Orders that a node's part of a job gets late, or not from its head."""

from __future__ import annotations

import json
import os
import sys

import pytest
from tests.cluster.jobs import part_of


@pytest.mark.parametrize("op", ["stop", "kill"])
def test_an_order_outlives_the_link(op, hosts, head, run, wait_until):
    job, h2 = run(), hosts.hosts["h2"]
    wait_until(lambda: job.trains(("h1", "h2")))
    h2.cut_from_head()
    wait_until(lambda: job.node("h2").get("unknown_since"), 40)
    said = head.cli(op, job.name, *(("--grace", "1") if op == "stop" else ()))
    assert (said.returncode, said.stdout) == (1, "")
    assert "is still stopping: h2 cannot be reached" in said.stderr
    assert not part_of(job, hosts.hosts["h1"])
    assert part_of(job, h2)
    h2.restore_to_head()
    wait_until(lambda: not part_of(job, h2), 30)
    wait_until(lambda: job.status()["state"] == "stopped", 10)
    assert head.cli("rm", job.name).stderr == ""


def test_a_machine_lists_its_part_of_a_job_and_kills_it(hosts, head, run, wait_until):
    job, h2 = run("--node-timeout", "3"), hosts.hosts["h2"]
    wait_until(lambda: job.trains(("h1", "h2")))
    h2.cut_from_head()
    ddptop = [sys.executable, "-m", "ddptop"]
    listed = json.loads(h2.run(*ddptop, "ls", "--json"))["jobs"]
    assert [(one["job"], one["host"], one["head"]) for one in listed] == [
        (job.name, "h2", os.uname().nodename)
    ]
    assert f"part of a job on {os.uname().nodename}" in h2.run(
        *ddptop, "ls", env={"COLUMNS": "200"}
    )
    assert f"{job.name}, part of a job on {os.uname().nodename}" in h2.run(*ddptop, "ps")
    h2.run(*ddptop, "kill", job.name)
    wait_until(lambda: not part_of(job, h2), 10)


def test_rm_ends_what_is_left_of_an_ended_job(hosts, head, run, wait_until):
    job, h2 = run("--node-timeout", "3", "--max-restarts", "0"), hosts.hosts["h2"]
    wait_until(lambda: job.trains(("h1", "h2")))
    h2.cut_from_head()
    wait_until(lambda: job.node("h2").get("unknown_since"), 40)
    hosts.hosts["h1"].kill("rank", job.name)
    wait_until(lambda: job.status()["state"] == "failed", 60)
    h2.restore_to_head()
    assert part_of(job, h2)
    said = head.cli("rm", job.name)
    assert (said.returncode, said.stderr) == (0, "")
    wait_until(lambda: not part_of(job, h2), 10)
