"""Faults that a job on two machines survives: one job goes through one after another.

If a test finds that the previous one damaged the job, it starts another.
"""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest
from tests.support.cluster.jobs import Job, launch, now
from tests.support.cluster.training import Trainer

BOTH = ("h1", "h2")
OPTIONS = ("--hang-timeout", "6", "--node-timeout", "60", "--max-restarts", "20")


@pytest.fixture(scope="module")
def jobs(head):
    """The job of this module, if it exists."""
    started: list[Job] = []
    yield started
    for job in started:
        job.stop()


@pytest.fixture
def job(hosts, head, jobs, tmp_path_factory, wait_until):
    if jobs:
        since = now()
        try:
            wait_until(lambda: jobs[0].trains(BOTH, since), 10)
        except pytest.fail.Exception:
            jobs.pop().stop()
    if not jobs:
        trainer = Trainer(tmp_path_factory.mktemp("steps"))
        jobs.append(launch(head, trainer, *OPTIONS, "--", "--save-every", "10"))
        wait_until(lambda: jobs[0].trains(BOTH))
    return jobs[0]


@pytest.fixture
def continues(job, wait_until):
    """Assert that training has continued in the same attempt, without a pause."""
    began, attempt = now(), job.attempt()
    failures = len(job.events("failure"))

    def check(gap_s: float = 5.0) -> None:
        since = now() + 1
        wait_until(lambda: job.trains(BOTH, since, attempt), 30)
        assert job.attempt() == attempt
        assert len(job.events("failure")) == failures
        for rank in range(len(BOTH)):
            times = [began, *(s["at"] for s in job.trainer.steps(attempt, rank) if s["at"] > began)]
            assert max(b - a for a, b in pairwise(times)) < gap_s

    return check


def knows_all(job: Job) -> bool:
    """Whether the head is up and connected to both nodes."""
    status = job.status()
    seen = {rank["host"] for rank in status["ranks"] if rank["state"] == "running"}
    return status["state"] == "running" and seen == set(BOTH)


def test_one_job_shows_the_ranks_of_both_nodes(hosts, job, wait_until):
    wait_until(lambda: knows_all(job), 20)
    ranks = job.status()["ranks"]
    assert [(rank["rank"], rank["host"]) for rank in ranks] == [(0, "h1"), (1, "h2")]
    assert all(rank["step"] for rank in ranks)
    for name in BOTH:
        assert len(hosts.hosts[name].of("rank", job.name)) == 1


@pytest.mark.parametrize("role", ["node", "supervisor", "guardian", "agent"])
def test_a_process_of_a_node_is_killed(role, hosts, job, continues, wait_until):
    h2 = hosts.hosts["h2"]
    h2.kill(role, None if role == "node" else job.name)
    continues()
    if role != "agent":  # the next attempt starts another
        wait_until(lambda: h2.of(role), 20)
    wait_until(lambda: knows_all(job), 30)


def test_heads_supervisor_is_killed(head, job, continues, wait_until):
    pids = head.kill("supervisor", job.name)
    wait_until(lambda: head.of("supervisor", job.name) not in ([], pids), 20)
    continues()
    wait_until(lambda: knows_all(job), 30)


def test_link_to_the_head_breaks_and_recovers(hosts, job, continues, wait_until):
    h2 = hosts.hosts["h2"]
    h2.cut_from_head()
    wait_until(lambda: job.node("h2").get("unknown_since"), 40)
    assert job.node("h1")["unknown_since"] is None
    assert job.status()["state"] == "running"
    continues()
    h2.restore_to_head()
    wait_until(lambda: job.node("h2").get("unknown_since") is None, 40)
    wait_until(lambda: knows_all(job), 20)
    continues()


def test_node_dies_and_returns(hosts, job, wait_until):
    attempt, h2 = job.attempt(), hosts.hosts["h2"]
    h2.die()
    wait_until(lambda: job.node("h2").get("unknown_since"), 40)
    h2.start()
    wait_until(lambda: job.trains(BOTH, attempt=attempt + 1), 60)
    assert "h2" in job.last("failure")


def test_killed_head_is_adopted_from_another_terminal(head, job, continues, wait_until):
    head.kill("guardian", job.name)
    head.kill("supervisor", job.name)
    wait_until(lambda: not head.of("supervisor", job.name), 10)
    continues()
    said = head.cli("status", job.name)
    assert said.returncode == 0, said.stderr
    wait_until(lambda: head.of("supervisor", job.name), 20)
    wait_until(lambda: knows_all(job), 30)
    continues()


def test_stop_leaves_no_processes_on_any_machine(hosts, head, job, wait_until):
    assert head.cli("stop", job.name).returncode == 0
    wait_until(lambda: job.status()["state"] == "stopped", 30)
    wait_until(lambda: not any(hosts.hosts[name].pids() for name in BOTH), 20)
    assert head.of("supervisor") == []


@pytest.mark.parametrize("verb", [("kill",), ("stop", "--grace", "3")], ids=["kill", "stop"])
def test_a_stopped_head_does_not_keep_the_other_machines(verb, hosts, head, job, wait_until):
    head.kill("supervisor", job.name, signal.SIGSTOP)
    ended = head.cli(verb[0], job.name, *verb[1:])
    assert ended.returncode == 0, ended.stderr
    assert "have exited" not in ended.stderr
    assert job.status()["state"] == "stopped"
    wait_until(lambda: not any(hosts.hosts[name].pids() for name in BOTH), 20)
