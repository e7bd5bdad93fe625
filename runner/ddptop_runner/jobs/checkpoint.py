"""Requests a checkpoint, and waits until it is detected."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ddptop_runner.base.clock import utc_now
from ddptop_runner.base.errors import ControlError, UsageError, WaitTimeoutError
from ddptop_runner.base.units import name_ranks
from ddptop_runner.job.registry import JobView, read_job
from ddptop_runner.job.save_request import is_taken
from ddptop_runner.jobs import commands
from ddptop_runner.judge.checkpoints import locate
from ddptop_runner.model.protocol import SaveAsked
from ddptop_runner.model.run_step import at_step
from ddptop_runner.model.snapshot import Checkpoint, NodeSnapshot

POLL_S = 0.1
TIMEOUT_S = 60.0
"""How long to wait for a checkpoint by default."""
WHOLE_AFTER_S = 1.5
"""How long after its last file was saved a checkpoint counts as complete."""
CLOCK_STEP_S = 0.05
"""Tolerance for comparing readings of the wall clock."""
ASKABLE = ("running",)
"""Job states in which the script can save."""


SUPPORT = "make the script save on SIGUSR1 or when ddptop.checkpoint_requested() is true"


@dataclass(frozen=True)
class Saved:
    """The first checkpoint after a request."""

    checkpoint: Checkpoint
    responded: bool
    """Whether the script handled a signal or saw the flag file; if not, it saved by itself."""

    def in_words(self) -> str:
        """` at step 120`, and that it was not for the request if so."""
        step = at_step(self.checkpoint)
        own = "(the script's own schedule; it did not respond to the request)"
        return step if self.responded else f"{step} {own}"


def ask(view: JobView) -> SaveAsked:
    """Ask the script of a live job to save now; this never ends a process.

    Raises:
        UsageError: the job has ended, or its ranks are not running.
        ControlError: its supervisor does not answer, or refuses.
    """
    require_running(view)
    return commands.checkpoint(view)


def require_running(view: JobView) -> None:
    """Refuse a live job that cannot save.

    Raises:
        UsageError: the job is live, but its ranks are not running.
    """
    if view.is_live and view.state not in ASKABLE:
        raise UsageError(
            f"{view.job} is {view.state}: no rank can save a checkpoint",
            "try again while it is running",
        )


def answered(snapshot: NodeSnapshot, asked_at: dt.datetime, now: dt.datetime) -> Checkpoint | None:
    """The checkpoint that was begun after `asked_at`, once complete; None until then.

    Args:
        snapshot: the job's snapshot.
        asked_at: when the checkpoint was requested.
        now: the current time; not used for an ended job, whose checkpoint is complete.
    """
    last = snapshot.checkpoint
    if last is None:
        return None
    began = last.at - dt.timedelta(seconds=last.took_s or 0.0)
    if began < asked_at - dt.timedelta(seconds=CLOCK_STEP_S):
        return None
    if snapshot.ended_at is not None:
        return last
    if any(rank.phase == "checkpoint" for rank in snapshot.ranks):
        return None
    return last if (now - last.at).total_seconds() >= WHOLE_AFTER_S else None


def wait(
    view: JobView,
    asked: SaveAsked,
    timeout_s: float = TIMEOUT_S,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Saved:
    """Wait for the checkpoint that answers a request, and until it is complete.

    Args:
        view: the job.
        asked: the request.
        timeout_s: how long to wait.
        is_cancelled: returns whether to stop waiting, as if the time were up.

    Raises:
        WaitTimeoutError: none was detected in time; the message says why, and what to do.
        ControlError: the job ended without one.
    """
    deadline_s = time.monotonic() + timeout_s
    responded = bool(asked.signalled)
    while True:
        was_taken = is_taken(asked.flag_file, asked.flag_stamp)
        view = read_job(view.folder)
        responded = responded or (was_taken and view.is_live)  # the end of a job withdraws the flag
        snapshot = view.snapshot
        found = None if snapshot is None else answered(snapshot, asked.at, utc_now())
        if found is not None:
            if found.inode is not None:
                found = msgspec.structs.replace(found, path=locate(found.path, found.inode))
            return Saved(found, responded)
        if not view.is_live:
            has = "has been" if view.state in ("stopped", "lost") else "has"
            raise ControlError(f"{view.job} {has} {view.state} without saving a checkpoint")
        if time.monotonic() >= deadline_s or is_cancelled():
            raise WaitTimeoutError(*why_none(view, asked, timeout_s))
        time.sleep(POLL_S)


def why_none(view: JobView, asked: SaveAsked, timeout_s: float) -> tuple[str, str]:
    """(that no checkpoint was detected and why, what the user can do)."""
    none = f"no checkpoint from {view.job} was detected within {timeout_s:g} s"
    taken = is_taken(asked.flag_file, asked.flag_stamp)
    if not view.spec.probe:
        why = "the job is running without the probe, which detects checkpoints"
        return f"{none}: {why}", "check where the script saves"
    if taken or asked.signalled:
        how = "the script has consumed the flag file"
        return (
            f"{none}: {how if taken else f'requested by {asked.in_words()}'}",
            "it may need longer (--timeout), or it saves in a way that ddptop cannot detect",
        )
    handles = "the script handles neither SIGUSR1 nor SIGUSR2"
    if asked.refused:
        handles = f"no signal could be sent ({refused_in_words(asked)})"
    return f"{none}: {handles}, and the flag file was not consumed", SUPPORT


def refused_in_words(asked: SaveAsked) -> str:
    """Why ranks that handle a signal got none, as in `ranks 0, 1: paused`."""
    by_reason: dict[str, list[int]] = {}
    for rank, why in asked.refused.items():
        by_reason.setdefault(why, []).append(rank)
    return "; ".join(f"{name_ranks(ranks)}: {why}" for why, ranks in by_reason.items())
