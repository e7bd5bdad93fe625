"""What advice on a training rests on, read from a real DDP module and from gradients."""

from __future__ import annotations

import gc
import os
import warnings
from typing import Any

import pytest

from ddptop_runner.model.snapshot import DdpUse
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
    assert (use["finds_unused"], use["unused_bytes"]) == (finds_unused, 80 * finds_unused)
    assert use["is_static"] is True
    DdpUse(**use)

    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    del model
    gc.collect()
    other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    for _ in range(12):
        other(torch.ones(1, 1)).backward()
    assert hooks.ddp_use.latest["finds_unused"] is False, "of the module that is left"


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
