"""Train a linear model with DistributedDataParallel and one mistake, which ddptop names.

A plain training script, as people write it: `ddptop demo --sick KIND` runs it. It trains on one
process per GPU, or on CPU processes, for two minutes.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KINDS = (
    *("healthy", "same-batches", "same-order", "starved", "straggler", "stalls"),
    *("constant-loss", "exploding-loss", "not-learning", "unused-parameters"),
)
SAMPLES, FEATURES, BATCH_SIZE = 4096, 32, 32
PAUSE_S = 0.05
"""The length of a step, nearly: the model is too small to take any time."""


class Data(TensorDataset):
    """Samples that take `load_s` each to load."""

    def __init__(self, *tensors: Tensor, load_s: float) -> None:
        super().__init__(*tensors)
        self.load_s = load_s

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(self.load_s)
        sample: tuple[Tensor, ...] = super().__getitem__(index)
        return sample


def train(kind: str, seconds: float, rank: int, device: torch.device) -> None:
    """Train with the mistake of this kind."""
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES)
    targets = inputs @ torch.randn(FEATURES, 1) + 0.1 * torch.randn(SAMPLES, 1)
    loss_of = nn.functional.mse_loss
    if kind == "constant-loss":  # one class, so there is nothing to learn
        targets, loss_of = torch.zeros(SAMPLES, dtype=torch.long), nn.functional.cross_entropy
    data = Data(inputs, targets, load_s=0.002 if kind == "starved" else 0.0)
    sampler = None if kind == "same-batches" else DistributedSampler(data)
    loader = DataLoader(data, BATCH_SIZE, shuffle=sampler is None, sampler=sampler)
    model = DistributedDataParallel(
        nn.Linear(FEATURES, 1).to(device), find_unused_parameters=kind == "unused-parameters"
    )
    rate = 0.68 if kind == "exploding-loss" else 0.001
    trained = nn.Linear(FEATURES, 1) if kind == "not-learning" else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=rate)

    step, epoch, began_s = 0, 0, time.monotonic()
    while time.monotonic() - began_s < seconds:
        if sampler is not None and kind != "same-order":
            sampler.set_epoch(epoch)
        for batch in loader:
            x, y = (tensor.to(device) for tensor in batch)
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(PAUSE_S)
            step += 1
            if kind == "straggler" and rank == 1:
                time.sleep(0.4 * PAUSE_S)
            if kind == "stalls" and rank == 1 and step % 40 == 0:
                time.sleep(1.5)
        epoch += 1


def main() -> None:
    """Join the other ranks, and train."""
    parser = argparse.ArgumentParser(description="Train with one mistake.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    on_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpus else "cpu"
    train(options.kind, options.seconds, rank, torch.device(device))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
