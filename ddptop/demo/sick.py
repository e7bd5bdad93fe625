"""Train a linear model with DistributedDataParallel and one mistake, which ddptop names.

A plain training script, as people write it: `ddptop demo --sick KIND` runs it. It trains on one
process per GPU, or on CPU processes, for two minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Subset,
    TensorDataset,
    default_collate,
)

SAMPLES, FEATURES, BATCH_SIZE = 4096, 32, 32
SAVED = Path("checkpoint.pt")
PAUSE_S = 0.05
"""The length of a step, nearly: the model is too small to take any time."""
SHARD, SHORT_SHARD = 512, 384
"""Batches per rank in uneven shards."""
LEAK_S = 75.0
"""How long memory grows; `ddptop demo` decides by how much."""


class Data(TensorDataset):
    """Samples that take `load_s` each to load."""

    def __init__(self, *tensors: Tensor, load_s: float) -> None:
        super().__init__(*tensors)
        self.load_s = load_s

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(self.load_s)
        sample: tuple[Tensor, ...] = super().__getitem__(index)
        return sample


SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"


def use_one_cpu(rank: int, *, is_shared: bool) -> None:
    """Keep a rank on a CPU of its own, or let two other processes run there as well."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    for _ in range(2 if is_shared else 0):
        subprocess.Popen([sys.executable, "-I", "-c", SPIN, str(os.getpid())])


def compute(cpu_s: float) -> None:
    """Use the CPU for so long."""
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


class Leak:
    """Tensors that are kept of each step, for LEAK_S.

    Args:
        most: how many bytes this rank keeps.
    """

    def __init__(self, most: int) -> None:
        self._most, self._began_s = most, time.monotonic()
        self._kept: list[Tensor] = []
        self._kept_bytes = 0

    def grow(self) -> None:
        """Keep those of one step."""
        share = min(1.0, (time.monotonic() - self._began_s) / LEAK_S)
        due = int(share * self._most) - self._kept_bytes
        self._kept.append(torch.ones(due, dtype=torch.uint8))
        self._kept_bytes += due


def longer(samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """A batch that is half as long again."""
    batch: list[Tensor] = default_collate(samples + samples[: len(samples) // 2])
    return batch


def train(
    kind: str, seconds: float, device: torch.device, leak: Leak | None, *, is_sick: bool
) -> None:
    """Train with the mistake of this kind.

    Args:
        kind: one that `ddptop demo --sick list` names.
        seconds: how long.
        device: of this rank.
        leak: what to keep of each step.
        is_sick: whether this is the rank with the mistake, if only one has it.
    """
    torch.manual_seed(0)
    if kind == "preempted":
        use_one_cpu(dist.get_rank(), is_shared=is_sick)
    inputs = torch.randn(SAMPLES, FEATURES)
    targets = inputs @ torch.randn(FEATURES, 1) + 0.1 * torch.randn(SAMPLES, 1)
    loss_of = nn.functional.mse_loss
    if kind == "constant-loss":  # one class, so there is nothing to learn
        targets, loss_of = torch.zeros(SAMPLES, dtype=torch.long), nn.functional.cross_entropy
    data = Data(inputs, targets, load_s=0.008 if kind == "starved" else 0.0)
    shard: Dataset[tuple[Tensor, ...]] = data
    if kind == "uneven-shards":
        count = BATCH_SIZE * (SHORT_SHARD if is_sick else SHARD)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        shard = Subset(data, [(i * ranks + rank) % SAMPLES for i in range(count)])
    has_sampler = kind not in ("same-batches", "uneven-shards")
    sampler = DistributedSampler(data) if has_sampler else None
    collate = longer if kind == "straggler" and is_sick else None
    loader = DataLoader(
        shard,
        BATCH_SIZE,
        shuffle=sampler is None,
        sampler=sampler,
        collate_fn=collate,
        num_workers=2 if kind == "starved" else 0,
    )
    model = DistributedDataParallel(
        nn.Linear(FEATURES, 1).to(device), find_unused_parameters=kind == "unused-parameters"
    )
    rate = 0.68 if kind == "exploding-loss" else 0.001
    trained = nn.Linear(FEATURES, 1) if kind == "not-learning" else model
    optimizer: torch.optim.Optimizer = torch.optim.SGD(trained.parameters(), lr=rate)
    step, epoch, began_s = 0, 0, time.monotonic()
    if kind == "resume-state":
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, len(loader), gamma=0.5)
    saves = {"resume-state": 0, "data-replayed": len(loader) // 2}.get(kind)
    is_resumed = saves is not None and SAVED.exists()
    if is_resumed:  # the optimizer, the scheduler, and the place in the data are forgotten
        state = torch.load(SAVED, map_location=device)
        model.load_state_dict(state["model"])
        step = state["step"]
        epoch = step // len(loader) if kind == "resume-state" else 0

    while time.monotonic() - began_s < seconds:
        if sampler is not None and kind != "same-order":
            sampler.set_epoch(epoch)
        for batch in loader:
            x, y = (tensor.to(device) for tensor in batch)
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_s = PAUSE_S * len(y) / BATCH_SIZE
            compute(step_s) if kind in ("straggler", "preempted") else time.sleep(step_s)
            step += 1
            if leak is not None:
                leak.grow()
            if kind == "mismatch" and is_sick and step == 100:
                dist.barrier()  # the others never enter it
            if kind == "stalls" and is_sick and step % 40 == 0:
                time.sleep(1.5)
            if kind == "diverged-weights" and is_sick and step == 100:
                with torch.no_grad():
                    model.module.bias += 0.1
            if kind == "resume-state":
                scheduler.step()
            if step % len(loader) == saves and dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "step": step}, SAVED)
            if saves is not None and is_sick and not is_resumed and step == 3 * len(loader) - 4:
                raise RuntimeError("this rank fails once")
        epoch += 1
        if kind == "uneven-shards":
            dist.barrier()  # the others still wait for this rank's next batch


def main() -> None:
    """Join the other ranks, and train."""
    parser = argparse.ArgumentParser(description="Train with one mistake.")
    parser.add_argument("kind")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--sick-rank", type=int, default=1)
    parser.add_argument("--leak-bytes", type=int, default=0, help="of all ranks")
    options = parser.parse_args()
    on_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpus else "cpu"
    is_sick = rank == options.sick_rank
    leak = None
    if options.leak_bytes:
        leak = Leak(options.leak_bytes // dist.get_world_size())
    train(options.kind, options.seconds, torch.device(device), leak, is_sick=is_sick)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
