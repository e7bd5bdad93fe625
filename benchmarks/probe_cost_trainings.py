"""Train a small model with each framework, calling `tick` once per batch until it raises."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Tick = Callable[[], None]

FOREVER = 10**9

ROWS = 20000
"""Size of the data set, large enough that no epoch ends during the measurement."""


def _model() -> Any:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = (torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    return torch.nn.Sequential(*layers)


def _loader() -> Any:
    import torch

    data = torch.utils.data.TensorDataset(torch.randn(ROWS, 16), torch.randn(ROWS, 1))
    return torch.utils.data.DataLoader(data, batch_size=1)


def _batches(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _train(model: Any, optimizer: Any, tick: Tick, accumulate: int, device: str = "cpu") -> None:
    import torch

    for number, batch in enumerate(_batches(_loader()), 1):
        inputs, targets = (part.to(device) for part in batch)
        (torch.nn.functional.mse_loss(model(inputs), targets) / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        tick()


def train_torch(tick: Tick, accumulate: int) -> None:
    """Run a plain training loop."""
    import torch

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    _train(model, optimizer, tick, accumulate)


def train_cuda(tick: Tick, accumulate: int) -> None:
    """Run a plain training loop on a GPU."""
    import torch

    model = _model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    _train(model, optimizer, tick, accumulate, "cuda")


def train_ddp(tick: Tick, accumulate: int) -> None:
    """Run a plain loop with DistributedDataParallel and one extra collective per step."""
    import torch

    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = torch.zeros(1)

    def with_collective() -> None:
        torch.distributed.all_reduce(seen)
        tick()

    _train(model, optimizer, with_collective, accumulate)


def train_accelerate(tick: Tick, accumulate: int) -> None:
    """Run the loop from accelerate's documentation."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, _loader())
    for inputs, targets in _batches(loader):
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
        tick()


def train_lightning(tick: Tick, accumulate: int) -> None:
    """Run a Trainer without logger, progress bar, and checkpoints."""
    import lightning
    import torch

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = _model()

        def training_step(self, batch: Any, index: int) -> Any:
            tick()
            return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=FOREVER,
        accumulate_grad_batches=accumulate,
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(Module(), _loader())


def train_transformers(tick: Tick, accumulate: int) -> None:
    """Run a transformers Trainer with a custom model."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = _model()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            tick()
            return {"loss": torch.nn.functional.mse_loss(self.model(x), labels)}

    data = [{"x": torch.randn(16), "labels": torch.randn(1)} for _ in range(ROWS)]
    arguments = TrainingArguments(
        output_dir="out",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulate,
        max_steps=FOREVER,
    )
    Trainer(Model(), arguments, train_dataset=data).train()


def train_deepspeed(tick: Tick, accumulate: int) -> None:
    """Run an engine with ZeRO stage 0."""
    import deepspeed
    import torch

    model = _model()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulate,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    for inputs, targets in _batches(_loader()):
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), targets))
        engine.step()
        tick()


def train_horovod(tick: Tick, accumulate: int) -> None:
    """Run Horovod's optimizer with a world size of 1."""
    import horovod.torch
    import torch

    horovod.torch.init()
    model = _model()
    optimizer = horovod.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=accumulate,
    )
    _train(model, optimizer, tick, accumulate)


TRAININGS = {
    name.partition("_")[2]: train
    for name, train in list(vars(sys.modules[__name__]).items())
    if name.startswith("train_")
}
