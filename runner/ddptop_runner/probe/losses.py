"""The loss of a step: unscaled, divided as the script divides it, and read from its device.

Something may scale a loss before the backward pass, so that fp16 gradients do not vanish. torch's
scalers return a scaled tensor: it is labeled with the loss that it was made from. Those of
DeepSpeed and apex scale internally: the loss that the script passes is kept for the backward pass
that follows.

If the losses of one step were divided by their number before each backward pass, their sum is the
loss of the step, else their mean. Frameworks that accumulate gradients divide by the accumulation
factor: they are recognized by their frames above a backward pass. A script's own `loss / 4` is the
last operation of the loss's graph. Both are looked up once a step, at the second backward pass.

A scalar on a CUDA device is read without ever waiting for it: the training thread launches an
asynchronous copy into pinned memory, and the sender's thread looks at that memory until the value
has arrived. No event is queried: from a second thread that would break a CUDA graph capture of the
script, while reading memory is no call to CUDA at all.
"""

from __future__ import annotations

import ctypes
import sys
import time

from .recorder import AWAITED

UNSCALED = "_ddptop_unscaled"
"""Attribute of a scaled loss that holds the loss before scaling, detached."""


class Scalers:
    """The scaled losses of one process.

    Args:
        torch: The module.
        record: The process's recorder.
        guard: Called with a function, gives one that lets no exception of the probe's out.
    """

    def __init__(self, torch, record, guard):
        self._torch = torch
        self._record = record
        self._guard = guard
        self.labels = False
        """Whether any scaled loss was labelled."""
        self.handed_over = []
        """[loss before scaling] of the backward pass that comes."""
        self.divisor = 1
        """What that loss is still to be divided by."""

    def scale(self, original):
        """Wraps `scale(scaler, outputs)` of torch's scalers."""
        keep = self._guard(self._label)

        def scale(scaler, outputs):
            scaled = original(scaler, outputs)
            keep(outputs, scaled)
            return scaled

        return scale

    def update(self, original):
        """Wraps `update` of torch's scalers: losses that are left belong to a skipped step."""
        skipped = self._guard(self._record.step_skipped)

        def update(*args, **kwargs):
            skipped()
            return original(*args, **kwargs)

        return update

    def deepspeed_backward(self, original):
        """Wraps `DeepSpeedEngine.backward`."""
        keep, forget = self._guard(self._keep_deepspeeds), self.handed_over.clear

        def backward(engine, loss, *args, **kwargs):
            keep(engine, loss, kwargs)
            try:
                return original(engine, loss, *args, **kwargs)
            finally:
                forget()

        return backward

    def deepspeed_step(self, original):
        """Wraps `DeepSpeedEngine.step`: skipped steps, and those without an optimizer hook."""
        record = self._record
        note = self._guard(self._note_deepspeeds_step)

        def step(engine, *args, **kwargs):
            known = engine.__dict__
            steps, skipped = known.get("global_steps"), known.get("skipped_steps")
            result = original(engine, *args, **kwargs)
            if record.plain_loss is not AWAITED and record.has_passed:
                note(engine, steps, skipped)
            return result

        return step

    def apex_scale_loss(self, original):
        """Wraps `apex.amp.scale_loss`."""
        keep = self._guard(self._keep)

        def scale_loss(loss, *args, **kwargs):
            keep(loss)
            return original(loss, *args, **kwargs)

        return scale_loss

    def _label(self, outputs, scaled):
        if scaled is outputs:  # a disabled scaler
            return
        if isinstance(outputs, self._torch.Tensor):
            outputs, scaled = (outputs,), (scaled,)
        if isinstance(outputs, (tuple, list)):
            self.labels = True
            for before, after in zip(outputs, scaled):
                setattr(after, UNSCALED, before.detach())

    def _keep(self, loss):
        if isinstance(loss, self._torch.Tensor):
            self.handed_over[:] = [loss.detach()]
            self.divisor = 1

    def _keep_deepspeeds(self, engine, loss, kwargs):
        # also before its division, which rounds in half precision; discarded before it returns
        if isinstance(loss, self._torch.Tensor):
            is_divided = kwargs.get("scale_wrt_gas", True)
            self.divisor = engine.gradient_accumulation_steps() if is_divided else 1
            self.handed_over[:] = [loss]

    def _note_deepspeeds_step(self, engine, steps_before, skipped_before):
        if engine.skipped_steps != skipped_before:
            self._record.step_skipped()
        elif engine.global_steps != steps_before:
            self._record.stepped(engine)


