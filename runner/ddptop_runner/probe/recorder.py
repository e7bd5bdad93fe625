"""What one process knows of its training: steps, losses, times. Plain Python, no torch, no locks.

The training's threads write and the sender's thread reads; each attribute is replaced as a whole,
so that a reader never sees half of a change.
"""

from __future__ import annotations

import gc
import math
import numbers
import os
import sys
import time
import weakref
from _thread import get_ident
from collections import deque
from time import monotonic
from typing import Any

MAX_PENDING_LOSSES = 1024
"""With more losses than this without a step, the next step has no loss."""

LEADER_PATIENCE_STEPS = 100
"""The optimizer whose loss is shown is replaced by another one after this many steps without its
own."""

SAVED_TOGETHER_S = 5.0
"""Files saved within this time of each other can be parts of one checkpoint."""

MAX_LOADED = 6
"""The maximum number of loaded files that are reported; checkpoints are among the largest."""

MAX_NAME_LENGTH = 32
MAX_COUNT = 2**53

MAX_OPTIMIZERS = 8
"""The maximum number of optimizers that are reported separately."""

MAX_LOSSES = 100000
"""The maximum number of losses that wait for a sender that does not run."""

TOO_MANY = object()
"""Used instead of losses that exceed the maximum."""

NOT_LOOKED_UP = -1

AWAITED = object()
"""Used for the loss of the next backward pass."""

PLAIN = ("probe", 1, None)
"""The source of a loss, how many backward passes it combines, and how: see `Recorder.latest_loss`.
"""


def nothing():
    """No optimizer, no data, no answer."""


def boottime_s(monotonic_s=None):
    """Seconds since boot, including time spent suspended: the clock of `ddptop_runner.base.clock`.

    The probe itself measures by the monotonic clock, which costs half as much to read, and during
    which no machine is suspended. A moment is converted once, when it is new.

    Args:
        monotonic_s: the moment; now by default.
    """
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now_s if monotonic_s is None else now_s - (monotonic() - monotonic_s)


class _Optimizer:
    """What is known of one optimizer."""

    def __init__(self, optimizer, number):
        self.ref = weakref.ref(optimizer)
        self.iteration = 0
        """The iteration of its last step."""
        self.more_steps = 0
        """How many more steps than iterations it has made."""
        self.loss = None
        """Of its last step; known only where there are several."""
        self.alternates = False
        """Whether it ever stepped again after another had."""
        self.shares = False
        """Whether it ever stepped without a backward pass since another optimizer's step."""
        self.name = "{} {}".format(type(optimizer).__name__[:MAX_NAME_LENGTH], number)
        # LBFGS evaluates its closure several times in one step: the first loss is the step's
        self.first_loss_only = any(kind.__name__ == "LBFGS" for kind in type(optimizer).__mro__)

    @property
    def steps(self):
        """Its steps so far."""
        return self.iteration + self.more_steps


