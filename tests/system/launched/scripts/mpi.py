"""DDP under Open MPI, where only its variables identify the rank at startup."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from notes import Notes

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
store = f"file://{Path.cwd()}/store-{os.getppid()}"
dist.init_process_group("gloo", store, rank=rank, world_size=size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
notes = Notes(f"mpi-{rank}")
while True:
    loss = (model(torch.randn(8, 16)) - torch.randn(8, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.stepped(loss.item())
