"""What a step's time is made of: waiting for data, waiting for other ranks, and all else.

The same time is also divided into forward, backward, and optimizer, in a sample of the steps, by
the borders that the hooks see. Each border gives the time since the one before to one part, or to
none, so that nothing counts twice, whatever is nested or repeated. Where the model is on a CUDA
device, the CPU only enqueues the work: there, events on the device's stream are the borders.

How long a rank waits for others is known from two sources. DistributedDataParallel measures its
first ten iterations and then every hundredth itself: how long its collectives went on after the
backward pass had computed its last gradient; on devices it asks their own clocks. And a collective
over gloo holds the thread that waits for it, which can be timed. Collectives over NCCL other than
DDP's leave no trace of how long anything waited for them: the wait is then not known.

A rank waits for the slowest: where the wait is long, the others are slow.
"""

from __future__ import annotations

import time
from _thread import get_ident
from collections import deque
from typing import Any

from . import identity, losses
from .recorder import AWAITED, is_own

MEASURED = 10
"""The wait of a DDP module is the lower quartile of so many of its latest measured iterations: of
ranks whose steps differ by chance, each waits in some of them."""
FIRST_CALLS = 12
"""This many of its forward passes are checked, so that none of those measured first is missed."""
MAX_MODULES = 16
MESSAGES = 40
"""How often a module waits in a step is the mean over so many messages: within one a forward pass
may belong to the step before or after."""

NONE, BATCH, INPUT, FORWARD, BACKWARD, OPTIMIZER = range(6)
"""What the time before a border was spent on; that before a batch is none of the parts."""
SAMPLES = 8
"""The parts are means over this many samples. A sample begins at most once per datagram."""
DEVICE_STEPS = 50
"""On a device, where a border costs more, at most one step in so many is a sample."""
MAX_BORDERS = 200
"""A step with more borders is no sample."""


