"""Hashes of batches: what ranks, epochs, and attempts have trained on.

Of each pass over the training data, the batches at positions 0 to 3 and at powers of two are
hashed, so that the batches of two ranks, or of two passes, are compared at equal positions. A hash
covers 512 bytes of each of the first two tensors. Batches on a device, of other libraries, or
taken in another thread are not hashed: nothing is known of them. Neither are batches that no
backward pass follows, such as those that a resumed script skips.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
import zlib
from collections import UserDict
from typing import Any

from .recorder import nothing

FIRST_POSITIONS = 4
CHUNKS, CHUNK_BYTES = 8, 64
MAX_TENSORS = 2
MAX_DEPTH, MAX_VALUES = 3, 16
"""How deep and how far to look for tensors in a batch."""
MAX_HASHES = 8
"""The latest hashes, as many as a datagram holds."""
OF_TORCH = ("torch.utils.data.sampler", "torch.utils.data.distributed")
"""The modules of samplers that know their length. They ask the dataset for its own, as they have
just done for this pass; a sampler of the script may take long to tell, or do something else."""


class Ledger:
    """The batches that one process has taken for training."""

    def __init__(self, torch, record):
        self._torch = torch
        self._record = record
        self.is_joined = nothing
        """Tells whether ranks may take different numbers of steps."""
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.hashes = []
        """[[pass, position, hash]], latest last."""
        self.repeated_epoch = None
        """The epoch by which its sampler shuffled two passes in a row; None if `set_epoch` changed
        it, or if the sampler does not need it."""
        self._sampler_epoch = None
        self.loader_workers = None
        """Worker processes of its DataLoader; 0 if the rank loads by itself."""
        self.ddp_world_size = None
        """Ranks whose gradients DistributedDataParallel averages; None without."""
        self.epoch_batches = None
        """Batches of the first pass with training; None in later ones, since nothing has come of
        uneven passes then, and within `model.join()`, which is made for them."""
        self.batch_size = None
        """Samples per batch of its DataLoader; None if each is an item of its dataset."""
        self.unpinned_bytes = None
        """Of the tensors that are hashed, per batch; None if its DataLoader pins memory."""
        self._passes = 0
        self._iterator = nothing
        """Gives the iterator of the current pass."""
        self._pending = None
        """(entry of the last batch that was hashed, backward passes before it)."""
        self._data = nothing
        """Gives the first training data that was seen; all other data is ignored."""

    def position(self):
        """[pass over the training data, batches taken in it]; None before the first batch."""
        iterator = self._iterator()
        if iterator is not None:
            return [self._passes - 1, iterator._num_yielded]
        return [self._passes, 0] if self._passes else None

    def took(self, iterator, batch):
        """Note a batch that is about to be trained on, at a position that is hashed.

        Args:
            iterator: the iterator of a DataLoader, before it counts the batch.
            batch: what it yields.
        """
        position = iterator._num_yielded
        self._confirm(position)
        dataset = iterator._dataset
        if self._data is nothing:
            self._data = _reference(dataset)
        if self._data() is not dataset:
            self.epoch_batches = None  # the pass may be as long as the other data
            return
        if position == 0:
            self._passes += 1
            is_alone = self._iterator() is None  # else, two loaders may take turns
            self._iterator = weakref.ref(iterator)
            self.loader_workers = iterator._num_workers
            sampler: Any = getattr(iterator._index_sampler, "sampler", None)
            before, self._sampler_epoch = self._sampler_epoch, _epoch_of(sampler)
            self.repeated_epoch = before if before == self._sampler_epoch else None
            is_first = is_alone and not self._record.backwards and not self.is_joined()
            self.epoch_batches = _length(iterator._index_sampler) if is_first else None
            self.batch_size = _whole(_values_of(iterator._index_sampler).get("batch_size"))
        tensors: list = []
        self._collect(batch, tensors, 0)
        is_pinned = getattr(iterator, "_pin_memory", True)
        self.unpinned_bytes = None if is_pinned else sum(map(_size, tensors)) or None
        self._pending = ([self._passes - 1, position, _hash(tensors)], self._record.backwards)

    def count(self, batch):
        """Add the elements of a batch's first tensor, which tell how long the batch is.

        Of many short steps, a sample of the batches stands for the others.
        """
        for _ in range(MAX_DEPTH + 1):
            if type(batch) is self._torch.Tensor:
                self._record.batch_elements += batch.numel() * (self._record.count_mask + 1)
                return
            batch = next(_values(batch), None)

    def finished(self, iterator):
        """Note that a pass over the data has ended."""
        if self._iterator() is iterator:
            self._confirm(iterator._num_yielded)
            self._iterator = nothing

    def _confirm(self, position):
        """Keep the last hash if each batch since then was followed by a backward pass.

        Args:
            position: of the batch that follows now; 0 in the next pass.
        """
        if self._pending is not None:
            entry, backwards = self._pending
            batches = max(1, position - entry[1])
            if self._record.backwards - backwards >= batches and entry[2] is not None:
                self.hashes = [*self.hashes[1 - MAX_HASHES :], entry]
            self._pending = None

    def _collect(self, batch, tensors, depth):
        if len(tensors) >= MAX_TENSORS or depth > MAX_DEPTH:
            return
        if type(batch) is self._torch.Tensor:
            if (
                batch.is_cpu
                and batch.layout is self._torch.strided
                and batch.is_contiguous()
                and batch.numel()
                and batch.data_ptr()
                and _holds_all(batch)
            ):
                tensors.append(batch)
            return
        for value in itertools.islice(_values(batch), MAX_VALUES):
            self._collect(value, tensors, depth + 1)


def _hash(tensors):
    """The hash of a batch's tensors; None without any."""
    hashed = 0
    for tensor in tensors:
        size = _size(tensor)
        start, apart = tensor.data_ptr(), max(0, size - CHUNK_BYTES) // (CHUNKS - 1)
        for chunk in range(CHUNKS if apart else 1):
            part = ctypes.string_at(start + chunk * apart, min(CHUNK_BYTES, size))
            hashed = zlib.crc32(part, hashed)
    return hashed if tensors else None


