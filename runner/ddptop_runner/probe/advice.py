"""What advice on a training rests on: how DistributedDataParallel is used, and whether it learns.

Most figures are DDP's own, which time_parts reads on the thread that trains, where DDP takes them.
"""

from __future__ import annotations

import weakref
from typing import Any

from . import losses


class DdpUse:
    """How one process uses DistributedDataParallel; nothing with several modules, as of a GAN."""

    def __init__(self, torch, record):
        self._torch = torch
        self._record = record
        self.has_autocast = False
        """Whether the process has ever entered an enabled `torch.autocast`."""
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.latest = None
        """The figures, as the datagram's `ddp`; None until DDP measured some iterations."""
        self._modules: Any = weakref.WeakSet()
        self._unused = (0, None, None)
        """Of the last iteration that DDP measured: its number, the figure for unused bytes, and
        the same again if that of the iteration before was equal, else None."""
        self._may_use_tf32 = False
        """Whether the last module has float32 parameters only, mostly of matrices, on a device with
        TF32. Convolutions use it by default."""

    def made(self, module):
        """A DDP module was made."""
        torch = self._torch
        self._modules.add(module)
        parameters = list(module.parameters())
        kinds = {(one.device.type, one.dtype) for one in parameters}
        in_matrices = sum(one.numel() for one in parameters if one.dim() == 2)
        self._may_use_tf32 = (
            kinds == {("cuda", torch.float32)}
            and 2 * in_matrices > sum(one.numel() for one in parameters)
            and torch.cuda.get_device_capability(parameters[0].device) >= (8, 0)
        )

    def measured(self, figures, exposed_s, syncs):
        """Take DDP's own figures of an iteration that it measured, on the thread that trains.

        Args:
            figures: by name.
            exposed_s: how long all-reduces usually go on after the backward pass.
            syncs: how many iterations had an all-reduce.
        """
        modules, steps = list(self._modules), self._record.steps
        if len(modules) != 1 or not steps:
            self.latest = None
            return
        iteration, before_bytes, unused_bytes = self._unused
        if figures["iteration"] != iteration:
            # torch 2.6 sums it over the iterations, and has none while all parameters are used
            found_bytes = figures.get("unused_parameter_size", 0)
            unused_bytes = found_bytes if found_bytes == before_bytes else None
            self._unused = (figures["iteration"], found_bytes, unused_bytes)
        comm_s = figures["backward_comm_time"] / 1e9
        self.latest = {
            "iteration": figures["iteration"],
            "syncs_per_step": round(syncs / steps, 2),
            "comm_s": comm_s,
            "hidden_s": max(0.0, comm_s - exposed_s),
            "finds_unused": bool(figures["find_unused_parameters"]),
            "unused_bytes": unused_bytes,
            "is_static": modules[0].reducer._ddp_graph_static(),
            "tf32_off": self._may_use_tf32 and not self.has_autocast and not self._uses_tf32(),
        }

    def _uses_tf32(self):
        """Whether float32 matrices are multiplied with TF32."""
        matmul = self._torch.backends.cuda.matmul
        try:
            return matmul.fp32_precision == "tf32"  # from torch 2.9 on, which warns of all else
        except AttributeError:
            return matmul.allow_tf32


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
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
        known = [gradient for gradient in gradients if gradient is not None]
        why = "zero_gradients" if known else "no_gradients"
        is_found = any(self._counts(gradient) for gradient in known)
        self.is_found = is_found or self.idle not in (None, why)
        self.idle = None if self.is_found else why

    def _counts(self, gradient):
        torch = self._torch
        if type(gradient) is not torch.Tensor or not gradient.is_cpu:
            return True
        if gradient.layout is not torch.strided or not losses.may_read(torch):
            return True
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return bool(gradient.any())