class Recorder:
    """Counts steps and keeps the latest loss.

    A step is a call of an optimizer with at least one backward pass since its last one. Steps of
    several optimizers (GAN, one optimizer per parameter) make one iteration, until one of them
    steps again.

    Nearly all trainings are one run of plain steps: always the same optimizer, after one backward
    pass whose loss is a float. There a step is an iteration, other counts are kept as their
    difference to it, losses wait for the sender, and the rest is looked up once per datagram.
    """

    def __init__(self, on_first_news=None):
        self.on_look = nothing
        self.is_traced = nothing
        """Whether a compiler traces what calls the hooks."""
        self.look: Any = None
        """Called with the optimizer after a step while `is_look_due`."""
        self.begin(on_first_news)

    def begin(self, on_first_news):
        """Reset, as at the start of a process; the hooks keep this same object."""
        self.dirty = False
        """Whether something is new since the sender looked."""
        self.passes = 0
        """Backward passes since the last step of any optimizer, without that of `plain_loss`."""
        self.pending_losses = []
        """The losses of those that have one."""
        self.plain_loss = None
        """During a run of plain steps that of the backward pass since the last, or AWAITED."""
        self.usual_backwards = 0
        """Backward passes of the last step: before as many again, no step is missed."""
        self.progress: Any = None
        """(iterations, monotonic time, `data_wait_s`) at the last; None before the first."""
        self.first_progress = None
        """The same at the first: where mean times start."""
        self.batches_skipped = None
        """Batches of the first pass over the data that no backward pass followed before that."""
        self.is_look_due = True
        """Whether hooks look at the next step; set by the sender."""
        self.look_after_step = sys.maxsize
        """The step after which to call `on_look`."""
        self.latest_loss = None
        """(value or None, "ok" | "nan" | "inf", step, "probe" | "api", backward passes that it is
        made of or None, "sum" | "mean" of them or None with one)."""
        self.divisor = NOT_LOOKED_UP
        """What the losses of the step at hand were divided by; see `losses.divisor_of`."""
        self.replicas = None
        """Devices of a DataParallel; None without."""
        self.trainer = None
        """Called without arguments, gives a framework's own progress; see trainers.py."""
        self.last_good_loss = None
        self.bad_since = None
        """The step since which no loss was finite; None while they are."""
        self.loss_sum = 0.0
        self.loss_n = 0
        self.loss_range = None
        """(smallest, largest) since the sender took it; finite losses only."""
        self.data_wait_s = None
        """Time spent waiting for data loaders, None where no loader was seen."""
        self.data_position = nothing
        """Called without arguments, gives where the process is in its data; see ledger.py."""
        self.until_backward_s = 0.0
        """From the end of each step to the next backward pass, in all, without timed waits."""
        self.batch_elements = 0
        """Of the first tensors of the batches taken for training."""
        self.count_mask = 0
        """Their elements are counted where the bits of `batches` that this has are 0."""
        self.threads = None
        """Those that torch computes with on the CPU."""
        self.gc_s = 0.0
        """How long the garbage collector has run."""
        self._gc_since_s = 0.0
        self.batches = 0
        """Batches taken from data loaders."""
        self.batches_at_step = 0
        """`batches` at the last step."""
        self.batch_without_gradient = None
        """`batches` after the last that the training's thread took with gradients switched off."""
        self.step_thread = None
        """The thread that takes the steps."""
        self.saving = {}
        """{thread: monotonic time since when it saves a file}."""
        self.saved = None
        """The last file that was saved, as the datagram's `saved`."""
        self.loaded = []
        """[[bytes, inode, mtime in ns]] of the largest files loaded before the first step."""
        self.global_step = None
        self.total_steps = None
        self.metrics = {}
        """By name: (value, how often it was reported)."""
        self.script_reports_loss = False
        self.offer_device_loss = None
        """Called with (tensors, whether to take their sum, step, the optimizer's entry where it
        does not lead) for losses on a device."""
        self._on_first_news = on_first_news
        self.on_save = lambda: None
        """Called once a file was saved."""
        self._losses: Any = deque(maxlen=MAX_LOSSES)
        """[(loss, step, (source, parts, kind))] that `settle` has not counted."""
        self._optimizers = {}
        self._registered = 0
        self._leader: Any = None
        self._last: Any = None
        """The optimizer that stepped last."""
        self._alone: Any = nothing
        """During a run of plain steps gives the optimizer that takes them."""
        self._together = set()
        """Those that stepped after the same backward passes."""
        self._iterations = 0
        self._more_backwards = self._more_steps = 0
        """How many more backward passes and steps of optimizers there were than iterations."""
        self._reported_steps = 0

    def watch_gc(self):
        """Measure garbage collections, during which no Python code runs."""
        gc.callbacks.append(self._collected)

    def _collected(self, phase, info):
        if phase == "start":
            self._gc_since_s = monotonic()
        else:
            self.gc_s += monotonic() - self._gc_since_s

    def passed(self, loss):
        """A backward pass starts.

        Args:
            loss: A float, a detached scalar tensor of a device, or None.
        """
        if self.progress is not None and not self.has_passed:
            self.until_backward_s += monotonic() - self.progress[1]
        if self.plain_loss is AWAITED and type(loss) is float:
            self.plain_loss = loss
            return
        self.end_run()
        self.passes += 1
        if loss is not None:
            losses = self.pending_losses
            losses.append(loss)
            if len(losses) > MAX_PENDING_LOSSES:
                # a sum or a mean over a part would be wrong, so the rest counts as no loss
                losses[:] = [TOO_MANY]

    def after_step(self, optimizer, args, kwargs):
        """An optimizer's step has ended; torch's hook."""
        if self.is_traced():
            return
        try:
            loss = self.plain_loss
            if type(loss) is float and self._alone() is optimizer:
                self.plain_loss = AWAITED
                steps = self._iterations = self._iterations + 1
                self.progress = (steps, monotonic(), self.data_wait_s)
                self.batches_at_step = self.batches
                self._losses.append((loss, steps, PLAIN))
                if not self.dirty:
                    self._note_news()
                if steps >= self.look_after_step:
                    self.on_look()
            else:
                self.stepped(optimizer)
            if self.is_look_due:
                self.look(optimizer)
        except Exception as error:
            if not is_own(error):
                raise

    def stepped(self, optimizer):
        """The step of any optimizer has ended, after any number of backward passes."""
        if self.plain_loss is AWAITED and self._alone() is optimizer:
            return
        self.end_run()
        seen = self._optimizers.get(id(optimizer))
        if seen is None or seen.ref() is not optimizer:
            seen = self._register(optimizer)
        count = self.passes
        if count:
            self._together = {seen}
        elif seen in self._together or not self.backwards:
            return
        else:
            seen.shares = True
            self._together.add(seen)
        steps = seen.steps + 1
        if seen is not self._last and steps > 1:
            seen.alternates = True
        self._last = seen
        self._more_backwards += count
        if seen.iteration == self._iterations:
            self._iterations += 1
            self._more_backwards -= 1
        else:
            self._more_steps += 1
        seen.iteration = self._iterations
        seen.more_steps = steps - seen.iteration
        steps = max(self._iterations, self._reported_steps)
        self.progress = (steps, monotonic(), self.data_wait_s)
        self.batches_at_step = self.batches
        if count:
            self.usual_backwards = count
            self._step_loss(steps, seen)
        self._note_news()
        if (
            count == 1
            and seen is self._leader
            and steps == self._iterations
            and not self.script_reports_loss
            and sum(one.ref() is not None for one in self._optimizers.values()) == 1
        ):
            self._alone, self.plain_loss = seen.ref, AWAITED
        if steps >= self.look_after_step:
            self.on_look()

    def end_run(self):
        """The following steps are not plain: count them individually."""
        if self._alone is not nothing:
            self._last.iteration = self._iterations
            self._alone = nothing
        if type(self.plain_loss) is float:
            self.passes += 1
            self.pending_losses.append(self.plain_loss)
        self.plain_loss = None

    def _note_news(self):
        """A step has ended, the first since the sender read, or one that is not plain."""
        self.step_thread = get_ident()
        if self.first_progress is None:
            self.first_progress = self.progress
            self.batches_skipped = self._skipped()
        self.announce()

    def _skipped(self):
        passes, taken = self.data_position() or (None, 0)
        return max(0, taken - self.backwards) if passes == 0 else None

    def _add_iterations(self, count):
        """Count iterations without steps of known optimizers."""
        self.end_run()
        self._iterations += count
        self._more_backwards -= count
        self._more_steps -= count

    def found_steps(self, optimizers, count, losses_before):
        """`count` steps were made that no hook saw, the last by all the `optimizers`.

        Args:
            optimizers: Those that stepped.
            count: How many iterations to add.
            losses_before: How many of the losses not yet used belong to earlier steps.
        """
        del self.pending_losses[:losses_before]
        self.divisor = NOT_LOOKED_UP
        if count > 1:
            self._add_iterations(count - 1)
            first = self._register(optimizers[0])
            first.iteration, first.more_steps = self._iterations, -self._iterations
        for optimizer in optimizers:
            self.stepped(optimizer)
        self.usual_backwards = 1

    @property
    def backwards(self):
        """Backward passes so far."""
        return self._iterations + self._more_backwards + self.passes + self._has_plain_loss

    @property
    def has_passed(self):
        """Whether there was a backward pass since the last step."""
        return self.passes > 0 or self._has_plain_loss

    @property
    def _has_plain_loss(self):
        return type(self.plain_loss) is float

    @property
    def optimizer_steps(self):
        """Counted steps of all optimizers together."""
        return self._iterations + self._more_steps

    @property
    def awaits_divisor(self):
        """Whether a second loss makes the divisor of losses relevant."""
        return self.divisor == NOT_LOOKED_UP and bool(self.pending_losses)

    def step_skipped(self):
        """A gradient scaler skipped the step: its losses are not part of the next one."""
        if self.has_passed:
            self.end_run()
            if self.progress is not None:  # the loop continues, though the optimizer did not step
                self.progress = (self.progress[0], monotonic(), self.data_wait_s)
            self.batches_at_step = self.batches
            self._more_backwards += self.passes
            self._step_loss(self.steps)
            self.announce()

    def has_saved(self, path, began_t, ended_t, steps, size_bytes, inode, mtime_ns):
        """A file was saved.

        Several in one folder, close together and without a step between, are one checkpoint: the
        largest represents it, from the first's beginning to the last's end.
        """
        before, count = self.saved, 1
        if before is not None:
            count = before["n"] + 1
            if (
                before["steps"] == steps
                and began_t - before["ended_t"] < SAVED_TOGETHER_S
                and os.path.dirname(before["path"]) == os.path.dirname(path)
            ):
                began_t = before["began_t"]
                if (before["size_bytes"] or 0) > (size_bytes or 0):
                    path, size_bytes, inode, mtime_ns = (
                        before[name] for name in ("path", "size_bytes", "inode", "mtime_ns")
                    )
        self.saved = {
            "path": path,
            "n": count,
            "began_t": began_t,
            "ended_t": ended_t,
            "steps": steps,
            "size_bytes": size_bytes,
            "inode": inode,
            "mtime_ns": mtime_ns,
            "data_position": self.data_position(),
        }
        self.dirty = True
        self.on_save()

    def has_loaded(self, *identity):
        """A file was loaded."""
        known = self.loaded
        if list(identity) not in known:
            self.loaded = sorted([*known, list(identity)], reverse=True)[:MAX_LOADED]
            self.dirty = True

    def set_loss(self, value, step, source, parts=None, kind=None):
        """A loss became known, perhaps later than the step it belongs to.

        Args:
            value: The loss.
            step: The step it belongs to.
            source: "probe" or "api".
            parts: How many backward passes it is made of, None when not known.
            kind: "sum" or "mean" of them, None with one.
        """
        self._losses.append((value, step, (source, parts, kind)))
        self.dirty = True

    def settle(self):
        """Count the losses that became known since the last call. Only the sender calls it."""
        waiting = self._losses
        new = [waiting.popleft() for _ in range(len(waiting))]
        if self.script_reports_loss:
            new = [loss for loss in new if loss[2][0] != "probe"]
        values = [loss[0] for loss in new]
        total = sum(values, self.loss_sum)
        if total - total != 0.0:  # not all are finite
            for loss in new:
                self._settle(*loss)
        elif new:
            self.loss_sum = total
            self.loss_n += len(new)
            self.give_back_loss_range((min(values), max(values)))
            value, step, made_of = new[-1]
            self.latest_loss = (value, "ok", step, *made_of)
            self.last_good_loss, self.bad_since = value, None

    def _settle(self, value, step, made_of):
        if value - value == 0.0:  # finite
            self.loss_sum += value
            self.loss_n += 1
            self.give_back_loss_range((value, value))
            self.latest_loss = (value, "ok", step, *made_of)
            self.last_good_loss, self.bad_since = value, None
        else:
            state = "nan" if math.isnan(value) else "inf"
            self.latest_loss = (None, state, step, *made_of)
            if self.bad_since is None:
                self.bad_since = step

    def take_loss_range(self):
        """(smallest, largest) loss since the last call, or None."""
        self.settle()
        taken, self.loss_range = self.loss_range, None
        return taken

    def give_back_loss_range(self, taken):
        """Undo `take_loss_range`: the datagram was not sent."""
        if taken is not None:
            low, high = self.loss_range or taken
            self.loss_range = (min(low, taken[0]), max(high, taken[1]))

    def reported(self, step, total, has_loss):
        """The script called `report`; `step` and `total` are whole numbers or None."""
        if has_loss and not self.script_reports_loss:
            self.script_reports_loss = True
            self.end_run()
        if total is not None:
            self.total_steps = total
        is_new = has_loss if step is None else step != self.global_step
        if step is not None:
            self.global_step = step
        elif self.global_step is not None:
            is_new = False
        if is_new and not self._iterations:
            self._reported_steps += 1
            self.progress = (self._reported_steps, monotonic(), self.data_wait_s)
            if self.first_progress is None:
                self.first_progress = self.progress
        self.announce()

    def metric(self, name, value):
        """A value of the script's own; NaN and infinities are kept as None."""
        reports = self.metrics.get(name, (None, 0))[1] + 1
        self.metrics[name] = value if math.isfinite(value) else None, reports
        self.announce()

    @property
    def is_silent(self):
        """Whether this process has reported nothing yet."""
        return self._on_first_news is not None

    def alternating(self):
        """{name: [steps, last loss]} of optimizers that take turns.

        Each after backward passes of its own: those that step together after one are one, and so
        are those of phases that follow each other. Empty where fewer than two are left.
        """
        found = [
            seen
            for seen in list(self._optimizers.values())
            if seen.alternates
            and not seen.shares
            and self._iterations - seen.iteration <= LEADER_PATIENCE_STEPS
        ]
        if len(found) < 2:
            return {}
        return {
            seen.name: [seen.steps, None if seen.loss is None else finite(seen.loss)]
            for seen in found[:MAX_OPTIMIZERS]
        }

    @property
    def leader(self):
        """The optimizer whose loss is shown; None before its first step, and once it is gone."""
        return None if self._leader is None else self._leader.ref()

    @property
    def steps(self):
        """Iterations so far; 0 before the first."""
        return self.progress[0] if self.progress else 0

    def _register(self, optimizer):
        self._registered += 1
        seen = self._optimizers[id(optimizer)] = _Optimizer(optimizer, self._registered)
        return seen

    def _takes_over(self, seen):
        """Whether `seen` becomes the optimizer whose loss is shown."""
        leader = self._leader
        if (
            leader is None
            or leader.ref() is None
            or self._iterations - leader.iteration > LEADER_PATIENCE_STEPS
        ):
            self._leader = seen
            return True
        return False

    def _step_loss(self, step, seen=None):
        """Combine those since the last step into one loss."""
        losses = self.pending_losses
        self.passes, self.pending_losses = 0, []
        divisor, self.divisor = self.divisor, NOT_LOOKED_UP
        if not losses:
            return
        if seen is not None and seen.first_loss_only:
            del losses[1:]
        leads = seen is None or seen is self._leader or self._takes_over(seen)
        if losses[0] is TOO_MANY or self.script_reports_loss:
            return
        parts = len(losses)
        is_sum = parts > 1 and divisor in (0, parts)  # 0: a framework's, whatever its value
        kind = None if parts == 1 else "sum" if is_sum else "mean"
        if all(type(loss) is float for loss in losses):
            loss = sum(losses)
            if kind == "mean":
                loss /= parts
            if seen is not None:
                seen.loss = loss
            if leads:
                self.set_loss(loss, step, "probe", parts, kind)
        elif self.offer_device_loss is not None and (leads or not seen.shares):
            self.offer_device_loss(losses, is_sum, step, seen, leads)

    def announce(self):
        """Something is new: the process reports from now on."""
        self.dirty = True
        if self._on_first_news is not None:
            wake, self._on_first_news = self._on_first_news, None
            wake()


def is_own(error):
    """Whether an exception inside a hook is the probe's, and not from a signal handler."""
    frame_module = __name__
    trace = error.__traceback__
    while trace is not None:
        frame_module = trace.tb_frame.f_globals.get("__name__") or ""
        trace = trace.tb_next
    return frame_module.split(".")[0] in (__name__.split(".")[0], "torch", "weakref")


def whole(value):
    """A whole number from 0 to 2**53, else None; a tensor is not read."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        number = int(float(value))
    except (ArithmeticError, ValueError):  # NaN and infinity
        return None
    return number if 0 <= number <= MAX_COUNT and number == value else None


def finite(value):
    """A float that JSON can represent, else None."""
    return value if value - value == 0 else None
