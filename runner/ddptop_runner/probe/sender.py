"""The probe's thread, which turns what the recorder knows into datagrams.

It sends at most four a second, and one after each save, to a path, so that a supervisor that
returns at the same path receives them again. Counters are cumulative, so that a lost datagram does
no harm.
"""

from __future__ import annotations

import _thread
import json
import os
import re
import signal
import socket
import sys
import time
from typing import Any

from . import ending, evidence, identity, optimizers, time_parts, trainers
from .evidence import Flight
from .phases import QUIET_S, Phases, main_thread
from .recorder import boottime_s, finite

INTERVAL_S = 0.25
KEEP_ALIVE_S = 5.0
MANY_STEPS, COUNT_MASK = 64, 7
"""After more steps than this in one interval, the elements of every eighth batch are counted."""
STOP_LIMIT_S = 0.2
LAST_DATAGRAM_LIMIT_S = 0.25
"""How long a process may wait at exit for room in the queue for its last datagram."""
LAST_DATAGRAM_RETRY_S = 0.005
MAX_BYTES = 2048
LONE_SURROGATE = re.compile(rb"(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}")
OF_LEDGER = (
    *("batch_size", "ddp_world_size", "epoch_batches", "loader_workers", "repeated_epoch"),
    "unpinned_bytes",
)
DETAILS = ("weight_groups", "weight_hashes", "batch_hashes")
EXPENDABLE = (
    *("ddp", "stands_at", "resources", "collectives", "optimizers", "frameworks", "saved"),
    *("loaded", "raised_at", "raised"),
)
"""Fields that are left out of a datagram that is too long, in this order."""


