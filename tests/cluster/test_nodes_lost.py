"""Nodes that are lost for good, and nodes whose head is."""

from __future__ import annotations

import pytest
from tests.cluster.jobs import launch


@pytest.fixture
def run(head, trainer):
    started = []

    def start(*options, **more):
        job = launch(head, trainer, *options, **more)
        started.append(job)
        return job

    yield start
    for job in started:
        job.stop()


def test_job_continues_without_a_lost_node_and_adds_it_back(hosts, run, wait_until):
    job = run("--nodes", "1:2", "--node-timeout", "3")
    wait_until(lambda: job.trains(("h1", "h2")))
    hosts.hosts["h2"].die()
    wait_until(lambda: job.trains(("h1",), attempt=1), 60)
    wait_until(lambda: job.status()["state"] == "running", 10)
    assert "h2" in " ".join(event["message"] for event in job.events())
    hosts.hosts["h2"].start()
    wait_until(lambda: job.trains(("h1", "h2"), attempt=2), 60)
    assert job.trainer.steps(2, 0)[0]["step"] > 1, "it was asked to save before the restart"


def test_job_continues_after_losing_the_first_node_and_its_store(hosts, run, wait_until):
    job = run("--nodes", "1:2", "--node-timeout", "3")
    wait_until(lambda: job.trains(("h1", "h2")))
    hosts.hosts["h1"].die()
    wait_until(lambda: job.trains(("h2",), attempt=1), 60)


def test_a_lost_node_that_is_needed_fails_the_job(hosts, run, wait_until):
    job = run("--node-timeout", "3")
    wait_until(lambda: job.trains(("h1", "h2")))
    hosts.hosts["h2"].die()
    wait_until(lambda: job.status()["state"] == "failed", 60)
    assert "h2" in job.last("ended") + job.last("failure")
    wait_until(lambda: not hosts.hosts["h1"].pids(), 20)


def test_nodes_without_a_head_end_their_ranks(hosts, head, run, wait_until):
    job = run("--orphan-timeout", "4")
    wait_until(lambda: job.trains(("h1", "h2")))
    head.kill("guardian", job.name)
    head.kill("supervisor", job.name)
    wait_until(lambda: not (hosts.hosts["h1"].pids() or hosts.hosts["h2"].pids()), 40)


def test_training_finishes(hosts, run, head, wait_until):
    job = run("--", "--steps", "20")
    assert head.cli("wait", job.name, "--timeout", "60").returncode == 0
    assert job.status()["state"] == "finished"
    wait_until(lambda: not (hosts.hosts["h1"].pids() or hosts.hosts["h2"].pids()), 20)


def test_finished_node_restarts_at_once_when_another_fails(run, wait_until):
    job = run("--", "--alone")
    wait_until(lambda: job.trains(("h1", "h2")))
    job.trainer.do(0, "exit 0")
    wait_until(lambda: job.status()["ranks"][0]["state"] == "exited")
    job.trainer.do(1, "fail")
    wait_until(lambda: job.trains(("h1", "h2"), attempt=1), 60)
