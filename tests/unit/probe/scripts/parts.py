"""Trains with DDP over gloo; rank 1 computes longer, rank 0 waits for data longer.

Then again without DDP: each rank averages its gradients itself. All ranks are forked children of
one import of torch; prints their pids.
"""

import atexit
import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import without_compiler  # noqa: F401
from training import Plain

SLOW_S, DATA_S, SAMPLES = 0.08, 0.01, 24


class Slowly(torch.utils.data.Dataset):
    def __init__(self, wait_s):
        self.wait_s = wait_s

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(self.wait_s)
        return torch.full((4,), float(index))


def train(how, rank):
    dist.init_process_group("gloo", f"file://{Path.cwd()}/{how}", rank=rank, world_size=2)
    dist.barrier()
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    )
    trained = torch.nn.parallel.DistributedDataParallel(model) if how == "ddp" else model
    optimizer = Plain(model)
    for batch in torch.utils.data.DataLoader(Slowly(0.0 if rank else DATA_S), batch_size=2):
        if rank == 1:
            time.sleep(SLOW_S)
        trained(batch).pow(2).mean().backward()
        if how == "plain":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
    gc.collect()
    time.sleep(0.2)  # torch 2.6 deadlocks if gloo's thread frees a gradient during the next call
    dist.destroy_process_group()
    return trained  # its end waits for gloo's thread, which may wait for Python


torch.set_num_threads(1)
for name in ("ddp", "plain"):
    pids = []
    for number in range(2):
        if (pid := os.fork()) == 0:
            kept = train(name, number)
            atexit._run_exitfuncs()
            os._exit(0)
        pids.append(pid)
    print(json.dumps({"how": name, "pids": pids}), flush=True)
    if any(os.wait()[1] for _ in pids):
        sys.exit(f"{name} failed")
