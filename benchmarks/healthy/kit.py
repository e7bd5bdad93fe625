"""What the healthy trainings share: a device that takes time, data, a model, and the loop.

A pause stands for the device: the CPU waits for it, as it does for a GPU, so that several
trainings can run beside each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
FEATURES = 32
SECONDS = float(os.environ.get("HEALTHY_SECONDS", "240"))
"""How long trainings take that end by themselves."""


class Kind(NamedTuple):
    """A training that nobody should be warned about."""

    train: Callable[[], None]
    ranks: int
    needs: str
    """A package that it needs besides torch; empty for none."""
    by: str
    """Who starts the ranks: `ddptop`, `spawn` (the script itself), or `torchrun`."""
    is_beside_others: bool
    """Whether other programs take the CPUs from time to time."""

    def command(self, python: str, script: str, name: str) -> list[str]:
        """The last arguments of `ddptop launch`."""
        if self.by == "spawn":
            return ["--", python, script, name]
        if self.by == "torchrun":
            torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
            return ["--", *torchrun, "--nproc-per-node", str(self.ranks), script, name]
        return ["--nproc", str(self.ranks), script, name]


class _Pause(torch.autograd.Function):
    """Takes time, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return grads[0], None, None


class Device(nn.Module):
    """A layer that takes as long as a device would."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s

    def forward(self, x: Tensor) -> Tensor:
        """Forward takes a third of a step, backward the rest."""
        if not torch.is_grad_enabled():
            time.sleep(self.step_s / 3)
            return x
        out: Tensor = _Pause.apply(x, self.step_s / 3, 2 * self.step_s / 3)
        return out


def join() -> None:
    """Join the other ranks."""
    torch.manual_seed(RANK)
    if WORLD > 1:
        dist.init_process_group("gloo")


def net(step_s: float = 0.1, outputs: int = 1, width: int = 64) -> nn.Sequential:
    """A small model whose steps take so long."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, width), Device(step_s), nn.ReLU(), nn.Linear(width, outputs)]
    torch.manual_seed(1000 + RANK)
    return nn.Sequential(*layers)


def ddp(model: nn.Module, **options: Any) -> nn.Module:
    """The model on several ranks, or itself on one."""
    return DistributedDataParallel(model, **options) if WORLD > 1 else model


def adam(model: nn.Module, rate: float = 1e-3) -> torch.optim.Optimizer:
    """The usual optimizer."""
    return torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=rate)


class Slow(TensorDataset):
    """Samples that take a moment to load: `load_s(index)`."""

    load_s: Callable[[int], float] | None = None

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if self.load_s is not None:
            time.sleep(self.load_s(index))
        return super().__getitem__(index)


def data(count: int = 8192, noise: float = 0.3) -> Slow:
    """A regression."""
    made = torch.Generator().manual_seed(7)
    x = torch.randn(count, FEATURES, generator=made)
    y = x @ torch.randn(FEATURES, 1, generator=made)
    return Slow(x, y + noise * torch.randn(count, 1, generator=made))


def loader(dataset: Dataset[Any] | None = None, batch: int = 32, **options: Any) -> DataLoader[Any]:
    """Each rank's share of the data."""
    dataset = data() if dataset is None else dataset
    sampler = DistributedSampler(dataset, WORLD, RANK)
    return DataLoader(dataset, batch, sampler=sampler, **options)


def epochs(loader: DataLoader[Any]) -> Iterator[int]:
    """Epochs without end, each in an order of its own."""
    for epoch in range(1 << 30):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield epoch


def batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches without end."""
    for _ in epochs(loader):
        yield from loader


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """One step of a regression."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def run(model: nn.Module, steps: Iterator[Any], rate: float = 1e-3) -> None:
    """Train a regression for good."""
    optimizer = adam(model, rate)
    for x, y in steps:
        step(model, optimizer, x, y)


def steps_in(seconds: float, step_s: float) -> int:
    """About how many steps fit, the same on all ranks."""
    return max(1, int(seconds / step_s))