BY_FRAMEWORK = 0
"""Used for whatever number a framework divides by."""

DIVIDERS = {
    "backward": ("accelerate.accelerator", "deepspeed.runtime.engine"),
    "backward_fn": (
        "lightning.pytorch.loops.optimization.automatic",
        "pytorch_lightning.loops.optimization.automatic",
    ),
}
"""{function: modules} of frameworks that divide and call the backward pass."""

MAX_FRAMES = 24
"""Lightning's frame is twelve above its backward pass."""


def divisor_of(tensor, is_scaled):
    """What a loss was divided by, BY_FRAMEWORK or a number; None if unknown.

    Args:
        tensor: The loss, as given to the backward pass.
        is_scaled: Whether its last operation is that of a gradient scaler.
    """
    if _is_inside_divider(sys._getframe(1)):
        return BY_FRAMEWORK
    try:
        return _in_graph(tensor, is_scaled)
    except (AttributeError, IndexError, RuntimeError):  # a graph other than the known one
        return None


def _is_inside_divider(frame):
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        modules = DIVIDERS.get(frame.f_code.co_name)
        if modules is not None and frame.f_globals.get("__name__") in modules:
            return True
        frame = frame.f_back
    return False


def _in_graph(tensor, is_scaled):
    node = tensor.grad_fn
    if is_scaled and node is not None:
        node = node.next_functions[0][0]
    name = None if node is None else node.name()
    if name not in ("DivBackward0", "MulBackward0"):
        return None
    other = node._saved_other
    if other is None or not other.is_cpu or other.dim() or other.requires_grad:
        return None
    value = other.item()
    if name == "MulBackward0":
        value = 1 / value if value else 0.0
    divisor = round(value) if 1 < value < 1e9 else None
    return divisor if divisor is not None and abs(value - divisor) < 1e-6 * divisor else None


NOT_ARRIVED = -2.4703282292062327e-213
"""The content of the pinned memory until the copy overwrites it; no loss has this value."""


class DeviceScalar:
    """The newest value of one scalar on a device, with at most one copy in progress.

    The training thread calls `offer`, and the sender's thread calls `harvest`. A new copy starts
    only after the sender took the last one, so there are no more copies than reads.
    """

    def __init__(self, torch):
        self._torch = torch
        self._cell = None
        self._under_way = None
        """(tensors kept alive, publish) of the copy under way, None when there is none."""
        self._newest = None
        """(tensors, whether a sum, publish) not yet copied."""

    def offer(self, tensors, is_sum, publish):
        """A newer value exists: detached tensors of one element, to be summed or averaged.

        Args:
            tensors: on the device.
            is_sum: Whether to take their sum.
            publish: Called with the value by the sender's thread, unless a newer one replaces it.
        """
        self._newest = (tensors, is_sum, publish)
        if self._under_way is None:
            self._launch()

    def harvest(self):
        """Publish the value being copied if it has arrived; returns whether it had."""
        under_way = self._under_way
        if under_way is None or self._cell is None:
            return False
        value = self._cell.value
        if value == NOT_ARRIVED:
            return False
        under_way[1](value)
        self._under_way = None
        return True

    def drain(self, deadline_s):
        """At exit, on the training thread: publish the last value if it arrives in time.

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
        tensors, is_sum, publish = self._newest
        self._newest = None
        with torch._C.DisableTorchFunction(), torch.no_grad():
            total = tensors[0].to(torch.float64)
            for tensor in tensors[1:]:
                total = total + tensor
            if len(tensors) > 1 and not is_sum:
                total = total / len(tensors)
            self._cell.value = NOT_ARRIVED
            self._buffer.copy_(total.reshape(()), non_blocking=True)
        self._under_way = (total, publish)
        return True


def dispatch_modes(torch):
    """A function that returns how many dispatch modes are active."""
    return torch._C._len_torch_dispatch_stack


def may_read(torch):
    """Whether the script's own dispatch modes would not see the probe's operations."""
    return dispatch_modes(torch)() == 0


def is_capturing(torch):
    """Whether a CUDA graph is being captured on this thread's stream."""
    return bool(torch.cuda.is_current_stream_capturing())