class Borders:
    """How long forward and backward passes and the optimizers took.

    The thread that trains writes. It also reads the events itself, when the next sample begins: in
    another thread, that could invalidate a CUDA graph that is being captured.
    """

    def __init__(self, torch, record):
        self._torch = torch
        self._record = record
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.is_due = True
        """Whether a sample begins or ends soon; set by the sender."""
        self.marks: Any = None
        """[(part, time or event)] of the step that is the sample."""
        self._at = None
        """The step at the last call of `sample`."""
        self._is_on_device = False
        self.allocated_bytes = None
        """Memory of tensors on the device at the end of a step, which needs most of it no more."""
        self._next_step = 0
        """The first step that can be a sample again, on a device."""
        self._before_step: Any = None
        """The handle of the optimizer's hook for the sample."""
        self._ended: Any = None
        """The marks of a sample that the device has not reached."""
        self._spent_s: Any = deque(maxlen=SAMPLES)
        """By sample: [input, forward with input, backward, optimizer]."""

    def mark(self, part):
        """What ends here is `part` of a step that is a sample."""
        try:
            border: Any = time.monotonic()
            if self._is_on_device:
                if losses.is_capturing(self._torch) or len(self.marks) > MAX_BORDERS:
                    self.marks = None
                    return
                border = self._torch.cuda.Event(enable_timing=True)
                border.record()
            self.marks.append((part, border))
        except Exception as error:
            self.marks = None
            if not is_own(error):
                raise

    def mark_input(self):
        """A forward pass of DDP begins: what the script did since the batch is its input."""
        if self.marks and self.marks[-1][0] == BATCH:
            self.mark(INPUT)

    def sample(self, optimizer):
        """After a step: begin or end a sample, if this step is not of the same iteration."""
        before, self._at = self._at, self._record.steps
        if self.marks is not None:
            self.mark(OPTIMIZER)
        if before is None or before == self._at:
            return
        if self._before_step is not None:
            self._before_step.remove()
        if self.marks is not None:
            self._ended, self.marks = self.marks, None
            self.is_due, self._at = False, None
            self._read()
            return
        parameter = optimizer.param_groups[0]["params"][0]
        self._is_on_device = parameter.is_cuda
        self._read()
        if self._is_on_device:
            self._count_memory(parameter.device)
        if self._is_on_device and self._at < self._next_step:
            self.is_due, self._at = False, None
            return
        self._next_step = self._at + DEVICE_STEPS
        self.marks = []
        self.mark(NONE)
        self._before_step = optimizer.register_step_pre_hook(self._begin_step)

    def _begin_step(self, optimizer, args, kwargs):
        if self.marks is not None:
            self.mark(NONE)

    def _count_memory(self, device):
        try:
            self.allocated_bytes = self._torch.cuda.memory_allocated(device)
        except Exception:  # an allocator of the script's own does not count
            self.allocated_bytes = None

    def _read(self):
        """Take the last sample, if the device has reached its end."""
        marks = self._ended
        if not marks:
            return
        on_device = type(marks[0][1]) is not float
        if on_device and (losses.is_capturing(self._torch) or not marks[-1][1].query()):
            return
        self._ended, spent_s = None, [0.0] * 6
        for (_, start), (part, end) in zip(marks, marks[1:]):
            spent_s[part] += start.elapsed_time(end) / 1e3 if on_device else end - start
        spent_s[FORWARD] += spent_s[INPUT]
        parts = [part for part, _ in marks]
        if parts.count(BATCH) != parts.count(INPUT):  # no_sync hides forward passes
            spent_s[INPUT] = 0.0
        self._spent_s.append(spent_s[INPUT:])

    def parts_of(self, step_s):
        """[input, forward with input, backward, optimizer] of a mean step; None for the unseen."""
        samples = list(self._spent_s)
        total_s = sum(sum(times_s[1:]) for times_s in samples)
        if not total_s or step_s is None:
            return [None] * 4
        # the samples may have been longer than the mean step
        scale = min(1.0 / len(samples), step_s / total_s)
        return [sum(times_s) * scale or None for times_s in zip(*samples)]


