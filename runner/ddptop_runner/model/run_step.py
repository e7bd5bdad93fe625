"""The step of the run: the only place that decides at which step a job and its ranks are. Pure.

A probe counts the optimizer steps of its own attempt. The run's step goes on over restarts: the
script or its trainer reports it, the output prints it, or it follows from the step at which the
attempt began. Where none of these tells, only the attempt's own count is known, and it is named so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddptop_runner.model.snapshot import Checkpoint, NodeSnapshot, RankSample, RunStep


class Printed(NamedTuple):
    """A counter of one rank's output."""

    step: int
    first: int
    """The first step that it told in this attempt."""
    every: int
    """How far apart its last two steps were."""
    total: int | None = None
    of_run: bool = True
    """False: it starts again with each epoch."""


class RankSteps(NamedTuple):
    """What is known of one rank."""

    own: int | None = None
    """Optimizer steps in this attempt, counted by its probe."""
    reported: int | None = None
    """The step that the script reported, or its trainer."""
    total: int | None = None
    """The total that was reported with it."""
    printed: Printed | None = None
    slack: int = 0
    """By so many steps `own` and the other counters may differ, being read at different times."""


def counted(rank: RankSteps, resumed: bool) -> int | None:
    """The step of the run as the rank itself tells it; None where it does not.

    Args:
        rank: what it tells.
        resumed: whether its processes have taken the place of earlier ones.
    """
    if rank.reported is not None:
        return rank.reported
    printed = rank.printed
    if printed is None or not printed.of_run:
        return None
    if resumed and printed.first <= printed.every:
        return None  # it counts from 0 again, whatever was loaded
    if rank.total is not None and printed.total not in (None, rank.total):
        return None  # micro-batches, where the trainer's total is of optimizer steps
    if rank.own is not None and printed.step + printed.every + rank.slack < rank.own:
        return None  # it counts something rarer than steps
    return printed.step


def lead_of(ranks: Iterable[RankSteps], resumed: bool) -> int | None:
    """By how many steps the run is ahead of the attempt's own count."""
    ranks = list(ranks)
    told = [step for rank in ranks if (step := counted(rank, resumed)) is not None]
    own = [rank.own for rank in ranks if rank.own is not None]
    return min(told) - min(own) if told and own else None


def began_at(lead: int | None, slack: int, candidates: Sequence[int], resumed: bool) -> int | None:
    """The step of the run at which an attempt began; None where that is not known.

    Args:
        lead: the most that the run was seen ahead of the attempt's own count; None where nothing
            tells the run's step.
        slack: by so many steps `lead` may be off.
        candidates: steps of the run that earlier attempts saved.
        resumed: whether the attempt has taken the place of an earlier one.
    """
    if not resumed:
        return 0 if lead is None or lead <= slack else None
    if lead is None:
        return None
    nearest = min((0, *candidates), key=lambda one: abs(lead - one))
    return nearest if abs(lead - nearest) <= slack else None


def of_rank(rank: RankSteps, began: int | None, resumed: bool) -> int | None:
    """The step of the run at which a rank is; None where only its own count is known."""
    if rank.reported is not None:
        return rank.reported
    if rank.own is not None:
        return None if began is None else began + rank.own
    return counted(rank, resumed)


def of_job(
    ranks: Sequence[RankSample],
    attempt: int | None,
    began: int | None = None,
    told: Iterable[int | None] = (),
) -> RunStep | None:
    """The job's step: the slowest rank's. None before any step was told.

    Args:
        ranks: each with its own step of the run, where that is known.
        attempt: its number.
        began: the step of the run at which it began; None where that is not known.
        told: the steps that `counted` tells of each rank: the output may count micro-batches, or go
            on from a beginning that is not known.
    """
    steps = [rank.run_step for rank in ranks if rank.run_step is not None]
    steps = steps or [step for step in told if step is not None]
    if steps:
        return RunStep(step=min(steps), counts="run", attempt=attempt, began=began)
    own = [rank for rank in ranks if rank.step is not None]
    if not own:
        return None
    slowest = min(own, key=lambda rank: rank.step or 0)
    return RunStep(step=slowest.step or 0, counts=slowest.step_counts or "attempt", attempt=attempt)


def began_of(last: NodeSnapshot | None, attempt: int | None) -> int | None:
    """The step of the run at which an attempt began, as a job's last snapshot knows it."""
    if attempt is None:
        return None
    if last is not None and last.run_step is not None:
        return last.attempts_began.get(attempt)
    # of an older ddptop
    if attempt == 0:
        return 0
    run = of_snapshot(last)
    if last is None or run is None or run.counts != "run" or attempt != last.attempt:
        return None
    return None if last.step is None or last.progress is None else run.step - last.step


