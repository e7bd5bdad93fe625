"""Two forked processes in a group that print their progress, which nothing else reveals."""

import os
import time
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, store):
    dist.init_process_group("gloo", store, rank=rank, world_size=2)
    for step in range(1, 4001):
        print(f"[rank{rank}] step {step}/4000 loss {5 + rank - step / 4096}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    store = f"file://{Path.cwd()}/store-{os.getpid()}"
    mp.start_processes(train, (store,), nprocs=2, start_method="fork")
