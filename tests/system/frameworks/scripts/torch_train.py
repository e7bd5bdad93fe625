"""Plain torch, started in each of the ways that need no framework: MODE from the environment.

`env`: DDP by the variables of torchrun, or by those of Open MPI; `spawn`: DDP by mp.spawn;
`parallel`: DataParallel; `apex`: DDP and a loss scaled by apex.amp; `plain`: one process.
"""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
from notes import Notes, arguments
from torch.nn.parallel import DataParallel, DistributedDataParallel

MODE = os.environ.get("MODE", "env")


def train(rank: int, world_size: int) -> None:
    steps, pause_s, folder = arguments()
    model: torch.nn.Module = torch.nn.Linear(16, 1)
    if world_size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        model = DistributedDataParallel(model)
    elif MODE == "parallel":
        model = DataParallel(model)
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    notes = Notes(folder, rank, world_size, pause_s)
    for step in range(1, steps + 1):
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        if MODE == "apex":
            from apex import amp

            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= 1024.0
        else:
            loss.backward()
        optimizer.step()
        notes.part(loss.item())
        notes.stepped()
        if rank == 0:
            print(f"step {step}/{steps} loss {loss.item():.6f}", flush=True)


def main() -> None:
    if MODE == "spawn":
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.multiprocessing.spawn(train, args=(2,), nprocs=2)
        return
    rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    world_size = os.environ.get("WORLD_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    train(int(rank), int(world_size))


if __name__ == "__main__":
    main()
