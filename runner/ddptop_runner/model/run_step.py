"""The step of the run: the only place that decides which step a job and its ranks are at. Pure.

A probe counts the optimizer steps of its own attempt. The step of the run continues across
restarts and relaunches. These sources are used, the first that knows it:

1. the script or its trainer reports it;
2. the attempt loaded a checkpoint whose step was recorded when it was saved;
3. the output names it in a line about resuming;
4. the output counts it, at the pace of the optimizer's steps;
5. the output counts the steps of a numbered epoch of known length.

Otherwise only the attempt's own count is known, and is labeled as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ddptop_runner.model.snapshot import Checkpoint, NodeSnapshot, RankSample, RunStep


class Printed(msgspec.Struct, frozen=True):
    """A step counter in one rank's output."""

    step: int
    first: int
    """The first step printed in this attempt."""
    every: int
    """The distance between its last two steps."""
    total: int | None = None
    of_run: bool = True
    """Whether it counts the run; otherwise it restarts with each epoch."""
    by_epoch: int | None = None
    """If it restarts with each epoch: the step of the run, by the number and length of epochs."""


class RankSteps(msgspec.Struct, frozen=True):
    """What is known about one rank's step."""

    own: int | None = None
    """Optimizer steps in this attempt, counted by its probe."""
    reported: int | None = None
    """The step reported by the script or its trainer."""
    total: int | None = None
    """The total reported with it."""
    printed: Printed | None = None
    resumed_at: int | None = None
    """The step of the run at which it resumes, according to its output."""
    slack: int = 0
    """Tolerance between `own` and the other counters, which are read at different times."""


def counted(rank: RankSteps, resumed: bool) -> int | None:
    """The step of the run according to the rank itself; None if it does not report one.

    Args:
        rank: its counters.
        resumed: whether its processes replaced earlier ones.
    """
    if rank.reported is not None:
        return rank.reported
    printed = rank.printed
    if printed is None or not printed.of_run:
        return None
    if resumed and printed.first <= printed.every:
        return None  # it counts from 0, whatever was loaded
    if rank.total is not None and printed.total not in (None, rank.total):
        return None  # counts micro-batches, while the trainer's total counts optimizer steps
    if rank.own is not None and printed.step + printed.every + rank.slack < rank.own:
        return None  # counts something less frequent than steps
    return printed.step


def _by_epochs(rank: RankSteps) -> int | None:
    return None if rank.printed is None else rank.printed.by_epoch


def _shown(rank: RankSteps) -> int | None:
    """The rank's last step other than its own count, whatever it counts."""
    if rank.reported is not None or rank.printed is None:
        return rank.reported
    by_epoch = rank.printed.by_epoch
    return rank.printed.step if rank.printed.of_run or by_epoch is None else by_epoch


def began_at(lead: int | None, slack: int, candidates: Sequence[int], resumed: bool) -> int | None:
    """The step of the run at which an attempt started; None if unknown.

    Args:
        lead: the furthest that the run was ahead of the attempt's own count; None if the step of
            the run is unknown.
        slack: tolerance of `lead`, in steps.
        candidates: steps of the run at which it may have started.
        resumed: whether the attempt replaced an earlier one.
    """
    if lead is None:
        return None if resumed else 0
    if not resumed and lead <= slack:
        return 0
    nearest = min((0, *candidates), key=lambda one: abs(lead - one))
    return nearest if abs(lead - nearest) <= slack else None


def of_rank(rank: RankSteps, began: int | None, resumed: bool) -> int | None:
    """A rank's step of the run; None if only its own count is known."""
    if rank.reported is not None:
        return rank.reported
    if rank.own is not None:
        return None if began is None else began + rank.own
    return counted(rank, resumed)


def placed(rank: RankSample, began: int | None) -> RankSample:
    """A rank of whose step only its own count is known, with the step of the run if that follows.

    Args:
        rank: the rank.
        began: the step of the run at which its attempt started; None if unknown.
    """
    if rank.step is None or rank.run_step is not None:
        return rank
    if rank.step_source == "log":  # from printed steps
        if rank.step_counts is not None:
            return rank
        return msgspec.structs.replace(rank, run_step=rank.step)
    known = None if began is None else began + rank.step
    return msgspec.structs.replace(
        rank, run_step=known, step_counts="attempt" if known is None else None
    )


