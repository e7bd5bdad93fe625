"""DeepSpeed: ZeRO stage 1, two micro-batches per optimizer step."""

from __future__ import annotations

import deepspeed
import torch
from notes import Notes, arguments

PARTS = 2


def main() -> None:
    steps, pause_s, folder = arguments()
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": PARTS,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
            "steps_per_print": 5,
        },
    )
    rank, world_size = engine.global_rank, engine.world_size
    torch.manual_seed(rank)
    notes = Notes(folder, rank, world_size, pause_s)
    for _ in range(steps * PARTS):
        loss = (engine(torch.randn(4, 16)) - 1).square().mean()
        notes.part(loss.item())
        ends_step = engine.is_gradient_accumulation_boundary()
        engine.backward(loss)
        engine.step()
        if ends_step:
            notes.stepped()


if __name__ == "__main__":
    main()
