"""Who holds a device's memory when it runs out, from snapshots of torch's allocator.

The CPU's torch has no such allocator: the snapshot has the form in the docstring of
`torch.cuda.memory._snapshot`, with the names that its C++ source (`THCPModule_memorySnapshot`)
adds, such as `device`. Stacks begin with the innermost frame.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop_runner.probe import memory

LINEAR = ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", "forward", 125)
FORWARD = [LINEAR, ("/home/me/model.py", "forward", 33), ("/home/me/train.py", "main", 9)]
MAIN = [("/home/me/train.py", "main", 7)]


def block(size: int, stack: Any, state: str = "active_allocated") -> dict[str, Any]:
    frames = [{"filename": file, "name": name, "line": line} for file, name, line in stack]
    fields = {"address": 0, "size": size, "requested_size": size - 1}
    return {**fields, "state": state, "frames": frames}


def segment(device: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    fields = {"address": 0, "stream": 0, "segment_type": "large", "is_expandable": False}
    return {**fields, "device": device, "blocks": list(blocks), "frames": []}


SNAPSHOT = {
    "segments": [
        segment(1, block(512, MAIN), block(4096, FORWARD), block(9999, FORWARD, "inactive")),
        segment(1, block(1024, []), block(9999, MAIN, "active_pending_free")),
        segment(1, block(2048, FORWARD)),
        segment(0, block(9999, MAIN)),
    ],
    "device_traces": [[], []],
}
HELD = {
    "total_bytes": 7680,
    "by_place": {"model.py:33 in forward": 6144, "": 1024, "train.py:7 in main": 512},
}


def test_tensors_of_a_device_by_the_lines_that_allocated_them():
    held = memory.held(SNAPSHOT, 1)
    assert held == HELD
    assert list(held["by_place"]) == list(HELD["by_place"])  # type: ignore[call-overload]


def test_only_the_lines_that_hold_most_are_named_and_all_count():
    blocks = [block(size, [("/home/me/train.py", "main", size)]) for size in range(1, 100)]
    held = memory.held({"segments": [segment(0, *blocks)]}, 0)
    assert held["total_bytes"] == 4950
    assert list(held["by_place"].values()) == list(range(99, 91, -1))


class Torch:
    """As much of torch as is used, on a machine with CUDA."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], None]] = []
        self.options: dict[str, Any] = {}
        self.observers: list[Callable[[int, int, int, int], None]] = []
        functions = SimpleNamespace(_record_memory_history=self.record, _snapshot=lambda: SNAPSHOT)
        self.cuda = SimpleNamespace(_lazy_call=self.queued.append, memory=functions)
        self._C = SimpleNamespace(_cuda_attach_out_of_memory_observer=self.observers.append)

    def record(self, **options: Any) -> None:
        self.options = options


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Torch:
    for name, value in (("STACKS_DIR", str(tmp_path / "stacks")), ("ATTEMPT", "2")):
        monkeypatch.setenv(f"DDPTOP_{name}", value)
    monkeypatch.setenv("DDPTOP_MEMORY_SNAPSHOT", "on")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr("ddptop_runner.probe.identity.rank", lambda: 3)
    return Torch()


def run_out(torch: Torch) -> None:
    memory.arm(torch)
    for call in torch.queued:
        call()
    for observer in torch.observers:
        observer(1, 2**31, 2**36, 2**20)


def test_what_is_held_is_written_as_memory_runs_out(torch, tmp_path):
    run_out(torch)
    assert torch.options["stacks"] == "python" and torch.options["max_entries"] <= 100_000
    stem = tmp_path / "stacks" / "attempt-2-rank-3-memory"
    files = [stem.with_suffix(".json"), stem.with_suffix(".pickle")]
    assert sorted(stem.parent.iterdir()) == files
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert json.loads(files[0].read_bytes()) == HELD
    assert pickle.loads(files[1].read_bytes()) == SNAPSHOT


def test_a_snapshot_that_is_too_large_is_left_out(torch, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MAX_BYTES", 100)
    run_out(torch)
    assert [path.suffix for path in (tmp_path / "stacks").iterdir()] == [".json"]


@pytest.mark.parametrize("what", ["off", "no recording", "no snapshot", "no disk"])
def test_the_script_notices_nothing(torch, tmp_path, monkeypatch, what):
    if what == "off":
        monkeypatch.delenv("DDPTOP_MEMORY_SNAPSHOT")
    elif what == "no recording":
        del torch.cuda.memory._record_memory_history
    elif what == "no snapshot":
        del torch.cuda.memory._snapshot
    else:
        monkeypatch.setenv("DDPTOP_STACKS_DIR", "/proc/nowhere")
    run_out(torch)
    assert bool(torch.queued) is (what != "off")
    assert not (tmp_path / "stacks").exists()


@pytest.mark.torch
def test_recording_waits_until_the_script_initializes_cuda(torch, monkeypatch, request):
    real: Any = pytest.importorskip("torch")
    monkeypatch.setattr(real.cuda, "_queued_calls", [])
    request.getfixturevalue("hooks")
    ((call, _),) = real.cuda._queued_calls
    assert not real.cuda.is_initialized()
    call()  # as `torch.cuda._lazy_init` does; without CUDA, nothing can be recorded
