"""Trains replicas of a model on two ranks, as the first argument says."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

kind = sys.argv[1]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
    torch.nn.BatchNorm2d(8),
    torch.nn.Flatten(),
    torch.nn.Linear(8 * 4, 3),
)
frozen = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
model.register_parameter("frozen", frozen)
parallel = DistributedDataParallel(model)
frozen += rank
if kind == "zero":
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.Adam, lr=0.01)
else:
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
batches = iter(torch.utils.data.DataLoader(range(100 + rank)))
joined = parallel.join() if kind == "join" else contextlib.nullcontext()
for step in range(17):
    with joined:
        next(batches)
    for part in range(2):
        apart = kind == "local" or (kind == "accumulate" and part == 0)
        with parallel.no_sync() if apart else contextlib.nullcontext():
            parallel(torch.randn(4, 3, 4, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if kind == "diverge" and step == 5 and rank == 1:
        with torch.no_grad():
            model[3].bias[2] += 1e-7
dist.destroy_process_group()
