"""Scalars of a CUDA device, read without ever waiting for it.

The training thread launches an asynchronous copy into pinned memory; the sender's thread looks at
that memory until the value has arrived. No event is asked for: an event query from a second thread
would break a CUDA graph capture of the script, while looking at memory is no call to CUDA at all.
"""

from __future__ import annotations

import ctypes
import time

NOT_ARRIVED = -2.4703282292062327e-213
"""What the pinned memory holds until the copy overwrites it; no loss is this number."""


class DeviceScalar:
    """The newest value of one scalar on a device, at most one copy under way.

    `offer` belongs to the training's thread, `harvest` to the sender's. A new copy starts only
    after the sender took the last one, so that there are no more copies than looks.
    """

    def __init__(self, torch, publish):
        self._torch = torch
        self._publish = publish
        self._cell = None
        self._under_way = None
        """(tensors kept alive, step) of the copy under way, None when there is none."""
        self._newest = None
        """(tensors, whether a sum, step) not yet copied."""

    def offer(self, tensors, is_sum, step):
        """A newer value exists: detached tensors of one element, to be summed or averaged."""
        self._newest = (tensors, is_sum, step)
        if self._under_way is None:
            self._launch()

    def harvest(self):
        """Publish the value that was under way, if it has arrived; whether it had."""
        under_way = self._under_way
        if under_way is None or self._cell is None:
            return False
        value = self._cell.value
        if value == NOT_ARRIVED:
            return False
        self._publish(value, under_way[1])
        self._under_way = None
        return True

    def drain(self, deadline_s):
        """At exit, on the training's thread: publish the last value if it arrives in time.

        Args:
            deadline_s: When to give up, on time.monotonic's clock.
        """
        while self._under_way is not None or self._newest is not None:
            if self._under_way is None and not self._launch():
                return
            if not self.harvest():
                if time.monotonic() > deadline_s:
                    return
                time.sleep(0.001)

    def _launch(self):
        """Start copying the newest value; False where that is not allowed now."""
        torch = self._torch
        if self._newest is None or not may_read(torch) or is_capturing(torch):
            return False
        if self._cell is None:
            self._buffer = torch.zeros((), dtype=torch.float64, device="cpu", pin_memory=True)
            self._cell = ctypes.c_double.from_address(self._buffer.data_ptr())
        tensors, is_sum, step = self._newest
        self._newest = None
        with torch._C.DisableTorchFunction(), torch.no_grad():
            total = tensors[0].to(torch.float64)
            for tensor in tensors[1:]:
                total = total + tensor
            if len(tensors) > 1 and not is_sum:
                total = total / len(tensors)
            self._cell.value = NOT_ARRIVED
            self._buffer.copy_(total.reshape(()), non_blocking=True)
        self._under_way = (total, step)
        return True


def may_read(torch):
    """Whether operations of the probe would go unseen by the script's own dispatch modes."""
    return torch._C._len_torch_dispatch_stack() == 0


def is_capturing(torch):
    """Whether a CUDA graph is being captured on this thread's stream."""
    return bool(torch.cuda.is_current_stream_capturing())
