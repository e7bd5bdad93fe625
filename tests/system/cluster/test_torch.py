"""Real DDP on two nodes: one job that goes through several faults, and one that finishes."""

from __future__ import annotations

import signal

import pytest
from tests.support.cluster.jobs import launch, now
from tests.support.cluster.training import Trainer

from ddptop_runner.base.paths import RunFolder
from ddptop_runner.job.registry import read_job

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


def test_a_stopped_rank_is_named_with_its_host_and_the_line_at_which_it_stood(
    hosts, ddp, wait_until
):
    def paused() -> str:
        return next((one["message"] for one in ddp.status()["alerts"] if one["id"] == "paused"), "")

    attempt, h2 = ddp.attempt(), hosts.hosts["h2"]
    h2.kill("rank", ddp.name, signal.SIGSTOP)  # a place is named only if it had stood there for 1 s
    found = wait_until(paused, 20)
    assert found.startswith("rank 1 is paused on h2 ")
    assert found.endswith("by a signal (SIGCONT resumes it)")
    h2.kill("rank", ddp.name, signal.SIGCONT)
    wait_until(lambda: not paused() and ddp.trains(BOTH, now() - 1), 20)
    ddp.trainer.do(1, "skip")
    lines = ddp.trainer.ddp.read_text().splitlines()
    place = f"ddp.py:{1 + next(i for i, line in enumerate(lines) if 'sleep(100_000)' in line)}"
    wait_until(lambda: place in (ddp.status()["ranks"][1]["stands_at"] or ""), 20)
    h2.kill("rank", ddp.name, signal.SIGSTOP)
    assert wait_until(paused, 20).startswith(f"rank 1 is paused on h2 at {place}")
    h2.kill("rank", ddp.name, signal.SIGCONT)
    wait_until(lambda: ddp.trains(BOTH, attempt=attempt + 1))


def test_remote_exception_is_reported_with_its_line(hosts, ddp, wait_until):
    attempt = ddp.attempt()
    ddp.trainer.do(1, "fail")
    wait_until(lambda: ddp.trains(BOTH, attempt=attempt + 1))
    assert "told to fail" in ddp.last("failure")
    assert "Rank 1 " in ddp.last("failure")


def test_work_is_lost_since_the_last_checkpoint_and_progress_refills_the_budget(
    hosts, head, tmp_path, wait_until
):
    trainer = Trainer(tmp_path)
    script = trainer.ddp.read_text()  # without DDP, the rank that saves outlives the other
    trainer.ddp.write_text(script.replace("torch.nn.parallel.DistributedDataParallel", ""))
    options = ("--max-restarts", "1", "--", "1000000", "0.02", "20")
    job = launch(head, trainer, *options, script="ddp.py")
    for attempt in range(3):
        wait_until(lambda attempt=attempt: len(trainer.steps(attempt, 1)) > 150)
        hosts.hosts["h2"].kill("rank", job.name)
        wait_until(lambda attempt=attempt: job.trains(BOTH, attempt=attempt + 1))
        snapshot = read_job(RunFolder(job.folder())).snapshot
        assert snapshot.previous_cause.work_lost_steps < 60, snapshot.previous_cause.summary
        assert snapshot.restarts_used == 1
    wait_until(lambda: 0 <= _apart(job) < 100, what="both ranks show the step of the run")
    job.stop()


def _apart(job) -> int:
    """How far the ranks' steps of the run are apart; negative if one is unknown."""
    steps = [rank.run_step for rank in read_job(RunFolder(job.folder())).snapshot.ranks]
    return -1 if None in steps or len(steps) < 2 else max(steps) - min(steps)
