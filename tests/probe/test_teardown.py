"""A rank that ends right after a collective ends with 0, not with torch's abort."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

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
    ("stats", "states"),
    [
        ([], []),
        (["7 (python) S 1", "8 (pt_tcpstore_uv) R 1"], []),
        (
            ["7 (py (x) R) S 1", "8 (gloo_tcp_loop) S 1", "9 (pt_gloo_runloop) R 1"],
            ["R"],
        ),
    ],
)
def test_gloo_threads_are_told_by_their_names(teardown, tmp_path, stats, states):
    for number, stat in enumerate(stats):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{stat} 2 3\n")
    (tmp_path / "just-ended").mkdir()
    assert teardown.gloo_threads(tmp_path) == states


def test_its_own_threads_are_read(teardown, monkeypatch):
    monkeypatch.setattr(teardown, "GLOO_THREAD", Path("/proc/self/comm").read_text().strip())
    assert "R" in teardown.gloo_threads()


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([[]], []),
        ([["S"], ["S"]], ["moment"]),
        ([["S", "S"], ["S", "R"], ["D", "S"], ["S", "S"]], ["moment", "look", "look"]),
        ([["R"]] * 1000, ["moment", *["look"] * 90]),
    ],
)
def test_a_thread_at_work_is_waited_for(teardown, monkeypatch, looks, waits):
    now_s, waited, states = 0.0, [], iter(looks)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        waited.append("moment" if seconds == teardown.MOMENT_S else "look")

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: round(now_s, 6))
    monkeypatch.setattr(teardown, "time", clock)
    monkeypatch.setattr(teardown, "gloo_threads", lambda: next(states))
    teardown.let_gloo_finish()
    assert waited == waits