class Sender:
    """Sends for one process; created again after a fork."""

    def __init__(self, record):
        self.record = record
        self.path = os.environ.get("DDPTOP_PROBE_SOCK", "")
        self.device_scalars = []
        self.hooks: Any = None
        """The patches of torch; None without torch."""
        self._memory_at_s = float("-inf")
        self._python_blocks = None
        self.flight = Flight()
        self.phases = Phases(record)
        self._counters: tuple = (None, [])
        """(batches, save signals) at the last look."""
        self._job = os.environ.get("DDPTOP_JOB_ID")
        self._pid = os.getpid()
        self._seq = 0
        self._sent_at_s = None
        self._signal = None
        self._has_registered_stacks = False
        self._raised: tuple = (None, None)
        """What ends the process, and where it was raised."""
        self._last_step: tuple = (None, None)
        """(the recorder's progress, CLOCK_BOOTTIME of it) as sent last."""
        self._means_from = None
        self._step_time_s = None
        self._data_wait_s = None
        self._sync_s = self._compute_s = None
        self._stop = None
        self._done = None
        self._is_ending = False
        """Whether only the last datagram is still to be sent."""
        self._found_no_room = False
        """Whether the last attempt to send found the queue full."""

    @property
    def is_running(self):
        """Whether the thread was started and not stopped."""
        return self._stop is not None

    def start(self):
        """Start the thread without `threading`, so the script's thread count does not change."""
        if self._stop is not None:
            return
        stop, done = _thread.allocate_lock(), _thread.allocate_lock()
        stop.acquire()
        done.acquire()
        self._stop, self._done = stop, done
        try:
            _thread.start_new_thread(self._send_until_stopped, (stop, done))
        except RuntimeError:  # the limit on threads, or the interpreter is exiting
            self._stop = self._done = None

    def stop(self):
        """End the thread, before a fork or at exit; waits no longer than STOP_LIMIT_S."""
        stop, done = self._stop, self._done
        if stop is not None and done is not None:
            self._stop = self._done = None
            _release(stop)
            done.acquire(True, STOP_LIMIT_S)

    def hurry(self):
        """Send what is new now: before the next time, the process could be killed."""
        stop = self._stop
        if stop is not None:
            _release(stop)

    def register_stacks(self):
        """Let the stack signal write this rank's stacks; does nothing while the rank is unknown."""
        folder, rank = os.environ.get("DDPTOP_STACKS_DIR"), identity.rank()
        if folder and rank is not None and not self._has_registered_stacks:
            self._has_registered_stacks = True
            attempt = identity.env_int("DDPTOP_ATTEMPT") or 0
            self._signal = evidence.register_stacks(folder, attempt, rank)

    def send_last(self, limit_s):
        """At the end of the process: report the final state."""
        self.stop()
        self._look(self._look_at_end)
        if self._raised[0] is not None:
            self._look(self.flight.write)
        deadline_s = time.monotonic() + limit_s
        for scalar in self.device_scalars:
            try:
                scalar.drain(deadline_s)
            except Exception:  # a device that failed: send what is known without it
                pass
        # the phase of a rank that fails is the one last seen
        progress = self.record.progress
        if progress is not None and time.monotonic() - progress[1] < QUIET_S:
            self._look(self._look_at_phase)
        self._look(self.flight.look)
        self._look(self._look_at_hooks)
        self._send_last_datagram()

    def send_failure(self):
        """At the end of a rank that reported nothing: report the exception that ends it, if any."""
        self._look(self._look_at_end)
        if self._raised[0] is not None:
            self._send_last_datagram()

    def _send_last_datagram(self):
        """What is lost now is never repeated: many ranks that exit at once fill the queue."""
        self._is_ending = True
        deadline_s = time.monotonic() + LAST_DATAGRAM_LIMIT_S
        while not self.send(is_final=True) and self._found_no_room:
            if time.monotonic() > deadline_s:
                return
            time.sleep(LAST_DATAGRAM_RETRY_S)

    def tick(self):
        """Collect what has arrived, and send it if there is news or nothing was sent for long."""
        for scalar in self.device_scalars:
            scalar.harvest()
        for look in (
            self.flight.look,
            self._look_at_phase,
            self.flight.write_if_requested,
            self._look_at_counters,
            self._look_at_hooks,
        ):
            self._look(look)
        is_due = self._sent_at_s is None or time.monotonic() - self._sent_at_s >= KEEP_ALIVE_S
        if self.record.dirty or is_due:
            self.record.dirty = False
            self.register_stacks()
            if not self.send():
                self.record.dirty = True

    def _look(self, look):
        try:
            if look():
                self.record.dirty = True
        except Exception:  # an unknown version of torch: the rest is sent anyway
            pass

    def _look_at_phase(self):
        return self.phases.look(time.monotonic(), self.flight.collectives)

    def _look_at_hooks(self):
        if self.hooks is None:
            return False
        self.hooks.profiling.look()
        return self.hooks.replicas.harvest()

    def _look_at_end(self):
        self._raised = ending.ending_exception()

    def _look_at_counters(self):
        before = self._counters
        self._counters = (self.record.batches, evidence.save_signals())
        return self._counters != before

    def send(self, is_final=False):
        """Send one datagram; False if nobody receives it, or if it comes after the last."""
        if self._is_ending and not is_final:
            return False
        self._found_no_room = False
        loss_range = self.record.take_loss_range()
        data = encode(self.message(loss_range, is_final))
        try:
            # opened for each datagram: no descriptor for the script to inherit, count, or close
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as endpoint:
                endpoint.setblocking(False)
                endpoint.sendto(data, self.path)
        except (OSError, ValueError) as error:
            self._found_no_room = isinstance(error, BlockingIOError)
            self.record.give_back_loss_range(loss_range)
            return False
        self._sent_at_s = time.monotonic()
        return True

    def message(self, loss_range=None, is_final=False):
        """Everything known, as the datagram's fields; `seq` counts the calls."""
        record = self.record
        self._seq += 1
        progress, rank = record.progress, identity.rank()
        self._update_means(progress)
        if progress is not self._last_step[0]:
            self._last_step = (progress, progress and boottime_s(progress[1]))
        value, state, step, source, parts, kind = record.latest_loss or (None,) * 6
        metrics = dict(record.metrics)
        trainer = self._trainers_progress()
        total = trainer.total_steps if record.total_steps is None else record.total_steps
        by_script = record.global_step
        cpu_wait_s, resources = self._used(progress)
        low, high = loss_range or (None, None)
        return {
            "v": 1,
            "job": self._job,
            "pid": self._pid,
            "rank": rank,
            "local_rank": identity.local_rank(),
            "world_size": identity.world_size(),
            "attempt": identity.env_int("DDPTOP_ATTEMPT"),
            "seq": self._seq,
            "t": boottime_s(),
            "steps": progress and progress[0],
            "last_step_t": self._last_step[1],
            "loss": value,
            "loss_state": state,
            "loss_step": step,
            "loss_sum": finite(record.loss_sum),
            "loss_n": record.loss_n,
            "loss_min": low,
            "loss_max": high,
            "loss_source": source,
            "step_time_s": self._step_time_s,
            "data_wait_s": self._data_wait_s,
            "sync_s": self._sync_s,
            "compute_s": self._compute_s,
            **self._parts(),
            "until_backward_total_s": record.until_backward_s or None,
            "cpu_wait_total_s": cpu_wait_s,
            "resources": resources,
            "data_position": record.data_position(),
            "batch_hashes": self._of("ledger", "hashes"),
            **{name: self._of("ledger", name) for name in OF_LEDGER},
            "batches_skipped": record.batches_skipped,
            "weight_hashes": self._of("replicas", "hashes"),
            "weight_groups": self._of("replicas", "groups") if rank == 0 else None,
            **self._optimizer(),
            "python_blocks": self._count_blocks(),
            "device_allocated_bytes": self._of("borders", "allocated_bytes"),
            "ddp": self._of("ddp_use", "latest"),
            "not_learning": self._of("gradients", "idle"),
            "global_step": trainer.global_step if by_script is None else by_script,
            "total_steps": total,
            "metrics": {name: known for name, (known, _) in metrics.items()},
            "metric_reports": {name: reports for name, (_, reports) in metrics.items()},
            "stack_signal": self._free_signal(),
            "final": is_final,
            "phase": self.phases.phase,
            "phase_t": self.phases.since_t,
            "stands_at": self.phases.stands_at,
            "batches": record.batches or None,
            "collectives": self.flight.collectives,
            "saved": record.saved,
            "loaded": record.loaded,
            "save_signals": self._counters[1],
            "loss_bad_since": record.bad_since,
            "loss_last_good": record.last_good_loss,
            "loss_parts": parts,
            "loss_is": kind,
            "optimizers": record.alternating(),
            "frameworks": trainers.frameworks(),
            "replicas": record.replicas,
            "total_source": total and ("trainer" if record.total_steps is None else "api"),
            "epoch": trainer.epoch,
            "epochs": trainer.epochs,
            "raised": self._raised[0],
            "raised_at": self._raised[1],
        }

    def _trainers_progress(self):
        try:
            if self.record.trainer is not None:
                return self.record.trainer()
        except Exception:  # an unknown version
            pass
        return trainers.Progress()

    def _update_means(self, progress):
        """Mean step time and its parts since the last message that had new steps."""
        start = self._means_from or self.record.first_progress
        if progress is None or start is None or progress[0] <= start[0]:
            return
        waited_s = progress[2]  # by now, it may have waited for the batch of the next step
        steps = progress[0] - start[0]
        self._step_time_s = (progress[1] - start[1]) / steps
        if waited_s is not None:
            self._data_wait_s = (waited_s - (start[2] or 0.0)) / steps
        self._sync_s, self._compute_s = time_parts.split(
            self._step_time_s, self._data_wait_s, self._wait_for_ranks_s(steps, progress)
        )
        self._means_from = progress
        self.record.count_mask = COUNT_MASK if steps > MANY_STEPS else 0

    def _parts(self):
        """What a step is spent on; the next sample begins."""
        parts_s = [None] * 4
        if self.hooks is not None:
            self.hooks.borders.is_due = self.record.is_look_due = True
            parts_s = self.hooks.borders.parts_of(self._step_time_s)
        return dict(zip(("input_s", "forward_s", "backward_s", "optimizer_s"), parts_s))

    def _used(self, progress):
        """(how long the training thread waited for a CPU, what else it and the process have used).

        Both are None unless the training thread is the main thread.
        """
        record = self.record
        if progress is None or record.step_thread != main_thread():
            return None, None
        try:
            cpu_s, wait_s = (int(word) / 1e9 for word in self._thread_file("schedstat")[:2])
            known = {
                "data_wait_total_s": progress[2],
                "cpu_total_s": cpu_s,
                "other_threads_total_s": max(0.0, time.process_time() - cpu_s),
                "gc_total_s": record.gc_s,
                "batch_elements_total": record.batch_elements or None,
                "threads": record.threads,
                "cpus": len(os.sched_getaffinity(self._pid)),
                "read_total_bytes": self._read_bytes(),
            }
            return wait_s, {name: value for name, value in known.items() if value is not None}
        except (OSError, ValueError):
            return None, None

    def _read_bytes(self):
        """What the main thread has read from disks; None where the system does not count it."""
        try:
            words = self._thread_file("io")
            return int(words[words.index(b"read_bytes:") + 1])
        except (OSError, ValueError, IndexError):
            return None

    def _thread_file(self, name):
        """The words of a file of the main thread in /proc."""
        with open("/proc/self/task/{}/{}".format(self._pid, name), "rb") as file:
            return file.read().split()

    def _of(self, part, name):
        """What a part of the hooks knows; None without torch."""
        return getattr(getattr(self.hooks, part, None), name, None)

    def _optimizer(self):
        try:
            steps, rate = optimizers.steps_and_rate(self.record.leader)
        except Exception:  # an optimizer of another kind, or one that changes now
            steps = rate = None
        return {"optimizer_steps": steps, "learning_rate": rate}

    def _count_blocks(self):
        """Blocks of memory for Python objects; counting those of many gigabytes takes a moment."""
        if time.monotonic() - self._memory_at_s >= KEEP_ALIVE_S:
            self._memory_at_s, self._python_blocks = time.monotonic(), sys.getallocatedblocks()
        return self._python_blocks

    def _wait_for_ranks_s(self, steps, progress):
        try:
            if self.hooks is not None and self.record.replicas is None:
                holds_thread = self.flight.holds_thread
                return self.hooks.parts.wait_per_step_s(steps, progress, holds_thread)
        except Exception:  # an unknown version of torch
            pass
        return None

    def _free_signal(self):
        # the script may have taken the signal after it was registered
        return self._signal if self._signal and evidence.is_ours(self._signal) else None

    def _send_until_stopped(self, stop, done):
        try:
            # signals belong to the script: this thread must not receive any
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True:
                try:
                    self.tick()
                except Exception:  # a rank must run even if its probe fails
                    pass
                if stop.acquire(True, INTERVAL_S) and self._stop is not stop:
                    return
        except BaseException:  # nothing of this thread may reach the script's stderr
            pass
        finally:
            done.release()


def _release(lock):
    try:
        lock.release()
    except RuntimeError:  # another thread just did
        pass


def encode(message):
    """The datagram: JSON of at most MAX_BYTES, without what is not known.

    Where it is too long, it goes without `metric_reports`, then without what describes weights and
    batches, then without metrics from the end, and then without what costs least to miss.
    """
    optional = iter(EXPENDABLE)
    while True:
        known = {name: value for name, value in message.items() if value not in (None, [], {})}
        data = json.dumps(known, allow_nan=False, separators=(",", ":")).encode("ascii")
        if b"\\ud" in data:  # of a file's name that is no UTF-8: no other program reads it
            data = LONE_SURROGATE.sub(rb"\\ufffd", data)
        if len(data) <= MAX_BYTES:
            return data
        if message["metric_reports"]:
            message["metric_reports"] = None
        elif name := next((name for name in DETAILS if message.get(name)), None):
            message[name] = None
        elif message["metrics"]:
            message["metrics"].popitem()
        else:
            name = next(optional, None)
            if name is None:
                return data
            message[name] = None
