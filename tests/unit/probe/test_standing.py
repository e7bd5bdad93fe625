"""What a stack says: a table, without torch."""

from __future__ import annotations

import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from tests.support.tables import table

from ddptop_runner.probe import phases

SITE = "/opt/venv/lib/python3.11/site-packages/"
TRAIN = ("/home/me/train.py", "train_one_epoch")
STDLIB = f"{Path(os.__file__).parent}/"


def lib(file: str, function: str = "f") -> tuple[str, str]:
    return SITE + file, function


EVALUATE = ("/home/me/train.py", "evaluate")
LOADER = (lib("torch/utils/data/dataloader.py", "_next_data"),)
GATHER = (
    lib("torch/distributed/distributed_c10d.py", "all_reduce"),
    lib("torch/distributed/c10d_logger.py", "wrapper"),
)
STORE = (lib("torch/serialization.py", "_save"), lib("torch/serialization.py", "save"))


@pytest.mark.parametrize(
    "case", table(__file__, "stacks"), ids=range(len(table(__file__, "stacks")))
)
def test_a_stack_says(case: dict[str, Any]) -> None:
    stack = [tuple(frame.split(" ")) for frame in case["stack"]]
    full = [
        (file.replace("~", "/home/me") if file[0] == "~" else SITE + file, function)
        for file, function in stack
    ]
    assert phases.recognize(full) == (case.get("waits_for"), case.get("phase"))


@pytest.mark.parametrize(
    ("function", "phase"),
    [(name, phase) for phase, names in table(__file__, "names").items() for name in names],
)
def test_the_name_of_a_function_says(function: str, phase: str) -> None:
    assert (phases.kind_of("/home/me/train.py", function) or "nothing") == phase
    assert phases.kind_of(SITE + "scipy/x.py", function) is None


def place(*frames: tuple[str, str, int]) -> str | None:
    return phases.place(list(frames))


def test_the_place_is_the_innermost_line_of_the_script() -> None:
    torch_frame = (SITE + "torch/nn/modules/linear.py", "forward", 7)
    outer = ("/home/me/train.py", "main", 90)
    inner = ("/home/me/lib/net.py", "forward", 41)
    assert place(torch_frame, inner, torch_frame, outer) == "net.py:41 in forward"
    for own in (phases.__file__, STDLIB + "threading.py", "<frozen importlib._bootstrap>"):
        assert place((own, "wait", 3), outer) == "train.py:90 in main"
    assert place(("/tmp/torchinductor_me/ab/cab.py", "call", 5), outer) == "train.py:90 in main"
    installed = (SITE + "mine/train.py", "main", 90)
    assert place(
        (SITE + "ddptop_runner/probe/hooks.py", "backward", 2), torch_frame, installed
    ) == ("train.py:90 in main")
    assert place((STDLIB + "threading.py", "wait", 3)) is None
    assert place() is None


def test_the_package_that_runs_is_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "kind_of", phases.kind_of.__wrapped__)
    main = types.ModuleType("__main__")
    main.__package__ = "mine.cli"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert phases.kind_of(SITE + "mine/loops.py", "evaluate") == "evaluation"
    assert phases.kind_of(SITE + "other/loops.py", "evaluate") is None
    inner = (SITE + "other/a.py", "g", 2)
    assert place(inner, (SITE + "mine/loops.py", "evaluate", 4)) == "loops.py:4 in evaluate"


def test_the_frames_of_a_thread_are_read_innermost_first() -> None:
    begun, end = threading.Event(), threading.Event()

    def wait_here() -> None:
        begun.set()
        end.wait(10)

    thread = threading.Thread(target=wait_here)
    thread.start()
    begun.wait(10)
    frames = phases.frames_of(thread.ident)
    end.set()
    thread.join()
    functions = [frame[1] for frame in frames if frame[0] == __file__]
    assert functions == ["wait_here"] and frames[0][1] == "wait"
    assert phases.frames_of(thread.ident) == phases.frames_of(None) == []


def test_a_deep_stack_is_read_in_part() -> None:
    def deep(levels: int) -> list[tuple[str, str, int]]:
        return deep(levels - 1) if levels else phases.frames_of(threading.get_ident())

    assert len(deep(500)) == phases.MAX_FRAMES
