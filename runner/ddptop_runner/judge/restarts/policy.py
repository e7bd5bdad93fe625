"""The restart policy: a pure function from the history of failures to an action and its reason.

A group restarts as a unit. New progress refills the budget: a checkpoint beyond those before, or a
step of the run that no attempt had reached. A job that would fail again is not restarted: after a
usage error, a script that cannot be imported or compiled, an exception before the first step, or
the same failure as before without new progress (`RULES` has the limits). Unknown progress is not
zero progress: it neither refills the budget nor counts as a failed try.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddptop_runner.base.units import plural
from ddptop_runner.model.diagnose import AT_ONCE_S, AttemptOutcome

HOPELESS_EXCEPTIONS = frozenset(
    (
        *("SyntaxError", "IndentationError", "TabError"),
        *("ImportError", "ModuleNotFoundError", "NameError"),
    )
)
"""The same file always raises these again."""

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
"""An exception that contains one of these may be temporary, even before the first step."""

CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})
"""Signals of a crash; all others come from outside and say nothing about the script."""

HOPELESS_EXIT_CODES = {
    2: "the script rejected its arguments (exit status 2)",
    126: "the shell could not execute the command (exit status 126)",
    127: "the shell did not find the command (exit status 127)",
}
"""argparse, click, and most commands exit with 2 on bad arguments."""

SAME_STEP = 1
"""Failures this many steps apart count as the same step, since the last may be unreported."""

BACKOFF_BASE_S = 2.0
BACKOFF_CAP_S = 60.0

OUTCOMES_KEPT = 16
"""As many as any rule needs."""


@dataclass(frozen=True)
class Rule:
    """How the policy treats one class of failures."""

    tries: int | None = None
    """Number of equal failures without progress that stop the job; None if only the budget does."""
    at_step: bool = True
    """Whether equal failures must be at the same step."""
    requeue: bool = True
    """Whether running the job elsewhere or later may then help."""
    waits: bool = False
    """Whether the next attempt waits even if this one made progress."""
    again: str = ""
    """What happened repeatedly, in words."""


RULES: dict[str, Rule] = {
    "exception": Rule(2, at_step=False, requeue=False, again="{exception} raised at the same line"),
    "exit_code": Rule(3, again="exit status {exit_code} at the same step"),
    "crash": Rule(3, again="{signal} at the same step"),
    "signal": Rule(),
    "hang": Rule(3, again="a hang at the same step"),
    "early_exit": Rule(2, requeue=False, again="a rank exited early at the same step"),
    "cuda_oom": Rule(2, requeue=False, waits=True, again="out of GPU memory at the same step"),
    "host_oom": Rule(2, at_step=False, waits=True, again="out of host memory"),
    "nan": Rule(2, requeue=False, again="a non-finite loss at the same step"),
    "gpu": Rule(waits=True),
    "launch": Rule(1, at_step=False, requeue=False, again="no rank could be started"),
    "node": Rule(),
    "unknown": Rule(),
}
"""By failure class, which is the kind of the cause or, for a signal of a crash, `crash`."""


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
    """A failed attempt and its progress beyond those before."""

    outcome: AttemptOutcome
    progress: bool | None
    """Whether it made new progress; None if unknown."""

    @property
    def in_vain(self) -> bool:
        """Whether it is known to have made no progress."""
        return self.progress is False or (self.progress is None and self.outcome.never_came_up)


@dataclass(frozen=True)
class History:
    """The input of the policy."""

    failed: tuple[Recorded, ...] = ()
    """The latest failed attempts, in order, since the last restart requested by a user."""
    used: int = 0
    """Restarts used since the budget was last refilled."""
    furthest_step: int | None = None
    """The furthest step of the run that any attempt reached."""
    checkpointed_step: int | None = None
    """The furthest step of the run with a checkpoint."""
    refilled: str | None = None
    """What last refilled the budget, in words; None if nothing has."""


@dataclass(frozen=True)
class Decision:
    """What to do after a failure."""

    restart: bool
    reason: str
    """In words, for events and screens."""
    delay_s: float = 0.0
    """How long to wait before the restart."""
    requeue: bool | None = True
    """Whether running the job elsewhere or later may help; False: it would fail the same way. None:
    it may help once something about the script or its data has changed, so not by a requeue."""


def record(history: History, outcome: AttemptOutcome) -> History:
    """Add a failed attempt to the history. New progress refills the budget."""
    advanced = _progress(history, outcome)
    filled = bool(advanced) and history.used > 0
    failed = (*history.failed, Recorded(outcome, advanced))[-OUTCOMES_KEPT:]
    return replace(
        history,
        failed=failed,
        used=0 if advanced else history.used,
        furthest_step=_most(history.furthest_step, outcome.global_step),
        checkpointed_step=_most(history.checkpointed_step, outcome.checkpoint_step),
        refilled=_where(outcome) if filled else history.refilled,
    )


def decide(history: History, max_restarts: int, jitter: float) -> Decision:
    """Decide after the last failed attempt of `history`.

    Args:
        history: with at least one failed attempt.
        max_restarts: the full budget.
        jitter: a random number from 0 to 1, to spread the waits.

    Returns:
        Restart after a wait, or stop; the reason is never empty.
    """
    last = history.failed[-1]
    if (stop := _will_fail_again(history)) is not None:
        return stop
    first = len(history.failed) == 1 and history.used == 0
    own_fault = failure_class(last.outcome) in ("exception", "exit_code", "unknown")
    if first and own_fault and last.outcome.never_came_up and not _may_be_transient(last.outcome):
        reason = "the attempt failed before its first step"
        return Decision(restart=False, reason=reason, requeue=None)
    if history.used >= max_restarts:
        spent = "no restarts left"
        if max_restarts > 0:
            spent += f": {plural(history.used, 'restart')} without further progress"
        return Decision(restart=False, reason=spent)
    in_vain = _in_vain(history.failed)
    delay_s = _delay_s(last.outcome, in_vain, jitter)
    reason = _why_restart(last, in_vain, len(history.failed) == 1)
    if delay_s > 0:
        reason += f"; waiting {delay_s:.1f} s"
    return Decision(restart=True, reason=reason, delay_s=delay_s)


def _progress(history: History, outcome: AttemptOutcome) -> bool | None:
    """Whether the attempt got further than all before it; None if unknown."""
    if outcome.steps == 0:
        return False
    earlier = history.failed[-1].outcome if history.failed else None
    if earlier is not None and _ended_alike(earlier, outcome) and outcome.steps is not None:
        return False  # it started where the previous one did, and reached the same step
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
    """The decision to stop, if the next attempt would fail the same way."""
    last = history.failed[-1].outcome
    if last.never_came_up:
        hopeless_reason = HOPELESS_EXIT_CODES.get(last.exit_code or 0)
        if last.exception is not None:
            hopeless = last.exception.type in HOPELESS_EXCEPTIONS
            hopeless_reason = f"{last.exception.type} would be raised again" if hopeless else None
        if (reason := last.unopened or hopeless_reason) is not None:
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
    """Number of attempts, up to the last, that failed alike without new progress between them."""
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
    """Whether both failed the same way, on their own, at the same step."""
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
    """Number of consecutive attempts, up to the last, known to have made no progress."""
    count = 0
    for attempt in reversed(failed):
        if not attempt.in_vain:
            break
        count += 1
    return count


def _delay_s(last: AttemptOutcome, in_vain: int, jitter: float) -> float:
    """The wait, which doubles with each attempt in vain up to the cap, less up to half for jitter.

    There is none after a first failure that made at least one step.
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
        return f"{plural(in_vain, 'attempt')}{in_a_row} {what}"
    if first:
        return "first failure"
    return "unknown whether the attempt got further than the previous one"


def _where(outcome: AttemptOutcome) -> str:
    if outcome.global_step is not None:
        return f"step {outcome.global_step}"
    if outcome.checkpoint_step is not None:
        return f"a checkpoint at step {outcome.checkpoint_step}"
    if outcome.new_checkpoint:
        return f"a checkpoint in attempt {outcome.attempt}"
    return f"{plural(outcome.steps or 0, 'step')} in attempt {outcome.attempt}"


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _may_be_transient(outcome: AttemptOutcome) -> bool:
    if outcome.exception is None or failure_class(outcome) != "exception":
        return False
    text = f"{outcome.exception.type}: {outcome.exception.message}"
    return any(word in text for word in TRANSIENT_WORDS)
