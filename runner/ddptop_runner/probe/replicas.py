"""Sums over the parameters of DistributedDataParallel models, by which ranks are compared.

Replicas have equal parameters wherever they have taken equally many steps. Ranks do not ask each
other when to look: they look at steps that follow from the step's number and from the time of a
step, which is the same for all, and those of a rank that is a factor of two off are still a part of
the others'. They look at the start of a backward pass, where all that follows an optimizer's step
is done, such as the broadcast of ZeroRedundancyOptimizer.

A sum of integers depends on no order of threads, and the sum of many equal values tells them from
others, as `torch.hash_tensor` with its exclusive or does not.
"""

from __future__ import annotations

import itertools
import os
import weakref
import zlib

from . import identity
from .losses import may_read

FIRST_STEP = 4
EVERY_S = 300.0
MAX_GROUPS, MAX_NAME_LENGTH = 32, 40
"""Parameters are reported in so many groups, as datagrams have room for."""


class Replicas:
    """Those of one process. Its training thread sums, and the sender's thread reads the sums."""

    def __init__(self, torch, record, parts):
        self._torch = torch
        self._record = record
        self._parts = parts
        self._is_off = os.environ.get("DDPTOP_REPLICA_CHECK") == "off"
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.hashes = None
        """[step, hash of what must be equal to compare, hash of each group of parameters]."""
        self.groups = []
        """What the parameters of each group have in common in their names."""
        self.is_due = False
        """Whether the next backward pass is to be looked at."""
        self._models = []
        self._under_way = None
        """(step, passes of the models, named parameters, sums on the host, sums on the device)."""

    def note(self, parallel):
        """A DistributedDataParallel over all ranks was made."""
        if parallel.process_group.size() == identity.world_size() != 1:
            self._models.append(weakref.ref(parallel))
            if not self._is_off:
                self._plan()

    def after_step(self):
        """The step at which to look has ended."""
        self.is_due = bool(self._living())
        self._record.end_run()
        self._plan()

    def look(self):
        """Sum up the parameters; all are where the optimizers have left them."""
        self.is_due, torch, models = False, self._torch, self._living()
        steps, passes = self._record.steps, [self._parts.passes_of(one.logger) for one in models]
        # in local SGD, and with some hooks, replicas differ between the steps that average them
        if min(passes) < steps or not may_read(torch):
            return
        if self.is_joined() or any(one._comm_hooks for one in models):
            return
        named = [
            (name, parameter)
            for model in models
            for name, parameter in model.module.named_parameters()
            if name not in model.parameters_to_ignore and _is_plain(torch, parameter)
        ]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            sums = torch.stack([_sum(torch, parameter.detach()) for _, parameter in named])
            sums = torch.cat([sums, sums.sum().reshape(1) + 1])
            on_host = torch.zeros(
                sums.shape, dtype=torch.int64, device="cpu", pin_memory=sums.is_cuda
            )
            on_host.copy_(sums, non_blocking=True)
        # on one rank, steps may be those of another model: the passes are counted together
        self._under_way = (steps, passes, named, on_host, sums)

    def is_joined(self):
        """Whether ranks may take different numbers of steps: in `model.join()`."""
        return any(one._join_config.enable for one in self._living())

    def harvest(self):
        """Take the sums if they have arrived from the device: then the last is that of the rest."""
        if self._under_way is None:
            return False
        step, passes, named, on_host, _ = self._under_way
        *sums, check = on_host.tolist()
        if (sum(sums) + 1 - check) % 2**64:
            return False
        self._under_way = None
        size = -(-len(sums) // MAX_GROUPS)
        starts = range(0, len(sums), size)
        names = [name for name, _ in named]
        layout = [passes, *((name, list(parameter.shape)) for name, parameter in named)]
        self.groups = [_common(names[start : start + size]) for start in starts]
        self.hashes = [step, _crc(layout), [_crc(sums[at : at + size]) & 0xFFFF for at in starts]]
        return True

    def _living(self):
        return [model for model in (ref() for ref in self._models) if model is not None]

    def _plan(self):
        record = self._record
        steps, step_s = record.steps, 0.0
        first, last = record.first_progress, record.progress
        if steps and last[0] > first[0]:
            step_s = (last[1] - first[1]) / (last[0] - first[0])
        record.look_after_step = next_look(steps, step_s)


def next_look(step, step_s):
    """The step after `step` at which all ranks look: first at powers of two.

    Args:
        step: Steps so far.
        step_s: Mean duration of a step; ranks may differ by less than a factor of two.
    """
    apart = FIRST_STEP
    while 2 * apart <= step and 2 * apart * step_s <= EVERY_S:
        apart *= 2
    return step - step % apart + apart


def _is_plain(torch, parameter):
    """Whether a parameter is averaged, and is one block of memory: no DTensor, nothing sparse."""
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.requires_grad
        and parameter.layout is torch.strided
        and parameter.numel() > 0
        and (parameter.is_cpu or parameter.is_cuda)
        and (
            parameter.is_contiguous()
            or parameter.is_contiguous(memory_format=torch.channels_last)
            or parameter.is_contiguous(memory_format=torch.channels_last_3d)
        )
    )


def _sum(torch, tensor):
    """The sum of a tensor's bits, as integers of 8 bytes where possible, which is fastest."""
    flat, size = tensor.as_strided((tensor.numel(),), (1,)), tensor.element_size()
    many, elements = max(1, 8 // size), {2: torch.int16, 4: torch.int32}
    whole = 0 if flat.storage_offset() % many else flat.numel() // many * many
    if whole == flat.numel():
        return flat.view(torch.int64).sum()
    rest = flat[whole:].view(elements[size]).sum(dtype=torch.int64)
    return rest + flat[:whole].view(torch.int64).sum() if whole else rest


def _crc(value):
    return zlib.crc32(repr(value).encode())


def _common(names):
    """`layer1.0.bn1` for its weight and bias."""
    parts = zip(*(name.split(".") for name in names))
    common = [same[0] for same in itertools.takewhile(lambda part: len(set(part)) == 1, parts)]
    return (".".join(common) or "{} to {}".format(names[0], names[-1]))[-MAX_NAME_LENGTH:]
