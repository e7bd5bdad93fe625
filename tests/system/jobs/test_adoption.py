"""A job survives its guardian and supervisor: a later command adopts it, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ddptop_runner.base.start import own_command, own_words
from ddptop_runner.host import procs

pytestmark = [pytest.mark.torch, pytest.mark.tmux]
TAKEN_UP = "which had lost its guardian"


def commands_at_once(count: int) -> list[str]:
    """What each of that many `ddptop ls` prints to stderr."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ddptop", "ls"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    return [process.communicate(timeout=60)[1] for process in running]


def guardians_of(job) -> list[int]:
    words = ["guardian", str(job.folder())]
    return [
        pid
        for pid in procs.pids_of_job(json.loads((job.folder() / "job.json").read_text())["job_id"])
        if own_words(procs.argv(pid))[:2] == words
    ]


def tmux_server() -> int:
    """The pid of ddptop's tmux server."""
    tmux = ["tmux", "-L", os.environ["DDPTOP_TMUX_SOCKET"], "display-message", "-p", "#{pid}"]
    return int(subprocess.run(tmux, capture_output=True, text=True, check=True).stdout)


def stop_for_a_while(job, wait_until, own: Path) -> None:
    """SIGSTOP all guardians, supervisors, and tmux; SIGCONT them once the ranks have continued."""
    server, guards = tmux_server(), job.processes()

    def steps() -> int:
        return len(own.read_text().splitlines())

    for pid in (*guards.values(), server):
        os.kill(pid, signal.SIGSTOP)
    try:
        before = steps()
        wait_until(lambda: steps() > before + 80, what="progress of the ranks alone")
        assert job.status()["guarded"] is True
        assert job.status()["snapshot_age_s"] > 3
    finally:
        for pid in (*guards.values(), server):
            os.kill(pid, signal.SIGCONT)
    before = steps()
    wait_until(lambda: (job.status()["step"] or 0) > before + 80, what="steps heard again")
    assert job.processes() == guards
    types = {event["type"] for event in job.events()}
    assert types == {"launched", "attempt_started", "rank_started", "training"}


def test_unguarded_job_is_adopted_once_and_restarts_with_its_own_variables(
    launch, wait_until, monkeypatch, trainer
):
    monkeypatch.setenv("OF_THE_SHELL", "that launched it")
    job = launch(10_000, 0.05, "--env", "OF_THE_JOB=1", "--hang-timeout", "3")
    monkeypatch.delenv("OF_THE_SHELL")
    wait_until(job.trains, what="training")
    pids = [rank["pid"] for rank in job.status()["ranks"]]
    first = job.processes()["guardian"]
    os.kill(first, signal.SIGTERM)  # like a user's `kill PID`
    stop_for_a_while(job, wait_until, trainer / "losses-0-0.jsonl")
    assert guardians_of(job) == [first]

    os.kill(first, signal.SIGKILL)
    wait_until(lambda: job.status()["guarded"] is False, what="the guardian's end")
    said = commands_at_once(10)
    assert [TAKEN_UP in text for text in said].count(True) == 1
    assert "".join(said).count("\n") == 1
    assert len(guardians_of(job)) == 1
    assert job.status()["guarded"] is True
    assert [rank["pid"] for rank in job.status()["ranks"]] == pids

    # now everything but the ranks; the supervisor is stopped first, as if it hung
    guards = job.processes()
    os.kill(guards["supervisor"], signal.SIGSTOP)
    os.kill(guards["agent"], signal.SIGKILL)
    os.kill(guards["guardian"], signal.SIGKILL)
    wait_until(lambda: job.status()["guarded"] is False, what="the guardian's end")
    answer = job.cli("status", job.name, "--json")
    assert json.loads(answer.stdout)["guarded"] is False
    assert answer.stderr == f"ddptop: adopted {job.name}, {TAKEN_UP}\n"
    wait_until(lambda: "agent" not in job.processes(), what="the agent's end to be seen")
    step = job.status()["step"]
    wait_until(lambda: job.status()["step"] > step, what="steps heard again")
    assert [rank["pid"] for rank in job.status()["ranks"]] == pids
    assert not procs.is_alive(procs.identify(guards["supervisor"]))

    # the ranks' exits are noticed although nobody reaps them, and a new agent starts the next
    # attempt
    job.kill_rank(1)
    wait_until(lambda: job.trains(attempt=1), what="the second attempt")
    (failure,) = job.events("failure")
    assert (failure["rank"], failure["signal"]) in [(1, "SIGKILL"), (1, None)]
    pid = job.rank(0)["pid"]
    assert procs.environ_value(pid, "OF_THE_SHELL") == "that launched it"
    assert procs.environ_value(pid, "OF_THE_JOB") == "1"
    types = [event["type"] for event in job.events()]
    assert types.count("guardian_restarted") == 2
    assert (types.count("launched"), types.count("attempt_started")) == (1, 2)

    # SIGTERM to both, as at logout or shutdown, also ends the guardian
    guards = job.processes()
    for role in ("supervisor", "guardian"):
        os.kill(guards[role], signal.SIGTERM)
    wait_until(lambda: guardians_of(job) == [], what="the guardian to leave")
    # stop works through the new processes
    answer = job.cli("stop", job.name)
    assert (answer.returncode, TAKEN_UP in answer.stderr) == (0, True)
    assert job.status()["state"] == "stopped"
    assert job.events("stopped")[0]["attempt"] == 1


