"""Nodes that are lost for good, and nodes whose head is."""

from __future__ import annotations

import pytest
from tests.support.cluster.jobs import part_of

from ddptop_runner.host import procs


def test_jobs_continue_without_a_lost_node_and_add_it_back_or_fail_if_they_need_it(
    hosts, run, wait_until
):
    job, needs = run("--nodes", "1:2", "--node-timeout", "3"), run("--node-timeout", "3")
    wait_until(lambda: job.trains(("h1", "h2")) and needs.trains(("h1", "h2")))
    hosts.hosts["h2"].die()
    wait_until(lambda: job.trains(("h1",), attempt=1), 60)
    wait_until(lambda: job.status()["state"] == "running", 10)
    assert "h2" in " ".join(event["message"] for event in job.events())
    wait_until(lambda: needs.status()["state"] == "failed", 60)
    assert "h2" in needs.last("ended") + needs.last("failure")
    wait_until(lambda: not part_of(needs, hosts.hosts["h1"]), 20)
    assert len(hosts.hosts["h1"].of("rank")) == 1
    hosts.hosts["h2"].start()
    wait_until(lambda: job.trains(("h1", "h2"), attempt=2), 60)
    assert job.trainer.steps(2, 0)[0]["step"] > 1, "it was asked to save before the restart"


def test_job_continues_after_losing_the_first_node_and_its_store(hosts, run, wait_until):
    job = run("--nodes", "1:2", "--node-timeout", "3")
    wait_until(lambda: job.trains(("h1", "h2")))
    hosts.hosts["h1"].die()
    wait_until(lambda: job.trains(("h2",), attempt=1), 60)


@pytest.mark.torch
@pytest.mark.parametrize("nodes", ["2", "1:2"])
def test_a_hang_without_a_node_ends_after_the_node_timeout(nodes, hosts, head, run, wait_until):
    job = run("--nodes", nodes, "--node-timeout", "15", script="ddp.py")
    wait_until(lambda: job.trains(("h1", "h2")))
    hosts.hosts["h2"].cut()  # as a power cut: nothing resets its connections
    if nodes == "2":
        wait_until(lambda: job.status()["state"] == "failed", 90)
    else:
        wait_until(lambda: job.trains(("h1",), attempt=1), 90)
    said = job.last("hang")
    assert "h2 cannot be reached" in said and "no rank has taken a step" in said
    hosts.restore()
    if nodes == "2":
        wait_until(lambda: head.reaches("h2"), 30)
        assert head.cli("rm", job.name).stderr == ""
        wait_until(lambda: not part_of(job, hosts.hosts["h2"]), 10)


def test_a_new_head_has_the_environment_of_the_job(hosts, head, run, wait_until, monkeypatch):
    monkeypatch.setitem(head.environment, "OF_THE_SHELL", "kept")
    job = run("--env", "OF_THE_JOB=kept too", "--nodes", "1:2", "--node-timeout", "3")
    wait_until(lambda: job.trains(("h1", "h2")))
    monkeypatch.delitem(head.environment, "OF_THE_SHELL")
    head.kill("guardian", job.name)
    head.kill("supervisor", job.name)
    said = head.cli("status", job.name)
    assert "could not recover" not in said.stderr, said.stderr
    wait_until(
        lambda: (
            job.status()["nodes"]
            and all(node["state"] == "running" for node in job.status()["nodes"])
        ),
        60,
    )
    hosts.hosts["h2"].die()
    wait_until(lambda: job.trains(("h1",), attempt=1), 60)
    hosts.hosts["h2"].start()  # its part starts from nothing
    wait_until(lambda: job.trains(("h1", "h2"), attempt=2), 60)
    (rank,) = hosts.hosts["h2"].of("agent", job.name)
    found = procs.environ_of(rank)
    assert (found["OF_THE_SHELL"], found["OF_THE_JOB"]) == ("kept", "kept too")


def test_nodes_without_a_head_end_their_ranks(hosts, head, run, wait_until):
    job = run("--orphan-timeout", "4")
    wait_until(lambda: job.trains(("h1", "h2")))
    head.kill("guardian", job.name)
    head.kill("supervisor", job.name)
    wait_until(lambda: not (hosts.hosts["h1"].pids() or hosts.hosts["h2"].pids()), 40)


def test_finished_node_restarts_at_once_when_another_fails(run, wait_until):
    job = run("--", "--alone")
    wait_until(lambda: job.trains(("h1", "h2")))
    job.trainer.do(0, "exit 0")
    wait_until(lambda: job.status()["ranks"][0]["state"] == "exited")
    job.trainer.do(1, "fail")
    wait_until(lambda: job.trains(("h1", "h2"), attempt=1), 60)
