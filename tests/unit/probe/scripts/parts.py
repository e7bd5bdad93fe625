"""Trains with DDP over gloo; rank 1 computes longer, rank 0 waits for data longer.

With "plain" each rank averages its gradients itself, without DDP.
"""

import gc
import os
import sys
import time

import torch
import torch.distributed as dist
import without_compiler  # noqa: F401
from training import Plain

SLOW_S, DATA_S, SAMPLES = 0.08, 0.01, 24


class Slowly(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if rank == 0:
            time.sleep(DATA_S)
        return torch.full((4,), float(index))


torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", sys.argv[2], rank=rank, world_size=2)
dist.barrier()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
trained = model if "plain" in sys.argv else torch.nn.parallel.DistributedDataParallel(model)
optimizer = Plain(model)
for batch in torch.utils.data.DataLoader(Slowly(), batch_size=2):
    if rank == 1:
        time.sleep(SLOW_S)
    trained(batch).pow(2).mean().backward()
    if "plain" in sys.argv:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
gc.collect()
time.sleep(0.2)  # torch 2.6 deadlocks if gloo's thread frees a gradient during the next call
dist.destroy_process_group()
