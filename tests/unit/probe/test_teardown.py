"""A rank that ends right after a collective ends with 0, not with torch's abort."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ddptop_runner.probe import ending


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
def test_gloo_threads_are_recognized_by_name(tmp_path, stats, states):
    for number, stat in enumerate(stats):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{stat} 2 3\n")
    (tmp_path / "just-ended").mkdir()
    assert ending.gloo_threads(tmp_path) == states


def test_its_own_threads_are_read(monkeypatch):
    monkeypatch.setattr(ending, "GLOO_THREAD", Path("/proc/self/comm").read_text().strip())
    assert "R" in ending.gloo_threads()


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([[]], []),
        ([["S"], ["S"]], ["moment"]),
        ([["S", "S"], ["S", "R"], ["D", "S"], ["S", "S"]], ["moment", "look", "look"]),
        ([["R"]] * 1000, ["moment", *["look"] * 90]),
    ],
)
def test_a_thread_at_work_is_waited_for(monkeypatch, looks, waits):
    now_s, waited, states = 0.0, [], iter(looks)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        waited.append("moment" if seconds == ending.MOMENT_S else "look")

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: round(now_s, 6))
    monkeypatch.setattr(ending, "time", clock)
    monkeypatch.setattr(ending, "gloo_threads", lambda: next(states))
    ending.let_gloo_finish()
    assert waited == waits