def test_a_supervisor_that_a_killed_guardian_had_just_started_gives_way(launch, wait_until):
    """It gets the lock before the new guardian's own, and has nobody who starts an agent."""
    job = launch(10_000, 0.05)
    wait_until(job.trains, what="training")
    guards = job.processes()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = own_command("supervisor", str(job.folder()), str(theirs.fileno()))
    job_id = json.loads((job.folder() / "job.json").read_text())["job_id"]
    env = os.environ | {"DDPTOP_JOB_ID": job_id}
    held = str(job.folder() / "supervisor.lock")
    stopped = (tmux_server(), guards["guardian"])  # tmux would resume it
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    os.kill(guards["supervisor"], signal.SIGKILL)
    with ours, theirs, subprocess.Popen(argv, env=env, pass_fds=[theirs.fileno()]) as other:
        try:
            wait_until(
                lambda: held in [file.path for file in psutil.Process(other.pid).open_files()],
                30,
                what="it has the lock",
            )
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        try:
            assert other.wait(30) == -signal.SIGKILL
        finally:
            other.kill()
    job.kill_rank(1)
    wait_until(lambda: job.trains(attempt=1), what="the second attempt")
    assert job.cli("stop", job.name).returncode == 0


def test_after_a_reboot_a_job_is_lost_and_starts_again_from_its_spec(
    launch, wait_until, monkeypatch
):
    for name in ("ONLY_THEN", "SHELL"):  # SHELL matters to no training
        monkeypatch.setenv(name, "/bin/sh")
    job = launch(10_000, 0.05)
    for name in ("ONLY_THEN", "SHELL"):
        monkeypatch.delenv(name)
    wait_until(job.trains, what="training")
    guards = job.processes()
    pids = [*guards.values(), *(rank["pid"] for rank in job.status()["ranks"])]
    for pid in pids:  # the machine shuts down: stopped first, so that none restarts another
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    job_id = json.loads((job.folder() / "job.json").read_text())["job_id"]
    for pid in procs.pids_of_job(job_id):
        with contextlib.suppress(ProcessLookupError):  # it exited because its parent was gone
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: procs.pids_of_job(job_id) == [], what="nothing to be left")
    (node_file,) = (job.folder() / "nodes").glob("*.json")
    node = json.loads(node_file.read_text())
    node["boot_id"] = "00000000-0000-0000-0000-000000000000"
    for role in ("guardian", "supervisor", "agent"):
        node[role]["boot_id"] = node["boot_id"]
    node["ran_s"] = 4980.0
    node_file.write_text(json.dumps(node))
    assert job.status()["state"] == "lost"
    row = next(line for line in job.cli("ls").stdout.splitlines() if line.startswith(job.name))
    assert row.split()[1] == "lost"
    answer = job.cli("restart", job.name)
    assert answer.returncode == 0, answer.stderr
    assert "set at launch but missing from this shell: ONLY_THEN\n" in answer.stderr
    wait_until(lambda: job.trains(attempt=1), what="the second attempt")
    (lost,) = job.events("lost")
    assert lost["attempt"] == 0
    assert "attempt 0 was lost: the machine rebooted" in lost["message"]
    status = job.cli("status", job.name).stdout
    assert re.search("1h ?23m", status)  # the time in between does not count
    job.cli("kill", job.name)
