"""Torch's private names that the probe uses, in the installed version of torch.

The probe does without what a torch lacks, so a renamed one would only make a figure disappear. The
agent's are in `tests/unit/agent/test_torch_interfaces.py`.
"""

from __future__ import annotations

import inspect
import io
import time
import tokenize
from pathlib import Path

import pytest

from ddptop_runner.probe.hooks import Hooks
from ddptop_runner.probe.phases import COLLECTIVES, COLLECTIVES_WITHIN, RUNS_COMPILED, STORES
from ddptop_runner.probe.recorder import Recorder

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

RUNNER = Path(__file__).parents[3] / "runner" / "ddptop_runner"
FILES = [file for room in ("agent", "probe") for file in sorted((RUNNER / room).rglob("*.py"))]
NAMES = [
    *("_patch_step_function", "_len_torch_function_stack", "_len_torch_dispatch_stack"),
    *("_saved_other", "_version", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"),
    *("_next_data", "_worker_info", "_get_ddp_logging_data", "_world", "_dump_fr_trace_json"),
    *("_dump_nccl_trace_json", "_pcontext", "_remaining_restarts", "_monitor_workers"),
    *("_start_workers", "_stop_workers", "_exit_barrier", "_popen", "skip_code"),
    *("_index_sampler", "_num_workers", "_pin_memory", "_ddp_graph_static", "_comm_hooks"),
    *("_join_config", "_ddp_init_helper", "_lazy_call"),
    *("_record_memory_history", "_cuda_attach_out_of_memory_observer"),
    *("_FrameExecStrategy", "set_runtime_stats_and_log", "master_listen_fd", "use_libuv"),
]


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_each_private_name_is_used_in_one_module(name: str) -> None:
    users = []
    for file in FILES:
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        words = {token.string.strip("'\"") for token in tokens if token.type in (1, 3)}
        if name in words:
            users.append(file.name)
    assert len(users) == 1, users


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


def test_optimizers_call_what_is_patched_when_they_are_made(monkeypatch) -> None:
    made, original = [], torch.optim.Optimizer._patch_step_function

    def patch(optimizer):
        made.append(optimizer)
        original(optimizer)

    monkeypatch.setattr(torch.optim.Optimizer, "_patch_step_function", patch)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert len(made) == 1 and made[0] is optimizer


def test_what_is_read_of_tensors_and_their_graphs() -> None:
    weight = torch.ones(1, requires_grad=True)
    before = weight._version
    with torch.no_grad():
        weight += 1
    assert weight._version == before + 1
    for changed, name in ((weight / torch.tensor(4.0), "Div"), (weight * torch.tensor(4.0), "Mul")):
        assert changed.grad_fn.name() == f"{name}Backward0"
        assert changed.grad_fn._saved_other.item() == 4.0
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    with torch._C.DisableTorchFunction():
        pass
    assert not torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def test_a_worker_of_a_data_loader_is_known_by_its_table() -> None:
    from torch.utils.data._utils import worker

    assert worker._worker_info is None
    assert "global _worker_info" in inspect.getsource(worker._worker_loop)


def test_ddp_measures_what_is_read() -> None:
    from torch.nn.parallel import DistributedDataParallel

    logger = torch._C._distributed_c10d.Logger
    assert callable(logger._get_ddp_logging_data)
    assert "set_runtime_stats_and_log()" in inspect.getsource(DistributedDataParallel)
    assert parameters(DistributedDataParallel._sync_buffers) == ["self"]


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


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_of_a_loader_shows_its_data_and_its_place(workers: int) -> None:
    data = list(range(4))
    batches = iter(torch.utils.data.DataLoader(data, num_workers=workers))
    assert batches._dataset is data
    assert (batches._num_yielded, batches._num_workers) == (0, workers)
    assert isinstance(batches._index_sampler.sampler, torch.utils.data.SequentialSampler)
    next(batches)
    assert batches._num_yielded == 1


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
