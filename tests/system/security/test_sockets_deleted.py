"""A socket appears once somebody listens; a job whose sockets were deleted can still be ended."""

from __future__ import annotations

import os
import socket

import pytest

from ddptop_runner.base.paths import run_folder
from ddptop_runner.job.registry import read_job
from ddptop_runner.jobs import commands
from ddptop_runner.model.protocol import Done, Ping
from ddptop_runner.node import control
from ddptop_runner.node.server import SocketFile


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
    assert "the job's processes have exited" in (commands.stop(view, 0.0) or "")
    ended = commands.wait_until_ended(view, 20)
    assert ended.state == "lost"


@pytest.fixture
def endpoint():
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        yield bound


def test_whoever_finds_the_path_is_not_refused(endpoint, tmp_path):
    path = tmp_path / "control.sock"
    path.write_text("from an earlier supervisor")
    bound = SocketFile(endpoint, path)
    assert bound.is_there
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
    assert os.listdir(tmp_path) == ["control.sock"]


def test_a_folder_in_its_place_stays(endpoint, tmp_path):
    path = tmp_path / "control.sock"
    path.mkdir()
    with pytest.raises(OSError):
        SocketFile(endpoint, path)
    assert os.listdir(tmp_path) == ["control.sock"]
