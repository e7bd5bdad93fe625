"""What the probe uses of the installed torch, and no training on CPUs would show to be missing.

The probe does without what a torch lacks, so a renamed one would only make a figure disappear.
"""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import pytest

from ddptop_runner.probe.hooks import Hooks
from ddptop_runner.probe.phases import COLLECTIVES, COLLECTIVES_WITHIN, RUNS_COMPILED, STORES
from ddptop_runner.probe.recorder import Recorder

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Only the worker that runs these tests imports torch, not each that collects them."""
    global torch
    torch = pytest.importorskip("torch")


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_every_patch_of_torch_is_applied(hooks: Hooks) -> None:
    assert {(getattr(owner, "__name__", ""), name) for owner, name, *_ in hooks.patched} == {
        ("DistributedDataParallel", "_ddp_init_helper"),
        *(("torch.autograd", "backward"), ("GradScaler", "scale"), ("GradScaler", "update")),
        *(("Optimizer", "_patch_step_function"), ("DataParallel", "__init__")),
        *(("_SingleProcessDataLoaderIter", "_next_data"), ("Logger", "set_runtime_stats_and_log")),
        *(("_MultiProcessingDataLoaderIter", "_next_data"), ("Work", "wait")),
        ("autocast", "__enter__"),
        *(("DistributedDataParallel", "_sync_buffers"), ("torch.serialization", "save")),
        *(("torch", "save"), ("torch", "load"), ("torch.serialization", "load")),
    }


@pytest.mark.parametrize("name", ["_dump_fr_trace_json", "_dump_nccl_trace_json"])
def test_a_flight_recorder_can_be_asked_for_progress_alone(name: str) -> None:
    recorder = getattr(torch._C._distributed_c10d, name, None)
    if recorder is None:
        pytest.skip(f"this torch was built without {name}")
    assert b'"pg_status"' in recorder(includeCollectives=False)


def test_the_allocator_can_be_asked_for_stacks() -> None:
    options = {"enabled", "context", "stacks", "max_entries"}
    assert options < set(parameters(torch.cuda.memory._record_memory_history))
    assert parameters(torch.cuda.memory._snapshot)[:1] == ["device"]


def test_recognized_functions_are_in_the_files_where_they_are_looked_for() -> None:
    site = Path(torch.__file__).parents[1]
    files = [f for f in (*COLLECTIVES, *RUNS_COMPILED, *STORES) if f.startswith("torch/")]
    # other versions have these elsewhere, or not yet
    files = [f for f in files if not f.endswith(("cudagraph", "output_code.py"))]
    assert [file for file in files if not (site / file).exists()] == []
    for function, file in COLLECTIVES_WITHIN.items():
        assert f"{function}(" in (site / file).read_text()


@pytest.mark.parametrize("is_plain", [True, False])
def test_the_time_until_the_backward_pass_is_summed(hooks: Hooks, is_plain: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizers = [torch.optim.SGD([weight], 0.1) for _ in range(1 if is_plain else 2)]
    for step in range(4):
        time.sleep(0.03)
        loss = weight.sum()
        (loss if is_plain else loss * 2).backward()
        optimizers[step % len(optimizers)].step()
    assert 0.09 <= hooks.record.until_backward_s < 3.0


def test_a_saved_file_has_the_place_in_the_data() -> None:
    record = Recorder()
    record.data_position = lambda: [1, 54]
    record.has_saved("/c.pt", 1.0, 2.0, 60, 10, 7, 9)
    assert record.saved["data_position"] == [1, 54]
