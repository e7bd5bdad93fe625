"""The training scripts whose pictures are taken: real DistributedDataParallel on CPUs, small."""

from __future__ import annotations

PRETRAIN = '''
"""Eight ranks. One has more to do than the others; on request one skips a collective."""
import argparse, time, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--steps", type=int, default=4000)
parser.add_argument("--slow-rank", type=int, default=-1)
parser.add_argument("--hang-rank", type=int, default=-1)
parser.add_argument("--hang-step", type=int, default=-1)
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
aside = dist.new_group()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(),
                                                    torch.nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)


def batches():
    while True:
        time.sleep(0.09 if rank == options.slow_rank else 0.02)  # reading and decoding
        yield torch.randn(32, 64)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return batches()


for step, data in enumerate(torch.utils.data.DataLoader(Stream(), batch_size=None)):
    if rank == options.hang_rank and step == options.hang_step:
        print(f"step {step}: waiting for the others to log", flush=True)
        dist.barrier(group=aside)
    loss = cross_entropy(model(data), (data.sum(1) > 0).long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 0:
        print(f"step {step}/{options.steps} loss {loss.item():.4f} lr {options.lr:g}", flush=True)
    if rank == options.slow_rank and step % 200 == 199:
        print("WARNING: shard 5 is read from the network file system", flush=True)
    time.sleep(0.1)
    if step == options.steps:
        break
dist.destroy_process_group()
'''

FINETUNE = """
import time, torch, torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def batch(step, rank):
    columns = 63 if rank == 1 and step >= 120 else 64
    if columns != 64:
        raise ValueError(f"shard 7 of rank {rank} holds {columns} columns, the model takes 64")
    return torch.randn(32, columns)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(10_000):
        data = batch(step, rank)
        loss = cross_entropy(model(data), (data.sum(1) > 0).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.1)


main()
"""
