"""Profiles a few steps with torch.profiler when asked, between two borders of steps.

A viewer asks by a file that names the steps. The answer is a trace in the same folder, or a file
that says why there is none.
"""

from __future__ import annotations

import gc
import json
import os
from typing import Any

from . import identity
from .recorder import boottime_s, is_own

MAX_STEPS = 50
MAX_TRACE_BYTES = 200_000_000
MAX_ORDER_BYTES = 1000


class Profiling:
    """The orders to profile one process, one at a time."""

    def __init__(self, torch, record):
        self._torch = torch
        self._record = record
        self.begin()

    def begin(self):
        """Reset, as at the start of a process."""
        self.is_active = False
        """Whether each step is to be reported to `stepped`."""
        self._order: Any = None
        self._profile: Any = None
        self._at = None
        self._left = 0
        self._answer: Any = None
        """(a complete profile, None), or (None, why there is none)."""

    def look(self):
        """Take an order, or write the answer to one. Only the sender calls it."""
        if self._answer is not None:
            self._write(*self._answer)
            self._answer = self._order = None
        elif self._order is None and (path := _order_file()) and os.path.exists(path):
            self._order = _read(path)
            self._profile, self._left = None, min(MAX_STEPS, self._order["steps"]) + 1
            self.is_active = self._record.is_look_due = True

    def stepped(self):
        """A step has ended; called by the thread that trains."""
        if self._at == self._record.steps:  # several optimizers
            return
        self._at = self._record.steps
        try:
            if boottime_s() > self._order["until_t"]:
                self._give_up("the steps took too long")
            elif self._profile is not None:
                self._profile.step()
                self._left -= 1
                if not self._left:
                    self._profile.stop()
                    self.is_active, self._answer = False, (self._profile, None)
            elif self._at >= self._order["from_step"]:
                if self._has_own_profiler():
                    self._give_up("the script uses torch.profiler itself")
                else:
                    self._start()
        except Exception as error:
            self._give_up("torch.profiler failed: {}".format(error))
            if not is_own(error):
                raise

    def _start(self):
        profiler, cuda = self._torch.profiler, self._torch.cuda
        kinds = [profiler.ProfilerActivity.CPU]
        if cuda.is_initialized():
            kinds.append(profiler.ProfilerActivity.CUDA)
        # the first step after the start is slow
        schedule = profiler.schedule(wait=0, warmup=1, active=self._left - 1, repeat=1)
        profile = profiler.profile(activities=kinds, schedule=schedule, acc_events=True)
        profile.is_probes = True
        self._profile = profile
        profile.start()

    def _give_up(self, why):
        self.is_active = False
        try:
            if self._profile is not None:
                self._profile.stop()
        except Exception:  # it did not start, or is what failed
            pass
        self._answer = (None, why)

    def _has_own_profiler(self):
        torch = self._torch
        return torch.autograd._profiler_enabled() or any(
            issubclass(type(one), torch.profiler.profile) and not hasattr(one, "is_probes")
            for one in gc.get_objects()
        )

    def _write(self, profile, why):
        path = os.path.join(_folder(), "{}-rank-{}.json".format(self._order["id"], identity.rank()))
        part, self._profile = path + ".part", None
        try:
            if why is None:
                profile.export_chrome_trace(part)
                os.chmod(part, 0o600)
                if os.path.getsize(part) > MAX_TRACE_BYTES:
                    why = "the trace is too large; profile fewer steps"
        except Exception as error:
            why = "the trace cannot be written: {}".format(error)
        if why is not None:
            path = path[:-5] + ".error"
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(why)
        os.replace(part, path)


def _folder():
    """`profiles` in the run folder; empty if that is unknown."""
    stacks = os.environ.get("DDPTOP_STACKS_DIR")
    return stacks and os.path.join(os.path.dirname(os.path.dirname(stacks)), "profiles")


def _order_file():
    folder, rank = _folder(), identity.rank()
    return folder and os.path.join(folder, "order-rank-{}.json".format(rank))


def _read(path):
    """An order of the process's user; raises if it is no order."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        os.unlink(path)
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(path)
        order = json.loads(file.read(MAX_ORDER_BYTES))
    known = {name: int(order[name]) for name in ("id", "steps", "from_step")}
    return {**known, "until_t": float(order["until_t"])}
