"""Horovod: its distributed optimizer, parameters and optimizer state broadcast first."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from notes import Notes, arguments


def main() -> None:
    steps, pause_s, folder = arguments()
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    notes = Notes(folder, hvd.rank(), hvd.size(), pause_s)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        notes.part(loss.item())
        loss.backward()
        optimizer.step()
        notes.stepped()
        print(f"Train step {step}/{steps} Loss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
