"""The restart policy: a pure function from the history of failures to an action and its reason.

A group restarts as a unit. What will fail again is not tried again: a usage error, a script that
cannot be imported or compiled, a script that raises before its first step, the same exception at
the same place twice without progress. Unknown progress is not zero progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop_runner.diagnose import PythonException

HOPELESS_EXCEPTIONS = frozenset(
    {
        "SyntaxError",
        "IndentationError",
        "TabError",
        "ImportError",
        "ModuleNotFoundError",
        "NameError",
    }
)
"""Whatever the machine does, the same file raises these again."""

TRANSIENT_WORDS = (
    "NCCL",
    "CUDA error",
    "Dist",
    "Timeout",
    "timed out",
    "Connection",
    "Address already in use",
    "Resource temporarily unavailable",
    "Stale file handle",
    "Input/output error",
)
"""An exception with one of these in it may go away by itself, even before the first step."""

USAGE_EXIT_CODE = 2
"""argparse, click and most command lines end so on bad arguments."""

AT_ONCE_S = 60.0
"""Without a probe: an attempt that lived shorter than this did not get to train."""

STEPLESS_S = 600.0
"""An attempt that lived this long without an optimizer step did something else than come up badly:
its script may take no such steps at all."""

BACKOFF_BASE_S = 2.0
BACKOFF_CAP_S = 60.0


@dataclass(frozen=True)
class AttemptOutcome:
    """How one attempt ended badly."""

    attempt: int
    lived_s: float
    steps: int | None
    """The most steps that any rank took; None when no probe could tell."""
    exit_code: int | None
    signal: str | None
    exception: PythonException | None
    hung: bool = False
    bad_loss: bool = False
    """It was ended because its loss was NaN or infinite."""
    new_checkpoint: bool | None = None
    """Whether a checkpoint was written in it; None when nothing could tell."""
    global_step: int | None = None
    """The furthest step of the whole training, where something said it."""
    kind: str = "unknown"
    """Of the cause, as `model.Cause.kind` has it: exception, cuda_oom, early_exit, ..."""

    @property
    def made_progress(self) -> bool | None:
        """Whether a step was taken; None when it cannot be known."""
        return None if self.steps is None else self.steps > 0

    @property
    def never_came_up(self) -> bool:
        """Whether it failed by itself, before its first step and soon."""
        if self.signal is not None or self.hung or self.bad_loss or self.made_progress:
            return False
        return self.lived_s < (AT_ONCE_S if self.steps is None else STEPLESS_S)


@dataclass(frozen=True)
class Decision:
    """What to do after a failure."""

    restart: bool
    reason: str
    """In words, for events and the screen."""
    delay_s: float = 0.0
    """How long to wait before the restart."""
    requeue: bool = True
    """Whether running the job again elsewhere or later may help; False: `wait` gives 93."""


def decide(
    outcomes: Sequence[AttemptOutcome], restarts_left: int, jitter: float, restarts_used: int = 0
) -> Decision:
    """Decide after the last of `outcomes`.

    Args:
        outcomes: the failed attempts that are remembered, in order, at least one.
        restarts_left: restarts that the budget still has.
        jitter: a random number from 0 to 1, which spreads the waits.
        restarts_used: of the budget; above 0 there were earlier attempts, remembered or not.

    Returns:
        Restart with a wait, or stop with the reason.
    """
    last = outcomes[-1]
    if reason := _will_fail_again(outcomes):
        return Decision(restart=False, reason=reason, requeue=_may_be_transient(last))
    first = len(outcomes) == 1 and restarts_used == 0
    if first and last.never_came_up and not _may_be_transient(last):
        return Decision(restart=False, reason="it failed before its first step")
    if restarts_left <= 0:
        return Decision(restart=False, reason="no restarts are left")
    fruitless = 0
    for outcome in reversed(outcomes):
        if outcome.made_progress is not False:
            break
        fruitless += 1
    if fruitless == 0:
        return Decision(restart=True, reason="the attempt had made progress" if last.steps else "")
    doubled_s = BACKOFF_BASE_S * 2.0 ** min(fruitless - 1, 16)
    delay_s = min(BACKOFF_CAP_S, doubled_s) * (0.5 + jitter / 2)
    return Decision(
        restart=True,
        reason=f"{fruitless} in a row without a step: waiting {delay_s:.1f} s",
        delay_s=delay_s,
    )


def _will_fail_again(outcomes: Sequence[AttemptOutcome]) -> str | None:
    """Why another attempt would end the same way, whatever the machine does."""
    last = outcomes[-1]
    if not last.never_came_up:
        return None
    exception = last.exception
    if exception is not None and exception.type in HOPELESS_EXCEPTIONS:
        return f"{exception.type} will be raised again"
    if exception is None and last.exit_code == USAGE_EXIT_CODE:
        return "the script refused its arguments (exit status 2)"
    earlier = outcomes[-2] if len(outcomes) > 1 else None
    if (
        earlier is not None
        and exception is not None
        and earlier.exception is not None
        and (exception.type, exception.place) == (earlier.exception.type, earlier.exception.place)
    ):
        return f"{exception.type} at the same place twice without progress"
    return None


def _may_be_transient(outcome: AttemptOutcome) -> bool:
    if outcome.exception is None:
        return False
    text = f"{outcome.exception.type}: {outcome.exception.message}"
    return any(word in text for word in TRANSIENT_WORDS)
