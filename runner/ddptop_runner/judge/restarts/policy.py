"""The restart policy: a pure function from the history of failures to an action and its reason.

A group restarts as a unit. The budget is refilled by new progress: a checkpoint further than those
before, or a step of the whole training that no attempt had reached. What will fail again is not
tried again: a usage error, a script that cannot be imported or compiled, a script that raises
before its first step, the same end as before without new progress (RULES gives the limits).
Unknown progress is not zero progress: it neither refills the budget nor counts as a failed try.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddptop_runner.model.diagnose import AT_ONCE_S, AttemptOutcome

HOPELESS_EXCEPTIONS = frozenset(
    (
        *("SyntaxError", "IndentationError", "TabError"),
        *("ImportError", "ModuleNotFoundError", "NameError"),
    )
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

CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})
"""A process sends these to itself; the others come from outside and say nothing of the script."""

HOPELESS_EXIT_CODES = {
    2: "the script rejected its arguments (exit status 2)",
    126: "the shell could not execute the command (exit status 126)",
    127: "the shell did not find the command (exit status 127)",
}
"""argparse, click and most command lines end with 2 on bad arguments."""

SAME_STEP = 1
"""Two ends this many steps apart are at the same step: the last step may not have been told."""

BACKOFF_BASE_S = 2.0
BACKOFF_CAP_S = 60.0

OUTCOMES_KEPT = 16
"""No rule looks further back."""


@dataclass(frozen=True)
class Rule:
    """What is done about one class of failures."""

    tries: int | None = None
    """So many equal ends without new progress between them stop the job; None: only the budget
    does."""
    at_step: bool = True
    """Whether equal ends are those at the same step; False: at any."""
    requeue: bool = True
    """Whether running the job elsewhere or later may help after that stop."""
    waits: bool = False
    """Whether the next attempt waits even where this one had made progress."""
    again: str = ""
    """What has happened so many times, in words."""


RULES: dict[str, Rule] = {
    "exception": Rule(2, at_step=False, requeue=False, again="{exception} raised at the same line"),
    "exit_code": Rule(3, again="exit status {exit_code} at the same step"),
    "crash": Rule(3, again="{signal} at the same step"),
    "signal": Rule(),
    "hang": Rule(3, waits=True, again="a hang at the same step"),
    "early_exit": Rule(2, requeue=False, again="a rank exited early at the same step"),
    "cuda_oom": Rule(2, requeue=False, waits=True, again="out of GPU memory at the same step"),
    "host_oom": Rule(2, at_step=False, waits=True, again="out of host memory"),
    "nan": Rule(2, requeue=False, again="a non-finite loss at the same step"),
    "gpu": Rule(waits=True),
    "launch": Rule(1, at_step=False, requeue=False, again="no rank could be started"),
    "node": Rule(),
    "unknown": Rule(),
}
"""By failure class: the kind of the cause, where a signal that the process sent itself is a
crash."""


def failure_class(outcome: AttemptOutcome) -> str:
    """A key of RULES."""
    if outcome.kind == "signal" or (outcome.kind == "unknown" and outcome.signal is not None):
        return "crash" if outcome.signal in CRASH_SIGNALS else "signal"
    if outcome.kind != "unknown":
        return outcome.kind if outcome.kind in RULES else "unknown"
    if outcome.hung:
        return "hang"
    if outcome.bad_loss:
        return "nan"
    if outcome.exception is not None:
        return "exception"
    return "unknown" if outcome.exit_code is None else "exit_code"


_COUNTS = {2: "twice", 3: "three times"}


@dataclass(frozen=True)
class Recorded:
    """A failed attempt, and what it had achieved over all before it."""

    outcome: AttemptOutcome
    progress: bool | None
    """Whether it made new progress; None when that cannot be known."""

    @property
    def in_vain(self) -> bool:
        """Whether it is known that it did not get on."""
        return self.progress is False or (self.progress is None and self.outcome.never_came_up)


@dataclass(frozen=True)
class History:
    """What the policy decides on."""

    failed: tuple[Recorded, ...] = ()
    """The latest failed attempts, in order; none from before the last restart that a person asked
    for."""
    used: int = 0
    """Restarts of the budget used since it was last filled."""
    furthest_step: int | None = None
    """The furthest step of the whole training that any attempt got to."""
    checkpointed_step: int | None = None
    """The furthest step of the whole training that a checkpoint holds."""
    refilled: str | None = None
    """What filled the budget again last, in words; None when nothing has."""


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


def record(history: History, outcome: AttemptOutcome) -> History:
    """Add a failed attempt. New progress fills the budget again.

    Args:
        history: all before it.
        outcome: an attempt that `history` does not have.
    """
    got_on = _progress(history, outcome)
    filled = bool(got_on) and history.used > 0
    failed = (*history.failed, Recorded(outcome, got_on))[-OUTCOMES_KEPT:]
    return replace(
        history,
        failed=failed,
        used=0 if got_on else history.used,
        furthest_step=_most(history.furthest_step, outcome.global_step),
        checkpointed_step=_most(history.checkpointed_step, outcome.checkpoint_step),
        refilled=_where(outcome) if filled else history.refilled,
    )


def decide(history: History, max_restarts: int, jitter: float) -> Decision:
    """Decide after the last failed attempt of `history`.

    Args:
        history: with at least one failed attempt.
        max_restarts: the budget when it is full.
        jitter: a random number from 0 to 1, which spreads the waits.

    Returns:
        Restart with a wait, or stop with the reason; the reason is never empty.
    """
    last = history.failed[-1]
    if (stop := _will_fail_again(history)) is not None:
        return stop
    first = len(history.failed) == 1 and history.used == 0
    own_fault = failure_class(last.outcome) in ("exception", "exit_code", "unknown")
    if first and own_fault and last.outcome.never_came_up and not _may_be_transient(last.outcome):
        return Decision(restart=False, reason="the attempt failed before its first step")
    if history.used >= max_restarts:
        spent = "no restarts left"
        if max_restarts > 0:
            spent += f": {_times(history.used, 'restart')} without further progress"
        return Decision(restart=False, reason=spent)
    in_vain = _in_vain(history.failed)
    delay_s = _delay_s(last.outcome, in_vain, jitter)
    reason = _why_restart(last, in_vain, len(history.failed) == 1)
    if delay_s > 0:
        reason += f"; waiting {delay_s:.1f} s"
    return Decision(restart=True, reason=reason, delay_s=delay_s)


def _progress(history: History, outcome: AttemptOutcome) -> bool | None:
    """Whether the attempt got further than all before it; None when that cannot be known."""
    if outcome.steps == 0:
        return False
    earlier = history.failed[-1].outcome if history.failed else None
    if earlier is not None and _ended_alike(earlier, outcome) and outcome.steps is not None:
        return False  # it began where the one before began, and came to the same step
    if outcome.new_checkpoint and (
        None in (outcome.checkpoint_step, history.checkpointed_step)
        or (outcome.checkpoint_step or 0) > (history.checkpointed_step or 0)
    ):
        return True
    if outcome.global_step is not None:
        return outcome.global_step > (history.furthest_step or 0)
    if outcome.new_checkpoint is not None:
        return False
    if outcome.steps is None:
        return None
    long_enough_s = max(AT_ONCE_S, 2.0 * (outcome.startup_s or 0.0))
    return True if outcome.lived_s >= long_enough_s else None


def _will_fail_again(history: History) -> Decision | None:
    """The stop of a job whose next attempt would end the same way."""
    last = history.failed[-1].outcome
    if last.never_came_up:
        told = HOPELESS_EXIT_CODES.get(last.exit_code or 0)
        if last.exception is not None:
            hopeless = last.exception.type in HOPELESS_EXCEPTIONS
            told = f"{last.exception.type} would be raised again" if hopeless else None
        if (reason := last.unopened or told) is not None:
            return Decision(restart=False, reason=reason, requeue=False)
    rule = RULES[failure_class(last)]
    if rule.tries is None or _may_be_transient(last):
        return None
    alike = _alike_in_a_row(history.failed, rule)
    if alike < rule.tries:
        return None
    what = rule.again.format(
        exception=None if last.exception is None else last.exception.type,
        exit_code=last.exit_code,
        signal=last.signal,
    )
    often = (
        "" if alike == 1 else f" {_COUNTS.get(alike, f'{alike} times')} without further progress"
    )
    return Decision(restart=False, reason=what + often, requeue=rule.requeue)


def _alike_in_a_row(failed: Sequence[Recorded], rule: Rule) -> int:
    """How many attempts, the last one included, ended alike without new progress between them."""
    last, count = failed[-1].outcome, 1
    for later, earlier in zip(reversed(failed), reversed(failed[:-1]), strict=False):
        same = _same_end(earlier.outcome, last)
        if not later.in_vain or not same:
            break
        if rule.at_step and not _same_step(earlier.outcome, last):
            break
        count += 1
    return count


def _ended_alike(one: AttemptOutcome, other: AttemptOutcome) -> bool:
    """Whether both came to the same end by themselves, at the same step."""
    if RULES[failure_class(other)].tries is None or _may_be_transient(other):
        return False
    return _same_end(one, other) and _same_step(one, other)


def _same_end(one: AttemptOutcome, other: AttemptOutcome) -> bool:
    if failure_class(one) != failure_class(other):
        return False
    if failure_class(other) == "exception":
        if one.exception is None or other.exception is None:
            return False
        return (one.exception.type, one.exception.place) == (
            other.exception.type,
            other.exception.place,
        )
    return (one.exit_code, one.signal) == (other.exit_code, other.signal)


def _same_step(one: AttemptOutcome, other: AttemptOutcome) -> bool:
    steps = [(one.global_step, other.global_step), (one.steps, other.steps)]
    for a, b in steps:
        if a is not None and b is not None:
            return abs(a - b) <= SAME_STEP
    return one.never_came_up and other.never_came_up


def _in_vain(failed: Sequence[Recorded]) -> int:
    """How many of the last attempts, in a row, are known not to have got on."""
    count = 0
    for attempt in reversed(failed):
        if not attempt.in_vain:
            break
        count += 1
    return count


def _delay_s(last: AttemptOutcome, in_vain: int, jitter: float) -> float:
    """Doubling from attempt to attempt in vain, up to the cap, less up to half of it.

    A first one that had at least begun to train is followed at once.
    """
    doublings = in_vain - 1 if not last.steps else in_vain - 2
    if RULES[failure_class(last)].waits:
        doublings = max(doublings, 0)
    if doublings < 0:
        return 0.0
    doubled_s = BACKOFF_BASE_S * 2.0 ** min(doublings, 16)
    return min(BACKOFF_CAP_S, doubled_s) * (0.5 + jitter / 2)


def _why_restart(last: Recorded, in_vain: int, first: bool) -> str:
    if last.progress:
        return f"the attempt made progress ({_where(last.outcome)})"
    if in_vain > 0:
        what = "without further progress" if last.outcome.steps else "without a step"
        in_a_row = " in a row" if in_vain > 1 else ""
        return f"{_times(in_vain, 'attempt')}{in_a_row} {what}"
    if first:
        return "first failure"
    return "unknown whether the attempt got further than the previous one"


def _where(outcome: AttemptOutcome) -> str:
    """To where it got, in words."""
    if outcome.global_step is not None:
        return f"step {outcome.global_step}"
    if outcome.checkpoint_step is not None:
        return f"a checkpoint at step {outcome.checkpoint_step}"
    if outcome.new_checkpoint:
        return f"a checkpoint in attempt {outcome.attempt}"
    return f"{_times(outcome.steps or 0, 'step')} in attempt {outcome.attempt}"


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _may_be_transient(outcome: AttemptOutcome) -> bool:
    if outcome.exception is None or failure_class(outcome) != "exception":
        return False
    text = f"{outcome.exception.type}: {outcome.exception.message}"
    return any(word in text for word in TRANSIENT_WORDS)
