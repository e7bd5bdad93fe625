"""Makes trace_files/: what loggers of real frameworks write. Each function needs its framework.

    python make_trace_files.py torch|lightning      # in the folder to write into

Made with torch 2.13.0, tensorboard 2.21.0, and lightning 2.6.6.
"""

import sys


def torch():
    import torch
    from torch.utils.tensorboard import SummaryWriter

    at = 1795000000.25
    with SummaryWriter("torch") as writer:
        for step in range(0, 50, 10):
            writer.add_scalar("Loss/train", 2.5 - step / 100, step, walltime=at + step)
            writer.add_scalar("lr", 0.01, step, walltime=at + step)
        writer.add_scalar("Loss/val", 2.25, 40, walltime=1795000050.0)
        writer.add_histogram("weights", torch.arange(50.0), 40)
        writer.add_scalar("Loss/train", float("nan"), 50, walltime=1795000060.0)


def lightning():
    import lightning as L
    import torch
    from lightning.pytorch.loggers import TensorBoardLogger

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch, index):
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(40, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=TensorBoardLogger("."),
    )
    trainer.fit(Model(), loader, loader)


if __name__ == "__main__":
    {"torch": torch, "lightning": lightning}[sys.argv[1]]()