def alike(ranks: Sequence[RankSample]) -> list[RankSample]:
    """The ranks, all with the step of the run or all with their own counts."""
    if all(rank.step is None or rank.run_step is not None for rank in ranks):
        return list(ranks)
    return [
        msgspec.structs.replace(rank, run_step=None, step_counts="attempt")
        if rank.step is not None and rank.step_source != "log"
        else rank
        for rank in ranks
    ]


STILL_S = 2.0
"""A rank without a step for this long, and for three steps, may have stopped."""


def abreast(snapshot: NodeSnapshot) -> NodeSnapshot:
    """The snapshot, with the slowest rank's step for those that are ahead only because read later.

    Ranks that step together report at different moments. A rank that is further ahead keeps its
    step, and so do all while the slowest may have stopped.
    """
    known = [rank for rank in snapshot.ranks if rank.step is not None]
    last = min(known, key=lambda rank: rank.step or 0, default=None)
    if last is None or last.last_progress_at is None or not last.step_time_s:
        return snapshot
    at, step_s, own = last.last_progress_at, last.step_time_s, last.step or 0
    is_still = (snapshot.ts - at).total_seconds() > max(STILL_S, 3 * step_s)
    if is_still or last.state != "running":
        return snapshot

    def beside(rank: RankSample) -> RankSample:
        if rank.step is None or rank.state != "running" or rank.last_progress_at is None:
            return rank
        lead, later_s = rank.step - own, (rank.last_progress_at - at).total_seconds()
        if lead == 0 or lead > 1 + 1.5 * max(0.0, later_s) / step_s:
            return rank
        of_run = None if rank.run_step is None else rank.run_step - lead
        return msgspec.structs.replace(rank, step=own, run_step=of_run)

    return msgspec.structs.replace(snapshot, ranks=[beside(rank) for rank in snapshot.ranks])


def of_job(
    ranks: Sequence[RankSample],
    attempt: int | None,
    began: int | None = None,
    counts: Iterable[int | None] = (),
) -> RunStep | None:
    """The job's step, which is that of the slowest rank; None before the first.

    Args:
        ranks: each with its own step of the run, if known.
        attempt: its number.
        began: the step of the run at which it started; None if unknown.
        counts: by rank, the result of `counted`; the output may count micro-batches, or continue
            from an unknown start.
    """
    steps = [rank.run_step for rank in ranks if rank.run_step is not None]
    steps = steps or [step for step in counts if step is not None]
    if steps:
        return RunStep(step=min(steps), counts="run", attempt=attempt, began=began)
    own = [rank for rank in ranks if rank.step is not None]
    if not own:
        return None
    slowest = min(own, key=lambda rank: rank.step or 0)
    return RunStep(step=slowest.step or 0, counts=slowest.step_counts or "attempt", attempt=attempt)


def in_words(rank: RankSample, step: int | None = None) -> str:
    """`step 738`, or `step 98 of this attempt`; empty if unknown.

    Args:
        rank: the rank.
        step: one of its own steps in this attempt; defaults to the last.
    """
    own = rank.step if step is None else step
    if own is None:
        return ""
    if rank.run_step is not None and rank.step is not None:
        return f"step {rank.run_step - rank.step + own:,}"
    whose = f" of this {rank.step_counts}" if rank.step_counts in ("attempt", "epoch") else ""
    return f"step {own:,}{whose}"


def own_in_words(own: int, began: int | None, attempt: int) -> str:
    """`step 738`, or `step 98 of attempt 1` if it is unknown where the attempt started."""
    return f"step {own} of attempt {attempt}" if began is None else f"step {began + own}"


def of_snapshot(snapshot: NodeSnapshot | None) -> RunStep | None:
    """The job's step in a snapshot; None if unknown."""
    return None if snapshot is None else snapshot.run_step


def is_printed(snapshot: NodeSnapshot | None) -> bool:
    """Whether a job's steps are known only from its output."""
    return snapshot is not None and any(rank.step_source == "log" for rank in snapshot.ranks)


