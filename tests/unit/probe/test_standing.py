"""What a stack says: a table, without torch."""

from __future__ import annotations

import os
import sys
import threading
import types
from pathlib import Path

import pytest

from ddptop_runner.probe import phases

SITE = "/opt/venv/lib/python3.11/site-packages/"
MAIN = ("/home/me/train.py", "main")
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
DYNAMO = (
    lib("torch/fx/graph.py"),
    lib("torch/_dynamo/symbolic_convert.py"),
    lib("torch/_dynamo/convert_frame.py"),
    lib("torch/_dynamo/eval_frame.py", "compile_wrapper"),
)


@pytest.mark.parametrize(
    ("innermost_first", "expected"),
    [
        ([], (None, None)),
        ([TRAIN, MAIN], (None, None)),
        ([lib("torch/nn/modules/module.py", "_call_impl"), TRAIN], (None, None)),
        # evaluation
        ([EVALUATE, MAIN], (None, "evaluation")),
        ([lib("torch/nn/modules/module.py"), EVALUATE, TRAIN, MAIN], (None, "evaluation")),
        ([lib("lightning/pytorch/loops/evaluation_loop.py", "run"), TRAIN], (None, "evaluation")),
        ([lib("transformers/trainer.py", "evaluation_loop"), MAIN], (None, "evaluation")),
        ([lib("sympy/core/evalf.py", "evaluate"), TRAIN], (None, None)),
        ([lib("torch/nn/modules/module.py", "eval"), TRAIN], (None, None)),
        # waiting, and what for
        ([*LOADER, TRAIN], ("data", None)),
        ([*LOADER, EVALUATE, MAIN], ("data", "evaluation")),
        ([*GATHER, TRAIN], ("collective", None)),
        ([*GATHER, EVALUATE, MAIN], ("collective", "evaluation")),
        ([*GATHER, *STORE, MAIN], ("collective", "checkpoint")),
        ([lib("torch/distributed/rendezvous.py"), MAIN], ("collective", None)),
        ([lib("torch/distributed/utils.py", "_sync_module_states"), MAIN], ("collective", None)),
        ([lib("torch/distributed/utils.py", "_recursive_to"), MAIN], (None, None)),
        # what a loader calls is the loader's
        ([*STORE, ("/home/me/train.py", "__getitem__"), *LOADER, TRAIN], ("data", None)),
        ([*GATHER, *LOADER, EVALUATE], ("data", "evaluation")),
        # checkpoints
        ([*STORE, TRAIN, MAIN], (None, "checkpoint")),
        ([*STORE, EVALUATE, MAIN], (None, "checkpoint")),
        ([EVALUATE, ("/home/me/train.py", "save_best_model"), MAIN], (None, "evaluation")),
        ([("/home/me/util.py", "save_checkpoint"), MAIN], (None, "checkpoint")),
        ([lib("transformers/trainer.py", "_save_checkpoint"), MAIN], (None, "checkpoint")),
        ([lib("transformers/modeling_utils.py", "from_pretrained")], (None, "checkpoint")),
        ([lib("safetensors/torch.py", "save_file"), MAIN], (None, "checkpoint")),
        ([lib("numpy/lib/_npyio_impl.py", "savez"), MAIN], (None, "checkpoint")),
        ([lib("numpy/lib/_npyio_impl.py", "load"), MAIN], (None, None)),
        ([lib("torch/utils/checkpoint.py", "checkpoint"), TRAIN], (None, None)),
        # compilation, and the frames that stand around a compiled call
        ([*DYNAMO, TRAIN], (None, "compile")),
        ([*DYNAMO, EVALUATE, MAIN], (None, "compile")),
        ([lib("torch/_dynamo/eval_frame.py", "compile_wrapper"), TRAIN], (None, None)),
        ([lib("torch/_inductor/output_code.py", "__call__"), EVALUATE], (None, "evaluation")),
        ([lib("triton/compiler/compiler.py"), TRAIN], (None, "compile")),
        ([lib("torch/_inductor/runtime/triton_heuristics.py", "run"), TRAIN], (None, None)),
        (
            [lib("torch/_inductor/runtime/triton_heuristics.py", "benchmark_all_configs")],
            (None, "compile"),
        ),
        ([lib("torch/utils/cpp_extension.py", "load"), MAIN], (None, "compile")),
        # an import says nothing, whatever it calls
        ([lib("torch/_dynamo/trace_rules.py"), lib("torch/_dynamo/__init__.py", "<module>")], None),
        ([*DYNAMO[1:2], lib("torch/_dynamo/x.py", "<module>"), *DYNAMO[2:]], (None, "compile")),
    ],
)
def test_a_stack_says(
    innermost_first: list[tuple[str, str]], expected: tuple[str | None, str | None] | None
) -> None:
    assert phases.recognize(innermost_first) == (expected or (None, None))


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        *((name, "evaluation") for name in ("eval", "validate", "run_eval", "validation_step")),
        *((name, "evaluation") for name in ("test", "test_epoch", "evaluateModel", "predict")),
        *((name, "evaluation") for name in ("_eval_loop", "on_validation_end", "val_epoch")),
        *((name, None) for name in ("train_and_evaluate", "should_evaluate", "main_eval", "fit")),
        *((name, None) for name in ("test_training", "interval", "get_val_loader", "medieval")),
        *((name, "checkpoint") for name in ("save", "save_model", "_save_checkpoint")),
        *((name, "checkpoint") for name in ("load_checkpoint", "saveState", "dump_weights")),
        *((name, None) for name in ("checkpoint_forward", "save_predictions", "load_data")),
        *((name, None) for name in ("model", "build_model", "load_model_config")),
    ],
)
def test_the_name_of_a_function_says(function: str, phase: str | None) -> None:
    assert phases.kind_of("/home/me/train.py", function) == phase
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
    assert place((STDLIB + "threading.py", "wait", 3)) is None
    assert place() is None


def test_the_package_that_runs_is_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_kinds", {})
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
