"""A rank that ends right after a collective ends with 0, not with torch's abort."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "runner" / "ddptop_runner" / "probe" / "teardown.py"


@pytest.fixture
def teardown():
    spec = importlib.util.spec_from_file_location("teardown_under_test", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("comms", "expected"),
    [
        ((), False),
        (("python", "pt_tcpstore_uv"), False),
        (("python", "gloo_tcp_loop", "pt_gloo_runloop"), True),
    ],
)
def test_gloo_threads_are_told_by_their_names(teardown, tmp_path, comms, expected):
    for number, comm in enumerate(comms):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{comm}\n")
    (tmp_path / "just-ended").mkdir()
    assert teardown.has_gloo_threads(tmp_path) is expected


def test_a_process_without_gloo_does_not_wait(teardown, monkeypatch):
    waits = []
    monkeypatch.setattr(teardown.time, "sleep", waits.append)
    teardown.let_gloo_finish()
    assert waits == []
    monkeypatch.setattr(teardown, "has_gloo_threads", lambda: True)
    teardown.let_gloo_finish()
    assert waits == [teardown.MOMENT_S]
