"""What advice on a training rests on: how DistributedDataParallel is used, and whether it learns.

Most figures are DDP's own, which time_parts reads on the thread that trains, where DDP takes them.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from . import losses

KEPT, WARM_ITERATIONS = 5, 3
"""The times are medians over this many measured iterations, without the first ones."""
TENSOR_CORES = 8
"""Devices of this compute capability multiply float32 faster as TF32."""


class DdpUse:
    """How one process uses DistributedDataParallel; nothing with several modules, as of a GAN."""

    def __init__(self, torch, record):
        self._torch = torch
        self._record = record
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.latest = None
        """The figures, as the datagram's `ddp`; None until DDP measured some iterations."""
        self._uses_autocast = False
        self._modules: Any = weakref.WeakSet()
        self._has_large_products = False
        self._times: Any = deque(maxlen=KEPT)
        """[(how long an iteration's all-reduces took, while the backward pass computed), in ns]"""

    def made(self, module):
        """A DDP module was made."""
        self._modules.add(module)
        linear = self._torch.nn.Linear
        weights = sum(one.weight.numel() for one in module.modules() if isinstance(one, linear))
        self._has_large_products = 2 * weights >= sum(one.numel() for one in module.parameters())

    def enter_autocast(self, original):
        """Wraps `__enter__` of torch.autocast."""

        def __enter__(context):
            if getattr(context, "_enabled", True):
                self._uses_autocast = True
            return original(context)

        return __enter__

    def measured(self, strings, figures, syncs):
        """Take DDP's own figures of an iteration that it measured, on the thread that trains.

        Args:
            strings: those in words, by name.
            figures: the others, by name.
            syncs: how many iterations had an all-reduce.
        """
        modules, iteration = list(self._modules), figures["iteration"]
        if len(modules) != 1 or iteration <= WARM_ITERATIONS:
            self.latest = None
            return
        self._times.append(
            (figures["backward_comm_time"], figures["backward_compute_comm_overlap_time"])
        )
        comm_ns, hidden_ns = (sorted(times)[len(times) // 2] for times in zip(*self._times))
        buckets = strings.get("rebuilt_bucket_sizes") or strings["bucket_sizes"]
        self.latest = {
            "iteration": iteration,
            "syncs_per_step": round(syncs / self._record.steps, 2) if self._record.steps else None,
            "comm_s": comm_ns / 1e9,
            "hidden_s": max(0, hidden_ns) / 1e9,
            "parameter_bytes": figures["total_parameter_size_bytes"],
            "buckets": buckets.count(",") + 1,
            "finds_unused": bool(figures["find_unused_parameters"]),
            "unused_bytes": figures.get("unused_parameter_size"),
            "is_static": modules[0].reducer._ddp_graph_static(),
            "could_use_tf32": self._could_use_tf32(modules[0], strings["dtypes"]),
        }

    def _could_use_tf32(self, module, dtypes):
        """Whether most parameters are of float32 products without tensor cores; None off CUDA."""
        torch = self._torch
        if module.device_type != "cuda" or torch.version.cuda is None:
            return None
        return (
            self._has_large_products
            and dtypes == "float"
            and not self._uses_autocast
            and torch.get_float32_matmul_precision() == "highest"
            and torch.cuda.get_device_capability(module.device)[0] >= TENSOR_CORES
        )


class Gradients:
    """Whether any optimizer ever had a gradient to learn from.

    Looked at where the number of steps is a power of two, until one is found: mostly, at the first
    step. A gradient on a device counts without being read.
    """

    def __init__(self, torch):
        self._torch = torch
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.is_found = False
        self.idle = None
        """Why there was none so far, as the datagram's `not_learning`."""

    def look(self, optimizer):
        """Look at the gradients of a step that has just ended."""
        groups = optimizer.param_groups
        gradients = [one.grad for group in groups for one in group["params"]]
        known = [gradient for gradient in gradients if gradient is not None]
        rates = [group.get("lr") for group in groups]
        why = None
        if not known:
            why = "no_gradients"
        elif all(type(rate) in (float, int) and rate == 0 for rate in rates):
            why = "zero_rate"
        elif not any(self._counts(gradient) for gradient in known):
            why = "zero_gradients"
        self.is_found = why is None or self.idle not in (None, why)
        self.idle = None if self.is_found else why

    def _counts(self, gradient):
        torch = self._torch
        if type(gradient) is not torch.Tensor or not gradient.is_cpu:
            return True
        if gradient.layout is not torch.strided or not losses.may_read(torch):
            return True
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return bool(gradient.any())
