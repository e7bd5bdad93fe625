"""Hugging Face Trainer: a GPT-2 of random weights on random tokens, two micro-batches per step."""

from __future__ import annotations

from typing import Any

import torch
from notes import Notes, arguments
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS, PAUSE_S, FOLDER = arguments()
PARTS = 2


class Tokens(Dataset):
    """Random tokens."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (16,), generator=made)
        return {"input_ids": tokens, "labels": tokens}


class Noting(TrainerCallback):
    """Records what `NotingTrainer` computed."""

    def __init__(self) -> None:
        self.notes: Notes | None = None

    def on_step_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        assert self.notes is not None
        self.notes.stepped()


class NotingTrainer(Trainer):
    """The Trainer, with its losses recorded."""

    noting: Noting

    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        loss = super().training_step(*args, **options)
        if self.noting.notes is None:
            world_size = self.args.world_size
            self.noting.notes = Notes(FOLDER, self.args.process_index, world_size, PAUSE_S)
        # the returned loss is already divided by the number of parts
        self.noting.notes.part(loss.item() * PARTS)
        return loss


def main() -> None:
    torch.manual_seed(7)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=64, n_positions=16)
    )
    noting = Noting()
    trainer = NotingTrainer(
        model,
        TrainingArguments(
            FOLDER,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=PARTS,
            logging_steps=5,
        ),
        train_dataset=Tokens(),
        callbacks=[noting],
    )
    trainer.noting = noting
    trainer.train()


if __name__ == "__main__":
    main()
