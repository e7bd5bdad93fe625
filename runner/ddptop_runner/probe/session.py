"""Connects the recorder, hooks, and sender of one process, across forks and until it exits."""

from __future__ import annotations

import atexit
import numbers
import os
import sys

from . import identity
from .ending import let_gloo_finish
from .recorder import Recorder, whole
from .sender import Sender

EXIT_LIMIT_S = 0.05
"""How long a process may wait at exit for a last loss to arrive from its device."""

MAX_METRICS = 32
MAX_SCALARS = 64
MAX_NAME_LENGTH = 64


class Session:
    """The probe of one process.

    A rank reports as soon as it has torch. Any other process reports only once it takes an
    optimizer step or calls `report`, so that data loader workers and helpers stay silent.
    """

    def __init__(self):
        self.hooks = None
        self.record = Recorder(on_first_news=self._start_reporting)
        self._torch = None
        self._was_running = False
        self._is_fork = False
        """Whether this process was forked from one that had the probe: it joined no group."""
        self._begin()

    def _begin(self):
        self._pid = os.getpid()
        self._scalars = {}
        self._has_exit_hook = False
        self._has_finalizer = False
        self._is_reporting = False
        self._has_ended = False
        self.sender = Sender(self.record)
        self.record.on_save = self.sender.hurry
        if self.hooks is not None:
            self.hooks.begin()
            self.record.data_position = self.hooks.ledger.position
            self.sender.hooks = self.hooks

    def torch_imported(self, torch):
        """Patch torch; a rank reports from now on."""
        if self.hooks is not None:
            return
        from . import hooks

        self._torch = torch
        try:
            self.hooks = hooks.Hooks(torch, self.record)
            self.hooks.arm()
            self.sender.hooks = self.hooks
        except Exception:  # an unknown version of torch: the rank reports anyway
            self.hooks = None
        self.record.offer_device_loss = self._offer_loss
        self._add_exit_hook()
        self._await_bootstrap()
        if identity.claim_rank():
            self.sender.register_stacks()
            self._start_reporting()

    def report(self, loss, step, total, metrics):
        """Store what the script reports. A value on a device is read later, without waiting."""
        # the names that ddptop uses in its own JSON
        step = metrics.pop("global_step", None) if step is None else step
        total = metrics.pop("total_steps", None) if total is None else total
        has_loss = self._is_figure(loss)
        self.record.reported(whole(step), whole(total), has_loss)
        if has_loss:
            self._keep(None, loss)
        for name, value in metrics.items():
            known = self.record.metrics
            is_new = name not in known and name not in self._scalars
            if is_new and (len(known) >= MAX_METRICS or len(name) > MAX_NAME_LENGTH):
                continue
            if self._is_figure(value) and name.isprintable():
                self._keep(name, value)

    def before_fork(self):
        """No thread of the probe is alive while the process forks."""
        self._was_running = self.sender.is_running and self._pid == os.getpid()
        if self._was_running:
            self.sender.stop()

    def after_fork_in_parent(self):
        """Continue as before."""
        if self._was_running:
            self.sender.start()

    def after_fork_in_child(self):
        """A new process, which is not the rank and has done nothing yet."""
        self._was_running = False
        self._is_fork = True
        self.record.begin(self._start_reporting)
        self.record.offer_device_loss = self._offer_loss
        self._begin()

    def _start_reporting(self):
        if identity.is_data_worker():
            return
        self._is_reporting = True
        self._add_exit_hook()
        self.sender.start()

    def _add_exit_hook(self):
        if not self._has_exit_hook:
            self._has_exit_hook = True
            atexit.register(self._end, self._pid)
        # a child of multiprocessing exits without atexit, or too late to know what it raised
        processes = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            self.add_finalizer()

    def add_finalizer(self):
        """Get called before a child of multiprocessing exits."""
        if not self._has_finalizer:
            self._has_finalizer = True
            from multiprocessing import util

            util.Finalize(None, self._end, (self._pid,), exitpriority=0)

    def _await_bootstrap(self):
        """A child whose preparation imports torch becomes one of multiprocessing later."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(self, Session.add_finalizer)

    def _end(self, pid):
        try:
            if pid == os.getpid() and pid == self._pid and not self._has_ended:
                self._has_ended = True
                if self.hooks is not None:
                    self.hooks.find_unseen_steps()
                if self._is_reporting:
                    self.sender.send_last(EXIT_LIMIT_S)
                    let_gloo_finish()
                elif not self._is_fork and identity.has_joined():
                    self.sender.send_failure()
        except Exception:  # a process must exit as it would have without the probe
            pass

    def _is_figure(self, value):
        """Whether a value can become a float: a real number, or a tensor of one element."""
        if isinstance(value, bool) or value is None:
            return False
        if isinstance(value, numbers.Real):
            return True
        if self.hooks is not None and isinstance(value, self.hooks.torch.Tensor):
            torch = self.hooks.torch
            kinds = (torch.bool, torch.complex64, torch.complex128)
            return value.numel() == 1 and value.dtype not in kinds
        # numpy's scalars that are not in `numbers`, and its arrays of one element
        return (
            type(value).__module__ == "numpy"
            and getattr(value, "size", 0) == 1
            and getattr(getattr(value, "dtype", None), "kind", "") in "fiu"
        )

    def _keep(self, name, value):
        """Store a value under `name`; None is the loss."""
        try:
            self._read(name, value)
        except (ArithmeticError, RuntimeError, TypeError, ValueError):
            pass  # a value that cannot be read must not affect the others

    def _read(self, name, value):
        step = self.record.steps
        if self.hooks is not None and isinstance(value, self.hooks.torch.Tensor):
            value = self.hooks.read(value)
            if value is None:
                return
            if not isinstance(value, float):
                self._offer(name, [value], True, lambda known: self._publish(name, known, step))
                return
        elif not isinstance(value, numbers.Real):
            value = value.item()
        self._publish(name, float(value), step)

    def _publish(self, name, value, step):
        if name is None:
            self.record.set_loss(value, step, "api")
        else:
            self.record.metric(name, value)

    def _offer_loss(self, tensors, is_sum, step, optimizer, leads):
        """Have a step's losses read: for the process, for one of several optimizers, or both."""
        parts = len(tensors)
        kind = None if parts == 1 else "sum" if is_sum else "mean"

        def publish(loss):
            if optimizer is not None:
                optimizer.loss = loss
            if leads:
                self.record.set_loss(loss, step, "probe", parts, kind)

        self._offer("" if leads else id(optimizer), tensors, is_sum, publish)

    def _offer(self, name, tensors, is_sum, publish):
        """Have a value read: "" is the loss of the backward pass, None the reported one."""
        scalar = self._scalars.get(name)
        if scalar is None:
            if len(self._scalars) >= MAX_SCALARS:
                return
            from .losses import DeviceScalar

            scalar = self._scalars[name] = DeviceScalar(self._torch)
            self.sender.device_scalars.append(scalar)
        scalar.offer(tensors, is_sum, publish)

    def trainer_imported(self, module):
        """Patch a framework's trainer, which knows how long the training will take."""
        from . import trainers

        trainers.arm(module, self.record)
