"""Keras trainings, seen through the list of callbacks that `fit` calls.

What Keras logs as a batch's loss is the mean over the batches of its epoch so far, and is told as
such. It may still be on a device: it is read by the sender's thread, as Keras reads it in threads
of its own. Evaluation and prediction have calls of their own and count for nothing.
"""

from __future__ import annotations

import functools

from . import trainers


class KerasTraining:
    """What the callbacks of one process tell."""

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
        """Patch a module's CallbackList, or put back what `disarm` took out."""
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
        """Put back what was replaced, until `arm`."""
        for owner, name, original, _ in self._patched:
            setattr(owner, name, original)

    def _patch(self, owner, name, note):
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(callbacks, index, logs=None):
            try:
                note(callbacks, index, logs)
            except Exception:  # another Keras than the ones known
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
        # several batches are one call where `steps_per_execution` says so
        count = batch - self._batch
        if count < 1:
            return
        self._batch = batch
        self._record.batches_ended(count)
        loss = None if logs is None else logs.get("loss")
        if loss is not None:
            self.loss.offer(loss, self._record.steps, batch + 1)

    def progress(self):
        """How far `fit` is."""
        epoch, batches, done = self.epoch, self._batches, self._batch + 1
        if epoch is None or not batches:
            return trainers.Progress(epoch=epoch, epochs=self._epochs)
        return trainers.Progress(
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
        """A newer loss; one that is a number already is kept at once."""
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
    """Devices of this process that a training is replicated on, None for one or unknown."""
    try:
        model = getattr(callbacks, "_model", None) or callbacks.model
        devices = model.distribute_strategy.extended.worker_devices
    except Exception:  # another backend than TensorFlow, or no strategy
        return None
    return len(devices) if len(devices) > 1 else None
