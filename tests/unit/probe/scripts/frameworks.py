"""Trains as frameworks do, on stand-ins that call what the real ones call, in their order."""

import sys
import types
from pathlib import Path

import torch
from training import loss_of, setup

STUBS = str(Path(__file__).parents[1] / "stubs")


def accelerate(factor, count):
    """`count` micro-batches, the last window of which may be cut short."""
    from accelerate.accelerator import Accelerator

    accelerator, (model, optimizer) = Accelerator(factor), setup()
    losses, parts = [], []
    for index in range(count):
        loss = loss_of(model)
        accelerator.backward(loss)
        parts.append((loss / factor).item())
        if (index + 1) % factor == 0 or index + 1 == count:
            optimizer.step()
            losses.append(sum(parts))
            parts = []
    return losses, len(losses)


def trainer():
    """Divided by what it will; its counts go on over a checkpoint, and it is gone once it ended."""
    from accelerate.accelerator import Accelerator
    from transformers.trainer_callback import CallbackHandler, TrainerState

    state = TrainerState(global_step=100, max_steps=103, num_train_epochs=5, epoch=4.75)
    callbacks = CallbackHandler()
    callbacks.on_train_begin(None, state, None)
    accelerator, (model, optimizer) = Accelerator(1), setup()
    losses = []
    for _ in range(3):
        parts = [loss_of(model) * 3 / 24 for _ in range(2)]
        for part in parts:
            accelerator.backward(part)
        optimizer.step()
        state.global_step += 1
        losses.append(sum(part.item() for part in parts))
    callbacks.on_train_end(None, state, None)
    return losses, 3


class Trainer(types.SimpleNamespace):
    """With room for weak references."""


def lightning():
    """Backward inside step(closure), after micro-batches outside of it."""
    from lightning.pytorch.loops.fit_loop import _FitLoop
    from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization

    lightning.trainer = Trainer(
        **{"max_epochs": 4, "max_steps": -1, "num_training_batches": 7, "global_step": 6},
        **{"accumulate_grad_batches": 2, "current_epoch": 2},
        lightning_module=types.SimpleNamespace(automatic_optimization=True),
    )
    _FitLoop(lightning.trainer).on_run_start()
    loop, (model, optimizer), parts = _AutomaticOptimization(), setup(), []

    def training_step():
        loss = loss_of(model)
        parts.append(loss.item() / 2)
        return loss

    for batch in range(6):
        loop.run(optimizer, batch, training_step, 2)
    return [parts[index] + parts[index + 1] for index in (0, 2, 4)], 3


def deepspeed(factor=2, **options):
    """An engine that divides by the accumulation factor and scales out of sight."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    model, optimizer = setup()
    engine, losses = DeepSpeedEngine(optimizer, factor, **options), []
    for step in range(4):
        engine.overflow = step == 1
        parts = [loss_of(model) for _ in range(factor)]
        for loss in parts:
            engine.backward(loss)
            engine.step()
        losses.append(sum(loss.item() for loss in parts) / factor)
    return losses, 3


def deepspeed_before_division():
    """As accelerate hands it over."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    model, optimizer = setup()
    engine = DeepSpeedEngine(optimizer, 2, scale=4096.0, fp16=True)
    parts = [loss_of(model) / 2, loss_of(model) / 2]
    for loss in parts:
        engine.backward(loss, scale_wrt_gas=False)
        engine.step()
    return [parts[0].item() + parts[1].item()], 1


def apex():
    from apex import amp

    model, optimizer = setup()
    losses = []
    for _ in range(3):
        loss = loss_of(model)
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, 3


def data_parallel():
    """As on three GPUs, of which there is none here."""
    model, optimizer = setup()
    wrapped = torch.nn.DataParallel(model)
    assert not wrapped.device_ids
    sys.modules["_ddptop_probe"].current_session().hooks._note_replicas(
        types.SimpleNamespace(device_ids=[0, 1, 2])
    )
    loss = loss_of(wrapped)
    loss.backward()
    optimizer.step()
    return [loss.item()], 1


CASES = {
    "data_parallel": data_parallel,
    "accelerate": lambda: accelerate(1, 3),
    "accelerate_sum": lambda: accelerate(3, 9),
    "accelerate_cut_short": lambda: accelerate(3, 8),
    "trainer": trainer,
    "lightning": lightning,
    "deepspeed": deepspeed,
    "deepspeed_fp16": lambda: deepspeed(scale=4096.0, fp16=True),
    "deepspeed_fp16_one_pass": lambda: deepspeed(1, scale=4096.0, fp16=True),
    "deepspeed_own_optimizer": lambda: deepspeed(calls_optimizer=False),
    "deepspeed_before_division": deepspeed_before_division,
    "apex": apex,
}


def with_stubs(case):
    """`case`, with the stand-ins where the frameworks would be."""

    def run():
        sys.path.insert(0, STUBS)
        return case()

    return run


CASES = {name: with_stubs(case) for name, case in CASES.items()}
