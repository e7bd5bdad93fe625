"""Two ranks take three steps; then rank 1 comes to a collective only when a file is there."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from training import Plain, loss_of

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", f"file://{sys.argv[2]}", rank=rank, world_size=2)
groups = [dist.new_group([0]), dist.new_group([1])]
model = torch.nn.Linear(4, 1)
optimizer = Plain(model)


def step():
    loss_of(model).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()


def gather():
    dist.all_reduce(torch.ones(1))


for _ in range(3):
    step()
for _ in range(rank + 1):
    dist.all_reduce(torch.ones(1), group=groups[rank])
launcher = os.getppid()
while rank == 1 and not Path(sys.argv[1]).exists():
    if os.getppid() != launcher:  # the test has failed
        sys.exit(1)
    time.sleep(0.05)
gather()
step()
dist.destroy_process_group()