def in_words(rank: RankSample, step: int | None = None) -> str:
    """`step 738`, or `step 98 of this attempt`; empty where it is not known.

    Args:
        rank: whose it is.
        step: one of its own steps in this attempt; None is the last.
    """
    own = rank.step if step is None else step
    if own is None:
        return ""
    if rank.run_step is not None and rank.step is not None:
        return f"step {rank.run_step - rank.step + own:,}"
    whose = f" of this {rank.step_counts}" if rank.step_counts in ("attempt", "epoch") else ""
    return f"step {own:,}{whose}"


def own_in_words(own: int, began: int | None, attempt: int) -> str:
    """`step 738`, or `step 98 of attempt 1` where it is not known where the attempt began."""
    return f"step {own} of attempt {attempt}" if began is None else f"step {began + own}"


def of_snapshot(snapshot: NodeSnapshot | None) -> RunStep | None:
    """The job's step as a snapshot has it; None where none is known.

    One of an older ddptop has the attempt's own step, and the run's beside a total.
    """
    if snapshot is None or snapshot.run_step is not None:
        return None if snapshot is None else snapshot.run_step
    progress, own, attempt = snapshot.progress, snapshot.step, snapshot.attempt
    if progress is not None and progress.counts == "run" and progress.step is not None:
        return RunStep(step=progress.step, counts="run", attempt=attempt)
    if own is None:
        return None
    has_total = progress is None and snapshot.total_steps is not None
    is_own = attempt and not has_total and not is_printed(snapshot)
    return RunStep(step=own, counts="attempt" if is_own else "run", attempt=attempt)


def is_printed(snapshot: NodeSnapshot | None) -> bool:
    """Whether a job's steps are known by its output alone."""
    return snapshot is not None and any(rank.step_source == "log" for rank in snapshot.ranks)


class RunSteps:
    """At which step of the run the present attempt began, learned at each look."""

    def __init__(self) -> None:
        self.resumed = False
        self.began: int | None = 0
        self.attempts_began: dict[int, int] = {}
        """The same of every attempt of which it is known."""
        self._attempt: int | None = None
        self._lead: int | None = None
        self._told: list[int | None] = []

    def recall(self, snapshot: NodeSnapshot, *, resumed: bool) -> None:
        """Go on from what an earlier supervisor had learned."""
        self.attempts_began = dict(snapshot.attempts_began)
        self._attempt, self.resumed = snapshot.attempt, resumed
        if snapshot.attempt is not None:
            self._lead = self.attempts_began.get(snapshot.attempt)

    def look(
        self,
        ranks: Sequence[RankSteps],
        attempt: int,
        *,
        resumed: bool,
        candidates: Sequence[int] = (),
    ) -> None:
        """Take in what the ranks tell now.

        Args:
            ranks: in their order.
            attempt: the present one.
            resumed: see `counted`.
            candidates: see `began_at`.
        """
        if (attempt, resumed) != (self._attempt, self.resumed):
            self._attempt, self.resumed, self._lead, self._told = attempt, resumed, None, []
        told = [counted(rank, resumed) for rank in ranks]
        if told != self._told:  # between two lines of the output the lead only seems to shrink
            self._told = told
            lead = lead_of(ranks, resumed)
            if lead is not None:
                self._lead = lead if self._lead is None else max(self._lead, lead)
        slack = max((rank.slack for rank in ranks), default=0)
        self.began = began_at(self._lead, slack, candidates, resumed)
        if self.began is None:
            self.attempts_began.pop(attempt, None)
        else:
            self.attempts_began[attempt] = self.began


def run_step(saved: Checkpoint | None) -> int | None:
    """Its step of the run; of the first attempt that is its own, if nothing says otherwise."""
    if saved is None or saved.global_step is not None:
        return None if saved is None else saved.global_step
    return saved.step if saved.attempt == 0 else None


def at_step(saved: Checkpoint, *, has_run_steps: bool = False) -> str:
    """` at step 150`, ` at step 400 of the run`, ` at step 150 of attempt 1`; empty if not known.

    Args:
        saved: the checkpoint.
        has_run_steps: whether the run's steps are told, and are not those of the attempt.
    """
    own, of_run = saved.step, saved.global_step
    if of_run is not None:
        return f" at step {of_run}" + (" of the run" if of_run != own or saved.attempt else "")
    if own is None:
        return ""
    is_plain = saved.attempt is None or (saved.attempt == 0 and not has_run_steps)
    return f" at step {own}" + ("" if is_plain else f" of attempt {saved.attempt}")


def step_beside(saved: Checkpoint, attempt: int | None) -> str | None:
    """`step 768`, which is the run's; else `step 128 of this attempt`. None where neither is known.

    Args:
        saved: the checkpoint.
        attempt: the present one.
    """
    if saved.global_step is not None:
        return f"step {saved.global_step:,}"
    if saved.step is None:
        return None
    whose = "this attempt" if saved.attempt == attempt else f"attempt {saved.attempt}"
    return f"step {saved.step:,}" + ("" if saved.attempt is None else f" of {whose}")
