"""Error files that would crash torch's agent are set aside; valid ones are kept."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

AGENT = Path(__file__).parents[3] / "runner" / "ddptop_runner"
GOOD = {"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1"}}}


@pytest.fixture(scope="module")
def elastic():
    sys.path.insert(0, str(AGENT))
    try:
        yield importlib.import_module("agent.elastic")
    finally:
        sys.path.remove(str(AGENT))
        for name in [name for name in sys.modules if name.split(".")[0] == "agent"]:
            del sys.modules[name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        json.dumps(GOOD).encode()[:40],
        b"\xff\x00",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"message": 3}',
        b'{"message": {"message": "x", "extraInfo": {"timestamp": "soon"}}}',
    ],
)
def test_unreadable_error_file_is_set_aside(elastic, tmp_path, content):
    path = tmp_path / "rank-0.error.json"
    path.write_bytes(content)
    elastic.set_aside_broken_files([str(path)])
    assert not path.exists()
    assert Path(f"{path}.broken").read_bytes() == content


def make_endless(path):
    path.symlink_to("/dev/zero")


def make_huge(path):
    path.write_bytes(b" " * (1 << 20) + json.dumps(GOOD).encode())


@pytest.mark.parametrize("make", [os.mkfifo, make_endless, make_huge])
def test_what_torch_would_read_for_ever_is_set_aside(elastic, tmp_path, make):
    path = tmp_path / "rank-0.error.json"
    make(path)
    elastic.set_aside_broken_files([str(path)])
    assert not os.path.lexists(path)