class _Module:
    """What one DDP module has measured."""

    def __init__(self):
        self.calls = 0
        """Forward passes that a collective follows."""
        self.calls_then = 0
        """`calls` when the mean was taken last."""
        self.iteration = 0
        """The one measured last."""
        self.waits_s: Any = deque(maxlen=MEASURED)
        self.used: Any = deque(maxlen=MESSAGES)
        """By message: how often it waited, and the steps."""

    def waits_per_step(self, waits, steps):
        """How often it waits per step, recently; at most once."""
        self.used.append((waits, steps))
        waited = sum(waits for waits, _ in self.used)
        return min(1.0, waited / sum(steps for _, steps in self.used))

    @property
    def wait_s(self):
        """The usual wait of an iteration."""
        return sorted(self.waits_s)[len(self.waits_s) // 4]

    def measured(self, figures):
        """Take DDP's own values, in ns; returns whether they are of an iteration not seen yet."""
        iteration = figures.get("iteration") or 0
        whole_ns = figures.get("backward_comm_time") or 0
        hidden_ns = figures.get("backward_compute_comm_overlap_time") or 0
        if iteration == self.iteration or whole_ns <= 0:
            return False
        self.iteration = iteration
        self.waits_s.append(max(0, whole_ns - hidden_ns) / 1e9)
        return True


class TimeParts:
    """How long one process waits for other ranks. Its thread of training writes, the sender reads.

    DDP's figures are read by the thread that trains, right where DDP takes them itself: at any
    other moment its lock may be held by a backward pass that waits for another rank.
    """

    def __init__(self, torch, record, ddp_use, borders):
        self._torch = torch
        self._borders = borders
        self._record = record
        self._ddp_use = ddp_use
        self._training_thread = get_ident()
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.waited_s = None
        """In collectives that hold the thread, since the first step; None where none was seen."""
        self._at_step = (None, None)
        """The last step that a wait has followed, and `waited_s` at its end."""
        self._modules = {}
        self._is_wanted = False
        self._from = (0.0, 0)
        """(waited, backward passes) when the mean was taken last."""

    def arm(self, patch):
        """Patch torch. `patch` is called with an owner, a name, and what makes the wrapper."""
        c10d = self._torch._C._distributed_c10d
        patch(c10d.Logger, "set_runtime_stats_and_log", self._measured)
        patch(c10d.Work, "wait", self._timed)
        patch(self._torch.nn.parallel.DistributedDataParallel, "_sync_buffers", self._timed)

    def _measured(self, original):
        def set_runtime_stats_and_log(logger):
            original(logger)
            try:
                self._borders.mark_input()
                modules = self._modules
                module = modules.get(id(logger))
                if module is None:
                    if len(modules) >= MAX_MODULES:
                        return
                    module = modules[id(logger)] = _Module()
                module.calls += 1
                if self._is_wanted or module.calls <= FIRST_CALLS:
                    self._is_wanted = False
                    figures = logger._get_ddp_logging_data().ints_map
                    if module.measured(figures):
                        self._ddp_use.measured(figures, module.wait_s, module.calls)
            except Exception as error:
                if not is_own(error):
                    raise

        return set_runtime_stats_and_log

    def passes_of(self, logger):
        """How many forward passes that all ranks take were seen of a DDP module, by its logger."""
        module = self._modules.get(id(logger))
        return 0 if module is None else module.calls

    def _timed(self, original):
        record, thread, clock = self._record, self._training_thread, time.monotonic

        def wait(*args, **kwargs):
            progress = record.progress
            # before the first step, ranks wait for each other to start
            if progress is None or get_ident() != (record.step_thread or thread):
                return original(*args, **kwargs)
            if self._at_step[0] is not progress:
                self._at_step = (progress, self.waited_s)
            start_s = clock()
            try:
                return original(*args, **kwargs)
            finally:
                wait_s = clock() - start_s
                self.waited_s = (self.waited_s or 0.0) + wait_s
                if record.plain_loss is AWAITED or not record.has_passed:
                    record.until_backward_s -= wait_s

        return wait

    def wait_per_step_s(self, steps, progress, holds_thread):
        """Mean wait for other ranks over the `steps` since the last call; None if unknown.

        Args:
            steps: Steps since the last call; one or more.
            progress: The recorder's, at the last of these steps.
            holds_thread: Whether all collectives hold the thread that waits for them.
        """
        backwards, before = self._record.backwards, self._from
        last, waited_s = self._at_step
        if last is not progress:  # no wait since then
            waited_s = self.waited_s
        self._from = (waited_s or 0.0, backwards)
        self._is_wanted = True
        wait_s = None
        if holds_thread and waited_s is not None:
            wait_s = (waited_s - before[0]) / steps
        for module in list(self._modules.values()):
            calls = module.calls - module.calls_then
            module.calls_then = module.calls
            # several forward passes before one backward pass wait once
            frequency = module.waits_per_step(min(calls, max(1, backwards - before[1])), steps)
            if frequency and not module.waits_s:
                return None
            if frequency:
                wait_s = (wait_s or 0.0) + module.wait_s * frequency
        if wait_s is None and identity.world_size() == 1:
            return 0.0
        return wait_s


def split(step_s, data_wait_s, sync_s):
    """(sync, compute) of a mean step; None for unknown.

    DDP measures few steps, so its wait can be longer than the latest steps leave room for.
    """
    if step_s is None or sync_s is None:
        return None, None
    sync_s = min(sync_s, max(0.0, step_s - (data_wait_s or 0.0)))
    if data_wait_s is None:
        return sync_s, None
    return sync_s, max(0.0, step_s - data_wait_s - sync_s)
