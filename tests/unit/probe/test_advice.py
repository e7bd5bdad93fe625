"""What advice on a training rests on, read from a real DDP module and from gradients."""

from __future__ import annotations

import gc
import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop_runner.model.snapshot import DdpUse
from ddptop_runner.probe.advice import DdpUse as Use
from ddptop_runner.probe.advice import Gradients

pytestmark = pytest.mark.torch


@pytest.fixture
def group(tmp_path, monkeypatch) -> Any:
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setitem(os.environ, "GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("finds_unused", [True, False])
def test_a_ddp_module_is_read(hooks, group, finds_unused):
    torch = hooks.torch

    class Model(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.used(x) if finds_unused else self.unused(self.used(x))

    with pytest.warns() as caught:
        model = torch.nn.parallel.DistributedDataParallel(
            Model(), find_unused_parameters=finds_unused, broadcast_buffers=False
        )
        warnings.warn("torch may have none", UserWarning, stacklevel=1)
    assert {one.filename for one in caught} == {__file__}, "as without the probe"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    use = hooks.ddp_use.latest
    assert use["iteration"] == 10
    assert use["syncs_per_step"] == pytest.approx(2, abs=0.5)
    is_sum = model._get_ddp_logging_data().get("unused_parameter_size", 0) > 80  # torch 2.6
    assert use["finds_unused"] is finds_unused
    assert use["unused_bytes"] == (None if is_sum else 80 * finds_unused)
    assert use["is_static"] is True
    DdpUse(**use)

    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    del model
    gc.collect()
    other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    for _ in range(12):
        other(torch.ones(1, 1)).backward()
    assert hooks.ddp_use.latest["finds_unused"] is False, "of the module that is left"


def test_parameters_of_the_script_are_not_called(hooks, group):
    torch = hooks.torch

    class Parameter(torch.nn.Parameter):
        called = 0

        @classmethod
        def __torch_function__(cls, *args: Any) -> Any:
            cls.called += 1
            return super().__torch_function__(*args)

    model = torch.nn.Linear(1, 1)
    model.weight = Parameter(torch.ones(1, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    Parameter.called = 0
    hooks._note_group(parallel)
    assert not Parameter.called


FIGURES = {
    **{"backward_comm_time": 9, "iteration": 5, "find_unused_parameters": 0},
    "unused_parameter_size": 0,
}


class Module:
    reducer = SimpleNamespace(_ddp_graph_static=lambda: False)

    def __init__(self, parameters: Any = ()) -> None:
        self._given = parameters

    def parameters(self) -> Any:
        return iter(self._given)


@pytest.mark.parametrize(
    ("sizes", "unused_bytes"),
    [((80,), None), ((80, 80), 80), ((80, 160), None), ((80, 80, 160), None), ((0, 0), 0)],
)
def test_what_is_unused_is_unknown_unless_two_iterations_agree(hooks, sizes, unused_bytes):
    use, module = Use(hooks.torch, SimpleNamespace(steps=4)), Module()
    use.made(module)
    for iteration, size in enumerate(sizes, 1):
        figures = {**FIGURES, "iteration": iteration, "unused_parameter_size": size}
        for _ in range(2):  # they stay the same until DDP measures another iteration
            use.measured(figures, 0.0, 4)
    assert use.latest["unused_bytes"] == unused_bytes


@pytest.mark.parametrize(
    ("kinds", "capability", "precision", "has_autocast", "tf32_off"),
    [
        (("cuda", "cuda"), (8, 0), "highest", False, True),
        (("cuda", "convolution"), (8, 0), "highest", False, False),
        (("cuda", "cuda"), (7, 5), "highest", False, False),
        (("cuda", "cuda"), (9, 0), "high", False, False),
        (("cuda", "cuda"), (9, 0), "highest", True, False),
        (("cpu", "cpu"), (9, 0), "highest", False, False),
        (("cuda", "bfloat16"), (9, 0), "highest", False, False),
        ((), (9, 0), "highest", False, False),
    ],
)
def test_float32_without_tensor_cores(
    hooks, kinds, capability, precision, has_autocast, tf32_off, monkeypatch
):
    def get_precision() -> None:
        raise AssertionError("torch 2.9 warns of it")

    monkeypatch.setattr(hooks.torch, "get_float32_matmul_precision", get_precision)
    torch = SimpleNamespace(
        float32="float32",
        cuda=SimpleNamespace(get_device_capability=lambda device: capability),
        backends=hooks.torch.backends,
    )
    use = Use(torch, SimpleNamespace(steps=4))
    parameters = [
        SimpleNamespace(
            device=SimpleNamespace(type="cpu" if kind == "cpu" else "cuda"),
            dtype="bfloat16" if kind == "bfloat16" else "float32",
            dim=lambda kind=kind: 4 if kind == "convolution" else 2,
            numel=lambda kind=kind: 36 if kind == "convolution" else 4,
        )
        for kind in kinds
    ]
    module = Module(parameters)
    use.made(module)
    use.has_autocast = has_autocast
    hooks.torch.set_float32_matmul_precision(precision)
    try:
        use.measured(FIGURES, 0.0, 4)
    finally:
        hooks.torch.set_float32_matmul_precision("highest")
    assert use.latest["tf32_off"] is tf32_off


def entering(torch: Any, kind: str) -> Any:
    """A function of a tensor that enters autocast in one of many ways."""
    new = {
        "amp": torch.amp.autocast,
        "disabled": lambda *args: torch.autocast(*args, enabled=False),
    }.get(kind, torch.autocast)

    def within(x: Any) -> Any:
        with new("cpu", torch.bfloat16):
            return x @ x

    @torch.autocast("cpu", torch.bfloat16)  # type: ignore[untyped-decorator]
    def decorated(x: Any) -> Any:
        return x @ x

    function = decorated if "decorat" in kind else within
    compiles = kind.startswith("compiled")
    return torch.compile(function, backend="aot_eager", fullgraph=True) if compiles else function


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "kind", ["with", "amp", "decorator", "compiled", "compiled decorator", "disabled"]
)
def test_whether_autocast_was_entered(hooks, kind):
    torch = hooks.torch
    x = torch.full((4, 4), 1 / 3)
    result = entering(torch, kind)(x)
    assert hooks.ddp_use.has_autocast is (kind != "disabled")
    expected = x @ x if kind == "disabled" else (x.bfloat16() @ x.bfloat16())
    assert result.dtype == expected.dtype and torch.equal(result, expected)


@pytest.mark.parametrize(
    ("factor", "is_of_model", "expected"),
    [(1.0, True, None), (1.0, False, "no_gradients"), (0.0, True, "zero_gradients")],
)
def test_steps_that_change_nothing(hooks, factor, is_of_model, expected):
    torch = hooks.torch
    model, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD((model if is_of_model else other).parameters(), 0.1)
    found = hooks.gradients
    for _ in range(4):
        (factor * model(torch.ones(1, 4))).sum().backward()
        optimizer.step()
        assert found.idle == expected
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert found.idle is None and found.is_found, "once is enough"


def test_gradients_that_cannot_be_read_count(hooks):
    torch = hooks.torch
    found = Gradients(torch)
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.zeros(3).to_sparse()
    found.look(torch.optim.SGD([weight], 0.1))
    assert found.idle is None
