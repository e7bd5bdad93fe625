"""A socket's path appears once somebody listens, and what stands in its way is left alone."""

from __future__ import annotations

import os
import socket

import pytest

from ddptop_runner.node.server import SocketFile


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
