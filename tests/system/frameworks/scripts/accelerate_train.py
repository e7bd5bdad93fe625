"""accelerate: two micro-batches per optimizer step."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from notes import Notes, arguments
from torch.utils.data import DataLoader, TensorDataset

PARTS = 2


def main() -> None:
    steps, pause_s, folder = arguments()
    accelerator = Accelerator(gradient_accumulation_steps=PARTS)
    torch.manual_seed(7)
    world_size = accelerator.num_processes
    count = steps * PARTS * world_size
    data = TensorDataset(torch.randn(4 * count, 16))
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    notes = Notes(folder, accelerator.process_index, world_size, pause_s)
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = (model(batch) - 1).square().mean()
            notes.part(loss.item())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                notes.stepped()
    accelerator.end_training()


if __name__ == "__main__":
    main()
