"""DDP with mp.spawn: each rank has a data loader worker, scales its loss, and steps every 2
batches."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import without_compiler  # noqa: F401
from notes import Notes


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.randn(16)


def train(rank, store):
    dist.init_process_group("gloo", store, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    loader = torch.utils.data.DataLoader(
        Data(), num_workers=1, batch_size=8, multiprocessing_context=("fork", "spawn")[rank]
    )
    batches = iter(loader)
    notes = Notes(f"spawn-{rank}", workers=[worker.pid for worker in batches._workers])
    while True:
        parts = []
        for _ in range(2):
            loss = (model(next(batches)) - torch.randn(8, 1)).square().mean()
            scaler.scale(loss).backward()
            parts.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        notes.stepped(sum(parts) / 2)


if __name__ == "__main__":
    mp.spawn(train, (f"file://{Path.cwd()}/store-{os.getpid()}",), nprocs=2)