def _size(tensor):
    return tensor.numel() * tensor.element_size()


def _values(batch):
    """Those of a container; its own methods are not called, since they are the script's."""
    if isinstance(batch, list):
        return list.__iter__(batch)
    if isinstance(batch, tuple):
        return tuple.__iter__(batch)
    if isinstance(batch, UserDict):
        batch = vars(batch).get("data")
    return iter(dict.values(batch) if isinstance(batch, dict) else ())


def _holds_all(tensor):
    """Whether a tensor's storage has all of its elements; a script may have resized it."""
    elements = tensor.storage_offset() + tensor.numel()
    return tensor.untyped_storage().nbytes() >= elements * tensor.element_size()


def _length(sampler):
    """How many batches the sampler of a DataLoader yields; None if only the script knows."""
    of = getattr(sampler, "sampler", sampler)  # without one: of single samples
    if not {type(sampler).__module__, type(of).__module__}.issubset(OF_TORCH):
        return None
    try:
        length = len(sampler)
    except Exception:  # of the script's dataset
        return None
    return _whole(length)


def _epoch_of(sampler):
    """The epoch by which a sampler shuffles; None unless its `set_epoch` has to be called."""
    values = _values_of(sampler)
    if values.get("shuffle") is not True or not hasattr(type(sampler), "set_epoch"):
        return None
    return _whole(values.get("epoch"))


def _values_of(sampler):
    """Its attributes, without a call of the script's code."""
    return getattr(sampler, "__dict__", {})


def _whole(value):
    """A number that a datagram has room for, and None for others, such as of data without end."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _reference(value):
    """A function that gives the value while it exists."""
    try:
        return weakref.ref(value)
    except TypeError:  # such as a list
        return lambda: value
