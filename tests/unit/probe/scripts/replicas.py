"""Trains replicas of a model on two ranks in each way that an argument names; prints their pids.

All ranks are forked children of one import of torch.
"""

import atexit
import contextlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def train(kind, rank):
    dist.init_process_group("gloo", f"file://{Path.cwd()}/{kind}", rank=rank, world_size=2)
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
    return parallel  # its end waits for gloo's thread, which may wait for Python


torch.set_num_threads(1)
torch.optim.Adam([torch.zeros(1)])  # the first one imports another second's worth of torch
for name in sys.argv[1:]:
    pids = []
    for number in range(2):
        if (pid := os.fork()) == 0:
            kept = train(name, number)
            atexit._run_exitfuncs()
            os._exit(0)
        pids.append(pid)
    print(json.dumps({"kind": name, "pids": pids}), flush=True)
    if any(os.wait()[1] for _ in pids):
        sys.exit(f"{name} failed")
