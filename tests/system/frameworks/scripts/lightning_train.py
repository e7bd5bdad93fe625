"""Lightning: STRATEGY and BAR from the environment, two micro-batches per optimizer step."""

from __future__ import annotations

import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from notes import Notes, arguments
from torch.utils.data import DataLoader, TensorDataset

STEPS, PAUSE_S, FOLDER = arguments()
PARTS = 2


class Line(lightning.LightningModule):
    """A small regression."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)
        self.seen = 0

    def on_train_start(self) -> None:
        self.notes = Notes(FOLDER, self.global_rank, self.trainer.world_size, PAUSE_S)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = (self.layer(batch[0]) - 1).square().mean()
        self.notes.part(loss.item())
        self.log("train_loss", loss, prog_bar=True, on_step=True)
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        if self.trainer.global_step > self.seen:
            self.seen = self.trainer.global_step
            self.notes.stepped()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    lightning.seed_everything(7)
    devices = int(os.environ.get("DEVICES", "2"))
    bar = RichProgressBar() if os.environ.get("BAR") == "rich" else TQDMProgressBar()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=os.environ.get("STRATEGY", "ddp"),
        max_epochs=1,
        accumulate_grad_batches=PARTS,
        logger=CSVLogger(FOLDER, name="csv"),
        log_every_n_steps=5,
        callbacks=[bar, ModelCheckpoint(FOLDER, filename="last-{step}", every_n_train_steps=40)],
    )
    data = TensorDataset(torch.randn(4 * STEPS * PARTS * devices, 16))
    trainer.fit(Line(), DataLoader(data, batch_size=4))


if __name__ == "__main__":
    main()
