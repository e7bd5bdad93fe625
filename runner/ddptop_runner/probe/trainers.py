"""The progress that a framework's trainer reports itself.

Only a weak reference to the trainer is kept, and its progress is read when a datagram is written:
the training pays nothing per step.

Keras is followed through the list of callbacks that `fit` calls. What it logs as a batch's loss is
the mean over the batches of its epoch so far, and is reported as such. It may still be on a
device: the sender's thread reads it, as Keras reads it in threads of its own. Evaluation and
prediction have calls of their own and are ignored.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref

FRAMEWORKS = (
    *("accelerate", "transformers", "deepspeed", "lightning", "pytorch_lightning", "horovod"),
    *("tensorflow", "keras", "tf_keras", "apex", "ultralytics", "fairseq"),
)
NAMES = {"pytorch_lightning": "lightning", "tf_keras": "keras"}

MAX_COUNT = 2**53


def frameworks():
    """The training frameworks that this process has imported."""
    found = [NAMES.get(name, name) for name in FRAMEWORKS if name in sys.modules]
    return list(dict.fromkeys(found))


def arm(module, record):
    """Detect an awaited trainer of `module` when it starts to train."""
    name = module.__name__
    if name == "transformers.trainer_callback":
        _notice(module.CallbackHandler, "on_train_begin", record, _transformers_state, transformers)
        _read_at(module.CallbackHandler, "on_train_end", record)
    elif name.endswith(".fit_loop"):
        _notice(module._FitLoop, "on_run_start", record, _lightning_trainer, lightning)
        _read_at(module._FitLoop, "on_run_end", record)


def _read_at(kind, name, record):
    """Read a trainer once more as it ends: it may be gone before the next datagram is written."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def end(*args, **kwargs):
        try:
            record.trainer()
        except Exception:  # none is watched, or it has another version
            pass
        return original(*args, **kwargs)

    setattr(kind, name, end)


def _notice(kind, name, record, find, read):
    """Make `record` use what `find` returns for a method's arguments, read by `read`."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def begin(*args, **kwargs):
        try:
            watch(record, find(*args, **kwargs), read)
        except Exception:  # an unknown version: its progress stays unknown
            pass
        return original(*args, **kwargs)

    setattr(kind, name, begin)


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

    __slots__ = ("epoch", "epochs", "global_step", "total_steps")

    def __init__(self, global_step=None, total_steps=None, epoch=None, epochs=None):
        self.global_step = _count(global_step)
        self.total_steps = _count(total_steps) or None
        self.epoch = None if epoch is None or not 0 <= epoch < MAX_COUNT else float(epoch)
        """Epochs done, with a fraction where the trainer reports it."""
        self.epochs = _count(epochs) or None
        if self.epochs is not None and self.epochs >= sys.maxsize // 2:
            self.epochs = None


def _transformers_state(handler, args, state, *rest, **named):
    return state


def _lightning_trainer(loop):
    return loop.trainer


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


def _count(value):
    """A whole number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return None
    return value


class KerasTraining:
    """Progress and loss from the callbacks of one process."""

    def __init__(self, record):
        self._record = record
        self.loss = _Loss(record)
        self._fit = None
        """`id` of the list of callbacks that was called last."""
        self._batch = -1
        """Index in its epoch of the last batch, -1 before the first."""
        self.epoch = None
        """Index of the epoch at hand."""
        self._epochs = None
        self._batches = None
        """Batches of an epoch, counted where Keras cannot know them."""
        self._patched = []

    def arm(self, module=None):
        """Patch a module's CallbackList, or restore the patch that `disarm` removed."""
        if module is None:
            for owner, name, _, patch in self._patched:
                setattr(owner, name, patch)
            return
        kind = getattr(module, "CallbackList", None)
        # `keras.src.callbacks` only hands on what its own module has given
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            self._patch(kind, "on_epoch_begin", self._began_epoch)
            self._patch(kind, "on_train_batch_end", self._ended_batch)

    def disarm(self):
        """Remove all patches, until `arm`."""
        for owner, name, original, _ in self._patched:
            setattr(owner, name, original)

    def _patch(self, owner, name, note):
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(callbacks, index, logs=None):
            try:
                note(callbacks, index, logs)
            except Exception:  # an unknown version of Keras
                pass
            return original(callbacks, index, logs)

        setattr(owner, name, call)
        self._patched.append((owner, name, original, call))

    def _began_epoch(self, callbacks, epoch, logs):
        params = callbacks.params or {}
        counted = self._batch + 1 if self._fit == id(callbacks) and self._batch >= 0 else None
        self._fit, self.epoch, self._batch = id(callbacks), epoch, -1
        self._epochs, self._batches = params.get("epochs"), params.get("steps") or counted
        self._record.trainer = self.progress
        self._record.replicas = replicas_of(callbacks)

    def _ended_batch(self, callbacks, batch, logs):
        # several batches are one call if `steps_per_execution` says so
        count = batch - self._batch
        if count < 1:
            return
        self._batch = batch
        self._record.batches_ended(count)
        loss = None if logs is None else logs.get("loss")
        if loss is not None:
            self.loss.offer(loss, self._record.steps, batch + 1)

    def progress(self):
        """The progress of `fit`."""
        epoch, batches, done = self.epoch, self._batches, self._batch + 1
        if epoch is None or not batches:
            return Progress(epoch=epoch, epochs=self._epochs)
        return Progress(
            epoch * batches + done,
            self._epochs and self._epochs * batches,
            epoch + min(done / batches, 1.0),
            self._epochs,
        )


class _Loss:
    """The newest logged loss, read by the sender's thread."""

    def __init__(self, record):
        self._record = record
        self._newest = None
        """(value, step, batches that it is the mean of)."""

    def offer(self, value, step, parts):
        """A newer loss; if it is already a number, it is stored at once."""
        if type(value) is float:
            self._keep(value, step, parts)
        else:
            self._newest = (value, step, parts)

    def harvest(self):
        """Read the newest loss."""
        newest, self._newest = self._newest, None
        if newest is not None:
            value, step, parts = newest
            # a copy from a CUDA device could break a graph that the script captures
            if not getattr(value, "is_cuda", False):
                self._keep(float(value), step, parts)

    def drain(self, deadline_s):
        """At exit: the same."""
        self.harvest()

    def _keep(self, value, step, parts):
        kind = "mean" if parts > 1 else None
        self._record.set_loss(value, step, "probe", parts, kind)


def replicas_of(callbacks):
    """How many of this process's devices a training is replicated on; None for one or unknown."""
    try:
        model = getattr(callbacks, "_model", None) or callbacks.model
        devices = model.distribute_strategy.extended.worker_devices
    except Exception:  # another backend than TensorFlow, or no strategy
        return None
    return len(devices) if len(devices) > 1 else None
