"""Orders that a node's part of a job gets late, or not from its head."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

from tests.support.cluster.jobs import Job, part_of


def end(job: Job, op: str) -> subprocess.CompletedProcess[str]:
    """Stop or kill it."""
    return job.head.cli(op, job.name, *(("--grace", "1") if op == "stop" else ()))


def test_an_order_outlives_the_link(hosts, head, run, wait_until):
    jobs, h2 = {op: run() for op in ("stop", "kill")}, hosts.hosts["h2"]
    wait_until(lambda: all(job.trains(("h1", "h2")) for job in jobs.values()))
    h2.cut_from_head()
    for op, job in jobs.items():
        wait_until(lambda job=job: job.node("h2").get("unknown_since"), 40)
        said = end(job, op)
        assert (said.returncode, said.stdout) == (1, "")
        assert "is still stopping: h2 cannot be reached" in said.stderr
        assert not part_of(job, hosts.hosts["h1"])
        assert part_of(job, h2)
    h2.restore_to_head()
    for job in jobs.values():
        wait_until(lambda job=job: not part_of(job, h2), 30)
        wait_until(lambda job=job: job.status()["state"] == "stopped", 10)
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
    assert "its head may start it again" in h2.run(*ddptop, "kill", job.name)
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


def test_a_part_whose_guards_are_paused_ends(hosts, head, run, wait_until):
    paused = {"kill": ("supervisor",), "stop": ("guardian", "supervisor")}
    jobs, h2 = {op: run() for op in paused}, hosts.hosts["h2"]
    wait_until(lambda: all(job.trains(("h1", "h2")) for job in jobs.values()))
    for op, job in jobs.items():
        for role in paused[op]:
            h2.kill(role, job.name, signal.SIGSTOP)
        if op == "stop":  # its head has noticed
            wait_until(lambda job=job: job.node("h2").get("unknown_since"), 40)
        said = end(job, op)
        assert (said.returncode, said.stderr) == (0, f"ddptop: {job.name} stopped\n")
        wait_until(lambda job=job: not part_of(job, h2), 10)
        assert not h2.of("rank", job.name)
        assert head.cli("rm", job.name).stderr == ""


def test_a_part_whose_run_folder_was_deleted_continues_and_ends(hosts, head, run, wait_until):
    job, h2 = run(), hosts.hosts["h2"]
    wait_until(lambda: job.trains(("h1", "h2")))
    guardians = h2.of("guardian", job.name)
    delete(h2.home / "members")
    h2.kill("node")
    wait_until(lambda: list(h2.home.glob("members/*/job.json")), 20)
    h2.kill("rank")
    wait_until(lambda: job.attempt() == 1 and job.trains(("h1", "h2"), attempt=1))
    assert h2.of("guardian", job.name) == guardians
    delete(h2.home / "members")
    said = head.cli("kill", job.name)
    assert (said.returncode, said.stderr) == (0, f"ddptop: {job.name} stopped\n")
    wait_until(lambda: not part_of(job, h2), 10)


def test_a_job_whose_run_folder_was_deleted_ends_on_its_hosts(hosts, head, run, wait_until):
    alive, paused = run(), run("--orphan-timeout", "20")
    wait_until(lambda: alive.trains(("h1", "h2")) and paused.trains(("h1", "h2")))

    def left(job: Job) -> list[int]:
        return [pid for host in hosts.hosts.values() for pid in part_of(job, host)]

    head.kill("supervisor", paused.name, signal.SIGSTOP)
    delete(paused.folder())
    said = end(paused, "stop")
    assert said.returncode == 1
    assert "may still run on its hosts: its run folder was deleted" in said.stderr
    assert left(paused)
    delete(alive.folder())
    said = end(alive, "stop")
    assert (said.returncode, left(alive)) == (0, [])
    assert said.stderr == f"ddptop: {alive.name} ended; its run folder had been deleted\n"
    wait_until(lambda: not left(paused), 60)
    for job in (alive, paused):
        assert end(job, "stop").returncode == 3


def delete(folder):
    """Delete a folder that is being written to."""
    gone = folder.rename(folder.with_name(f"{folder.name}-gone"))
    shutil.rmtree(gone)