class RunSteps:
    """Learns the step of the run at which the present attempt started."""

    def __init__(self) -> None:
        self.resumed = False
        self.began: int | None = 0
        self.attempts_began: dict[int, int] = {}
        """The same by attempt, if known."""
        self._attempt: int | None = None
        self._lead: int | None = None
        self._shown: list[int | None] = []
        self._first: tuple[int, int] | None = None
        """(step shown, own steps) when a step was first shown."""
        self._settled: int | None = None
        """The lead, once the steps shown and the own steps have advanced alike."""

    def recall(self, snapshot: NodeSnapshot, *, resumed: bool) -> None:
        """Restore what an earlier supervisor learned."""
        self.attempts_began = dict(snapshot.attempts_began)
        self._attempt, self.resumed = snapshot.attempt, resumed
        if snapshot.attempt is not None:
            self._lead = self._settled = self.attempts_began.get(snapshot.attempt)

    def look(
        self,
        ranks: Sequence[RankSteps],
        attempt: int,
        *,
        resumed: bool,
        candidates: Sequence[int] = (),
        loaded: int | None = None,
    ) -> None:
        """Process the present counters of the ranks.

        Args:
            ranks: in their order.
            attempt: the present one.
            resumed: see `counted`.
            candidates: steps of the run that earlier attempts saved.
            loaded: the step of the run of the checkpoint that the attempt loaded, if known.
        """
        named = next((one.resumed_at for one in ranks if one.resumed_at is not None), None)
        resumed = resumed or named is not None or loaded is not None
        if (attempt, resumed) != (self._attempt, self.resumed):
            self._attempt, self.resumed, self._lead, self._shown = attempt, resumed, None, []
            self._first = self._settled = None
        slack = max((rank.slack for rank in ranks), default=0)
        shown = [_shown(rank) for rank in ranks]
        if shown != self._shown:  # between two lines of output, the lead only appears to shrink
            self._shown = shown
            self._compare(ranks, resumed, slack)
        known = named if loaded is None else loaded
        if known is not None and all(rank.reported is None for rank in ranks):
            self.began = known
        else:
            starts = candidates if known is None else [*candidates, known]
            self.began = began_at(self._lead, slack, starts, resumed)
            if self.began is None:
                self.began = self._settled
        if self.began is None:
            self.attempts_began.pop(attempt, None)
        else:
            self.attempts_began[attempt] = self.began

    def _compare(self, ranks: Sequence[RankSteps], resumed: bool, slack: int) -> None:
        """Measure how far the run's step is ahead of the attempt's own."""
        shown = [step for step in self._shown if step is not None]
        own = [rank.own for rank in ranks if rank.own is not None]
        if not shown or not own:
            return
        steps = min(own)
        self._first = self._first or (min(shown), steps)
        counts = [step for rank in ranks if (step := counted(rank, resumed)) is not None]
        if not counts and resumed:
            counts = [step for rank in ranks if (step := _by_epochs(rank)) is not None]
        if not counts:
            return
        lead = min(counts) - steps
        self._lead = lead if self._lead is None else max(self._lead, lead)
        moved, stepped = min(shown) - self._first[0], steps - self._first[1]
        if stepped > 2 * slack and abs(moved - stepped) <= slack:
            self._settled = self._lead


def run_step(saved: Checkpoint | None) -> int | None:
    """Its step of the run; in the first attempt, its own step unless something else is known."""
    if saved is None or saved.global_step is not None:
        return None if saved is None else saved.global_step
    return saved.step if saved.attempt == 0 else None


def at_step(saved: Checkpoint, *, has_run_steps: bool = False) -> str:
    """` at step 150`, ` at step 400 of the run`, ` at step 150 of attempt 1`; empty if unknown.

    Args:
        saved: the checkpoint.
        has_run_steps: whether the steps of the run are known and differ from the attempt's.
    """
    own, of_run = saved.step, saved.global_step
    if of_run is not None:
        return f" at step {of_run}" + (" of the run" if of_run != own or saved.attempt else "")
    if own is None:
        return ""
    is_plain = saved.attempt is None or (saved.attempt == 0 and not has_run_steps)
    return f" at step {own}" + ("" if is_plain else f" of attempt {saved.attempt}")


def step_beside(saved: Checkpoint, attempt: int | None) -> str | None:
    """`step 768` of the run, or else `step 128 of this attempt`; None if neither is known.

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
