"""The progress that a framework's trainer reports itself.

Only a weak reference to the trainer is kept, and its progress is read when a datagram is written:
the training pays nothing per step.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref

from .recorder import MAX_COUNT, whole

FRAMEWORKS = (
    *("accelerate", "transformers", "deepspeed", "lightning", "pytorch_lightning", "horovod"),
    *("tensorflow", "keras", "tf_keras", "apex", "ultralytics", "fairseq"),
)
NAMES = {"pytorch_lightning": "lightning", "tf_keras": "keras"}


def frameworks():
    """The training frameworks that this process has imported."""
    found = [NAMES.get(name, name) for name in FRAMEWORKS if name in sys.modules]
    return list(dict.fromkeys(found))


def arm(module, record):
    """Detect an awaited trainer of `module` when it starts to train."""
    name = module.__name__
    if name == "transformers.trainer_callback":
        handler = module.CallbackHandler
        _before(
            handler,
            "on_train_begin",
            lambda _, args, state, *rest, **more: watch(record, state, transformers),
        )
        _before(handler, "on_train_end", lambda *_: record.trainer())
    elif name.endswith(".fit_loop"):
        loop = module._FitLoop
        _before(loop, "on_run_start", lambda fit, *rest: watch(record, fit.trainer, lightning))
        _before(loop, "on_run_end", lambda *_: record.trainer())


def _before(kind, name, act):
    """Call `act` with a method's arguments before it: as it ends, a trainer may soon be gone."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(*args, **kwargs):
        try:
            act(*args, **kwargs)
        except Exception:  # an unknown version: its progress stays unknown
            pass
        return original(*args, **kwargs)

    setattr(kind, name, method)


def watch(record, trainer, read):
    """Read `trainer` with `read` from now on, as long as it exists."""
    ref, last = weakref.ref(trainer), read(trainer)

    def progress():
        nonlocal last
        trainer = ref()
        if trainer is not None:
            last = read(trainer)
        return last

    record.trainer = progress


class Progress:
    """What a trainer reports about its progress; None if unknown."""

    def __init__(self, global_step=None, total_steps=None, epoch=None, epochs=None):
        self.global_step = whole(global_step)
        self.total_steps = whole(total_steps) or None
        self.epoch = None if epoch is None or not 0 <= epoch < MAX_COUNT else float(epoch)
        """Epochs done, with a fraction where the trainer reports it."""
        self.epochs = whole(epochs) or None
        if self.epochs is not None and self.epochs >= sys.maxsize // 2:
            self.epochs = None


def transformers(state):
    """The progress of a Trainer's state. Its counts continue after a checkpoint."""
    return Progress(state.global_step, state.max_steps, state.epoch, state.num_train_epochs)


def lightning(trainer):
    """The progress of a Lightning Trainer, in its own steps, which are those of all optimizers."""
    epochs = trainer.max_epochs
    epochs = None if epochs is None or epochs < 0 else epochs
    limits = [trainer.max_steps] if trainer.max_steps is not None and trainer.max_steps > 0 else []
    batches = trainer.num_training_batches
    module = trainer.lightning_module
    # without automatic optimization, a batch can mean any number of steps
    if (
        epochs is not None
        and 0 < batches < math.inf
        and getattr(module, "automatic_optimization", False)
    ):
        limits.append(math.ceil(batches / trainer.accumulate_grad_batches) * epochs)
    return Progress(
        trainer.global_step, min(limits) if limits else None, trainer.current_epoch, epochs
    )
