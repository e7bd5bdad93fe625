"""No terminal, no signal, and no death except the ranks' own ends a job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.support.programs import captured
from tests.support.real_jobs import Job
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.torch, pytest.mark.tmux]


def test_hangup_and_killed_tmux_leave_the_job_in_attempt_0(
    trainer, ddptop_cli, wait_until, ddptop_home
):
    # the TUI opens on the new job, in a terminal that is then closed like a lost connection
    script = [str(trainer / "train.py"), "1000", "0.05", str(trainer)]
    terminal = Terminal("launch", "--nproc", "2", "--name", "outlive", *script)
    job = Job("outlive", ddptop_cli)
    wait_until(lambda: job.folder().exists() and job.cli("status", "outlive").returncode == 0)
    wait_until(job.trains, what="training")
    terminal.hang_up()
    terminal.process.wait(60)
    for pid in job.processes().values():
        os.kill(pid, signal.SIGHUP)
    socket_name = os.environ["DDPTOP_TMUX_SOCKET"]
    subprocess.run(["tmux", "-L", socket_name, "kill-server"], check=True)
    step = job.status()["step"]
    wait_until(lambda: job.status()["step"] > step, what="progress after the hang-up")
    (trainer / "hurry").touch()
    assert job.wait() == 0
    status = job.status()
    assert (status["state"], status["attempt"], status["restarts_used"]) == ("finished", 0, 0)
    assert [rank["step"] for rank in status["ranks"]] == [1000, 1000]


def test_ctrl_c_in_the_pane_does_nothing_and_attach_works_inside_other_multiplexers(
    launch, wait_until, tmp_path
):
    job = launch(10_000, 0.05)
    wait_until(job.trains, what="training")
    tmux = ["tmux", "-L", os.environ["DDPTOP_TMUX_SOCKET"]]
    for _ in range(3):
        subprocess.run([*tmux, "send-keys", "-t", job.name, "C-c"], check=True)

    def pane() -> str:
        return captured(*tmux, "capture-pane", "-p", "-t", job.name, check=True).stdout

    wait_until(lambda: f"ddptop stop {job.name}" in pane(), what="the advice in the pane")
    assert "attempt 0: 2 ranks started" in pane()
    step = job.status()["step"]
    wait_until(lambda: job.status()["step"] > step + 3, what="progress after Ctrl-C")

    for inside in ("tmux", "screen"):
        if shutil.which(inside) is not None:
            attach_inside(inside, job, tmp_path, wait_until)
            assert job.status()["state"] == "running"
    job.cli("kill", job.name)
    if shutil.which("screen") is None:
        pytest.skip("screen is not installed")


def attach_inside(inside: str, job: Job, tmp_path: Path, wait_until: Callable[..., object]) -> None:
    """Wait for the screen of `job` inside another tmux or screen."""
    outer = f"outer-{uuid.uuid4().hex[:8]}"
    attach = f"exec {sys.executable} -m ddptop attach {job.name}"
    if inside == "tmux":
        start = ["tmux", "-L", outer, "-f", "/dev/null", "new-session", "-d", "-x", "120"]
        subprocess.run([*start, "-y", "40", attach], check=True)
    else:
        subprocess.run(["screen", "-dmS", outer, "sh", "-c", attach], check=True)

    def screen() -> str:
        if inside == "tmux":
            shown = captured("tmux", "-L", outer, "capture-pane", "-p")
            return shown.stdout
        copy = tmp_path / "hardcopy"
        subprocess.run(["screen", "-S", outer, "-X", "hardcopy", str(copy)], check=False)
        return copy.read_text(errors="replace") if copy.exists() else ""

    try:
        wait_until(lambda: job.name in screen() and "rank" in screen().lower(), what="the TUI")
    finally:
        if inside == "tmux":
            subprocess.run(["tmux", "-L", outer, "kill-server"], check=False)
        else:
            subprocess.run(["screen", "-S", outer, "-X", "quit"], check=False)


@pytest.mark.parametrize("by", ["name", "id"])
def test_a_job_is_ended_after_its_run_folder_was_deleted(
    launch_script, ddptop_home, wait_until, by
):
    job = launch_script("import time\ntime.sleep(600)\n", nproc=1, name="deleted")
    rank = psutil.Process(wait_until(lambda: job.rank(0)["pid"]))
    name = job.name if by == "name" else rank.environ()["DDPTOP_JOB_ID"]
    gone = job.folder().rename(ddptop_home / "gone")  # else a new snapshot may stop the deletion
    shutil.rmtree(gone)
    answer = job.cli("stop", name, "--grace", "1")
    assert answer.returncode == 0, answer.stderr
    restored = "deleted stopped" in answer.stderr  # by its supervisor, on a busy machine
    assert restored or "its run folder had been deleted" in answer.stderr
    assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE
    # its supervisor may write the folder once more while it ends: then the job is there, and lost
    assert restored or job.cli("stop", name).returncode in (2, 3)


STARTER = """
import os, subprocess, sys, time
import torch
script = "env -i setsid sh -c 'sleep 600 & echo $! >%s'" % sys.argv[1]
subprocess.run(["sh", "-c", script], stdout=subprocess.DEVNULL)
time.sleep(600)
"""


@pytest.mark.parametrize("verb", ["stop", "kill without supervisor"])
def test_neither_a_stopped_zygote_nor_an_orphan_survives(launch_script, tmp_path, wait_until, verb):
    orphan = tmp_path / "orphan"
    text = f"import sys; sys.argv[1:] = [{str(orphan)!r}]\n{STARTER}"
    job = launch_script(text, nproc=1, name="starter")
    wait_until(lambda: orphan.exists() and orphan.read_text())
    agent = psutil.Process(job.processes()["agent"])
    rank = job.rank(0)["pid"]
    (zygote,) = [
        one for one in agent.children() if one.pid != rank and "starter" in str(one.cmdline())
    ]
    children = [zygote, psutil.Process(int(orphan.read_text()))]
    try:
        zygote.suspend()
        if verb.endswith("without supervisor"):
            os.kill(job.processes()["supervisor"], signal.SIGSTOP)
        answer = job.cli(verb.split()[0], job.name)
        assert answer.returncode == 0, answer.stderr
        wait_until(lambda: not [one for one in children if one.is_running()], timeout_s=20)
    finally:
        for process in children:
            if process.is_running():
                process.kill()
