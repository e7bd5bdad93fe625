"""What the rank is doing, looked at now and then by the sender's thread.

While steps go on nobody looks. Without a step for QUIET_S the stack of the training's thread is
read, four times a second at most; what it says must last a moment where it is waiting, because
steps and evaluations wait again and again for a moment.
"""

from __future__ import annotations

import sys

from . import standing

QUIET_S = 1.0
WAIT_LOOK_S = 0.2
"""Data that is waited for this long, at two looks, is a phase."""
WAIT_S = 2.0
"""A collective, or a wait inside an evaluation or a checkpoint, is one after this."""
EVALUATION_BATCHES = 2
"""So many batches without any backward pass since the last step are an evaluation."""


class Phases:
    """The phase of one process."""

    def __init__(self, record):
        self._record = record
        self.phase = None
        self.since_t = None
        """CLOCK_BOOTTIME."""
        self.stands_at = None
        self._waits_for = None
        self._waits_since_t = 0.0

    def look(self, now_t, collectives=None):
        """Look once; whether phase or place have changed.

        Args:
            now_t: CLOCK_BOOTTIME.
            collectives: how far the process groups are; a wait ends where that changes.
        """
        before = (self.phase, self.since_t, self.stands_at)
        record = self._record
        progress = record.progress
        is_quiet = progress is None or now_t - progress[1] >= QUIET_S
        thread = self._thread()
        frames = standing.frames_of(thread) if is_quiet else []
        saving_t = record.saving.get(thread)
        # a step since then: the save was left behind by an exception out of a signal's handler
        if saving_t is not None and (progress is None or progress[1] <= saving_t):
            self._enter("checkpoint", saving_t)
        else:
            phase = self._decide(frames, collectives, now_t) if is_quiet else None
            self._enter(phase or self._base(), self._since(phase, now_t))
        self.stands_at = standing.place(frames)
        return (self.phase, self.since_t, self.stands_at) != before

    def _decide(self, frames, collectives, now_t):
        """The phase that a stack and the counters tell; None where they tell nothing."""
        waits, does = standing.recognise(frames)
        if does is None and self._is_evaluating_by_batches():
            does = "evaluation"
        if waits is None:
            self._waits_for = None
            return does
        waits_for = (waits, self._record.batches, collectives and dict(collectives))
        if self._waits_for != waits_for:
            self._waits_for, self._waits_since_t = waits_for, now_t
        is_brief = waits == "data" and does is None
        lasts = now_t - self._waits_since_t >= (WAIT_LOOK_S if is_brief else WAIT_S)
        if lasts:
            return waits
        # a moment's wait does not end a phase of waiting either
        return does or (self.phase if self.phase == waits else None)

    def _is_evaluating_by_batches(self):
        """Whether batches are taken without gradients, or without any backward pass."""
        record = self._record
        taken = (record.batches or 0) - (record.batches_at_step or 0)
        if record.backwards != max(record.backwards_at_step, 0):
            return False
        if record.is_batch_without_gradient:
            return taken > 0
        return record.optimizer_steps > 0 and taken >= EVALUATION_BATCHES

    def _base(self):
        return "start" if self._record.progress is None else "steps"

    def _since(self, phase, now_t):
        """When what is seen now began, as far as it can be said."""
        record = self._record
        if phase is None and record.progress is not None:
            if self.phase in (None, "start"):
                return record.first_progress[1]
            if now_t - record.progress[1] < QUIET_S:
                return record.progress[1]
        return now_t

    def _enter(self, phase, since_t):
        if phase != self.phase:
            self.phase, self.since_t = phase, since_t

    def _thread(self):
        """The thread that takes the steps, the main one before the first."""
        if self._record.step_thread is not None:
            return self._record.step_thread
        threading = sys.modules.get("threading")
        return None if threading is None else threading.main_thread().ident
