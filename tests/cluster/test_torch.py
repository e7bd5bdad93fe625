"""Real DDP on two nodes: one job that goes through several faults, and one that finishes."""

from __future__ import annotations

import pytest
from tests.cluster.jobs import launch, now
from tests.cluster.training import Trainer

pytestmark = pytest.mark.torch
BOTH = ("h1", "h2")


@pytest.fixture(scope="module")
def ddp(head, tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("ddp"))
    job = launch(head, trainer, "--hang-timeout", "6", "--max-restarts", "20", script="ddp.py")
    yield job
    job.stop()


def test_two_nodes_train_together(hosts, ddp, wait_until):
    wait_until(lambda: ddp.trains(BOTH))
    wait_until(lambda: all(rank["loss"] is not None for rank in ddp.status()["ranks"]), 20)
    assert [rank["host"] for rank in ddp.status()["ranks"]] == list(BOTH)


def test_killed_remote_rank_is_the_cause_not_its_victims(hosts, ddp, wait_until):
    attempt = ddp.attempt()
    hosts.hosts["h2"].kill("rank", ddp.name)
    wait_until(lambda: ddp.trains(BOTH, attempt=attempt + 1))
    assert "Rank 1 " in ddp.last("failure")
    assert "SIGKILL" in ddp.last("failure")


def test_a_hang_in_an_all_reduce_names_node_rank_and_line(hosts, ddp, wait_until):
    attempt = ddp.attempt()
    ddp.trainer.do(1, "skip")
    wait_until(lambda: ddp.trains(BOTH, attempt=attempt + 1))
    said = ddp.last("hang")
    assert "rank 1" in said.lower()
    assert "ddp.py:" in said
    assert "h2" in said


def test_remote_exception_is_reported_with_its_line(hosts, ddp, wait_until):
    attempt = ddp.attempt()
    ddp.trainer.do(1, "fail")
    wait_until(lambda: ddp.trains(BOTH, attempt=attempt + 1))
    assert "told to fail" in ddp.last("failure")
    assert "Rank 1 " in ddp.last("failure")


def test_training_survives_ddptops_own_processes(hosts, head, ddp, wait_until):
    attempt = ddp.attempt()
    for role in ("supervisor", "guardian", "agent"):
        hosts.hosts["h1"].kill(role, ddp.name)
    head.kill("supervisor", ddp.name)
    since = now() + 1
    wait_until(lambda: ddp.trains(BOTH, since, attempt), 30)


def test_node_dies_and_returns(hosts, ddp, wait_until):
    attempt = ddp.attempt()
    hosts.hosts["h2"].die()
    hosts.hosts["h2"].start()
    wait_until(lambda: ddp.trains(BOTH, attempt=attempt + 1))


def test_it_exits_with_status_0(hosts, head, ddp, trainer):
    ddp.stop()  # two trainings at once take twice as long
    job = launch(head, trainer, "--name", "ends", "--", "30", "0", script="ddp.py")
    try:
        assert head.cli("wait", job.name, "--timeout", "100").returncode == 0
        assert len(trainer.steps(0, 1)) == 30
    finally:
        job.stop()
