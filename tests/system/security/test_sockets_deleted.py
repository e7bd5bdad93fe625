"""A cleaner of temporary files deletes a job's sockets: the job can still be ended."""

from __future__ import annotations

import pytest

from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import commands
from ddptop_runner.model.protocol import Done, Ping
from ddptop_runner.node import control


@pytest.mark.tmux
def test_a_job_without_sockets_binds_them_again_and_without_any_is_still_killed(
    ddptop_cli, wait_until, monkeypatch
):
    launched = ddptop_cli("launch", "-d", "--name", "sleeper", "--", "sleep", "1000")
    assert launched.returncode == 0, launched.stderr
    folder = run_folder("sleeper")
    wait_until(lambda: read_job(folder).state == "running")

    for path in (folder.control_socket, folder.probe_socket):
        path.unlink()
    wait_until(lambda: folder.control_socket.exists() and folder.probe_socket.exists())
    control.request(folder, Ping(), Done)
    told = wait_until(
        lambda: [
            line
            for line in ddptop_cli("events", "sleeper").stdout.splitlines()
            if "recreated the job's sockets" in line
        ]
    )
    assert len(told) == 1

    folder.control_socket.unlink()
    folder.control_socket.mkdir()
    (folder.control_socket / "stays").touch()  # so that the supervisor cannot bind
    monkeypatch.setattr(commands, "SUPERVISOR_START_S", 0.5)
    view = read_job(folder)
    assert "the job's processes have exited" in (commands.kill(view) or "")
    ended = commands.wait_until_ended(view, 20)
    assert ended.state == "lost"
