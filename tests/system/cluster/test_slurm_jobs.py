"""A ddptop job on two nodes of a real Slurm, from submission through requeues to its end."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.support.cluster.jobs import now

pytestmark = pytest.mark.slow

REQUEUE_DELAY_S = 120.0
"""After this time, Slurm itself starts a requeued job."""


def test_requeued_job_continues_at_once_on_its_new_nodes(submit, head, slurm, hosts, wait_until):
    job, number = submit("--nodes", "2")
    wait_until(lambda: job.trains(["h1", "h2"]), what="both ranks train")
    assert {one["host"] for one in job.status()["ranks"]} == {"h1", "h2"}

    saved = head.cli("checkpoint", "job", "--timeout", "1")  # through a step on the head's node
    assert "requested a checkpoint" in saved.stderr, saved.stderr
    wait_until((job.trainer.folder / "checkpoint.json").exists, what="the checkpoint")

    asked = now()
    slurm.requeue(number)
    wait_until(lambda: job.attempt() == 1 and job.trains(["h1", "h2"], asked, 1), what="again")
    assert now() - asked < REQUEUE_DELAY_S
    assert job.trainer.steps(1, 0)[0]["step"] > 1, "it began anew"

    asked = now()
    other = slurm.run(
        *["sbatch", "--parsable", "-N3", "--exclusive", "-p", "high", "-o", "/dev/null"],
        *["--wrap", "sleep 1"],
    )
    wait_until(lambda: slurm.job_state(other) == "COMPLETED", what="the job that preempts")
    wait_until(lambda: job.attempt() == 2 and job.trains(["h1", "h2"], asked, 2), what="after it")
    assert now() - asked < REQUEUE_DELAY_S

    stopped = head.cli("stop", "job", "--grace", "5")
    assert stopped.returncode == 0, stopped.stderr
    wait_until(lambda: slurm.job_state(number) in ("COMPLETED", "FAILED"), what="Slurm's end")
    assert job.status()["state"] == "stopped"
    for host in hosts.hosts.values():
        wait_until(
            lambda host=host: not any("ddptop" in line for line in host.described()),
            what=f"nothing left on {host.name}",
        )


def test_wait_lasts_through_a_requeue_which_is_no_loss(submit, head, slurm, wait_until):
    job, number = submit("--nodes", "2", name="waited")
    wait_until(lambda: job.trains(["h1", "h2"]), what="both ranks train")
    waiting = subprocess.Popen(
        [sys.executable, "-m", "ddptop", "wait", "waited"], env=head.environment, cwd=head.folder
    )
    slurm.requeue(number)
    wait_until(lambda: job.attempt() == 1 and job.trains(["h1", "h2"], attempt=1), what="again")
    assert waiting.poll() is None
    assert job.events("lost") == []
    assert job.last("requeued") == "Slurm ended attempt 0 and requeued the job"

    slurm.run("scancel", number)
    wait_until(lambda: waiting.poll() is not None, what="the end of wait")
    assert waiting.returncode == 4
    assert job.status()["state"] == "stopped"
    assert job.last("stopping") == "cancelled with scancel"


def test_script_that_fails_before_its_first_step_is_not_requeued(submit, head, slurm, wait_until):
    _, number = submit("--nodes", "2", name="fails", script="fails.py")
    ended = head.cli("wait", "fails", "--timeout", "100", timeout_s=110)
    assert ended.returncode == 93, ended.stderr
    wait_until(lambda: slurm.job_state(number) == "FAILED", what="Slurm's end")
    assert "Restarts=0" in slurm.run("scontrol", "show", "job", number)


def test_job_saves_before_its_time_limit_and_continues_with_a_new_one(submit, slurm, wait_until):
    job, number = submit("--nodes", "2", sbatch=("--time=2", "--signal=B:USR1@50"), name="limited")
    wait_until(lambda: job.trains(["h1", "h2"]), what="both ranks train")
    wait_until(lambda: set(job.trainer.last_steps(1)) == {0, 1}, 240, what="both train again")
    said = (slurm.folder / f"log/ddptop-{number}.out").read_text()
    assert job.trainer.steps(1, 0)[0]["step"] > 1, f"it began anew:\n{said}"
    assert slurm.job_state(number) == "RUNNING"


def test_node_removed_by_slurm_is_not_used_again(submit, slurm, hosts, wait_until):
    job, number = submit("--nodes", "2:3", "--node-timeout", "3", name="shrinks")
    wait_until(lambda: job.trains(["h1", "h2", "h3"]), what="three ranks train")
    hosts.hosts["h3"].die()
    wait_until(lambda: job.trains(["h1", "h2"], now() - 1), what="the others go on")
    wait_until(lambda: "down" in slurm.run("sinfo", "-h", "-n", "h3", "-o", "%T"), what="DOWN")
    assert slurm.job_state(number) == "RUNNING"
    attempt = job.attempt()
    hosts.hosts["h3"].start()
    slurm.start_node(hosts.hosts["h3"])
    wait_until(lambda: "idle" in slurm.run("sinfo", "-h", "-n", "h3", "-o", "%T"), what="back")
    assert job.node("h3")["state"] == "lost"
    assert job.attempt() == attempt
    assert job.trains(["h1", "h2"], now() - 2)


def test_job_that_needs_all_nodes_continues_on_other_nodes(submit, slurm, hosts, wait_until):
    job, number = submit("--nodes", "2", sbatch=("--exclusive",), name="moves")
    wait_until(lambda: job.trains(["h1", "h2"]), what="both ranks train")
    hosts.hosts["h2"].die()
    wait_until(lambda: job.trains(["h1", "h3"], now() - 2), 180, what="on another node")
    assert job.attempt() > 0
    assert slurm.job_state(number) == "RUNNING"
